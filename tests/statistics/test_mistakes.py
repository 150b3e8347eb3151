"""Mistakes of newcomers: each is an error of dpnoise with the fix in its message."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpnoise as typed
from dpnoise.core.entropy import EntropySource

dpnoise: Any = typed  # Without types, so that wrong calls can be written.
st: Any = dpnoise.statistics
SECRET = 424_242  # In every column of numbers; no message may show it.
FRAME: Any = pd.DataFrame({"age": [SECRET, 40], "city": ["cork", "dublin"]})
POLARS: Any = pl.DataFrame({"age": [SECRET, 40], "day": [dt.date(2024, 1, 1)] * 2})
AGE: Any = FRAME["age"]
MEAN = st.Question(["mean"], "age", lower=0, upper=100)
REQUEST = st.Request(1.0, [MEAN])
BOUNDS: Any = {"lower": 0, "upper": 100, "epsilon": 1.0}
LAPLACE = dpnoise.LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
DISCRETE = dpnoise.DiscreteLaplaceMechanism(epsilon=1.0, sensitivity=1.0)


def ask(statistics_of: Any, column: Any = "age", **changes: Any) -> Any:
    return st.Question(statistics_of, column, **{"lower": 0, "upper": 100} | changes)


def request(publish_this: Any = (MEAN,), **changes: Any) -> Any:
    return st.Request(**{"epsilon": 1.0, "publish": publish_this} | changes)


Mistake = tuple[Callable[[], object], str]
QUESTIONS: dict[str, Mistake] = {
    "another name": (lambda: ask(["avg"]), "There is no statistic 'avg'. Did you mean 'mean'?"),
    "a misspelt name": (lambda: ask(["medain"]), "'medain'. Did you mean median"),
    "capital letters": (lambda: ask(["Mean"]), "'Mean'. Did you mean mean"),
    "a percentile": (lambda: ask(["percentile"]), "Did you mean 'quantile:0.9'?"),
    "no place": (lambda: ask(["quantile"]), "Did you mean 'quantile:0.9'?"),
    "percent": (lambda: ask([st.Quantile(90)]), "q must be between 0 and 1, got 90: write 0.9 for"),
    "percent as text": (lambda: ask(["quantile:90"]), "between 0 and 1, got 90.0: write 0.9"),
    "two places": (lambda: ask(["quantile:0.1,0.9"]), "say quantiles:0.1,0.9"),
    "a list for one place": (lambda: st.Quantile([0.1]), "q must be a number, got [0.1]"),
    "a place for a list": (lambda: st.Quantiles(0.1), "q must be a list of numbers"),
    "equal places": (lambda: st.Quantiles([0.1, 0.1]), "q must be one or more different numbers"),
    "a name": (lambda: ask("mean"), "be a list of names, such as [\"mean\"], got 'mean'"),
    "a function": (lambda: ask([sum]), "statistics must be a list of names"),
    "no list": (lambda: ask(None), "statistics must be a list of names"),
    "swapped": (lambda: ask("age", ["mean"]), "such as [\"mean\"], got 'age'"),
    "a list of columns": (lambda: ask(["mean"], ["age"]), "column must be the name of a column"),
    "a column of data": (lambda: ask(["mean"], AGE), "the name of a column, got a Series."),
    "no bounds": (lambda: st.Question(["mean"], "age"), "A mean needs bounds on a value, such as"),
    "no column": (lambda: ask(["mean"], None), "A mean needs a column"),
    "swapped bounds": (lambda: ask(["sum"], lower=9, upper=1), "lower must be below upper=1"),
    "text for bounds": (lambda: ask(["sum"], lower="0"), "lower must be a number, got '0'"),
    "no end": (lambda: ask(["sum"], upper=float("inf")), "upper must be finite"),
    "a pair": (lambda: ask(["sum"], bounds=(0, 1)), "It takes statistics, column, lower, upper"),
    "no edges": (lambda: ask(["histogram"]), "A histogram needs its edges: edges=[0,"),
    "a number of bins": (lambda: ask(["histogram"], edges=10), "edges must be a list of two"),
    "falling edges": (lambda: ask(["histogram"], edges=[9, 0]), "edges must be a list of two"),
    "edges of text": (lambda: ask(["histogram"], edges=[0, "9"]), "edges must be a list of two"),
    "edges for a mean": (
        lambda: ask(["mean"], edges=(0, 9)),
        'edges must belong to a histogram, got (0, 9): ask for "histogram" as well, or leave them',
    ),
    "edges for groups": (lambda: st.Question(["groups"], edges=[0], by=["city"]), "got (0,): ask"),
    "one group column": (lambda: ask(["count"], by="city"), "such as [\"city\"], got 'city'"),
    "a number to group by": (lambda: ask(["count"], by=5), "by must be a list of names"),
    "a weight of text": (lambda: ask(["count"], weight="2"), "weight must be a number, got '2'"),
}
REQUESTS: dict[str, Mistake] = {
    "one question": (lambda: request(MEAN), "publish must be a list of questions, such as [Que"),
    "a name": (lambda: request("mean"), "publish must be a list of questions"),
    "names": (lambda: request(["mean"]), "publish must be a list of questions"),
    "a dict": (lambda: request([{"statistics": ["count"]}]), "publish must be a list of questions"),
    "swapped": (lambda: st.Request([MEAN], 1.0), "publish must be a list of questions"),
    "no epsilon": (lambda: st.Request([MEAN]), "Write Request(epsilon, publish)."),
    "an unknown name": (lambda: request(questions=[MEAN]), "It takes epsilon, publish, groups"),
    "epsilon as text": (lambda: request(epsilon="1"), "epsilon must be a number, got '1'"),
    "epsilon from data": (lambda: request(epsilon=AGE), "epsilon must be a number, got a Series."),
    "percent": (lambda: request(confidence=95), "confidence must be between 0 and 1, got 95: wr"),
    "a list of groups": (lambda: request(groups=["city"]), "groups must name the groups of each"),
    "one group": (lambda: request(groups={"city": "cork"}), "groups of 'city' must be a list"),
    "no delimiter": (lambda: request(delimiter=None), "delimiter must be one ASCII character"),
    "a number for a person": (lambda: request(person=5), "person must be a name or a list of"),
    "no text columns": (lambda: request(text_columns=None), "text_columns must be a list of names"),
    "a mechanism": (lambda: request(mechanism=LAPLACE), "mechanism must be one of 'laplace'"),
    "publish a dict": (lambda: st.publish(FRAME, {}), "request must be a Request, such"),
    "publish a question": (lambda: st.publish(FRAME, MEAN), "request must be a Request"),
    "publish swapped": (
        lambda: st.publish(REQUEST, FRAME),
        "publish takes the data first: publish(",
    ),
    "publish nothing": (lambda: st.publish(FRAME), "Write publish(source, request)."),
    "publish epsilon": (
        lambda: st.publish(FRAME, REQUEST, epsilon=1.0),
        "It takes source,",
    ),
    "publish a list": (lambda: st.publish([SECRET], REQUEST), "got list. For one column in memory"),
    "publish text": (
        lambda: st.publish(FRAME, request([ask(["mean"], "city")])),
        "Column 'city' holds String. It must hold numbers",
    ),
    "publish dates": (
        lambda: st.publish(POLARS, request([ask(["mean"], "day")])),
        "Column 'day' holds Date. It must hold numbers",
    ),
    "a request that is no file": (lambda: st.load_request(5), "path must be"),
    "no file": (lambda: st.load_request("no.toml"), "There is no file no.toml"),
    "a ledger without a name": (
        lambda: st.create_ledger("x"),
        "Write create_ledger(path, name=..., epsilon=...).",
    ),
}
COLUMNS: dict[str, Mistake] = {
    "no bounds": (lambda: st.mean(AGE, epsilon=1.0), "Write mean(values, lower=..., upper"),
    "by position": (
        lambda: st.mean(AGE, 0, 100, 1.0),
        "Write mean(values, lower=..., upper=..., epsilon=...).",
    ),
    "no budget": (lambda: st.count(AGE), "A statistic needs a budget: epsilon=1.0, or rho"),
    "two budgets": (
        lambda: st.count(AGE, epsilon=1.0, rho=1.0),
        "in either epsilon or rho",
    ),
    "no delta": (lambda: st.mean(AGE, mechanism="gaussian", **BOUNDS), "needs a delta"),
    "a delta": (lambda: st.mean(AGE, delta=1e-6, **BOUNDS), "Nothing uses delta: Laplace"),
    "a frame": (lambda: st.mean(FRAME, **BOUNDS), "give the whole frame to `publish`"),
    "a Polars frame": (lambda: st.mean(POLARS, **BOUNDS), "whole frame to `publish`"),
    "a file": (
        lambda: st.mean("people.csv", **BOUNDS),
        "For a file, use `publish`",
    ),
    "a number": (lambda: st.mean(SECRET, **BOUNDS), "a column of numbers, got int."),
    "an iterator over numbers": (
        lambda: st.mean((x for x in [SECRET]), **BOUNDS),
        "Give a list of numbers; an iterator gives whole columns.",
    ),
    "nothing": (lambda: st.mean(None, **BOUNDS), "a column of numbers, got NoneType."),
    "text": (
        lambda: st.mean(FRAME["city"], **BOUNDS),
        "Convert text, dates and Decimals to numbers",
    ),
    "dates": (
        lambda: st.mean(POLARS["day"], **BOUNDS),
        "Convert text, dates and Decimals to numbers",
    ),
    "two dimensions": (
        lambda: st.mean(np.full((2, 2), SECRET), **BOUNDS),
        "got ndarray of int64 with 2 dimensions.",
    ),
    "a missing value": (lambda: st.mean([1, None], **BOUNDS), 'set missing="drop"'),
    "a seed": (lambda: st.mean(AGE, seed=1, **BOUNDS), "There is no argument 'seed'"),
    "several quantiles": (
        lambda: st.quantile(AGE, [0.1, 0.9], **BOUNDS),
        "q must be one number (`quantiles` takes several), got [0.1, 0.9].",
    ),
    "one quantile": (lambda: st.quantiles(AGE, 0.9, **BOUNDS), "be a list of"),
    "a word for a flag": (
        lambda: st.median(AGE, interval="no", **BOUNDS),
        "interval must be True or False, got 'no'.",
    ),
    "another flag": (
        lambda: st.count(AGE, epsilon=1.0, clamp="no"),
        "clamp must be True or False, got 'no'.",
    ),
    "bins": (
        lambda: st.histogram(AGE, edges=10, epsilon=1.0),
        "edges must be a list of two or more increasing numbers",
    ),
}
MECHANISMS: dict[str, Mistake] = {
    "no sensitivity": (
        lambda: dpnoise.LaplaceMechanism(epsilon=1.0),
        "Write LaplaceMechanism(epsilon=..., sensitivity=...).",
    ),
    "a short name": (
        lambda: dpnoise.LaplaceMechanism(eps=1.0, sensitivity=1.0),
        "It takes epsilon, sensitivity, grid, lower, upper.",
    ),
    "a delta": (
        lambda: dpnoise.LaplaceMechanism(epsilon=1.0, delta=1e-6, sensitivity=1.0),
        "Laplace noise has no delta. Leave it out, or use GaussianMechanism.",
    ),
    "epsilon from data": (
        lambda: dpnoise.LaplaceMechanism(epsilon=AGE, sensitivity=1.0),
        "epsilon must be a number, got a Series.",
    ),
    "percent": (lambda: LAPLACE.error(95), "got 95: write 0.95 for 95 %."),
    "no value": (LAPLACE.release, "Write release(value)."),
    "a float": (lambda: DISCRETE.release(0.5), "got a float. For floats, use LaplaceMechanism."),
    "floats": (lambda: DISCRETE.release(np.ones(2)), "For floats, use LaplaceMechanism."),
    "a bool": (lambda: DISCRETE.release(True), "got a bool: release int(value)."),  # noqa: FBT003
    "no rho": (
        lambda: dpnoise.GaussianMechanism.for_rho(sensitivity=1.0),
        "Write for_rho(rho, sensitivity=...).",
    ),
    "no list of scores": (
        lambda: dpnoise.NoisyMax(epsilon=1.0, sensitivity=1.0).select({"cork": SECRET}),
        "scores must be a list of one or more numbers, got dict.",
    ),
    "a large integer": (lambda: DISCRETE.release(2**63), "must be from -2^63 to 2^63 - 1."),
}
FRAMES: dict[str, Any] = {
    "pandas": lambda: FRAME,
    "Polars": lambda: POLARS,
    "lazy": POLARS.lazy,
    "Arrow": lambda: pa.table({"age": [SECRET]}),
    "DuckDB": lambda: duckdb.sql("select 424242 as age"),
}
FOR_FRAMES = "To publish statistics of a frame, use dpnoise.statistics.publish."
MISTAKES = {
    **{f"question: {name}": mistake for name, mistake in QUESTIONS.items()},
    **{f"request: {name}": mistake for name, mistake in REQUESTS.items()},
    **{f"column: {name}": mistake for name, mistake in COLUMNS.items()},
    **{f"mechanism: {name}": mistake for name, mistake in MECHANISMS.items()},
}


def check_message(call: Callable[[], object], words: str) -> None:
    with pytest.raises(dpnoise.DpnoiseError) as caught:
        call()
    assert words in str(caught.value)
    assert str(SECRET) not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained_before_noise_is_drawn(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EntropySource, "key", lambda *_: pytest.fail("noise was drawn"))
    check_message(*MISTAKES[name])


@pytest.mark.parametrize("mechanism", [LAPLACE, DISCRETE], ids=["Laplace", "discrete"])
@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_is_for_publish(library: str, mechanism: Any) -> None:
    check_message(lambda: mechanism.release(FRAMES[library]()), FOR_FRAMES)


def test_errors_of_a_function_itself_are_not_taken_for_a_wrong_call() -> None:
    """Only a call that Python could not make is explained by its arguments."""

    class Broken:
        def __iter__(self) -> Any:
            raise TypeError("missing 1 required positional argument")

    with pytest.raises(TypeError, match=r"^missing 1 required") as caught:
        st.Question(Broken())
    assert not isinstance(caught.value, dpnoise.DpnoiseError)
