"""The floating-point formats of PyTorch tensors that dpnoise supports."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.core.arrays import round_to_dtype
from dpnoise.core.errors import import_extra
from dpnoise.core.kernel_table import formats

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch")

DIGITS: Final = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
NUMPY_TYPES: Final[dict[torch.dtype, np.dtype[Any]]] = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
}
BFLOAT16: Final = (8, -126)  # Significand bits and smallest exponent: NumPy lacks this format.


def tensor_of(values: NDArray[np.float64], dtype: torch.dtype) -> torch.Tensor:
    """Return finite float64 values as a tensor, rounded once to `dtype`, never -0.0."""
    if dtype != torch.bfloat16:
        return torch.from_numpy(round_to_dtype(values, NUMPY_TYPES[dtype]))
    patterns = np.empty(values.size, dtype=np.uint16)
    formats.narrow(values, *BFLOAT16, patterns)
    return torch.from_numpy(patterns.view(np.int16)).view(torch.bfloat16)
