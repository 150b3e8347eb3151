"""Numbers that add up: marginals of one table, adjusted together by weighted least squares.

The cells of a table are all combinations of the groups of its columns. A marginal is the sums of
the cells by some of these columns, or by coarser columns of a hierarchy. Exact marginals add up;
with noise they do not. `Adjustment` sees only noisy numbers, so it costs no privacy.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from dpnoise.core.arrays import Array, Floats, Integers
from dpnoise.core.errors import ArgumentError
from dpnoise.statistics.plan import Answer, Key, SumAnswer
from dpnoise.statistics.queries import Count, Sum, to_int64
from dpnoise.statistics.results import Release, WholeNoise, combined_error

# The parts of each group of a coarser column, by the finer column and the coarser one.
Hierarchy = Mapping[str, Mapping[str, Mapping[str, Sequence[Key]]]]
_EXAMPLE: Final = {"town": {"county": {"cork": ["mallow", "cobh"], "kerry": ["tralee"]}}}
_COUNT_STEP: Final = 2.0**-10  # Counts that may be negative are published as multiples of this.
_FLOAT_BITS: Final = 52  # Multiples of a number up to 2^52 times as large add up exactly in floats.
_ROUNDING: Final = 2.0**-40  # A bound on the relative rounding errors of least squares.
_LARGEST_COUNT: Final = 2.0**62
_LEAST_RATIO: Final = 2.0**-100  # Numbers with less noise than this, relative to others, are exact.
ADDS_UP: Final = "adjusted to add up"


def derived_groups(
    hierarchy: Hierarchy, groups: Mapping[str, Sequence[Key]]
) -> dict[str, tuple[str, ...]]:
    """Return the groups of the coarser columns of a hierarchy; raise if it is not valid."""
    is_nested = isinstance(hierarchy, Mapping) and all(
        isinstance(coarser, Mapping)
        and len(coarser) == 1
        and all(isinstance(parts, Mapping) and parts for parts in coarser.values())
        for coarser in hierarchy.values()
    )
    if not is_nested:
        raise ArgumentError(
            "hierarchy must name for each column one coarser column, and the parts of each of its "
            "groups: {hierarchy}.",
            hierarchy=_EXAMPLE,
        )
    derived: dict[str, tuple[str, ...]] = {}
    coarser_columns = {column for coarser in hierarchy.values() for column in coarser}
    known = {name: keys for name, keys in groups.items() if name not in coarser_columns}
    remaining = dict(hierarchy)
    while remaining:
        finer = next((name for name in remaining if name in known), None)
        if finer is None:
            raise ArgumentError(f"The groups of {next(iter(remaining))!r} must be declared.")
        ((column, parts),) = remaining.pop(finer).items()
        _check_parts(finer, known[finer], column, parts)
        if column in known:
            raise ArgumentError(f"{column!r} must be coarser than one column of the hierarchy.")
        known[column] = derived[column] = tuple(parts)
    return derived


def _check_parts(
    finer: str, keys: Sequence[Key], column: str, parts: Mapping[str, Sequence[Key]]
) -> None:
    """Raise unless every group of the finer column is a part of one group of the coarser."""
    if isinstance(keys, str):
        raise ArgumentError(f"The groups of {finer!r} must be declared to have a hierarchy.")
    if not all(isinstance(name, str) and isinstance(part, list | tuple) and part
               for name, part in parts.items()):  # fmt: skip
        raise ArgumentError(
            f"Each group of {column!r} must be a text with a list of its parts: {{hierarchy}}.",
            hierarchy=_EXAMPLE,
        )
    listed = Counter((type(key), key) for part in parts.values() for key in part)
    declared = Counter((type(key), key) for key in keys)
    for problem, wrong in (
        (f"is not a group of {finer!r}", listed.keys() - declared.keys()),
        (f"is in no group of {column!r}", declared - listed),
        (f"is in two groups of {column!r}", listed - declared),
    ):
        for _, key in wrong:
            raise ArgumentError(
                f"Every group of {finer!r} must be in one group of {column!r}: {key!r} {problem}."
            )


class Level(NamedTuple):
    """A column that numbers are grouped by, as a level of the hierarchy of a table's column."""

    column: str  # The column of the table.
    depth: int  # 0 for the column itself, 1 for the next coarser one.
    size: int  # The number of groups.
    group_of_key: Integers  # The index of the group, for each key of the table's column.


