"""Exact release on a device equals the processor and the reference to the last bit."""

import os
from typing import Any

import numpy as np
import pytest
import torch

from dpnoise.core import reference
from dpnoise.core.entropy import AES, CHACHA20, WORD, Key
from dpnoise.core.errors import ArgumentError
from dpnoise.integrations import device as kernels
from dpnoise.integrations.tensor_formats import tensor_of
from dpnoise.release import exact
from dpnoise.release.exact import GAUSSIAN_PAIRS, LAPLACE_1, AdditiveForm

FORMS = [LAPLACE_1, GAUSSIAN_PAIRS]
KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def bounds_of(kind: torch.dtype) -> tuple[float, float] | None:
    largest = float(torch.finfo(kind).max)
    return None if kind == torch.float64 else (-largest, largest)


def on_the_processor(
    form: AdditiveForm, values: torch.Tensor, scale: float, grid: float, key: Key
) -> torch.Tensor:
    wide = values.double().numpy()
    out = exact.release_floats(form, wide, scale, grid, key, None)
    bounds = bounds_of(values.dtype)
    return tensor_of(out if bounds is None else np.clip(out, *bounds), values.dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    equal: bool = torch.equal(a.cpu().view(integers), b.cpu().view(integers))
    return equal and a.dtype == b.dtype


def values_for(count: int, kind: torch.dtype) -> torch.Tensor:
    """Return values of many sizes, including huge ones, subnormals and both zeros."""
    rng = np.random.default_rng()
    wide = rng.normal(size=count) * 2.0 ** rng.integers(-6, 8, size=count)
    values = torch.from_numpy(wide).to(kind)
    info = torch.finfo(kind)
    special = [0.0, -0.0, info.max, -info.max, info.tiny, info.smallest_normal / 2, -info.tiny / 4]
    values[: len(special)] = torch.tensor(special, dtype=torch.float64).to(kind)
    return values


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_device_releases_what_the_processor_does(
    form: AdditiveForm, kind: torch.dtype, device: torch.device, count: int
) -> None:
    """On the second grid thousands of numbers are open after the first stage."""
    key = Key(os.urandom(32), CHACHA20)
    values = values_for(count, kind)
    for scale, grid in ((1.5, 2.0**-20), (0.7, 2.0**-32)):
        out = kernels.release_floats(form, values.to(device), scale, grid, bounds_of(kind), key)
        assert same_bits(out, on_the_processor(form, values, scale, grid, key))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_device_releases_what_the_reference_does(
    form: AdditiveForm, device: torch.device
) -> None:
    key = Key(os.urandom(32), CHACHA20)
    values = values_for(61, torch.float64)
    scale, grid = 3.0, 2.0**-12
    out = kernels.release_floats(form, values.to(device), scale, grid, None, key).tolist()
    n, width = form.variates, form.width
    words = np.empty(64 * n, dtype=WORD)
    key.stream().fill(words)
    for i, value in enumerate(values.tolist()):
        element = i // width
        rows = exact.rows_from_key(key, element, words[element * n : (element + 1) * n])
        cell = reference.released_whole(form.formulas[i % width], rows, value, scale, grid)
        assert out[i] == exact.nearest_float(cell, grid)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_finest_grid_leaves_everything_to_the_host(
    form: AdditiveForm, device: torch.device
) -> None:
    key = Key(os.urandom(32), CHACHA20)
    values = values_for(83, torch.float64)
    grid = 2.0**-50
    out = kernels.release_floats(form, values.to(device), 1.0, grid, None, key)
    assert same_bits(out, on_the_processor(form, values, 1.0, grid, key))


def test_a_list_that_is_too_short_is_made_again(
    device: torch.device, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "slots_for", lambda *_: 2)
    key = Key(os.urandom(32), CHACHA20)
    values = values_for(count, torch.float32)
    scale, grid = 1.0, 2.0**-34
    out = kernels.release_floats(
        LAPLACE_1, values.to(device), scale, grid, bounds_of(torch.float32), key
    )
    assert same_bits(out, on_the_processor(LAPLACE_1, values, scale, grid, key))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 15, 17])
def test_short_tensors_are_released_whole(count: int, device: torch.device) -> None:
    key = Key(os.urandom(32), CHACHA20)
    values = values_for(count + 7, torch.float32)[7:].clone()
    out = kernels.release_floats(
        GAUSSIAN_PAIRS, values.to(device), 1.0, 2.0**-20, bounds_of(torch.float32), key
    )
    assert same_bits(out, on_the_processor(GAUSSIAN_PAIRS, values, 1.0, 2.0**-20, key))


def test_bounds_hold(device: torch.device) -> None:
    key = Key(os.urandom(32), CHACHA20)
    for kind in KINDS:
        values = torch.zeros(1_000, dtype=kind, device=device)
        out = kernels.release_floats(LAPLACE_1, values, 4.0, 2.0**-18, (-1.0, 0.5), key)
        assert (out.min().item(), out.max().item()) == (-1.0, 0.5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("how_many", [1, 300])
def test_a_value_that_is_not_finite_is_refused_and_none_is_released(
    bad: float, how_many: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated: list[Any] = []
    empty_like = torch.empty_like

    def record_result(like: Any) -> Any:
        allocated.append(empty_like(like))
        return allocated[-1]

    monkeypatch.setattr(torch, "empty_like", record_result)
    memory = kernels._DeviceRelease._memory

    def record_memory(self: Any, *sizes: int) -> Any:
        allocated.append(memory(self, *sizes))
        return allocated[-1]

    monkeypatch.setattr(kernels._DeviceRelease, "_memory", record_memory)
    values = torch.ones(1_200, device=device)
    values[:how_many] = bad
    key = Key(os.urandom(32), CHACHA20)
    with pytest.raises(ArgumentError, match=f"finite, got {how_many} NaN or infinite"):
        kernels.release_floats(LAPLACE_1, values, 1.0, 2.0**-20, bounds_of(torch.float32), key)
    result, others = allocated
    assert not result.any(), "noise is left in the memory of the result"
    assert not others.any(), "a key is left in the memory of the call"


def test_a_key_for_another_cipher_is_refused(device: torch.device) -> None:
    key = Key(os.urandom(32), AES)
    with pytest.raises(ArgumentError, match="ChaCha20"):
        kernels.release_floats(LAPLACE_1, torch.ones(9, device=device), 1.0, 1.0, None, key)


@pytest.mark.cuda
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_first_stage_leaves_the_same_numbers_open_as_on_the_processor(
    form: AdditiveForm, device: torch.device, count: int
) -> None:
    """The operations and their order are the same, so the open numbers agree too."""
    key = Key(os.urandom(32), CHACHA20)
    values, out = values_for(count, torch.float64), torch.empty(count, dtype=torch.float64)
    scale, grid = 1.0, 2.0**-34
    device_out = out.to(device)
    release = kernels._DeviceRelease(form, values.to(device), scale, grid, None, key, device_out)
    parameters = torch.from_numpy(release._parameters().reshape(-1)).to(device)
    counter, listed = torch.zeros(2, 8, dtype=torch.int64, device=device)
    release._first_stage(parameters, counter, listed)
    words = np.empty(-(-count // form.width) * form.variates, dtype=WORD)
    key.stream().fill(words)
    kernel = form.first_stage()
    kernel(words, 64, values.numpy(), scale, grid, out.numpy())
    assert 10 < int(out.isnan().sum()) < count / 2
    assert torch.equal(out.isnan(), device_out.cpu().isnan())
    assert torch.equal(out.nan_to_num(), device_out.cpu().nan_to_num())
