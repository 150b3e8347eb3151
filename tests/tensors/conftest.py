"""Run the Triton kernels on a CUDA device, or without one in Triton's interpreter."""

import os
import sys
from typing import Any

import numba
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Before Triton is imported.
    assert "triton" not in sys.modules or sys.modules["triton"].knobs.runtime.interpret

import triton
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

from dpnoise.integrations import device as device_kernels
from dpnoise.kernels.elementary import fma


@numba.vectorize(["f8(f8, f8, f8)"])
def fused_multiply_add(a: Any, b: Any, c: Any) -> Any:
    return fma(a, b, c)


def _create_fma(_: Any, x: Any, y: Any, z: Any) -> Any:
    # Nearly exact for float32, which is rounded to 53 bits and then to 24.
    exact = fused_multiply_add(x.data, y.data, z.data)
    return TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)


def _get_all_ones_value(_: Any, kind: Any) -> Any:
    ones = ~np.zeros(1, dtype=_get_np_dtype(kind))
    return TensorHandle(ones, kind.scalar)


if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9):
    # Its interpreter rounds twice in a fused multiply-add, and has no ~ for unsigned integers.
    InterpreterBuilder.create_fma = _create_fma
    InterpreterBuilder.get_all_ones_value = _get_all_ones_value


@pytest.fixture(autouse=True)
def _wide_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter make many blocks at once: an operation takes it equally long."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(device_kernels, "_LANES", 1024)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def count() -> int:
    """Return how many numbers to compare: an odd number, so that the last block is incomplete."""
    return 2**21 + 5 if torch.cuda.is_available() else 4_099


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "cuda" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))