def level_of(column: str, hierarchy: Hierarchy, groups: Mapping[str, Sequence[Key]]) -> Level:
    """Return the level of a column."""
    for finer, coarser in hierarchy.items():
        if column in coarser:
            below = level_of(finer, hierarchy, groups)
            group_of_part = {
                (type(key), key): i
                for i, parts in enumerate(coarser[column].values())
                for key in parts
            }
            group_of_key = np.array([group_of_part[type(key), key] for key in groups[finer]])
            size = len(coarser[column])
            return Level(below.column, below.depth + 1, size, group_of_key[below.group_of_key])
    return Level(column, 0, len(groups[column]), np.arange(len(groups[column])))


@dataclass(frozen=True, eq=False)
class Marginal:
    """Sums of the cells of a table, by some of its columns or by coarser ones.

    `shape` has the number of keys of each column of the table. `levels` are the columns that the
    sums are grouped by, with the axis of each in the table.
    """

    shape: tuple[int, ...]
    levels: tuple[tuple[int, Level], ...]

    @property
    def depths(self) -> dict[int, int]:
        """The depth of each axis of the table that is not summed over."""
        return {axis: level.depth for axis, level in self.levels}

    @property
    def size(self) -> int:
        """The number of sums."""
        return math.prod(level.size for _, level in self.levels)

    @cached_property
    def group_of_cell(self) -> Integers:
        """The index of the sum that each cell is a part of."""
        index = np.zeros(self.shape, dtype=np.int64)
        for axis, level in self.levels:
            along_axis = [-1 if other == axis else 1 for other in range(len(self.shape))]
            index = index * level.size + level.group_of_key.reshape(along_axis)
        return index.reshape(-1)

    def add_up(self, cells: Array) -> Array:
        """Return the sums of the cells of a table."""
        sums = np.zeros(self.size, dtype=cells.dtype)
        np.add.at(sums, self.group_of_cell, cells.reshape(-1))
        return sums

    def refines(self, other: "Marginal") -> bool:
        """Return whether each sum of `other` is a sum of these."""
        depths = self.depths
        return all(depths.get(axis, depth + 1) <= depth for axis, depth in other.depths.items())

    def on_axes(self, sums: Array) -> Array:
        """Return the sums with an axis for each of the table, of length 1 if it is summed over."""
        order = sorted(range(len(self.levels)), key=lambda i: self.levels[i][0])
        sizes = {axis: level.size for axis, level in self.levels}
        by_level = sums.reshape([level.size for _, level in self.levels]).transpose(order)
        return by_level.reshape([sizes.get(axis, 1) for axis in range(len(self.shape))])


def marginal_answer(marginal: Marginal, answer: Answer) -> Answer:
    """Return the exact sums of a table, from the answer for all its cells."""
    if not isinstance(answer, SumAnswer):
        return marginal.add_up(answer)
    totals = to_int64(marginal.add_up(answer.total.astype(object)))
    return SumAnswer(marginal.add_up(answer.count), totals)


def from_coarse_to_fine(marginals: Sequence[Marginal]) -> list[int] | None:
    """Return the order in which each marginal refines the one before; None if there is none."""

    def fineness(index: int) -> tuple[int, int]:
        depths = marginals[index].depths
        return len(depths), -sum(depths.values())

    order = sorted(range(len(marginals)), key=fineness)
    is_chain = all(marginals[i].refines(marginals[j]) for j, i in pairwise(order))
    return order if is_chain else None


def hierarchy_axes(marginals: Sequence[Marginal]) -> set[int]:
    """Return the axes of the table that have coarser levels in some marginal."""
    return {axis for one in marginals for axis, depth in one.depths.items() if depth}


