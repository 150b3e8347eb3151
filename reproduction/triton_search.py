"""Triton: the search for the uniforms of one Gaussian (the paper, section 6), over U2.

A check takes U2 = k 2^-p of the quarter where cos(2 pi U2) >= 0, and solves for U1:

    V = exp(-(N / cos(2 pi U2))^2 / 2),    U1 = 1 - V: a multiple of 2^-p, up to rounding
"""

import triton
import triton.language as tl

from dpnoise.integrations.triton_release import log, rint, sinpi
from dpnoise.integrations.triton_stream import COUNT, FIRST_BLOCK

# Places of `parameters` beside COUNT and FIRST_BLOCK: |N|, 2^-p, 2^p, and the width of q in N.
SIZE, UNIT, PER_UNIT, WIDTH = (tl.constexpr(place) for place in range(6, 10))


@triton.jit
def search(
    parameters,
    floats,
    counter,
    places,
    capacity,
    EXACT: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """List the k that may belong to a preimage; or, if EXACT, count those whose U1 leads to N.

    The first is a search at small p, which the host ends by trying what is listed. At p = 53 nearly
    every k has a preimage, and what is counted is the work of a whole check.
    """
    size, unit = tl.load(floats + SIZE), tl.load(floats + UNIT)
    per_unit, width = tl.load(floats + PER_UNIT), tl.load(floats + WIDTH)
    last = tl.load(parameters + COUNT)
    start = tl.load(parameters + FIRST_BLOCK) + tl.program_id(0).to(tl.int64) * (BLOCK * ROUNDS)
    found = tl.zeros((BLOCK,), tl.int64)
    for turn in range(ROUNDS):
        k = start + turn * BLOCK + tl.arange(0, BLOCK)
        # At the end of the quarter it is 0; beyond it nothing counts.
        cosine = tl.maximum(sinpi(0.5 - (k.to(tl.float64) * unit) * 2.0), 2.0**-60)
        ratio = size / cosine
        V = tl.exp(ratio * ratio * -0.5)
        solved = (1.0 - V) * per_unit
        nearest = rint(solved)
        if EXACT:
            N = tl.sqrt(log(1.0 - nearest * unit) * -2.0) * cosine
            found += ((tl.abs(N - size) <= width) & (k < last)).to(tl.int64)
        else:
            angle = ratio * ratio * 2.0**-48 / cosine
            moved = V * (ratio / cosine * width + angle) + 2.0**-48
            # U1 = 1 is none: where V has vanished beside 1, every k would seem to lead to it.
            inside = (nearest < per_unit) & (k < last)
            likely = (tl.abs(solved - nearest) <= moved * per_unit) & inside
            slot = tl.atomic_add(counter + k * 0, 1, mask=likely)
            tl.store(places + slot, k, mask=likely & (slot < capacity))
    if EXACT:
        tl.atomic_add(counter, tl.sum(found))
