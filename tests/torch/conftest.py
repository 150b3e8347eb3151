"""Runs the Triton kernels on a CUDA device where there is one, and else in Triton's interpreter."""

import os
import sys

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Before anybody imports Triton.
    assert "triton" not in sys.modules or sys.modules["triton"].knobs.runtime.interpret

from dpnoise.integrations import device as device_kernels


@pytest.fixture(autouse=True)
def _wide_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter make many blocks at once, because each operation takes it the same."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(device_kernels, "_LANES", 1024)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def count() -> int:
    """Return how many numbers to compare: an odd number, so that the last block is not whole."""
    return 2**21 + 5 if torch.cuda.is_available() else 4_099


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "cuda" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))
