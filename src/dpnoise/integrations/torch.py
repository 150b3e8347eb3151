"""PyTorch: exact release of tensors, and secure noise, on the processor and on CUDA devices.

`mechanism.release(tensor)` needs no import of this module. Nothing here falls back to the
generators of PyTorch: an operation that cannot be secure is an error.
"""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

import numpy as np

from dpnoise.core.entropy import CHACHA20, SYSTEM
from dpnoise.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_choice,
    check_integer,
    check_positive,
    import_extra,
    reject,
    scrub_traceback,
)
from dpnoise.core.kernel_table import formats, import_uninterrupted
from dpnoise.integrations.tensor_formats import BFLOAT16, DIGITS, NUMPY_TYPES, tensor_of
from dpnoise.noise.generator import Generator as _ProcessorGenerator
from dpnoise.noise.generator import Size, explain_positions
from dpnoise.release import exact
from dpnoise.release.additive import GaussianMechanism, LaplaceMechanism
from dpnoise.release.containers import TensorTask

if TYPE_CHECKING:
    import torch
else:
    torch = import_extra("torch", "torch")

__all__ = ["Generator", "release"]

_INTEGERS: Final = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_ALLOWED_VARIATES: Final = {
    "random": (1,),
    "normal": (2, 4, 8),
    "laplace": (2, 4),
    "exponential": (4,),
}


