"""Tensors are released as tensors of the same kind, or refused."""

import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import dpnoise
from dpnoise.core.errors import ArgumentError, ArgumentTypeError
from dpnoise.integrations.torch import Generator, release
from dpnoise.testing import fixed_generator

GAUSSIAN = dpnoise.GaussianMechanism.for_scale(2.0, sensitivity=1.0)
LAPLACE = dpnoise.LaplaceMechanism(epsilon=0.5, sensitivity=1.0)
KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE], ids=["gaussian", "laplace"])
@pytest.mark.parametrize(
    "kind", [torch.float64, torch.float32, torch.float16, torch.int32], ids=str
)
def test_a_tensor_on_the_processor_is_released_as_its_array_is(
    mechanism: Any, kind: torch.dtype
) -> None:
    key = os.urandom(32)
    tensor = (100 * torch.randn(7, 3, dtype=torch.float64)).to(kind)
    released = mechanism.release(tensor, fixed_generator(key))
    expected = mechanism.release(tensor.numpy(), fixed_generator(key))
    assert released.shape == tensor.shape
    assert np.array_equal(released.numpy(), expected)
    assert torch.equal(release(mechanism, tensor, fixed_generator(key)), released)


def test_a_bfloat16_is_the_release_of_its_float64_rounded() -> None:
    key = os.urandom(32)
    tensor = (100 * torch.randn(1_001)).bfloat16()
    mechanism = GAUSSIAN.replace(grid=2.0**-8)
    released = mechanism.release(tensor, fixed_generator(key))
    wide = mechanism.release(tensor.double(), fixed_generator(key))
    # float32 represents every grid point here exactly, so there is one rounding.
    assert torch.equal(wide.float().double(), wide)
    assert torch.equal(released, wide.float().bfloat16())


def test_the_bounds_of_a_bfloat16_are_rounded_inward() -> None:
    mechanism = GAUSSIAN.replace(lower=-1.001, upper=0.999)
    released = mechanism.release(torch.zeros(1_000, dtype=torch.bfloat16))
    assert (released.min().item(), released.max().item()) == (-1.0, 0.99609375)
    assert GAUSSIAN.replace(lower=1.001).release(torch.zeros(9).bfloat16()).min() >= 1.0078125


def test_a_huge_bfloat16_saturates() -> None:
    largest = float(torch.finfo(torch.bfloat16).max)
    mechanism = dpnoise.GaussianMechanism.for_scale(2.0**125, sensitivity=1.0)
    released = mechanism.release(torch.full((2_000,), largest, dtype=torch.bfloat16))
    assert torch.isfinite(released).all()
    assert released.max().item() == largest


@pytest.mark.cuda
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE], ids=["gaussian", "laplace"])
def test_a_tensor_on_a_device_is_released_as_on_the_processor(
    mechanism: Any, kind: torch.dtype
) -> None:
    key = os.urandom(32)
    tensor = (100 * torch.randn(1_023, 1_025, dtype=torch.float64)).to(kind)
    on_device = mechanism.release(tensor.cuda(), fixed_generator(key, cipher="ChaCha20"))
    on_processor = mechanism.release(tensor, fixed_generator(key, cipher="ChaCha20"))
    assert (on_device.device.type, on_device.dtype, on_device.shape) == ("cuda", kind, tensor.shape)
    assert torch.equal(on_device.cpu(), on_processor)
    transposed = mechanism.release(tensor.cuda().t(), fixed_generator(key, cipher="ChaCha20"))
    assert transposed.shape == (1_025, 1_023)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(
    ("tensor", "error", "words"),
    [
        (torch.zeros(3, requires_grad=True), ArgumentError, "detach"),
        (torch.nn.Parameter(torch.zeros(3)), ArgumentError, "detach"),
        (torch.tensor([1.0, float("nan")]), ArgumentError, "finite, got 1"),
        (torch.tensor([1.0, float("inf")]), ArgumentError, "finite, got 1"),
        (torch.zeros(3, dtype=torch.complex64), ArgumentTypeError, "complex64"),
        (torch.zeros(3, dtype=torch.bool), ArgumentTypeError, "bool"),
        (torch.zeros(3).to_sparse(), ArgumentTypeError, "dense"),
    ],
    ids=["requires grad", "parameter", "NaN", "infinity", "complex", "bool", "sparse"],
)
def test_tensors_that_cannot_be_released_are_refused(
    tensor: Any, error: type[Exception], words: str, device: str
) -> None:
    moved = tensor if device == "cpu" else tensor.detach().to(device)
    if tensor.requires_grad:
        moved.requires_grad_()
    with pytest.raises(error, match=words):
        GAUSSIAN.release(moved)


