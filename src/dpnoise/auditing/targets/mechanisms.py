"""Named mechanisms with outputs of any kind, each with pairs of neighbouring data sets.

The pairs follow the neighbour relation of the library: one row more or less, or scores that each
change by at most 1. A library is imported only when its mechanism is used.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dpnoise.auditing.targets.adapters import library_package
from dpnoise.core.errors import ArgumentError, import_extra
from dpnoise.release.selection import ExponentialMechanism, NoisyMax

Data = Any  # A data set or an output, of any class that a mechanism takes or returns.
Outputs = Callable[[Data, int], list[Data]]
Pair = tuple[Data, Data]
Pairs = tuple[Pair, ...]
Maker = Callable[[float, float], Outputs]

# Scores that each change by 1 at most: one up and the others down, one down, one up.
SCORES: Final[Pairs] = (
    ([1, 1, 1, 1], [2, 0, 0, 0]),
    ([1, 1, 1, 1], [0, 2, 2, 2]),
    ([1, 1, 1, 1], [2, 1, 1, 1]),
    ([0, 3, 3, 1], [1, 2, 3, 2]),
)
# Rows between 0 and 4, with one row added: to none, to one, to several equal ones.
ROWS: Final[Pairs] = (([], [4.0]), ([1.5], [1.5, 3.5]), ([4.0] * 5, [4.0] * 5 + [0.5]))
# The same for a library with a public number of rows: one row is replaced.
REPLACED: Final[Pairs] = (([4.0], [0.0]), ([1.5, 1.5], [1.5, 3.5]), ([4.0] * 6, [4.0] * 5 + [0.5]))
# Rows of texts: a group that exists or not; a group of one row; and a group just below and at the
# threshold of publication (for an epsilon of 1 and a delta of 10^-6).
TEXTS: Final[Pairs] = (
    (["cork"], []),
    (["cork"] * 3, ["cork"] * 3 + ["dublin"]),
    (["cork"] * 14, ["cork"] * 15),
)
ANSWERS: Final[Pairs] = ((False, True),)
CATEGORIES: Final = ("cork", "dublin", "galway")
_CANDIDATES: Final = [0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
_EDGES: Final = [0, 1, 2, 3, 5]
_LOWER, _UPPER = 0.0, 4.0


@dataclass(frozen=True)
class NamedMechanism:
    """A function that makes a mechanism for epsilon and delta, and its neighbours."""

    name: str
    make: Maker
    neighbours: Pairs
    has_delta: bool = False

    @property
    def package(self) -> str:
        """The package that it calls, for its version."""
        return library_package(self.name) or ""

    def build(self, epsilon: float | None, delta: float) -> Outputs:
        """Return the mechanism (data, n) -> n outputs for this epsilon and delta."""
        if epsilon is None:
            raise ArgumentError(f"{self.name} is made for an epsilon: give it, not mu or rho.")
        if self.has_delta and not delta:
            problem = f"{self.name} has no finite epsilon at delta = 0"
            raise ArgumentError(f"{problem}. Give the delta that is claimed: delta=1e-6.")
        return self.make(epsilon, delta)


def _release_one_by_one(release: Callable[[Data], Data]) -> Outputs:
    """Make n outputs by n calls, as users do."""
    return lambda data, n: [release(data) for _ in range(n)]


def _opendp(name: str, epsilon: float, delta: float) -> Outputs:
    dp = import_extra("opendp.prelude", "peers")
    dp.enable_features("contrib")
    texts = dp.vector_domain(dp.atom_domain(T=str)), dp.symmetric_distance()
    if name == "noisy_max":
        scores = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int)
        mechanism = dp.m.make_noisy_max(*scores, dp.max_divergence(), scale=2 / epsilon)
    elif name == "private_quantile":
        rows = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
        options = {"candidates": _CANDIDATES, "alpha": 0.5}
        scaled = partial(dp.m.make_private_quantile, *rows, dp.max_divergence(), **options)
        mechanism = scaled(scale=scaled(scale=1.0).map(1) / epsilon)
    elif name == "count_by_categories":
        counts = texts >> dp.t.then_count_by_categories(list(CATEGORIES))
        mechanism = counts >> dp.m.then_laplace(1 / epsilon)
    elif name == "laplace_threshold":  # Publishes the groups in the data that are large enough.
        threshold = math.ceil(1 + math.log(1 / delta) / epsilon)  # More than enough for this delta.
        laplace = dp.m.then_laplace_threshold(1 / epsilon, threshold)
        mechanism = texts >> dp.t.then_count_by() >> laplace
    elif name == "randomized_response_bool":
        mechanism = dp.m.make_randomized_response_bool(1 / (1 + math.exp(-epsilon)))
    else:
        honest = 1 / (1 + (len(CATEGORIES) - 1) * math.exp(-epsilon))
        mechanism = dp.m.make_randomized_response(list(CATEGORIES), honest)
    return _release_one_by_one(mechanism)


def _diffprivlib(name: str, epsilon: float, _delta: float) -> Outputs:
    mechanisms = import_extra("diffprivlib.mechanisms", "diffprivlib")
    if name == "Binary":
        binary = mechanisms.Binary(epsilon=epsilon, value0="no", value1="yes")
        return _release_one_by_one(lambda answer: binary.randomise("yes" if answer else "no"))

    def outputs(scores: list[int], n: int) -> list[object]:
        mechanism = getattr(mechanisms, name)(epsilon=epsilon, sensitivity=1, utility=scores)
        return [mechanism.randomise() for _ in range(n)]

    return outputs


def _diffprivlib_tool(name: str, epsilon: float, _delta: float) -> Outputs:
    """Call a tool with a new accountant each time, because an accountant grows with every call."""
    diffprivlib = import_extra("diffprivlib", "diffprivlib")
    tool, bounds = getattr(diffprivlib.tools, name), (_LOWER, _UPPER)
    options: dict[str, dict[str, Any]] = {
        "histogram": {"bins": _EDGES, "range": (0, 5)},
        "median": {"bounds": bounds},
        "quantile": {"quant": 0.25, "bounds": bounds},
    }

    def release(rows: list[float]) -> object:
        accountant = diffprivlib.BudgetAccountant()
        released = tool(rows, epsilon=epsilon, accountant=accountant, **options[name])
        return released[0] if name == "histogram" else released

    return _release_one_by_one(release)


def _pydp(name: str, epsilon: float, delta: float) -> Outputs:
    if name == "partition_selection":  # Returns whether a group of this many people is published.
        selection = import_extra("pydp.algorithms.partition_selection", "peers")
        strategy = selection.create_partition_strategy("truncated_geometric", epsilon, delta, 1)
        return _release_one_by_one(strategy.should_keep)
    percentile = import_extra("pydp.algorithms.laplacian", "peers").Percentile
    options = {"lower_bound": _LOWER, "upper_bound": _UPPER, "dtype": "float", "percentile": 0.5}
    return _release_one_by_one(
        lambda rows: percentile(epsilon=epsilon, **options).quick_result(rows)
    )


def _smartnoise(name: str, epsilon: float, delta: float) -> Outputs:
    sql = import_extra("snsql", "smartnoise")
    pandas = import_extra("pandas", "frames")
    query = {
        "count": "SELECT COUNT(*) AS c FROM t.t",
        "group_by": "SELECT city, COUNT(*) AS c FROM t.t GROUP BY city",  # Groups in the data.
    }[name]
    columns = {"city": {"type": "string"}, "x": {"type": "float", "lower": 0.0, "upper": 4.0}}
    metadata = {"": {"t": {"t": {"row_privacy": True, "rows": 10, **columns}}}}

    def outputs(rows: list[str], n: int) -> list[object]:
        frame = pandas.DataFrame({"city": rows, "x": [1.0] * len(rows)})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            privacy = sql.Privacy(epsilon=epsilon, delta=delta)
            reader = sql.from_df(frame, privacy=privacy, metadata=metadata)
            return [reader.execute(query)[1:] for _ in range(n)]

    return outputs


def _selection(name: str, epsilon: float, _delta: float) -> Outputs:
    kind = {"NoisyMax": NoisyMax, "ExponentialMechanism": ExponentialMechanism}[name]
    return _release_one_by_one(kind(epsilon=epsilon, sensitivity=1.0).select)


_BOUNDED: Final[dict[str, object]] = {"lower": _LOWER, "upper": _UPPER}
_SELECTED: Final[dict[str, object]] = {**_BOUNDED, "grid": 1.0}
STATISTICS: Final[dict[str, dict[str, Any]]] = {
    "count": {},
    **dict.fromkeys(("sum", "mean", "variance", "std"), _BOUNDED),
    "median": _SELECTED,
    "quantile": {"q": 0.25, "interval": False, **_SELECTED},
    "quantiles": {"q": [0.25, 0.5], "interval": False, **_SELECTED},
    "histogram": {"edges": _EDGES},
}


def _statistic(name: str, epsilon: float, _delta: float) -> Outputs:
    """Release a statistic of the rows: its numbers, and its interval if there is one."""
    from dpnoise import statistics  # noqa: PLC0415 - it takes long to import

    def release(rows: list[float]) -> object:
        released = getattr(statistics, name)(rows, epsilon=epsilon, **STATISTICS[name])
        return released.value, released.interval or 0

    return _release_one_by_one(release)


def _publish(_name: str, epsilon: float, delta: float) -> Outputs:
    """Discover and count a group of this many rows: n independent groups in one call."""
    from dpnoise import statistics  # noqa: PLC0415 - it takes long to import

    polars = import_extra("polars", "frames")
    counts = statistics.Question(["count"], by=("group",))
    request = statistics.Request(epsilon, [counts], {"group": "discover"}, delta=delta)

    def outputs(rows: int, n: int) -> list[object]:
        groups = [str(i) for i in range(n)]
        frame = polars.DataFrame({"group": polars.Series(groups * rows, dtype=polars.String)})
        published = statistics.publish(frame, request)
        counts_of = {row.group[0]: row.release.value for row in published}
        return [counts_of.get(group) for group in groups]

    return outputs


# The makers of each library, with the neighbours of its mechanisms.
_LIBRARIES: Final[tuple[tuple[str, Callable[..., Outputs], dict[str, Pairs]], ...]] = (
    ("opendp", _opendp, {
        "noisy_max": SCORES, "private_quantile": ROWS, "count_by_categories": TEXTS,
        "laplace_threshold": TEXTS, "randomized_response_bool": ANSWERS,
        "randomized_response": (CATEGORIES[:2],),
    }),
    ("diffprivlib", _diffprivlib, {
        "Exponential": SCORES, "PermuteAndFlip": SCORES, "Binary": ANSWERS,
    }),
    ("diffprivlib", _diffprivlib_tool, {
        "histogram": ROWS, "median": REPLACED, "quantile": REPLACED,
    }),
    ("pydp", _pydp, {"Percentile": ROWS, "partition_selection": ((0, 1), (1, 2), (9, 10))}),
    ("smartnoise", _smartnoise, {"count": TEXTS, "group_by": TEXTS}),
    ("dpnoise", _selection, {"NoisyMax": SCORES, "ExponentialMechanism": SCORES}),
    ("dpnoise.statistics", _statistic, dict.fromkeys(STATISTICS, ROWS)),
    ("dpnoise.statistics", _publish, {"publish": ((0, 1), (27, 28))}),
)  # fmt: skip
_WITH_DELTA: Final = {
    *("opendp.laplace_threshold", "pydp.partition_selection", "smartnoise.count"),
    *("smartnoise.group_by", "dpnoise.statistics.publish"),
}
MECHANISMS: Final = {
    mechanism.name: mechanism
    for library, make, neighbours in _LIBRARIES
    for name, pairs in neighbours.items()
    for full in [f"{library}.{name}"]
    for mechanism in [NamedMechanism(full, partial(make, name), pairs, full in _WITH_DELTA)]
}
