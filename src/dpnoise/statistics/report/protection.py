"""What is protected and how strongly, in words and as odds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dpnoise.core.markup import Markup, tag
from dpnoise.core.page_layout import section
from dpnoise.statistics.composition import epsilon_of_zcdp
from dpnoise.statistics.digits import never_less
from dpnoise.statistics.report import odds

_BELIEFS: Final = (1, 10, 50, 90)  # Percent.
_WEAK: Final = 10.0  # An epsilon above which odds say that hardly anything is promised.
_USUAL_DELTA: Final = 1e-6  # Where a loss in rho is read.
_ROWS: Final = 3  # Of one person, in an example.
_LIMITS: Final = (
    (
        "What is true of everybody is not hidden, nor meant to be: that is what the numbers are "
        "for. It may say something about a person who is not in the data, too."
    ),
    "The promise is about this page. What else is published about the same people adds to it.",
)


@dataclass(frozen=True)
class Promise:
    """What a record says of its protection."""

    unit: str
    replaced: bool
    epsilon: float
    delta: float
    rho: float | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Promise":
        """Read it from a record; one without `privacy` spent its request's epsilon.

        A loss in rho alone has no epsilon until a delta is chosen, which is done here.
        """
        request = record["request"]
        privacy = record.get("privacy") or {"epsilon": request["epsilon"]}
        epsilon, delta, rho = privacy["epsilon"], privacy.get("delta") or 0.0, None
        if epsilon is None:
            rho = privacy["rho"]
            epsilon = epsilon_of_zcdp(rho, _USUAL_DELTA)
            delta = _USUAL_DELTA + (privacy.get("rho_delta") or 0.0)
        replaced = request.get("neighbours") == "replace"
        return cls(record["privacy_unit"], replaced, epsilon, delta, rho)

    @property
    def noun(self) -> str:
        """Who or what is protected, in one word."""
        return "row" if self.unit.startswith("one row") else "person"

    @property
    def cost(self) -> str:
        """What was spent: `epsilon 1 and delta 1e-06`."""
        return self._at_delta if self.rho is None else f"rho {never_less(self.rho)}"

    @property
    def strength(self) -> str:
        """The promise in half a sentence."""
        read = "" if self.rho is None else f", which is {self._at_delta}"
        return f"{self.cost}{read}: odds move by at most a factor of {odds.factor(self.epsilon)}"

    @property
    def _at_delta(self) -> str:
        delta = f" and delta {never_less(self.delta)}" if self.delta else ""
        return f"epsilon {never_less(self.epsilon)}{delta}"


def explained(promise: Promise) -> Markup:
    """Explain what is protected, how strongly, and what is not."""
    noun = promise.noun
    subject = f"what one {noun} says" if promise.replaced else f"whether one {noun} is in the data"
    parts = [
        tag(
            "p",
            f"Protected is {promise.unit}. Whoever reads this page, whatever else they know and "
            f"however much they compute, learns little about {subject}: had that {noun} "
            f"{'been another' if promise.replaced else 'not been there'}, this page could have "
            "come out just the same, with nearly the same probability.",
        )
    ]
    if promise.rho is not None:
        parts.append(tag("p", _about_rho(promise.rho)))
    parts += _in_odds(promise, subject)
    return section("What is protected, and how strongly", *parts, _limits(promise))


def _in_odds(promise: Promise, subject: str) -> list[Markup]:
    epsilon = promise.epsilon
    most = odds.at_most(50, epsilon)
    words = tag(
        "p",
        f"Epsilon is {never_less(epsilon)}. Whatever someone believed about {subject}, the odds "
        f"move by at most a factor of {odds.factor(epsilon)}, up or down. Someone who thought it "
        f"as likely as not, 50%, can think it at most {most} likely afterwards.",
    )
    parts = [words, tag("figure", _ranges(epsilon), tag("figcaption", _CAPTION))]
    if epsilon > _WEAK:
        parts.append(
            tag("p", "That is a wide range: an epsilon this large promises hardly anything.")
        )
    if promise.delta:
        parts.append(tag("p", _about_delta(promise.delta)))
    return parts


_CAPTION: Final = (
    "The upright line is what someone believed before; the bar is all that it can become after "
    "reading."
)


def _about_delta(delta: float) -> str:
    one_in = f"{1 / delta:,.0f}" if delta > 1e-15 else f"{1 / delta:.2g}"  # noqa: PLR2004 - readable
    shown = never_less(delta)
    return (
        f"Delta is {shown}. It is what these odds leave out: the page tells no more than one that "
        f"with probability {shown}, once in {one_in}, told outright, and otherwise kept to the "
        "odds above."
    )


def _about_rho(rho: float) -> str:
    return (
        f"The loss is rho {never_less(rho)} of zero-concentrated differential privacy (zCDP). It "
        "has no largest factor for odds: the further they move, the less likely that is. What "
        f"follows is what it promises at a delta of {_USUAL_DELTA:g}."
    )


def _limits(promise: Promise) -> Markup:
    points = [tag("li", point) for point in _LIMITS]
    if promise.noun == "row" and promise.rho is None:
        most = f"the factor is then {odds.factor(_ROWS * promise.epsilon)} for {_ROWS} rows"
        points.insert(0, tag("li", f"A person who has several rows is protected less: {most}."))
    elif promise.noun == "row":
        most = f"{_ROWS} rows have {_ROWS**2} times the loss"  # A rho grows by the square.
        points.insert(0, tag("li", f"A person who has several rows is protected less: {most}."))
    return tag("ul", *points)


def _ranges(epsilon: float) -> Markup:
    """Draw what each belief can become."""
    tall = 44
    drawn = []
    words = []
    for i, belief in enumerate(_BELIEFS):
        low, high = odds.shares(belief, epsilon)
        says = f"{odds.at_least(belief, epsilon)} to {odds.at_most(belief, epsilon)}"
        words.append(f"Believed before {belief}%: {says} after")
        top = tall * i
        place = {"y": str(top + 22), "height": "12"}
        x = f"{belief}%"
        drawn += [
            tag("text", f"From {belief}%", x="0", y=str(top + 16)),
            tag("text", says, x="100%", y=str(top + 16), text_anchor="end", class_="says"),
            tag("rect", x="0", width="100%", class_="track", **place),
            tag(
                "rect",
                x=f"{100 * low:.2f}%",
                width=f"{100 * (high - low):.2f}%",
                class_="amount",
                **place,
            ),
            tag("line", x1=x, x2=x, y1=str(top + 19), y2=str(top + 37), class_="mark"),
        ]
    named = (tag("title", "What beliefs can become"), tag("desc", "; ".join(words) + "."))
    return tag("svg", *named, *drawn, role="img", width="100%", height=str(tall * len(_BELIEFS)))
