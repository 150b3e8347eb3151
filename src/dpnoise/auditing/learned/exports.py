"""Learned events as Python, which calls functions of `auditing.predicates`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from dpnoise.auditing.learned.expected_bounds import Proposal
from dpnoise.auditing.learned.steps import Steps, find_cells
from dpnoise.auditing.learned.views import PARTS, View
from dpnoise.auditing.output_parts import OutputParts, printed_number
from dpnoise.auditing.predicates import (
    evaluate_predicate,
    pattern_of,
    with_form,
    with_printed_number,
)
from dpnoise.core.arrays import Flags, Floats

Decode = Callable[[Floats], Sequence[Sequence[object]]]
Codes = Mapping[object, float]  # The code of each label.

_MOST_RANGES: Final = 2  # The most ranges that are written as comparisons.
_OUTSIDE: Final = 1e301  # Stands for infinity, which has no literal. Numbers are clipped before.


def write_event(
    proposal: Proposal,
    decode: Decode,
    codes: Codes | None = None,
    other_code: float = 0.0,
    form: int | None = None,
    views: Sequence[str] = (),
) -> str:
    """Return an event as an expression in `y`, an output as a list of its parts.

    `decode` returns the parts of rows, `codes` has the code of each label, and labels without a
    code have the other one. `form` is the index of the form of an output, if events may read it.
    An output begins with the values of the caller's `views`, given by their names.
    """
    output = "y"
    if views:
        is_printed = [*views] == [printed_number.__name__]
        own = f"own(y, {', '.join(map(repr, views))})"
        output = f"{with_printed_number.__name__}(y)" if is_printed else own
    return _Writer(proposal, decode, codes or {}, other_code, form, output).write()


def agrees(source: str, proposal: Proposal, rows: Floats, decode: Decode) -> bool:
    """Return whether an expression is true of the same rows as the event."""
    return bool((evaluate_predicate(source, decode(rows)) == proposal.event.holds(rows)).all())


class _Writer:
    """Writes one event; `output` is the text of the output that it is about."""

    def __init__(
        self,
        proposal: Proposal,
        decode: Decode,
        codes: Codes,
        other_code: float,
        form: int | None,
        output: str,
    ) -> None:
        self._proposal, self._decode, self._output = proposal, decode, output
        self._codes, self._other_code, self._form = codes, other_code, form
        self._defined = False  # Whether z has been defined.

    def write(self) -> str:
        proposal, score = self._proposal, self._proposal.exact_score
        if len(score.views) > 1:
            terms = zip(score.views, score.steps, score.weights, strict=True)
            side = "<" if proposal.swapped else ">"
            total = ", ".join(self._term(view, step, weight) for view, step, weight in terms)
            return f"add_up({total}) {side} {float(proposal.cut)!r}"
        view, step = score.views[0], score.steps[0]
        inside = proposal.holds(step.ratios)
        if view.coded:
            usual = bool(proposal.holds(np.zeros(1))[0])
            listed = self._patterns(view, step.edges, inside != usual)
            return _membership(self._read(view), [x for x, _ in listed], is_in=not usual)
        if view.kind != PARTS:
            return " or ".join(_ranges(self._read(view), step.edges, inside)) or "False"
        if set(step.edges.tolist()) & {*self._codes.values()}:
            return self._part_with_labels(view, step.edges, inside)
        return " or ".join(_ranges(self._plain(view), step.edges, inside)) or "False"

    def _name_of_output(self, source: str) -> str:
        """Return the output as a view reads it: with its form if it may read that."""
        reads_form = self._form is not None and re.search(rf"\b{self._form}\b", source)
        return f"with_form({self._output}, {self._form})" if reads_form else self._output

    def _plain(self, view: View) -> str:
        """Return what a view reads from y where no label matters."""
        y = self._name_of_output(view.source)
        return view.source.format(y=y, z=y)

    def _read(self, view: View) -> str:
        """Return the number or the pattern that a view reads from y."""
        if not self._codes or "{z}" not in view.source:
            return self._plain(view)
        first, rest = view.source.partition("{z}")[::2]
        y, z = self._name_of_output(view.source), "z"
        if not self._defined:
            parts = self._output
            if self._form is not None:
                parts = f"with_form({parts}, {self._form})"
            z = f"(z := with_codes({parts}, {dict(self._codes)!r}, {self._other_code!r}))"
            self._defined = True
        return f"{first.format(y=y)}{z}{rest.format(y=y, z='z')}"

    def _term(self, view: View, step: Steps, weight: float) -> str:
        values = weight * step.ratios
        if view.coded:
            listed = self._patterns(view, step.edges, values != 0)
            pairs = ", ".join(
                f"{_literal(pattern)}: {float(values[cell])!r}" for pattern, cell in listed
            )
            return f"lookup({self._read(view)}, {{{pairs}}}, 0.0)"
        # Neighbouring cells with equal values are merged. The last one is that of missing numbers.
        changes = np.flatnonzero(np.diff(values[:-1]))
        edges = step.edges[:-1][changes].tolist()
        steps = values[:-1][np.append(changes, len(values) - 2)].tolist()
        return f"step_value({self._read(view)}, {edges}, {[*steps, float(values[-1])]})"

    def _patterns(self, view: View, edges: Floats, chosen: Flags) -> list[tuple[object, int]]:
        """Return the patterns of chosen cells, each with its cell."""
        cells = [2 * k + 1 for k in range(len(edges) // 2) if chosen[2 * k + 1]]
        rows = [view.examples[float(edges[cell - 1])] for cell in cells]
        parts: Sequence[Sequence[object]] = self._decode(np.array(rows)) if rows else []
        if self._form is not None:
            parts = [with_form(y, self._form) for y in parts]
        z_of = [self._with_codes(y) for y in parts]
        patterns = [pattern_of(view.source, y, z) for y, z in zip(parts, z_of, strict=True)]
        return sorted(zip(patterns, cells, strict=True), key=repr)

    def _with_codes(self, y: Sequence[object]) -> list[object]:
        codes, other = self._codes, self._other_code
        return OutputParts(codes.get(x, other) if isinstance(x, str | bytes) else x for x in y)

    def _part_with_labels(self, view: View, edges: Floats, inside: Flags) -> str:
        """Return the event of a part that may be a label."""
        part = self._plain(view)
        every_code = np.array([*self._codes.values(), self._other_code])
        *of_codes, usual = inside[find_cells(edges, every_code)].tolist()
        numbers, own = inside.copy(), set()
        for i, edge in enumerate(edges[:-1].tolist()):
            if edge in self._codes.values() and edges[i + 1] == np.nextafter(edge, np.inf):
                own.add(edge)  # A code with its own cell, which no number falls into.
                numbers[i + 1] = numbers[i]
        has_numbers = 2 * len(own) < len(edges) - 1
        labels = [
            label
            for (label, code), is_inside in zip(self._codes.items(), of_codes, strict=True)
            if is_inside != usual and (has_numbers or code in own)
        ]
        numbers[-1] = False
        tests = _ranges(part, edges, numbers) if has_numbers else []
        name = part.replace("number", "label", 1)
        if usual:
            tests.append(_membership(name, [None, *labels], is_in=False))
        elif labels:
            tests.append(_membership(name, labels, is_in=True))
        if inside[-1]:
            tests.append(part.replace("number", "is_missing", 1))
        return " or ".join(tests) or "False"


def _before(x: float) -> float:
    """Return the number just below."""
    return float(np.nextafter(x, -np.inf))


def _membership(x: str, items: Sequence[object], *, is_in: bool) -> str:
    """Return a test whether x is one of some items, or none of them."""
    if len(items) == 1:
        return f"{x} {'==' if is_in else '!='} {_literal(items[0])}"
    listed = f"{{{', '.join(map(_literal, items))}}}" if items else "()"
    return f"{x} {'in' if is_in else 'not in'} {listed}"


def _literal(x: object) -> str:
    """Return a pattern as Python: `...` for an ellipsis, whole numbers without a point."""
    if isinstance(x, tuple):
        return f"({', '.join(map(_literal, x))}{',' * (len(x) == 1)})"
    return "..." if x is ... else repr(x).removesuffix(".0") if isinstance(x, float) else repr(x)


def _ranges(x: str, edges: Floats, inside: Flags) -> list[str]:
    """Return comparisons of a number with the ranges of its cells that are inside."""
    ends = [-np.inf, *edges.tolist(), np.nan]
    marks = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    ranges = [(float(ends[i]), float(ends[j])) for i, j in marks.reshape(-1, 2)]
    is_missing = bool(ranges) and bool(np.isnan(ranges[-1][1]))
    finite = [(x0, np.inf if np.isnan(x1) else x1) for x0, x1 in ranges if x0 < np.inf]
    if len(finite) > _MOST_RANGES:
        shown = [(max(low, -_OUTSIDE), min(high, _OUTSIDE)) for low, high in finite]
        tests = [f"within({x}, {shown})"]
    else:
        tests = [_comparison(x, low, high) for low, high in finite]
    return tests + [f"{x} != {x}"] * is_missing


def _comparison(x: str, low: float, high: float) -> str:
    """Return the comparison of a number with one range, with the shorter name of each end."""
    if high == np.nextafter(low, np.inf):
        return f"{x} == {low!r}"
    above = f"{x} >= {low!r}"
    if len(repr(_before(low))) < len(repr(low)):
        above = f"{x} > {_before(low)!r}"
    below = f"< {high!r}"
    if len(repr(_before(high))) < len(repr(high)):
        below = f"<= {_before(high)!r}"
    if high == np.inf:
        return f"{x} == {x}" if low == -np.inf else above
    if low == -np.inf:
        return f"{x} {below}"
    sign, end = above.removeprefix(x).split()
    return f"{end} {sign.replace('>', '<')} {x} {below}"
