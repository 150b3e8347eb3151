"""Named mechanisms with outputs of any kind, each with pairs of neighbouring data sets.

The pairs follow the neighbour relation of the library: one row more or less, or scores that each
change by at most 1. A library is imported only when its mechanism is used.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final

from dpnoise.auditing.targets.adapters import package_of
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
        return package_of(self.name) or ""

    def build(self, epsilon: float | None, delta: float) -> Outputs:
        """Return the mechanism (data, n) -> n outputs for this epsilon and delta."""
        if epsilon is None:
            raise ArgumentError(f"{self.name} is made for an epsilon: give it, not mu or rho.")
        if self.has_delta and not delta:
            raise ArgumentError(
                f"{self.name} has no finite epsilon at delta = 0. Give the delta that is claimed: "
                "delta=1e-6."
            )
        return self.make(epsilon, delta)


MECHANISMS: Final[dict[str, NamedMechanism]] = {}


def _mechanism(
    name: str, neighbours: Pairs, *, has_delta: bool = False
) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        MECHANISMS[name] = NamedMechanism(name, make, neighbours, has_delta)
        return make

    return register


def _release_one_by_one(release: Callable[[Data], Data]) -> Outputs:
    """Make n outputs by n calls, as users do."""
    return lambda data, n: [release(data) for _ in range(n)]


# OpenDP ------------------------------------------------------------------------------------------


def _opendp() -> ModuleType:
    opendp: ModuleType = import_extra("opendp.prelude", "peers")
    opendp.enable_features("contrib")
    return opendp


def _opendp_rows(opendp: ModuleType, kind: type) -> tuple[object, object]:
    atoms = opendp.atom_domain(T=kind, nan=False) if kind is float else opendp.atom_domain(T=kind)
    return opendp.vector_domain(atoms), opendp.symmetric_distance()


@_mechanism("opendp.noisy_max", SCORES)
def _opendp_noisy_max(epsilon: float, _delta: float) -> Outputs:
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int)
    return _release_one_by_one(dp.m.make_noisy_max(*space, dp.max_divergence(), scale=2 / epsilon))


@_mechanism("opendp.private_quantile", ROWS)
def _opendp_quantile(epsilon: float, _delta: float) -> Outputs:
    dp = _opendp()
    rows = _opendp_rows(dp, float)
    scaled = partial(
        dp.m.make_private_quantile, *rows, dp.max_divergence(), candidates=_CANDIDATES, alpha=0.5
    )
    return _release_one_by_one(scaled(scale=scaled(scale=1.0).map(1) / epsilon))


@_mechanism("opendp.count_by_categories", TEXTS)
def _opendp_categories(epsilon: float, _delta: float) -> Outputs:
    dp = _opendp()
    counts = _opendp_rows(dp, str) >> dp.t.then_count_by_categories(list(CATEGORIES))
    return _release_one_by_one(counts >> dp.m.then_laplace(1 / epsilon))


@_mechanism("opendp.laplace_threshold", TEXTS, has_delta=True)
def _opendp_threshold(epsilon: float, delta: float) -> Outputs:
    """Count the groups in the data, and publish those above a threshold."""
    dp = _opendp()
    counts = _opendp_rows(dp, str) >> dp.t.then_count_by()
    threshold = math.ceil(1 + math.log(1 / delta) / epsilon)  # More than enough for this delta.
    return _release_one_by_one(counts >> dp.m.then_laplace_threshold(1 / epsilon, threshold))


@_mechanism("opendp.randomized_response_bool", ANSWERS)
def _opendp_bool(epsilon: float, _delta: float) -> Outputs:
    return _release_one_by_one(
        _opendp().m.make_randomized_response_bool(1 / (1 + math.exp(-epsilon)))
    )


@_mechanism("opendp.randomized_response", ((CATEGORIES[0], CATEGORIES[1]),))
def _opendp_category(epsilon: float, _delta: float) -> Outputs:
    honest = 1 / (1 + (len(CATEGORIES) - 1) * math.exp(-epsilon))
    return _release_one_by_one(_opendp().m.make_randomized_response(list(CATEGORIES), honest))


# diffprivlib -------------------------------------------------------------------------------------


def _diffprivlib_tool(
    name: str, options: Mapping[str, object], epsilon: float, _delta: float
) -> Outputs:
    """Call a tool with a new accountant each time, because an accountant grows with every call."""
    diffprivlib = import_extra("diffprivlib", "peers")
    tool = getattr(diffprivlib.tools, name)

    def release(rows: list[float]) -> object:
        return tool(rows, epsilon=epsilon, accountant=diffprivlib.BudgetAccountant(), **options)

    return _release_one_by_one(release)


def _diffprivlib_selection(name: str, epsilon: float, _delta: float) -> Outputs:
    choose = getattr(import_extra("diffprivlib.mechanisms", "peers"), name)

    def outputs(scores: list[int], n: int) -> list[object]:
        mechanism = choose(epsilon=epsilon, sensitivity=1, utility=scores)
        return [mechanism.randomise() for _ in range(n)]

    return outputs


for _name in ("Exponential", "PermuteAndFlip"):
    _mechanism(f"diffprivlib.{_name}", SCORES)(partial(_diffprivlib_selection, _name))


@_mechanism("diffprivlib.Binary", ANSWERS)
def _diffprivlib_binary(epsilon: float, _delta: float) -> Outputs:
    mechanisms = import_extra("diffprivlib.mechanisms", "peers")
    binary = mechanisms.Binary(epsilon=epsilon, value0="no", value1="yes")
    return _release_one_by_one(lambda answer: binary.randomise("yes" if answer else "no"))


@_mechanism("diffprivlib.histogram", ROWS)
def _diffprivlib_histogram(epsilon: float, delta: float) -> Outputs:
    counts = _diffprivlib_tool("histogram", {"bins": _EDGES, "range": (0, 5)}, epsilon, delta)
    return lambda rows, n: [cells for cells, _ in counts(rows, n)]


for _name, _options in (("median", {}), ("quantile", {"quant": 0.25})):
    _mechanism(f"diffprivlib.{_name}", REPLACED)(
        partial(_diffprivlib_tool, _name, {**_options, "bounds": (_LOWER, _UPPER)})
    )


# PyDP --------------------------------------------------------------------------------------------


@_mechanism("pydp.Percentile", ROWS)
def _pydp_percentile(epsilon: float, _delta: float) -> Outputs:
    algorithms = import_extra("pydp.algorithms.laplacian", "peers")
    options = {"lower_bound": _LOWER, "upper_bound": _UPPER, "dtype": "float"}

    def release(rows: list[float]) -> object:
        median = algorithms.Percentile(epsilon=epsilon, percentile=0.5, **options)
        return median.quick_result(rows)

    return _release_one_by_one(release)


@_mechanism("pydp.partition_selection", ((0, 1), (1, 2), (9, 10)), has_delta=True)
def _pydp_partitions(epsilon: float, delta: float) -> Outputs:
    """Return whether a group of this many people is published."""
    selection = import_extra("pydp.algorithms.partition_selection", "peers")
    strategy = selection.create_partition_strategy("truncated_geometric", epsilon, delta, 1)
    return _release_one_by_one(strategy.should_keep)


# SmartNoise --------------------------------------------------------------------------------------


def _smartnoise(query: str, epsilon: float, delta: float) -> Outputs:
    sql = import_extra("snsql", "smartnoise")
    pandas = import_extra("pandas", "frames")
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


for _name, _query in (
    ("count", "SELECT COUNT(*) AS c FROM t.t"),
    ("group_by", "SELECT city, COUNT(*) AS c FROM t.t GROUP BY city"),  # Groups in the data.
):
    _mechanism(f"smartnoise.{_name}", TEXTS, has_delta=True)(partial(_smartnoise, _query))


# Our own -----------------------------------------------------------------------------------------


def _selection(
    kind: type[NoisyMax | ExponentialMechanism], epsilon: float, _delta: float
) -> Outputs:
    return _release_one_by_one(kind(epsilon=epsilon, sensitivity=1.0).select)


for _kind in (NoisyMax, ExponentialMechanism):
    _mechanism(f"dpnoise.{_kind.__name__}", SCORES)(partial(_selection, _kind))


_BOUNDED: Final[dict[str, object]] = {"lower": _LOWER, "upper": _UPPER}
_SELECTED: Final[dict[str, object]] = {**_BOUNDED, "grid": 1.0}
STATISTICS: Final[dict[str, dict[str, Any]]] = {
    "count": {},
    "sum": _BOUNDED,
    "mean": _BOUNDED,
    "variance": _BOUNDED,
    "std": _BOUNDED,
    "median": _SELECTED,
    "quantile": {"q": 0.25, "interval": False, **_SELECTED},
    "quantiles": {"q": [0.25, 0.5], "interval": False, **_SELECTED},
    "histogram": {"edges": _EDGES},
}


def _statistic(name: str, options: Mapping[str, object], epsilon: float, _delta: float) -> Outputs:
    """Release a statistic of the rows: its numbers, and its interval if there is one."""
    from dpnoise import statistics  # noqa: PLC0415 - it takes long to import

    statistic = getattr(statistics, name)

    def release(rows: list[float]) -> object:
        released = statistic(rows, epsilon=epsilon, **options)
        return released.value, released.interval or 0

    return _release_one_by_one(release)


for _name, _chosen in STATISTICS.items():
    _mechanism(f"dpnoise.statistics.{_name}", ROWS)(partial(_statistic, _name, _chosen))


@_mechanism("dpnoise.statistics.publish", ((0, 1), (27, 28)), has_delta=True)
def _publish(epsilon: float, delta: float) -> Outputs:
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
