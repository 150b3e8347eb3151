"""Plans answered where the data is, by the engine that holds it."""

from collections.abc import Callable, Sequence
from typing import Any

from dpnoise.errors import forgetful
from dpnoise.statistics.engines import files, together
from dpnoise.statistics.engines.description import Files
from dpnoise.statistics.plan import Plan, Tally

__all__ = ["Files", "tally", "tally_all"]


@forgetful
def tally(source: Any, plan: Plan, *, progress: Callable[[float], object] | None = None) -> Tally:
    """Answer a plan: exact integers, the same ones whichever engine computes them.

    Parameters
    ----------
    source
        A pandas, Polars (eager or lazy), Arrow, DuckDB, PySpark or Dask frame, or `Files`.
    plan
        What is asked.
    progress
        Called with numbers from 0 to 1 while files are read; frames are silent.

    Examples
    --------
    >>> import polars
    >>> from dpnoise.statistics.plan import Plan, Rows, Sums
    >>> people = polars.DataFrame({"age": [38, 41, 19]})
    >>> rows, ages = tally(people, Plan((Rows(), Sums("age", grid=1.0, least=0, most=120)))).answers
    >>> int(rows), int(ages.total)
    (3, 98)
    """
    return tally_all(source, [plan], progress=progress)[0]


@forgetful
def tally_all(
    source: Any, plans: Sequence[Plan], *, progress: Callable[[float], object] | None = None
) -> list[Tally]:
    """Answer several plans, with other groups for one, in one scan of the data.

    pandas, Arrow and Dask, whose rows are in memory, answer one after the other.

    Parameters
    ----------
    source, progress
        As of `tally`.
    plans
        What is asked.

    Examples
    --------
    >>> import polars
    >>> from dpnoise.statistics.plan import Grouping, Plan, Rows
    >>> people = polars.DataFrame({"city": ["cork", "dublin", "cork"]})
    >>> plans = [Plan((Rows(),)), Plan((Rows(),), (Grouping("city", ("cork", "dublin")),))]
    >>> [one.answers[0].tolist() for one in tally_all(people, plans)]
    [3, [2, 1]]
    """
    if isinstance(source, Files):
        return files.tally_all(source, plans, progress)
    return together.tally_all(source, plans)
