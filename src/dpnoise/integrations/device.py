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

from dpnoise.core.arrays import narrowed
from dpnoise.core.entropy import CHACHA20, Key
from dpnoise.core.errors import ArgumentError
from dpnoise.core.kernel_table import formats, second_stage
from dpnoise.integrations import triton_noise, triton_open, triton_release, triton_stream
from dpnoise.integrations.triton_stream import INTERPRETED
from dpnoise.release.exact import AdditiveForm, judge_at, slots_for

Floats = NDArray[np.float64]
Bounds = tuple[float, float] | None

BLOCK_NUMBERS: Final = 8  # Numbers that one block of the key stream makes.
# Blocks of the key stream that one program makes: a warp's, which needs no barrier.
_LANES: Final = 32
_WARPS: Final = 1
_SHAPES: Final[dict[int, dict[str, int]]] = {
    1: {},
    2: {} if INTERPRETED else {"maxnreg": 128},
}
_NOISE_SHAPE: Final = {} if INTERPRETED else {"BLOCK": 256, "num_warps": 8}
_PARAMETERS: Final = 2 * triton_stream.PARAMETERS
_SETTLED_TOGETHER: Final = 2**16  # Elements, so that the host's memory does not grow with a call's.
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


def parameter_words(key: Key, *runs: tuple[int, int], **floats: float) -> NDArray[np.int64]:
    """Return what launches are about, a row each, as the kernels read it, and a run of blocks each.

    A run is its first block and a count. The rows hold the key: wipe them.
    """
    if key.cipher != CHACHA20:
        raise ArgumentError(f"Expected a key for {CHACHA20} on a device, got one for {key.cipher}.")
    words = np.zeros((len(runs), triton_stream.PARAMETERS), dtype=np.int64)
    words[:, :4] = key.for_device()
    words[:, triton_stream.FIRST_BLOCK.value] = [first for first, _ in runs]
    words[:, triton_stream.COUNT.value] = [count for _, count in runs]
    for name, value in floats.items():
        words.view(np.float64)[:, getattr(triton_stream, name.upper()).value] = value
    return words


def moved(words: NDArray[np.int64], out: torch.Tensor) -> torch.Tensor:
    """Write words to the start of a device's tensor, without waiting for it, and wipe them here."""
    # What is not pinned has been read when this returns.
    out[: words.size].copy_(torch.from_numpy(words.reshape(-1)), non_blocking=not INTERPRETED)
    words.fill(0)
    return out


def parameters_for(
    key: Key, device: torch.device, *runs: tuple[int, int], **floats: float
) -> torch.Tensor:
    """Return the same on a device."""
    words = parameter_words(key, *runs, **floats)
    return moved(words, torch.empty(words.size, dtype=torch.int64, device=device)).view(words.shape)


def release_floats(
    form: AdditiveForm, values: torch.Tensor, scale: float, grid: float, bounds: Bounds, key: Key
) -> torch.Tensor:
    """Return the released values of a flat, contiguous tensor, in its format and on its device."""
    out = torch.empty_like(values)
    if values.numel():
        _Release(form, values, scale, grid, bounds, key, out).run()
    return out


