"""Exact release on a device. The host settles the numbers that the kernels leave open.

The device decides almost all numbers. As on the processor, the second stage processes a fixed
number of blocks of eight, enough for all that could have an open number. So its work reveals
nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dpnoise.core.entropy import CHACHA20, Key
from dpnoise.core.errors import ArgumentError
from dpnoise.core.kernel_table import second_stage
from dpnoise.integrations import triton_noise, triton_release, triton_stream
from dpnoise.integrations.tensor_formats import DIGITS, tensor_of
from dpnoise.integrations.triton_stream import INTERPRETED
from dpnoise.release.containers import Bounds
from dpnoise.release.exact import AdditiveForm, reference_release, slots_for

Integers = NDArray[np.int64]

BLOCK_NUMBERS: Final = 8  # Numbers from one block of the key stream.
# Blocks of the key stream per program: one warp, which needs no barrier.
_LANES: Final = 32
_WARPS: Final = 1
_SHAPES: Final[dict[int, dict[str, int]]] = {
    1: {},
    2: {} if INTERPRETED else {"maxnreg": 128},
}
_NOISE_SHAPE: Final = {} if INTERPRETED else {"BLOCK": 256, "num_warps": 8}
_PARAMETERS: Final = 2 * triton_stream.PARAMETERS
_SETTLE_BATCH: Final = 2**16  # Elements at a time, so that the host needs a fixed amount of memory.


def launch(kernel: Any, items: int, *arguments: Any, **options: Any) -> None:
    """Run a kernel over `items` blocks or slots."""
    options = {"BLOCK": _LANES, "num_warps": _WARPS, **triton_stream.STRICT, **options}
    kernel[(-(-items // options["BLOCK"]),)](*arguments, **options)


def parameter_words(key: Key, *runs: tuple[int, int], **floats: float) -> Integers:
    """Return the parameters of launches, one row for each run of blocks.

    A run is its first block and a count. The rows hold the key: wipe them after use.
    """
    if key.cipher != CHACHA20:
        raise ArgumentError(f"On a device the key must be for {CHACHA20}, got {key.cipher}.")
    words = np.zeros((len(runs), triton_stream.PARAMETERS), dtype=np.int64)
    words[:, :4] = key.for_device()
    words[:, triton_stream.FIRST_BLOCK.value] = [first for first, _ in runs]
    words[:, triton_stream.COUNT.value] = [count for _, count in runs]
    for name, value in floats.items():
        words.view(np.float64)[:, getattr(triton_stream, name.upper()).value] = value
    return words


def move_and_wipe(words: Integers, out: torch.Tensor) -> torch.Tensor:
    """Copy words to the start of a tensor on a device without waiting, and wipe them here."""
    # Memory that is not pinned has been read when `copy_` returns, so it can be wiped.
    out[: words.size].copy_(torch.from_numpy(words.reshape(-1)), non_blocking=not INTERPRETED)
    words.fill(0)
    return out


def parameters_for(
    key: Key, device: torch.device, *runs: tuple[int, int], **floats: float
) -> torch.Tensor:
    """Return the parameters of launches on a device."""
    words = parameter_words(key, *runs, **floats)
    return move_and_wipe(words, torch.empty(words.size, dtype=torch.int64, device=device)).view(
        words.shape
    )


def release_floats(
    form: AdditiveForm, values: torch.Tensor, scale: float, grid: float, bounds: Bounds, key: Key
) -> torch.Tensor:
    """Return the released values of a flat, contiguous tensor, in its format and on its device."""
    out = torch.empty_like(values)
    if values.numel():
        try:
            _DeviceRelease(form, values, scale, grid, bounds, key, out).run()
        except BaseException:
            out.zero_()
            raise
    return out


@dataclass(frozen=True, eq=False, repr=False)
class _DeviceRelease:
    """One call. It holds the key and the values, so it must not outlive the call."""

    form: AdditiveForm
    values: torch.Tensor
    scale: float
    grid: float
    bounds: Bounds
    key: Key
    out: torch.Tensor

    def run(self) -> None:
        numbers, width, ratio = self.values.numel(), self.form.width, self.scale / self.grid
        blocks = slots_for(-(-numbers // BLOCK_NUMBERS), 1, ratio, BLOCK_NUMBERS)
        elements = slots_for(-(-numbers // width), 1, ratio, width)
        # Even numbers align memory to 16 bytes. For other alignments Triton would compile again.
        blocks, elements = blocks + blocks % 2, elements + elements % 2
        memory = self._memory(blocks, elements)
        try:
            sizes = [_PARAMETERS, 2 + elements, blocks]
            sizes.append(memory.numel() - sum(sizes))
            parameters, counts, open_blocks, rows = memory.split(sizes)
            self._first_stage(parameters, counts, open_blocks)
            arguments = (open_blocks, blocks, self.out, numbers, counts, counts[2:], elements)
            launch(triton_release.list_elements, blocks, *arguments, WIDTH=width)
            host_rows = self._fetch_rows(parameters, counts, rows)
            if host_rows[0, 0] > blocks or host_rows[1, 0] > elements:
                self._check_finite()
                for batch in self._open_elements().split(_SETTLE_BATCH):
                    buffer = rows.new_empty(batch.numel() * self._row_words)
                    host_rows = self._fetch_rows(parameters, batch, buffer)
                    buffer.zero_()
                    self._settle(host_rows)
            else:
                self._settle(host_rows[2:])
        finally:
            memory.zero_()

    @property
    def _row_words(self) -> int:
        """The number of words that the host needs to settle an element."""
        return 1 + 4 * self.form.width

    def _memory(self, blocks: int, elements: int) -> torch.Tensor:
        """Return all memory that the kernels need. It holds the key: wipe it after use.

        Its parts are, in this order: the parameters, the numbers of open blocks and elements, a
        list of elements, a list of blocks, and a buffer for rows.
        """
        layout = np.zeros(_PARAMETERS + 2 + elements + blocks, dtype=np.int64)
        parameters = self._parameters()
        layout[:_PARAMETERS] = parameters.reshape(-1)
        parameters.fill(0)
        layout[_PARAMETERS + 2 :][:elements] = np.arange(elements)
        layout[layout.size - blocks :] = np.arange(blocks)
        size = layout.size + (2 + elements) * self._row_words
        return move_and_wipe(
            layout, torch.empty(size, dtype=torch.int64, device=self.values.device)
        )

    def _parameters(self) -> Integers:
        """Return the parameters of two launches: the whole blocks, and the last partial block."""
        whole, rest = divmod(self.values.numel(), BLOCK_NUMBERS)
        least, most = self.bounds or (0.0, 0.0)
        return parameter_words(
            self.key,
            (0, whole),
            (whole, rest),
            ratio=self.scale * (1.0 / self.grid),
            grid=self.grid,
            inverse_grid=1.0 / self.grid,
            rounding_limit=2.0**53 * self.grid,
            least=least,
            most=most,
        )

    def _first_stage(
        self, parameters: torch.Tensor, counter: torch.Tensor, open_blocks: torch.Tensor
    ) -> None:
        """Fill `out`, and count and list the blocks with open numbers."""
        whole, rest = divmod(self.values.numel(), BLOCK_NUMBERS)
        rows = parameters.view(2, -1)
        for row, first, blocks in ((0, 0, whole), (1, whole, min(rest, 1))):
            if blocks:
                launch(
                    triton_release.release,
                    blocks,
                    *(part[first * BLOCK_NUMBERS :] for part in (self.values, self.out)),
                    *(rows[row], rows[row].view(torch.float64)),
                    *(counter, open_blocks, open_blocks.numel()),
                    pairs=self.form.width > 1,
                    clip=self.bounds is not None,
                    ragged=row == 1,
                    **_SHAPES[self.form.width],
                )

    def _fetch_rows(
        self, parameters: torch.Tensor, elements: torch.Tensor, rows: torch.Tensor
    ) -> Integers:
        """Return on the host the data to settle elements, one row for each."""
        count, tensors = elements.numel(), (self.values, self.out, parameters)
        arguments = (elements, count, *tensors, self.values.numel(), rows)
        launch(triton_release.write_element_rows, count, *arguments, WIDTH=self.form.width)
        host_rows: Integers = rows.to("cpu", copy=True).view(-1, self._row_words).numpy()
        return host_rows

    def _check_finite(self) -> None:
        not_finite = int((~torch.isfinite(self.values)).sum().item())
        if not_finite:
            raise ArgumentError(f"Every value must be finite, got {not_finite} NaN or infinite.")

    def _open_elements(self) -> torch.Tensor:
        """Return all elements with an open number, if the list of the kernels was too short."""
        numbers = torch.isnan(self.out).nonzero().reshape(-1)
        return torch.unique(numbers // self.form.width)

    def _settle(self, rows: Integers) -> None:
        """Decide the open numbers of these elements; the other numbers do not change."""
        width, n = self.form.width, self.form.variates
        elements = rows[:, 0]
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
                out[i] = reference_release(
                    self.form,
                    self.key,
                    int(elements[slot]),
                    i % width,
                    flat_words[slot * n : (slot + 1) * n],
                    (float(inputs[i]), self.scale, self.grid),
                )
        if self.bounds is not None:
            # Faster than np.clip for a few numbers, because that checks its arguments.
            np.minimum(np.maximum(out, self.bounds[0], out=out), self.bounds[1], out=out)
        indices = (elements[:, None] * width + np.arange(width)).reshape(-1)
        inside = indices < self.values.numel()
        self._write(torch.from_numpy(indices[inside]), tensor_of(out[inside], self.out.dtype))

    def _write(self, indices: torch.Tensor, settled: torch.Tensor) -> None:
        """Write the settled numbers to `out`, with one copy to the device."""
        packed = torch.cat([indices.view(torch.uint8), settled.view(torch.uint8)])
        copied = packed.to(self.out.device, non_blocking=not INTERPRETED)
        split = indices.numel() * indices.element_size()
        self.out.index_put_((copied[:split].view(torch.int64),), copied[split:].view(settled.dtype))


# By distribution and n: the kind of the pieces that are added. Each uses two uniforms.
PIECES: Final = {
    "normal": dict.fromkeys((2, 4, 8), triton_noise.GAUSSIAN),
    "laplace": {2: triton_noise.DIFFERENCE, 4: triton_noise.LAPLACE},
    "exponential": {4: triton_noise.HALF_GAMMA},
}


def fill(name: str, variates: int, scale: float, out: torch.Tensor, key: Key) -> None:
    """Fill a flat, contiguous tensor with noise of a distribution in `PIECES`."""
    piece = PIECES[name][variates]
    options = {"PIECE": piece.value, "PIECES": variates // 2, **_NOISE_SHAPE}
    for part, items, parameters, ragged in _launches(out, variates, key, scale):
        floats = parameters.view(torch.float64)
        launch(triton_noise.noise, items, part, parameters, floats, RAGGED=ragged, **options)


def fill_uniforms(out: torch.Tensor, key: Key) -> None:
    """Fill a flat, contiguous tensor with uniforms on [0, 1)."""
    for part, items, parameters, ragged in _launches(out, 1, key, 1.0):
        options = {"DIGITS": DIGITS[out.dtype], "RAGGED": ragged}
        launch(triton_noise.uniforms, items, part, parameters, **options)


def _launches(
    out: torch.Tensor, variates: int, key: Key, scale: float
) -> Iterator[tuple[torch.Tensor, int, torch.Tensor, bool]]:
    """Yield the launches that fill `out`: one for the whole blocks, and one for the rest.

    Each is a part of `out`, a number of blocks, parameters, and whether its block is partial.
    """
    words = BLOCK_NUMBERS if out.dtype == torch.float64 else 2 * BLOCK_NUMBERS
    per_block = words // variates
    whole, rest = divmod(out.numel(), per_block)
    for first, count, ragged in ((0, whole, False), (whole, rest, True)):
        if count:
            parameters = parameters_for(key, out.device, (first, count), scale=scale)
            yield out[first * per_block :], 1 if ragged else count, parameters, ragged
            parameters.zero_()
