"""Search for the uniforms of one Gaussian on a device: section 6 of the paper."""

import math
from typing import Any, Final

import numpy as np
import torch

from dpnoise.auditing.attacks.searches import gaussian_of_uniforms
from dpnoise.core.errors import ArgumentError, check_integer
from dpnoise.integrations import triton_stream
from dpnoise.integrations.device import launch
from reproduction import triton_search
from reproduction.preimages import Search

_ROUNDS: Final = 64  # Consecutive checks of one lane.
_CAPACITY: Final = 2**22  # Candidates that can be listed.


def gaussian_preimages(
    release: float,
    precision: int,
    device: Any,
    *,
    value: float = 0.0,
    scale: float = 1.0,
) -> Search:
    """Return the preimages of `searches.gaussian_preimages` over U2, found on a device.

    The device solves for U1 and lists candidates near a multiple of 2^-p; the host verifies them.
    """
    check_integer("precision", precision, least=2, most=34)
    last = 2 ** (precision - 2) + 1
    counter, candidates = checks(release, precision, device, 0, last, value=value, scale=scale)
    if counter > _CAPACITY:
        raise ArgumentError(f"Expected at most {_CAPACITY} candidates, got {counter}.")
    return Search(_verify(release, precision, value, scale, candidates[:counter].tolist()), last)


def checks(
    release: float,
    precision: int,
    device: Any,
    first: int,
    last: int,
    *,
    value: float = 0.0,
    scale: float = 1.0,
    exact: bool = False,
) -> tuple[int, torch.Tensor]:
    """Check U2 = k 2^-p for k from first to last, and return the number and list of candidates.

    If `exact`, return the number of solutions, up to rounding, and no list.
    """
    n1 = (release - value) / scale
    words = np.zeros(triton_stream.PARAMETERS, dtype=np.int64)
    words[triton_stream.FIRST_BLOCK.value] = first
    words[triton_stream.COUNT.value] = last
    floats = words.view(np.float64)
    floats[triton_search.SIZE.value] = abs(n1)
    floats[triton_search.UNIT.value] = 2.0**-precision
    floats[triton_search.PER_UNIT.value] = 2.0**precision
    floats[triton_search.WIDTH.value] = math.ulp(release) / scale
    parameters = torch.from_numpy(words).to(device)
    counter = torch.zeros(1, dtype=torch.int64, device=device)
    candidates = torch.empty(1 if exact else _CAPACITY, dtype=torch.int64, device=device)
    launch(
        triton_search.search,
        -(-(last - first) // _ROUNDS),
        parameters,
        parameters.view(torch.float64),
        counter,
        candidates,
        candidates.numel(),
        EXACT=exact,
        ROUNDS=_ROUNDS,
        BLOCK=128,
        num_warps=4,
    )
    return int(counter.item()), candidates


def _verify(
    release: float, precision: int, value: float, scale: float, candidates: list[int]
) -> list[tuple[float, ...]]:
    """Return the pairs near the candidates that give exactly the release."""
    n1, unit = (release - value) / scale, 2.0**-precision
    pairs: set[tuple[float, ...]] = set()
    for k in candidates:
        U2 = k * unit if n1 >= 0 else 0.5 - k * unit
        cosine = math.cos(2.0 * math.pi * U2)
        if cosine == 0.0:
            continue
        ratio = n1 / cosine
        V = math.exp(-0.5 * ratio * ratio)
        angle = ratio * ratio * 2.0**-48 / abs(cosine)
        moved = V * (abs(ratio / cosine) * math.ulp(release) / scale + angle)
        slack = (2.0**-48 + moved) / unit
        solved = round((1.0 - V) / unit)
        reach = int(slack + 0.5)
        for j in range(solved - reach, solved + reach + 1):
            U1 = j * unit
            for U in (U2, 1.0 - U2):
                if (
                    0.0 <= U1 < 1.0
                    and U < 1.0
                    and value + scale * gaussian_of_uniforms(U1, U) == release
                ):
                    pairs.add((U1, U))
    return sorted(pairs)
