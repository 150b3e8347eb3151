"""The certified privacy curve of a report, as a part of its page."""

from collections.abc import Sequence
from typing import Final

from dpnoise.auditing.figures import percent_of, picture
from dpnoise.auditing.wording import at_least
from dpnoise.core.markup import Markup, tag
from dpnoise.core.page_layout import section

_TALL: Final = 120
_TOP: Final = 24  # Below what the tallest column says.


def certified_curve(points: Sequence[Sequence[float]]) -> Markup:
    """Draw the least delta at each epsilon, where some event certifies one."""
    seen = [(epsilon, delta) for epsilon, delta in points if delta > 0]
    if len(seen) < 2:  # noqa: PLR2004 - a curve
        return Markup("")
    most, last = seen[0][1], seen[-1][0]
    said = f"delta is at least {at_least(most)} at epsilon 0"
    columns = [_column(i, len(seen), delta / most) for i, (_, delta) in enumerate(seen)]
    drawn = picture(
        "The certified privacy curve",
        f"From epsilon 0 to {at_least(last)}: {said}, and falls to 0.",
        _TOP + _TALL + _TOP,
        tag("text", said, x="0", y="14"),
        *columns,
        tag("text", "0", x="0", y=str(_TOP + _TALL + 17), class_="tick"),
        tag(
            "text", f"epsilon {at_least(last)}", x="100%", y=str(_TOP + _TALL + 17),
            class_="tick", text_anchor="end",
        ),
    )  # fmt: skip
    caption = (
        "Each column is the delta that the target has at least at its epsilon, by all events "
        "together. The true curve is on or above this one."
    )
    return section("The certified curve", tag("figure", drawn, tag("figcaption", caption)))


def _column(i: int, count: int, share: float) -> Markup:
    tall = max(1.0, _TALL * share)
    return tag(
        "rect",
        x=percent_of((i + 0.1) / count),
        width=percent_of(0.8 / count),
        y=f"{_TOP + _TALL - tall:.1f}",
        height=f"{tall:.1f}",
        class_="calm",
    )
