"""Two processes train together: sums are added first, and released once."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import two_processes

from dpnoise.release.additive import GaussianMechanism


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("processes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # FSDP would move the model to one of them.
        torch.multiprocessing.spawn(two_processes.run, args=(str(folder),), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("mode", two_processes.MODES)
def test_both_have_the_same_gradient_on_the_grid(mode: str, both: Any) -> None:
    first, second = (each[mode]["gradient"] for each in both)
    assert torch.equal(first, second)
    grid = {"per layer": 2.0**-18, "adaptive": 2.0**-16}.get(mode, 2.0**-19)
    assert torch.equal(first, (first / grid).round() * grid)
    assert torch.equal(both[0][mode]["weights"], both[1][mode]["weights"])


@pytest.mark.parametrize("mode", ["flat", "per layer", "ghost", "sharded", "uneven"])
def test_without_noise_the_sum_is_that_of_one_process_to_the_last_bit(
    mode: str, both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GaussianMechanism, "release", lambda _self, value, _rng=None: value)
    alone = two_processes.gradient_of(mode, 0, 1)["gradient"]
    assert torch.equal(both[0][f"{mode} alone"]["gradient"], alone)
    assert alone.abs().max() > 0.1


def test_a_bound_that_adapts_is_the_same_on_both(both: Any) -> None:
    first, second = (each["adaptive"]["bound"] for each in both)
    assert first == second != 1.0
    # Without noise: 24 gradients are within the bound of 100, where 12 are expected.
    assert both[0]["adaptive alone"]["bound"] == both[1]["adaptive alone"]["bound"]
    assert both[0]["adaptive alone"]["bound"] == pytest.approx(100 * math.exp(-0.2 * (1.5 - 0.5)))


def test_processes_sample_from_parts_that_do_not_meet(both: Any) -> None:
    """Empty batches are there too, so that the processes stay in step."""
    for mode in two_processes.MODES:
        first, second = (each[mode] for each in both)
        assert not set(first["chosen"]) & set(second["chosen"])
        assert first["batches"] == second["batches"] == 2
