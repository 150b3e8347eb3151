"""One task in dpnoise and four other libraries, with the code of docs/coming-from.md."""

import json
import os
import re
import runpy
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from csv import DictReader
from importlib.metadata import requires, version
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from support import page_blocks

ROOT = Path(__file__).parent.parent.parent
MOST_GROUPS, MOST_ROWS = 2, 3
_NEEDED = re.search(r"polars==([\d.]+)", " ".join(requires("opendp") or ()))
opendp = pytest.mark.skipif(
    _NEEDED is None or version("polars") != _NEEDED[1],
    reason=f"OpenDP takes {_NEEDED and _NEEDED[0]}, and no other: make test-opendp",
)
# Libraries that need other environments, and what the code of the page leaves to the reader.
SPARK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
"""
COLLECTED = """
numbers, averages = (dict(map(tuple, table.collect())) for table in (counts, means))
published = {clinic: (numbers[clinic], averages[clinic]) for clinic in clinics}
"""
PRINTED = """
import json
print(json.dumps({key: list(both) for key, both in published.items()}))
"""
ELSEWHERE = {
    "Tumult Analytics": (ROOT / ".venv-tumult", SPARK, COLLECTED),
    "PipelineDP": (ROOT / ".venv-pipelinedp", "", ""),
}
LIBRARIES = (
    "dpnoise",
    pytest.param("OpenDP", marks=opendp),
    "diffprivlib",
    *(
        pytest.param(
            library,
            marks=pytest.mark.skipif(not place.exists(), reason="see make test-coming-from"),
        )
        for library, (place, *_) in ELSEWHERE.items()
    ),
)
Published = dict[str, tuple[float, float]]


@pytest.fixture(scope="module", autouse=True)
def _visits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the visits to the current folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("coming-from"))
        patch.setattr(sys, "argv", ["make_visits.py", "visits.csv"])
        runpy.run_path(str(ROOT / "examples" / "make_visits.py"), run_name="__main__")
        yield


def publish(library: str, epsilon: float) -> Published:
    """Return the result of the page's code for a library, with a given epsilon."""
    blocks = page_blocks.code("coming-from.md")
    if library in ELSEWHERE:
        return publish_elsewhere(library, f"{blocks['']}\nepsilon = {epsilon}\n", blocks[library])
    names: dict[str, Any] = {}
    exec(blocks[""], names)  # noqa: S102 - ours
    names["epsilon"] = epsilon
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Warnings of peers are of no interest.
        exec(blocks[library], names)  # noqa: S102 - ours
    results: Published = names["published"]
    return results


def publish_elsewhere(library: str, given: str, code: str) -> Published:
    """Run the code in the library's own environment."""
    place, before, after = ELSEWHERE[library]
    python = str(place / "bin" / "python")
    run = subprocess.run(
        [python, "-c", f"{given}{before}{code}{after}{PRINTED}"],
        env={**os.environ, "PYSPARK_PYTHON": python},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    last_line = run.stdout.splitlines()[-1]
    return {key: (number, mean) for key, (number, mean) in json.loads(last_line).items()}


def rows() -> list[tuple[str, str, float]]:
    with Path("visits.csv").open() as file:
        return [(row["patient_id"], row["clinic"], float(row["cost"])) for row in DictReader(file)]


def counts() -> dict[str, tuple[int, int]]:
    """Return bounds on the counted visits; of a patient with more clinics, any two count."""
    visits = Counter((patient, clinic) for patient, clinic, _ in rows())
    clinics = Counter(patient for patient, _ in visits)
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for (patient, clinic), number in visits.items():
        most[clinic] += min(number, MOST_ROWS)
        if clinics[patient] <= MOST_GROUPS:
            least[clinic] += min(number, MOST_ROWS)
    return {clinic: (least[clinic], most[clinic]) for clinic in most}


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_code_of_the_page_runs_and_counts_bounded_persons(library: str) -> None:
    """Noise of scale 18, the largest here, is beyond 450 with a probability below 1e-10."""
    published = publish(library, 1.0)
    for clinic, (least, most) in counts().items():
        assert least - 450 <= published[clinic][0] <= most + 450


@pytest.mark.parametrize("library", LIBRARIES)
def test_with_hardly_any_noise_all_publish_the_same(library: str) -> None:
    """The mean of a thousand rows, each with a deviation of 40, is within 12 of the mean of all.

    That is nine standard errors, so the test fails in far fewer than one in 1e10 runs.
    """
    costs = defaultdict(list)
    for _, clinic, cost in rows():
        costs[clinic].append(min(cost, 300.0))
    published = publish(library, 1e4)
    for clinic, (least, most) in counts().items():
        number, mean = published[clinic]
        assert least <= number <= most
        assert mean == pytest.approx(fmean(costs[clinic]), abs=12)


def rows_kept_by_opendp(groups: int, **options: str) -> dict[str, int]:
    """Return how many rows OpenDP keeps of 100 persons with two rows in each of three groups."""
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    rows_of_persons = [(f"P{i}", group) for i in range(100) for group in "abc" for _ in range(2)]
    context = dp.Context.compositor(
        data=pl.LazyFrame(rows_of_persons, schema=["person", "group"], orient="row"),
        privacy_unit=dp.unit_of(contributions=1, identifier="person"),
        privacy_loss=dp.loss_of(epsilon=1e4),
        split_evenly_over=1,
        margins=[dp.polars.Margin(by=["group"], max_length=1000, max_groups=3)],
    )
    query = (
        context.query()
        .truncate_per_group(2, by=["group"])
        .truncate_num_groups(groups, by=["group"], **options)
        .group_by("group")
        .agg(dp.len(signed=True))
        .with_keys(pl.LazyFrame({"group": list("abc")}))
    )
    return dict(query.release().collect().iter_rows())


@opendp
def test_opendp_keeps_one_group_less_than_it_is_asked_for_the_first_of_the_alphabet() -> None:
    """At epsilon 10,000 noise changes a count with a probability below 1e-300."""
    assert rows_kept_by_opendp(2, keep="first") == {"a": 200, "b": 0, "c": 0}
    assert rows_kept_by_opendp(3, keep="first") == {"a": 200, "b": 200, "c": 0}


@opendp
def test_the_default_of_opendp_for_keeping_groups_is_an_error() -> None:
    from opendp.mod import OpenDPException

    with pytest.raises(OpenDPException, match="multiple fields with name"):
        rows_kept_by_opendp(3)


def test_the_page_shows_every_library_that_it_is_about() -> None:
    title = (page_blocks.DOCS / "coming-from.md").read_text().splitlines()[0]
    headings = page_blocks.code("coming-from.md").keys()
    for library in ("OpenDP", "Tumult Analytics", "PipelineDP", "diffprivlib"):
        assert library in headings
        assert library.split()[0] in title