class _Tree:
    """The levels of one axis of the table, from its keys up to a single root."""

    def __init__(self, marginals: Sequence[Marginal]) -> None:
        self.axis = next(iter(hierarchy_axes(marginals)), 0)
        keys = marginals[0].shape[self.axis]
        levels = {level.depth: level for one in marginals for axis, level in one.levels
                  if axis == self.axis}  # fmt: skip
        self.depths = sorted({0, *levels})
        groups = [np.arange(keys), *(levels[depth].group_of_key for depth in self.depths[1:])]
        groups.append(np.zeros(keys, dtype=np.int64))
        self.sizes = [int(group.max()) + 1 for group in groups]
        self.parents = []
        for (finer, coarser), size in zip(pairwise(groups), self.sizes, strict=False):
            parent = np.zeros(size, dtype=np.int64)
            parent[finer] = coarser
            self.parents.append(parent)

    def level(self, marginal: Marginal) -> int:
        """Return the level of a marginal: the last one, the root, if it is summed over the axis."""
        depth = marginal.depths.get(self.axis)
        return len(self.depths) if depth is None else self.depths.index(depth)

    def exchangeable_nodes(self, level: int) -> Integers:
        """Return a label of each node of a level: a symmetry of the tree maps equal labels."""
        labels: dict[Any, int] = {}
        shapes = [np.zeros(self.sizes[0], dtype=np.int64)]  # The subtree below each node.
        for parent, size in zip(self.parents, self.sizes[1:], strict=True):
            children: list[list[int]] = [[] for _ in range(size)]
            for node, shape in zip(parent.tolist(), shapes[-1].tolist(), strict=True):
                children[node].append(shape)
            found = [labels.setdefault(tuple(sorted(below)), len(labels) + 1) for below in children]
            shapes.append(np.array(found))
        label = shapes[-1]
        for depth in reversed(range(level, len(self.parents))):
            above = label[self.parents[depth]].tolist()
            pairs = zip(shapes[depth].tolist(), above, strict=True)
            label = np.array([labels.setdefault(pair, len(labels) + 1) for pair in pairs])
        return label

    def estimate(self, precisions: Sequence[float], weighted: Sequence[Floats]) -> Floats:
        """Return the least-squares estimate of each key (Hay and others 2010, with weights).

        `precisions` has the precision of the noisy numbers of each level, 0 if there are none, and
        `weighted` the numbers times their precision, with a node of the level in each row.
        """
        estimates: list[Floats] = []
        spreads: list[Floats] = []  # The variance of each estimate, up to a factor.
        is_known = False
        for level, (precision, own) in enumerate(zip(precisions, weighted, strict=True)):
            below = np.zeros((len(own), *[1] * (own.ndim - 1)))  # The precision of finer sums.
            sums: Floats | float = 0.0
            if is_known:
                parent = self.parents[level - 1]
                below = 1 / _add_children(spreads[-1], parent, len(own))
                sums = _add_children(estimates[-1], parent, len(own))
            is_known = is_known or precision > 0
            spreads.append(1 / (precision + below) if is_known else below + 1)
            estimates.append((own + below * sums) * spreads[-1])
        best = estimates[-1]
        for level in reversed(range(len(self.parents))):
            parent, spread = self.parents[level], spreads[level]
            missing = best - _add_children(estimates[level], parent, len(best))
            share = missing / _add_children(spread, parent, len(best))
            best = estimates[level] + share[parent] * spread
        return best


def _add_children(numbers: Floats, parent: Integers, size: int) -> Floats:
    sums = np.zeros((size, *numbers.shape[1:]))
    np.add.at(sums, parent, numbers)
    return sums


def least_squares(
    marginals: Sequence[Marginal], noisy: Sequence[Floats], variances: Sequence[float]
) -> Floats:
    """Return the cells whose sums are nearest to noisy marginals, weighted by their precision.

    One axis of the table may have a hierarchy. Along the other axes, the problem falls into
    independent parts, one for each set of axes: sums over the axes outside of the set, and
    differences from the mean along the axes in it. Each part is a problem on the tree.
    """
    tree, shape = _Tree(marginals), marginals[0].shape
    tensors = [
        np.moveaxis(one.on_axes(numbers), tree.axis, 0)
        for one, numbers in zip(marginals, noisy, strict=True)
    ]
    sizes = [size for axis, size in enumerate(shape) if axis != tree.axis]
    cells = np.zeros((shape[tree.axis], *sizes))
    for axes in _contrasts(tensors, sizes):
        precisions = [0.0] * len(tree.sizes)
        lengths = [sizes[axis - 1] if axis in axes else 1 for axis in range(1, len(shape))]
        weighted = [np.zeros((size, *lengths)) for size in tree.sizes]
        for one, tensor, variance in zip(marginals, tensors, variances, strict=True):
            if any(tensor.shape[axis] < sizes[axis - 1] for axis in axes):
                continue  # It is summed over an axis of the set.
            part, summed = _project(tensor, axes)
            level = tree.level(one)
            precisions[level] += 1 / (variance * summed)
            weighted[level] += part / (variance * summed)
        if any(precisions):
            cells += tree.estimate(precisions, weighted) * (math.prod(lengths) / math.prod(sizes))
    return np.moveaxis(cells, 0, tree.axis).reshape(-1)


