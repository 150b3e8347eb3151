"""Standard JSON, which has neither infinities nor NaN."""

import json
import math
from collections.abc import Mapping
from typing import Any

Data = Mapping[str, Any]  # Plain data by name, for JSON.


def dumps(data: object) -> str:
    """Return plain data as JSON, with infinities as the texts "inf" and "-inf", and NaN as "nan".

    Python's float(), NumPy and R read these texts. null means unknown or not requested.

    >>> print(dumps([-math.inf, 0.5, None]))
    [
      "-inf",
      0.5,
      null
    ]
    """
    return json.dumps(_replace_nonfinite(data), indent=2, allow_nan=False)


def canonical_line(data: object) -> str:
    r"""Return plain data as one line of ASCII in a canonical form, for hashing.

    >>> print(canonical_line({"b": (1, 0.5), "a": "é"}))
    {"a":"\u00e9","b":[1,0.5]}
    """
    return json.dumps(
        _replace_nonfinite(data), sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def _replace_nonfinite(data: object) -> object:
    if isinstance(data, dict):
        return {name: _replace_nonfinite(part) for name, part in data.items()}
    if isinstance(data, list | tuple):
        return [_replace_nonfinite(part) for part in data]
    if isinstance(data, float) and not math.isfinite(data):
        return str(float(data))
    return data
