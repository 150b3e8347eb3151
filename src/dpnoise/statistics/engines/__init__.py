"""Plans answered where the data is, by the engine that holds it."""

from collections.abc import Callable
from typing import Any

from dpnoise.errors import forgetful
from dpnoise.statistics.engines import files, frames
from dpnoise.statistics.engines.description import Files
from dpnoise.statistics.plan import Plan, Tally

__all__ = ["Files", "tally"]


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
    if isinstance(source, Files):
        return files.tally(source, plan, progress)
    return frames.tally(source, plan)
