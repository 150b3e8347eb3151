"""Exact release on a device: launches the kernels and settles on the host what they leave open.

The device decides almost all numbers. As on the processor, the second stage takes as many blocks
of eight as could have an open number, whether they do or not, and its work tells nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dpnoise.arrays import narrowed
from dpnoise.chunks import kernel_named
from dpnoise.entropy import CHACHA20, Key
from dpnoise.errors import ArgumentError
from dpnoise.integrations import triton_noise, triton_release, triton_stream
from dpnoise.release.deciding import ExactForm, judge_at, slots_for

Floats = NDArray[np.float64]
Bounds = tuple[float, float] | None

BLOCK_NUMBERS: Final = 8  # Numbers that one block of the key stream makes.
# Blocks of the key stream that one program makes: a warp's, which needs no barrier.
_LANES: Final = 32
_WARPS: Final = 1
_SETTLED_TOGETHER: Final = 2**16  # Blocks, so that the host's memory does not grow with a call's.
_NUMPY: Final[dict[torch.dtype, np.dtype[Any]]] = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
}
DIGITS: Final = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# NumPy has no bfloat16: its digits and its least exponent.
_BFLOAT16: Final = (8, -126)


def launch(kernel: Any, items: int, *arguments: Any, **options: Any) -> None:
    """Run a kernel over this many blocks or slots."""
    options = {"BLOCK": _LANES, "num_warps": _WARPS, **triton_stream.STRICT, **options}
    kernel[(-(-items // options["BLOCK"]),)](*arguments, **options)


def parameters_for(
    key: Key, device: torch.device, count: int, first_block: int = 0, **floats: float
) -> torch.Tensor:
    """Return what a launch is about, as the kernels read it. It holds the key: wipe it."""
    if key.cipher != CHACHA20:
        raise ArgumentError(f"Expected a key for {CHACHA20} on a device, got one for {key.cipher}.")
    words = np.zeros(triton_stream.PARAMETERS, dtype=np.int64)
    words[:4] = key.for_device()
    words[triton_stream.COUNT.value] = count
    words[triton_stream.FIRST_BLOCK.value] = first_block
    for name, value in floats.items():
        words.view(np.float64)[getattr(triton_stream, name.upper()).value] = value
    there = torch.from_numpy(words).to(device, copy=True)
    words.fill(0)
    return there


def release_floats(
    form: ExactForm, values: torch.Tensor, scale: float, grid: float, bounds: Bounds, key: Key
) -> torch.Tensor:
    """Return the released values of a flat, contiguous tensor, in its format and on its device."""
    out = torch.empty_like(values)
    if values.numel():
        _Release(form, values, scale, grid, bounds, key, out).run()
    return out


@dataclass(frozen=True, eq=False, repr=False)
class _Release:
    """One call. It holds the key and the values, and lives no longer."""

    form: ExactForm
    values: torch.Tensor
    scale: float
    grid: float
    bounds: Bounds
    key: Key
    out: torch.Tensor

    def run(self) -> None:
        try:
            self._release()
        except BaseException:
            self.out.zero_()
            raise

    def _release(self) -> None:
        blocks = -(-self.values.numel() // BLOCK_NUMBERS)
        capacity = slots_for(blocks, 1, self.scale / self.grid, BLOCK_NUMBERS)
        places = torch.arange(capacity, device=self.values.device)
        found = self._first_stage(places)
        if found > capacity:
            self._check_finite()
            places = self._all_open()
        for some in places.split(_SETTLED_TOGETHER):
            self._settle(some)

    def _first_stage(self, places: torch.Tensor) -> int:
        """Fill `out`; list the blocks that are open, and return how many there are."""
        counter = torch.zeros(1, dtype=torch.int64, device=self.values.device)
        whole, rest = divmod(self.values.numel(), BLOCK_NUMBERS)
        if whole:
            self._launch(0, whole, counter, places, ragged=False)
        if rest:
            self._launch(whole, rest, counter, places, ragged=True)
        return int(counter.item())

    def _launch(
        self, first: int, count: int, counter: torch.Tensor, places: torch.Tensor, *, ragged: bool
    ) -> None:
        """Release this many whole blocks from the first on, or the numbers of one that is not."""
        least, most = self.bounds or (0.0, 0.0)
        parameters = parameters_for(
            self.key,
            self.values.device,
            count,
            first,
            ratio=self.scale * (1.0 / self.grid),
            grid=self.grid,
            inverse_grid=1.0 / self.grid,
            whole=2.0**53 * self.grid,
            least=least,
            most=most,
        )
        launch(
            triton_release.release,
            1 if ragged else count,
            self.values[first * BLOCK_NUMBERS :],
            self.out[first * BLOCK_NUMBERS :],
            parameters,
            parameters.view(torch.float64),
            counter,
            places,
            places.numel(),
            pairs=self.form.width > 1,
            clip=self.bounds is not None,
            ragged=ragged,
        )
        parameters.zero_()

    def _check_finite(self) -> None:
        bad = int((~torch.isfinite(self.values)).sum().item())
        if bad:
            raise ArgumentError(f"Expected every value to be finite, got {bad} NaN or infinite.")

    def _all_open(self) -> torch.Tensor:
        """Return all blocks with an open number, where there was no room to list them."""
        numbers = torch.isnan(self.out).nonzero().reshape(-1)
        return torch.unique(numbers // BLOCK_NUMBERS)

    def _settle(self, places: torch.Tensor) -> None:
        """Decide what is open in these blocks, and leave the others as they are."""
        at = places[:, None] * BLOCK_NUMBERS + torch.arange(BLOCK_NUMBERS, device=places.device)
        at = at.reshape(-1)
        beyond = at >= self.values.numel()
        inside = at.masked_fill(beyond, 0)
        values = self.values[inside].double().masked_fill(beyond, 0.0).cpu().numpy()
        results = self.out[inside].double().masked_fill(beyond, 0.0).cpu().numpy()
        if not np.isfinite(values).all():
            self._check_finite()
        width, n = self.form.width, self.form.variates
        elements = at[::width] // width
        words = self._words(triton_stream.words_at, places, BLOCK_NUMBERS).reshape(-1)
        further = np.ascontiguousarray(
            self._words(triton_stream.further_words_at, elements, 2)[:, :n]
        )
        slots = np.arange(elements.numel())
        noise = np.empty((values.size, 4), dtype=np.uint64)
        kernel_named(f"settling.{self.form.name}")(words, further, slots, noise)
        settle = kernel_named("settling.settle_floats")
        if settle(noise, slots, width, values, self.scale, self.grid, results):
            places_of = elements.cpu().numpy()
            for i in np.flatnonzero(np.isnan(results)).tolist():
                slot = i // width
                results[i] = judge_at(
                    self.form,
                    self.key,
                    int(places_of[slot]),
                    i % width,
                    words[slot * n : (slot + 1) * n],
                    (float(values[i]), self.scale, self.grid),
                )
        if self.bounds is not None:
            np.clip(results, *self.bounds, out=results)
        settled = tensor_of(results, self.out.dtype).to(places.device)
        self.out[at[~beyond]] = settled[~beyond]

    def _words(self, kernel: Any, places: torch.Tensor, each: int) -> NDArray[np.uint64]:
        """Return words of the key stream, or further words, of the listed blocks or elements."""
        parameters = parameters_for(self.key, places.device, places.numel())
        out = torch.empty((places.numel(), each), dtype=torch.int64, device=places.device)
        launch(kernel, places.numel(), places, out, parameters)
        words: NDArray[np.uint64] = out.cpu().numpy().view(np.uint64).copy()
        out.zero_()
        parameters.zero_()
        return words


def tensor_of(values: Floats, dtype: torch.dtype) -> torch.Tensor:
    """Return finite float64 as a tensor of a format, rounded once, never -0.0."""
    if dtype != torch.bfloat16:
        return torch.from_numpy(narrowed(values, _NUMPY[dtype]))
    patterns = np.empty(values.size, dtype=np.uint16)
    kernel_named("formats.narrow")(values, *_BFLOAT16, patterns)
    return torch.from_numpy(patterns.view(np.int16)).view(torch.bfloat16)


# Noise -------------------------------------------------------------------------------------------

# By distribution and n: which piece, and how many of it are added.
PIECES: Final = {
    "normal": {
        2: (triton_noise.GAUSSIAN, 1),
        4: (triton_noise.GAUSSIAN, 2),
        8: (triton_noise.GAUSSIAN, 4),
    },
    "laplace": {2: (triton_noise.DIFFERENCE, 1), 4: (triton_noise.LAPLACE, 2)},
    "exponential": {4: (triton_noise.HALF_GAMMA, 2)},
}


def fill(name: str, variates: int, scale: float, out: torch.Tensor, key: Key) -> None:
    """Fill a flat, contiguous tensor with noise of a distribution in PIECES."""
    piece, pieces = PIECES[name][variates]
    words = BLOCK_NUMBERS if out.dtype == torch.float64 else 2 * BLOCK_NUMBERS

    def kernel(part: torch.Tensor, parameters: torch.Tensor, items: int, *, ragged: bool) -> None:
        floats = parameters.view(torch.float64)
        options = {"PIECE": piece.value, "PIECES": pieces, "RAGGED": ragged}
        launch(triton_noise.noise, items, part, parameters, floats, **options)

    _fill(kernel, out, words // (2 * pieces), key, scale)


def fill_uniforms(out: torch.Tensor, key: Key) -> None:
    """Fill a flat, contiguous tensor with uniforms on [0, 1)."""

    def kernel(part: torch.Tensor, parameters: torch.Tensor, items: int, *, ragged: bool) -> None:
        options = {"DIGITS": DIGITS[out.dtype], "RAGGED": ragged}
        launch(triton_noise.uniforms, items, part, parameters, **options)

    _fill(kernel, out, BLOCK_NUMBERS if out.dtype == torch.float64 else 2 * BLOCK_NUMBERS, key, 1.0)


def _fill(
    kernel: Callable[..., None], out: torch.Tensor, each: int, key: Key, scale: float
) -> None:
    """Launch a kernel whose blocks make `each` numbers: for whole blocks, and for what is left."""
    whole, rest = divmod(out.numel(), each)
    for first, count, ragged in ((0, whole, False), (whole, rest, True)):
        if count:
            parameters = parameters_for(key, out.device, count, first, scale=scale)
            kernel(out[first * each :], parameters, 1 if ragged else count, ragged=ragged)
            parameters.zero_()