def _contrasts(tensors: Sequence[Floats], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return all sets of axes, except the first, of which some tensor has every axis."""
    sets: dict[tuple[int, ...], None] = {}
    for tensor in tensors:
        own = [axis for axis, size in enumerate(sizes, 1) if tensor.shape[axis] == size]
        every = (combinations(own, number) for number in range(len(own) + 1))
        sets.update(dict.fromkeys(chain.from_iterable(every)))
    return list(sets)


def _project(tensor: Floats, axes: Sequence[int]) -> tuple[Floats, int]:
    """Return differences from the mean along `axes`, and sums over the other axes but the first.

    Return also how many numbers each sum has.
    """
    summed = 1
    for axis in range(1, tensor.ndim):
        if axis in axes:
            tensor = tensor - tensor.mean(axis=axis, keepdims=True)
        else:
            summed *= tensor.shape[axis]
            tensor = tensor.sum(axis=axis, keepdims=True)
    return tensor, summed


def top_down(chain_of_marginals: Sequence[Marginal], estimates: Sequence[Floats]) -> list[Integers]:
    """Return non-negative integers near estimates, such that the finer add up to the coarser.

    The marginals are in order, from coarse to fine. The parts of a number are the nearest
    non-negative numbers with this sum, rounded by largest remainders.
    """
    top = np.clip(np.rint(estimates[0]), 0, _LARGEST_COUNT).astype(np.int64)
    numbers = [top]
    for (coarser, finer), targets in zip(pairwise(chain_of_marginals), estimates[1:], strict=True):
        parent = np.zeros(finer.size, dtype=np.int64)
        parent[finer.group_of_cell] = coarser.group_of_cell
        order = np.argsort(parent, kind="stable")
        starts = np.searchsorted(parent[order], np.arange(1, coarser.size))
        parts = np.zeros(finer.size, dtype=np.int64)
        for total, children in zip(numbers[-1].tolist(), np.split(order, starts), strict=True):
            parts[children] = share_out(total, targets[children])
        numbers.append(parts)
    return numbers


def share_out(total: int, targets: Floats) -> Integers:
    """Return the non-negative integers nearest to targets that add up to a total.

    >>> share_out(10, np.array([7.6, -2.0, 4.4])).tolist()
    [7, 0, 3]
    """
    descending = np.sort(targets)[::-1]
    excess = (np.cumsum(descending) - total) / np.arange(1, targets.size + 1)
    positive = max(int(np.count_nonzero(descending > excess)), 1)
    exact = np.maximum(targets - excess[positive - 1], 0.0)
    parts: Integers = np.floor(exact).astype(np.int64)
    left = total - int(parts.sum())
    if 0 <= left <= parts.size:
        parts[np.argsort(parts - exact, kind="stable")[:left]] += 1
    else:  # Floats this large have no fractions.
        parts[np.argmax(parts)] += left
    return parts


class Adjustment:
    """How the noisy numbers of one statistic are adjusted to add up, and their margins then.

    It is made from public facts. `adjust_releases` gets noisy releases, and nothing else.
    """

    def __init__(
        self,
        marginals: Sequence[Marginal],
        queries: Sequence[Count | Sum],
        confidence: float,
        *,
        clamp: bool,
    ) -> None:
        self._marginals = marginals
        deviations = [query.noise.deviation for query in queries]
        # Up to a factor: the squares of extreme scales are not floats.
        ratios = (max(each / max(deviations), _LEAST_RATIO) for each in deviations)
        self._variances = [ratio**2 for ratio in ratios]
        first = queries[0]
        self._is_count = isinstance(first, Count)
        self._unit = first.bounds.grid if isinstance(first, Sum) else 1.0
        is_whole = clamp and (isinstance(first, Count) or first.bounds.least >= 0)
        self._order = from_coarse_to_fine(marginals) if is_whole else None
        noises = [query.noise for query in queries]
        indices = range(len(marginals))
        self._margins = [self._unit * self._margins_of(i, noises, confidence) for i in indices]

    def _margins_of(self, index: int, noises: Sequence[WholeNoise], confidence: float) -> Floats:
        """Return the margin of each estimate of a marginal, and of all its estimates together.

        Numbers that a symmetry of the table exchanges have the same margins.
        """
        marginal, tree = self._marginals[index], _Tree(self._marginals)
        sums = np.moveaxis(marginal.on_axes(np.arange(marginal.size)), tree.axis, 0)
        labels = tree.exchangeable_nodes(tree.level(marginal))
        sums = sums.reshape(labels.size, -1)
        margins = np.zeros((2, marginal.size))
        for label in np.unique(labels).tolist():
            same = labels == label
            parts = list(zip(noises, self._weights(index, int(sums[same][0, 0])), strict=True))
            for row, number in enumerate((1, marginal.size)):
                margins[row, sums[same]] = combined_error(parts, 1 - (1 - confidence) / number)
        return margins

    def _weights(self, index: int, place: int) -> list[Floats]:
        """Return how much each noisy number weighs in one estimate.

        The matrix of least squares, times the variances of the noisy numbers, is symmetric.
        """
        unit = [np.zeros(one.size) for one in self._marginals]
        unit[index][place] = 1.0
        cells = least_squares(self._marginals, unit, self._variances)
        return [
            one.add_up(cells) * (self._variances[index] / variance)
            for one, variance in zip(self._marginals, self._variances, strict=True)
        ]

    def adjust_releases(self, noisy: Sequence[Sequence[Release]]) -> list[list[Release]]:
        """Return releases of numbers that add up, for the noisy releases of each marginal."""
        numbers = [np.array([float(release.value) for release in part]) for part in noisy]
        cells = least_squares(self._marginals, numbers, self._variances)
        estimates = [marginal.add_up(cells) for marginal in self._marginals]
        rounding = _ROUNDING * max(float(np.abs(part).max()) for part in numbers)
        values: list[Array]
        if self._order is None:
            step = _step_for(cells, _COUNT_STEP if self._is_count else self._unit)
            rounded = np.rint(cells / step) * step
            values = [marginal.add_up(rounded) for marginal in self._marginals]
        else:
            step = _step_for(cells, self._unit)
            in_order = [(self._marginals[i], estimates[i] / step) for i in self._order]
            whole = dict(zip(self._order, top_down(*zip(*in_order, strict=True)), strict=True))
            unit = int(step) if self._is_count else step
            values = [whole[index] * unit for index in range(len(whole))]
        errors = [
            self._errors(value, estimate, margins + rounding)
            for margins, value, estimate in zip(self._margins, values, estimates, strict=True)
        ]
        return [
            [
                replace(
                    release, value=number, error=single,
                    joint_error=None if release.joint_error is None else joint,
                    grid=step, mechanism=f"{release.mechanism}, {ADDS_UP}", adjusted=True,
                )
                for release, number, single, joint in zip(
                    part, value.tolist(), *error.tolist(), strict=True
                )
            ]
            for part, value, error in zip(noisy, values, errors, strict=True)
        ]  # fmt: skip

    def _errors(self, values: Array, estimates: Floats, margins: Floats) -> Array:
        """Return the margins of published numbers.

        The exact number is within its margin of the estimate, and not below 0 if it cannot be.
        """
        if self._order is None:
            return np.asarray(margins + np.abs(values - estimates))
        below = values - np.maximum(estimates - margins, 0.0)
        above = estimates + margins - values
        errors: Array = np.maximum(np.maximum(below, above), 0.0)
        return np.floor(errors).astype(np.int64) if self._is_count else errors


def _step_for(cells: Floats, step: float) -> float:
    """Return a power of two, at least `step`, whose multiples add up exactly in floats."""
    largest = float(np.abs(cells).sum())
    return max(step, 2.0 ** (math.ceil(math.log2(largest)) - _FLOAT_BITS)) if largest else step
