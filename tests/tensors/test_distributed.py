"""Two processes train together: their sums are added and released once."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import two_processes

from dpnoise.release.additive import GaussianMechanism


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("processes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # FSDP would move the model to one of them.
        torch.multiprocessing.spawn(two_processes.run, args=(str(folder),), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("mode", two_processes.MODES)
def test_both_have_the_same_gradient_on_the_grid(mode: str, results: Any) -> None:
    first, second = (each[mode]["gradient"] for each in results)
    assert torch.equal(first, second)
    grid = {"per layer": 2.0**-18, "adaptive": 2.0**-16}.get(mode, 2.0**-19)
    assert torch.equal(first, (first / grid).round() * grid)
    assert torch.equal(results[0][mode]["weights"], results[1][mode]["weights"])


@pytest.mark.parametrize("mode", ["flat", "per layer", "ghost", "sharded", "uneven"])
def test_without_noise_the_sum_is_that_of_one_process_to_the_last_bit(
    mode: str, results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GaussianMechanism, "release", lambda _self, value, _rng=None: value)
    single_process = two_processes.gradient_of(mode, 0, 1)["gradient"]
    assert torch.equal(results[0][f"{mode} without noise"]["gradient"], single_process)
    assert single_process.abs().max() > 0.1


@pytest.mark.parametrize("mode", two_processes.MODES)
def test_no_secret_gradient_stays_after_a_step(mode: str, results: Any) -> None:
    assert [each[mode]["secrets"] for each in results] == [0, 0]


def test_a_bound_that_adapts_is_the_same_on_both(results: Any) -> None:
    first, second = (each["adaptive"]["bound"] for each in results)
    assert first == second != 1.0
    # Without noise, 24 gradients are within the bound of 100; 12 are expected.
    assert (
        results[0]["adaptive without noise"]["bound"]
        == results[1]["adaptive without noise"]["bound"]
    )
    assert results[0]["adaptive without noise"]["bound"] == pytest.approx(
        100 * math.exp(-0.2 * (1.5 - 0.5))
    )


def test_processes_sample_from_disjoint_parts(results: Any) -> None:
    """Empty batches are kept, so that the processes stay in step."""
    for mode in two_processes.MODES:
        first, second = (each[mode] for each in results)
        assert not set(first["chosen"]) & set(second["chosen"])
        assert first["batches"] == second["batches"] == 2