@dataclass(frozen=True, eq=False, repr=False)
class _Release:
    """One call. It holds the key and the values, and lives no longer."""

    form: AdditiveForm
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
        numbers, width, ratio = self.values.numel(), self.form.width, self.scale / self.grid
        blocks = slots_for(-(-numbers // BLOCK_NUMBERS), 1, ratio, BLOCK_NUMBERS)
        elements = slots_for(-(-numbers // width), 1, ratio, width)
        # Even, so that all memory begins where 16 bytes do: for others Triton would compile anew.
        blocks, elements = blocks + blocks % 2, elements + elements % 2
        memory = self._memory(blocks, elements)
        try:
            sizes = [_PARAMETERS, 2 + elements, blocks]
            parameters, places, listed, rows = memory.split([*sizes, memory.numel() - sum(sizes)])
            self._first_stage(parameters, places, listed)
            launch(
                triton_open.list_elements,
                blocks,
                listed,
                blocks,
                self.out,
                numbers,
                places,
                places[2:],
                elements,
                WIDTH=width,
            )
            fetched = self._fetched(parameters, places, rows)
            if fetched[0, 0] > blocks or fetched[1, 0] > elements:
                self._check_finite()
                for some in self._all_open().split(_SETTLED_TOGETHER):
                    more = rows.new_empty(some.numel() * self._row)
                    fetched = self._fetched(parameters, some, more)
                    more.zero_()
                    self._settle(fetched)
            else:
                self._settle(fetched[2:])
        finally:
            memory.zero_()

    @property
    def _row(self) -> int:
        """How many words the host needs to settle an element."""
        return 1 + 4 * self.form.width

    def _memory(self, blocks: int, elements: int) -> torch.Tensor:
        """Return all memory that the kernels need, filled in one go: it holds the key; wipe it.

        First the parameters; then how many blocks and elements are open and a list of elements;
        then a list of blocks; then room for rows.
        """
        plan = np.zeros(_PARAMETERS + 2 + elements + blocks, dtype=np.int64)
        parameters = self._parameters()
        plan[:_PARAMETERS] = parameters.reshape(-1)
        parameters.fill(0)
        plan[_PARAMETERS + 2 :][:elements] = np.arange(elements)
        plan[plan.size - blocks :] = np.arange(blocks)
        size = plan.size + (2 + elements) * self._row
        return moved(plan, torch.empty(size, dtype=torch.int64, device=self.values.device))

    def _parameters(self) -> NDArray[np.int64]:
        """Return the parameters of two launches: of the whole blocks, and of one that is not."""
        whole, rest = divmod(self.values.numel(), BLOCK_NUMBERS)
        least, most = self.bounds or (0.0, 0.0)
        return parameter_words(
            self.key,
            (0, whole),
            (whole, rest),
            ratio=self.scale * (1.0 / self.grid),
            grid=self.grid,
            inverse_grid=1.0 / self.grid,
            whole=2.0**53 * self.grid,
            least=least,
            most=most,
        )

    def _first_stage(
        self, parameters: torch.Tensor, counter: torch.Tensor, listed: torch.Tensor
    ) -> None:
        """Fill `out`, count the blocks that are open, and list them before others."""
        whole, rest = divmod(self.values.numel(), BLOCK_NUMBERS)
        rows = parameters.view(2, -1)
        for row, first, blocks in ((0, 0, whole), (1, whole, min(rest, 1))):
            if blocks:
                launch(
                    triton_release.release,
                    blocks,
                    self.values[first * BLOCK_NUMBERS :],
                    self.out[first * BLOCK_NUMBERS :],
                    rows[row],
                    rows[row].view(torch.float64),
                    counter,
                    listed,
                    listed.numel(),
                    pairs=self.form.width > 1,
                    clip=self.bounds is not None,
                    ragged=row == 1,
                    **_SHAPES[self.form.width],
                )

    def _fetched(
        self, parameters: torch.Tensor, elements: torch.Tensor, rows: torch.Tensor
    ) -> NDArray[np.int64]:
        """Return on the host all that it needs to settle elements, a row for each."""
        launch(
            triton_open.fetch,
            elements.numel(),
            elements,
            elements.numel(),
            self.values,
            self.out,
            parameters,
            self.values.numel(),
            rows,
            WIDTH=self.form.width,
        )
        here: NDArray[np.int64] = rows.to("cpu", copy=True).view(-1, self._row).numpy()
        return here

    def _check_finite(self) -> None:
        bad = int((~torch.isfinite(self.values)).sum().item())
        if bad:
            raise ArgumentError(f"Expected every value to be finite, got {bad} NaN or infinite.")

    def _all_open(self) -> torch.Tensor:
        """Return all elements with an open number, where there was no room to list them."""
        numbers = torch.isnan(self.out).nonzero().reshape(-1)
        return torch.unique(numbers // self.form.width)

    def _settle(self, rows: NDArray[np.int64]) -> None:
        """Decide what is open of these elements, and leave the others as they are."""
        width, n = self.form.width, self.form.variates
        places = rows[:, 0]
        words, further, values, results = (
            np.ascontiguousarray(rows[:, 1 + i * width : 1 + (i + 1) * width]) for i in range(4)
        )
        inputs, out = values.view(np.float64).reshape(-1), results.view(np.float64).reshape(-1)
        if not np.isfinite(inputs).all():
            self._check_finite()
        slots = np.arange(len(rows))
        noise = np.empty((inputs.size, 4), dtype=np.uint64)
        flat_words = words.view(np.uint64).reshape(-1)
        self.form.second_stage()(flat_words, further.view(np.uint64), slots, noise)
        if second_stage.settle_floats(noise, slots, width, inputs, self.scale, self.grid, out):
            for i in np.flatnonzero(np.isnan(out)).tolist():
                slot = i // width
                out[i] = judge_at(
                    self.form,
                    self.key,
                    int(places[slot]),
                    i % width,
                    flat_words[slot * n : (slot + 1) * n],
                    (float(inputs[i]), self.scale, self.grid),
                )
        if self.bounds is not None:
            # Not np.clip, whose own checks cost more than a few numbers.
            np.minimum(np.maximum(out, self.bounds[0], out=out), self.bounds[1], out=out)
        at = (places[:, None] * width + np.arange(width)).reshape(-1)
        inside = at < self.values.numel()
        self._write(torch.from_numpy(at[inside]), tensor_of(out[inside], self.out.dtype))

    def _write(self, places: torch.Tensor, settled: torch.Tensor) -> None:
        """Write what the host settled, moved in one go."""
        packed = torch.cat([places.view(torch.uint8), settled.view(torch.uint8)])
        there = packed.to(self.out.device, non_blocking=not INTERPRETED)
        border = places.numel() * places.element_size()
        self.out.index_put_((there[:border].view(torch.int64),), there[border:].view(settled.dtype))


def tensor_of(values: Floats, dtype: torch.dtype) -> torch.Tensor:
    """Return finite float64 as a tensor of a format, rounded once, never -0.0."""
    if dtype != torch.bfloat16:
        return torch.from_numpy(narrowed(values, _NUMPY[dtype]))
    patterns = np.empty(values.size, dtype=np.uint16)
    formats.narrow(values, *_BFLOAT16, patterns)
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
        options = {"PIECE": piece.value, "PIECES": pieces, "RAGGED": ragged, **_NOISE_SHAPE}
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
            parameters = parameters_for(key, out.device, (first, count), scale=scale)
            kernel(out[first * each :], parameters, 1 if ragged else count, ragged=ragged)
            parameters.zero_()