def release(
    mechanism: LaplaceMechanism | GaussianMechanism,
    tensor: torch.Tensor,
    rng: _ProcessorGenerator | None = None,
) -> torch.Tensor:
    """Release a tensor exactly, as `mechanism.release` does, with the same dtype and device.

    Parameters
    ----------
    mechanism
        A LaplaceMechanism or a GaussianMechanism.
    tensor
        float64, float32, float16 or bfloat16 on the processor or a CUDA device; on the processor
        also integers, which are released as int64.
    rng
        As for `mechanism.release`.

    Examples
    --------
    >>> import dpnoise, torch
    >>> mechanism = dpnoise.GaussianMechanism.for_scale(2.0, sensitivity=1.0)
    >>> release(mechanism, torch.zeros(3, dtype=torch.bfloat16)).dtype
    torch.bfloat16
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(f"tensor must be a PyTorch tensor, got {type(tensor).__name__}.")
    return mechanism.release(tensor, rng)


def release_tensor(
    task: TensorTask, tensor: torch.Tensor, rng: _ProcessorGenerator
) -> torch.Tensor:
    """Release a tensor of any supported dtype; `mechanism.release` calls this."""
    _check_tensor("value", tensor)
    if tensor.dtype not in (*DIGITS, *_INTEGERS):
        raise ArgumentTypeError(f"The tensor must hold integers or floats, got {tensor.dtype}.")
    resolved = tensor.resolve_neg()
    if tensor.device.type == "cuda":
        return _release_on_device(task, resolved, rng)
    if tensor.dtype == torch.bfloat16:
        return _release_bfloat16(task, resolved, rng)
    return torch.from_numpy(np.asarray(task.release_array(resolved.numpy())))


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Raise unless this is a plain, dense tensor without gradient, on a supported device."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise ArgumentTypeError(
            f"{name} must be a plain tensor, got {type(tensor).__name__}: give the plain "
            "one that it wraps."
        )
    if tensor.requires_grad:
        raise ArgumentError(f"{name} must not require a gradient: give {name}.detach().")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ArgumentTypeError(f"{name} must be dense, got {tensor.layout}: give a copy.")
    if tensor.device.type not in {"cpu", "cuda"}:
        raise ArgumentError(f"{name} must be on the CPU or on a CUDA device, got {tensor.device}.")


def import_kernels() -> tuple[ModuleType, ModuleType]:
    """Import the two modules that need Triton: `device` and `triton_clipping`."""
    import_extra("triton", "torch")
    return import_uninterrupted(_import_triton)


def _import_triton() -> tuple[ModuleType, ModuleType]:
    from dpnoise.integrations import device, triton_clipping  # noqa: PLC0415 - they import Triton

    return device, triton_clipping


def _release_on_device(
    task: TensorTask, tensor: torch.Tensor, rng: _ProcessorGenerator
) -> torch.Tensor:
    if tensor.dtype not in DIGITS:
        raise ArgumentTypeError(
            f"On a CUDA device tensors must hold floats, got {tensor.dtype}: release tensor.cpu()."
        )
    kernels, _ = import_kernels()
    is_bfloat16 = tensor.dtype == torch.bfloat16
    bounds = _bfloat16_bounds(task) if is_bfloat16 else task.bounds(NUMPY_TYPES[tensor.dtype])
    flat = tensor.contiguous().reshape(-1)
    key = rng.source.key(CHACHA20)
    with torch.cuda.device(tensor.device):
        out = kernels.release_floats(task.form, flat, task.scale, task.grid, bounds, key)
    return out.reshape(tensor.shape)


def _bfloat16_bounds(task: TensorTask) -> tuple[float, float]:
    """Return the smallest and the largest bfloat16 within the bounds."""
    single = task.bounds(np.dtype(np.float32)) or (-math.inf, math.inf)
    least, most = -_bfloat16_at_most(-single[0]), _bfloat16_at_most(single[1])
    if least > most:
        reject(
            "lower", single[0], f"be so far below upper={single[1]} that a bfloat16 lies between"
        )
    # Adding 0.0 turns -0.0 into 0.0.
    return 0.0 + least, 0.0 + most


def _bfloat16_at_most(bound: float) -> float:
    """Return the largest finite bfloat16 that is at most a float32, by truncating its bits."""
    largest = float(torch.finfo(torch.bfloat16).max)
    bits = int(np.float32(min(bound, largest)).view(np.uint32))
    truncated = bits >> 16
    if bits >> 31 and bits & 0xFFFF:
        truncated += 1  # Truncation moves a negative number up, so take the next one below.
    return float(np.uint32(truncated << 16).view(np.float32))


def _release_bfloat16(
    task: TensorTask, tensor: torch.Tensor, rng: _ProcessorGenerator
) -> torch.Tensor:
    """Release a bfloat16 tensor, a format that NumPy lacks."""
    bounds = _bfloat16_bounds(task)
    patterns = tensor.contiguous().reshape(-1).view(torch.int16).numpy().view(np.uint16)
    values = np.empty(patterns.size)
    formats.widen(patterns, *BFLOAT16, values)
    exact.check_finite(values, rng.threads)
    key, threads = rng.source.key(), rng.threads
    out = exact.release_floats(task.form, values, task.scale, task.grid, key, threads)
    np.clip(out, *bounds, out=out)
    return tensor_of(out, torch.bfloat16).reshape(tensor.shape)


class TensorDrawOptions(TypedDict, total=False):
    """The common arguments of the methods of a Generator, except `scale` and `size`."""

    dtype: torch.dtype | None
    out: torch.Tensor | None
    variates: int


@dataclass(frozen=True)
class Generator:
    """Draws noise into tensors. Each number is computed from n secure uniforms, 4 by default.

    Every call draws a fresh 256-bit key from the operating system. On a CUDA device, one kernel
    computes the key stream of ChaCha20 and the noise, in registers. On the processor,
    `dpnoise.Generator` draws the noise. A Generator has no seed and no state. Noise that is added
    to a secret in floating point can reveal it, even if the noise is secure. `release` avoids this.

    float64 noise is made of uniforms of 53 bits. Narrower formats are drawn in float32, from
    uniforms of 24 bits, and rounded once.

    All drawing methods take `size` (an int, a tuple, or None for one number), `dtype`, and `out` (a
    tensor to fill). All except `random` take `scale` and `variates` (n).

    Parameters
    ----------
    device
        "cpu", "cuda", "cuda:1" or a torch.device.

    Examples
    --------
    >>> rng = Generator(device="cpu")
    >>> rng.normal(scale=2.0, size=(2, 3)).shape
    torch.Size([2, 3])
    """

    device: torch.device = "cpu"

    def __post_init__(self) -> None:
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError):
            reject("device", self.device, 'be "cpu" or a CUDA device')
        if device.type == "cuda":
            if not torch.cuda.is_available():
                reject("device", self.device, "exist: PyTorch finds no CUDA device")
            index = torch.cuda.current_device() if device.index is None else device.index
            if index >= torch.cuda.device_count():
                reject("device", self.device, f"be one of {torch.cuda.device_count()}")
            device = torch.device("cuda", index)
            import_kernels()
        elif device.type != "cpu":
            reject("device", self.device, 'be "cpu" or a CUDA device')
        object.__setattr__(self, "device", device)

    @explain_positions
    def random(
        self,
        *,
        size: Size = None,
        dtype: torch.dtype | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Draw uniforms on [0, 1), of 53, 24, 11 or 8 bits, depending on the format."""
        return self._draw("random", 1.0, size, dtype=dtype, out=out, variates=1)

    @explain_positions
    def normal(
        self, *, scale: float = 1.0, size: Size = None, **options: Unpack[TensorDrawOptions]
    ) -> torch.Tensor:
        """Draw Gaussian noise with mean 0 and standard deviation `scale`; n is 2, 4 or 8."""
        return self._draw("normal", scale, size, **options)

    @explain_positions
    def laplace(
        self, *, scale: float = 1.0, size: Size = None, **options: Unpack[TensorDrawOptions]
    ) -> torch.Tensor:
        """Draw Laplace noise with mean 0 and this scale; n is 2 or 4 (Theorem 5.1)."""
        return self._draw("laplace", scale, size, **options)

    @explain_positions
    def exponential(
        self, *, scale: float = 1.0, size: Size = None, **options: Unpack[TensorDrawOptions]
    ) -> torch.Tensor:
        """Draw exponential variates with this mean; n is 4."""
        return self._draw("exponential", scale, size, **options)

    @scrub_traceback
    def _draw(
        self,
        name: str,
        scale: float,
        size: Size,
        *,
        dtype: torch.dtype | None = None,
        out: torch.Tensor | None = None,
        variates: int = 4,
    ) -> torch.Tensor:
        """Check all arguments, then draw. If a check fails, `out` is unchanged."""
        scale = check_positive("scale", scale)
        variates = check_integer("variates", variates, least=1)
        check_choice("variates", variates, _ALLOWED_VARIATES[name])
        if dtype is not None and dtype not in DIGITS:
            reject("dtype", dtype, "be one of " + ", ".join(map(str, DIGITS)))
        result = self._empty(size, dtype) if out is None else self._check_out(out, size, dtype)
        if result.numel():
            draw = _draw_on_device if self.device.type == "cuda" else _draw_on_processor
            draw(name, scale, variates, result.view(-1))
        return result

    def _empty(self, size: Size, dtype: torch.dtype | None) -> torch.Tensor:
        entries = size if isinstance(size, tuple) else () if size is None else (size,)
        shape = tuple(check_integer("size", entry, least=0) for entry in entries)
        return torch.empty(shape, dtype=dtype or torch.get_default_dtype(), device=self.device)

    def _check_out(self, out: torch.Tensor, size: Size, dtype: torch.dtype | None) -> torch.Tensor:
        if not isinstance(out, torch.Tensor):
            raise ArgumentTypeError(f"out must be a tensor, got {type(out).__name__}.")
        _check_tensor("out", out)
        if out.device != self.device:
            raise ArgumentError(f"out must be on {self.device}, got {out.device}.")
        if out.dtype not in DIGITS or dtype not in {None, out.dtype}:
            raise ArgumentTypeError(f"out must have dtype {dtype or 'float'}, got {out.dtype}.")
        if not out.is_contiguous() or out.is_neg():
            raise ArgumentError(
                "out must be contiguous and not a negated view: "
                "give out.resolve_neg().contiguous()."
            )
        if size is not None and tuple(out.shape) != (size if isinstance(size, tuple) else (size,)):
            reject("size", size, f"be the shape of out, {tuple(out.shape)}")
        return out


def _draw_on_processor(name: str, scale: float, variates: int, flat: torch.Tensor) -> None:
    rng = _ProcessorGenerator()
    wide = flat if flat.dtype in {torch.float64, torch.float32} else flat.float()
    if name == "random":
        rng.random(out=wide.numpy(), precision=DIGITS[flat.dtype])
    else:
        getattr(rng, name)(scale=scale, out=wide.numpy(), variates=variates)
    if wide is not flat:
        flat.copy_(wide)


def _draw_on_device(name: str, scale: float, variates: int, flat: torch.Tensor) -> None:
    (kernels, _), key = import_kernels(), SYSTEM.key(CHACHA20)
    with torch.cuda.device(flat.device):
        if name == "random":
            kernels.fill_uniforms(flat, key)
        else:
            kernels.fill(name, variates, scale, flat, key)