def test_a_tensor_on_another_device_and_a_subclass_are_refused() -> None:
    class Wrapped(torch.Tensor):  # type: ignore[misc]
        pass

    with pytest.raises(ArgumentError, match="CPU or on a CUDA device, got meta"):
        GAUSSIAN.release(torch.zeros(3, device="meta"))
    with pytest.raises(ArgumentTypeError, match="plain tensor, got Wrapped"):
        GAUSSIAN.release(torch.zeros(3).as_subclass(Wrapped))
    with pytest.raises(ArgumentTypeError, match="got list"):
        release(GAUSSIAN, [1.0])


@pytest.mark.cuda
def test_a_device_refuses_integers_and_aes() -> None:
    with pytest.raises(ArgumentTypeError, match="must hold floats, got"):
        GAUSSIAN.release(torch.zeros(3, dtype=torch.int64, device="cuda"))
    with pytest.raises(ArgumentError, match="ChaCha20"):
        GAUSSIAN.release(torch.zeros(3, device="cuda"), fixed_generator(bytes(32)))


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_generator_draws_in_every_format(kind: torch.dtype, device: str) -> None:
    """The mean of 40,000 numbers deviates by more than 6 standard errors once in 10^8."""
    rng = Generator(device=device)
    for name, deviation, mean in (("normal", 1, 0), ("laplace", 2**0.5, 0), ("exponential", 1, 1)):
        noise = getattr(rng, name)(scale=3.0, size=(200, 200), dtype=kind)
        assert (noise.dtype, noise.shape, noise.device) == (kind, (200, 200), rng.device)
        # Rounding to the format changes a mean by less than its unit.
        slack = 6 * 3 * deviation / 200 + 4 * torch.finfo(kind).eps
        assert abs(float(noise.double().mean()) - 3 * mean) < slack
    uniforms = rng.random(size=40_000, dtype=kind).double()
    assert float(uniforms.min()) >= 0
    assert float(uniforms.max()) < 1
    # They are truncated, which loses at most half a unit of 2^-8.
    assert abs(float(uniforms.mean()) - 0.5) < 6 * 12**-0.5 / 200 + 2.0**-8


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_out_is_filled_and_returned(device: str) -> None:
    rng, out = Generator(device=device), torch.zeros(5, 7, device=device)
    assert rng.laplace(out=out) is out
    assert (out != 0).all()
    assert rng.normal().shape == ()
    assert rng.normal(scale=1.0, size=0).shape == (0,)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"scale": -1.0}, ArgumentError, "scale must be greater than 0"),
        ({"size": -1}, ArgumentError, "size must be at least 0"),
        ({"dtype": torch.int32}, ArgumentError, "dtype must be one of"),
        ({"variates": 3}, ArgumentError, "variates must be one of"),
        ({"out": torch.zeros(4, 4).t()}, ArgumentError, "contiguous"),
        ({"out": torch.zeros(4, requires_grad=True)}, ArgumentError, "detach"),
        ({"out": torch.zeros(4, dtype=torch.int32)}, ArgumentTypeError, "int32"),
        ({"out": torch.zeros(4), "size": 3}, ArgumentError, "the shape of out"),
        ({"out": torch.zeros(4), "dtype": torch.float64}, ArgumentTypeError, "float64"),
        ({"out": torch.zeros(4, device="meta")}, ArgumentError, "meta"),
        ({"out": np.zeros(4)}, ArgumentTypeError, "got ndarray"),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_bad_arguments_of_a_generator_are_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Generator(device="cpu").normal(**options)


@pytest.mark.cuda
def test_a_tensor_of_the_processor_is_refused_as_out_of_a_device() -> None:
    with pytest.raises(ArgumentError, match="out must be on cuda:0, got cpu"):
        Generator(device="cuda").normal(out=torch.zeros(4))


@pytest.mark.parametrize("device", ["meta", "no such device", 3.5, None])
def test_a_device_that_is_none_is_refused(device: Any) -> None:
    with pytest.raises(ArgumentError, match="device"):
        Generator(device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_asking_for_one_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="finds no CUDA device"):
        Generator(device="cuda")


def test_a_generator_holds_no_secret() -> None:
    rng = Generator(device="cpu")
    assert pickle.loads(pickle.dumps(rng)) == rng
    assert repr(rng) == "Generator(device=device(type='cpu'))"
    assert not torch.equal(rng.normal(scale=1.0, size=50), rng.normal(scale=1.0, size=50))
