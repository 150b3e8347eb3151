"""The Triton kernel that searches for the uniforms of one Gaussian over U2 (section 6).

A check takes U2 = k 2^-p of the quarter where cos(2 pi U2) >= 0, and solves for U1:

    V = exp(-(N / cos(2 pi U2))^2 / 2),    U1 = 1 - V: a multiple of 2^-p, up to rounding
"""

import triton
import triton.language as tl

from dpnoise.integrations.triton_release import log, rint, sinpi
from dpnoise.integrations.triton_stream import COUNT, FIRST_BLOCK

# Indices of `parameters` besides COUNT and FIRST_BLOCK: |N|, 2^-p, 2^p, and the width of q in N.
SIZE, UNIT, PER_UNIT, WIDTH = (tl.constexpr(index) for index in range(6, 10))


@triton.jit
def search(
    parameters,
    floats,
    counter,
    candidates,
    capacity,
    EXACT: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """List the k that may belong to a preimage; if EXACT, count the k with a U1 that leads to N.

    The list is for a search at small p, after which the host verifies the candidates. EXACT
    measures the work of a whole check at p = 53, where nearly every k has a preimage.
    """
    size, unit = tl.load(floats + SIZE), tl.load(floats + UNIT)
    per_unit, width = tl.load(floats + PER_UNIT), tl.load(floats + WIDTH)
    last = tl.load(parameters + COUNT)
    start = tl.load(parameters + FIRST_BLOCK) + tl.program_id(0).to(tl.int64) * (BLOCK * ROUNDS)
    solutions = tl.zeros((BLOCK,), tl.int64)
    for turn in range(ROUNDS):
        k = start + turn * BLOCK + tl.arange(0, BLOCK)
        # At the end of the quarter the cosine is 0; k beyond it are not counted.
        cosine = tl.maximum(sinpi(0.5 - (k.to(tl.float64) * unit) * 2.0), 2.0**-60)
        ratio = size / cosine
        V = tl.exp(ratio * ratio * -0.5)
        solved = (1.0 - V) * per_unit
        nearest = rint(solved)
        if EXACT:
            N = tl.sqrt(log(1.0 - nearest * unit) * -2.0) * cosine
            solutions += ((tl.abs(N - size) <= width) & (k < last)).to(tl.int64)
        else:
            angle = ratio * ratio * 2.0**-48 / cosine
            moved = V * (ratio / cosine * width + angle) + 2.0**-48
            # U1 = 1 is not a uniform, but every k would seem to lead to it where 1 - V rounds to 1.
            inside = (nearest < per_unit) & (k < last)
            is_candidate = (tl.abs(solved - nearest) <= moved * per_unit) & inside
            slot = tl.atomic_add(counter + k * 0, 1, mask=is_candidate)
            tl.store(candidates + slot, k, mask=is_candidate & (slot < capacity))
    if EXACT:
        tl.atomic_add(counter, tl.sum(solutions))
