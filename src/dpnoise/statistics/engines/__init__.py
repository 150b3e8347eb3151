"""Answer plans in the engine that holds the data."""

from collections.abc import Callable, Collection, Sequence

from dpnoise.core.errors import import_extra, scrub_traceback
from dpnoise.statistics.engines.description import INVENTED, Files
from dpnoise.statistics.plan import PersonCounts, Plan, Tally, Unit

__all__ = ["Files", "PersonCounts", "count_persons_by_group", "is_invented", "tally", "tally_all"]


@scrub_traceback
def tally(
    source: object, plan: Plan, *, progress: Callable[[float], object] | None = None
) -> Tally:
    """Answer a plan with exact integers, which are the same in every engine.

    Parameters
    ----------
    source
        A pandas, Polars (eager or lazy), Arrow, DuckDB, PySpark or Dask frame, or `Files`.
    plan
        The questions, groups and privacy unit.
    progress
        Called with numbers from 0 to 1 while files are read. Frames do not call it.

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


@scrub_traceback
def tally_all(
    source: object, plans: Sequence[Plan], *, progress: Callable[[float], object] | None = None
) -> list[Tally]:
    """Answer several plans, each with its groups, in one scan of the data.

    Parameters
    ----------
    source, progress
        As for `tally`.
    plans
        The plans to answer.

    Examples
    --------
    >>> import polars
    >>> from dpnoise.statistics.plan import Grouping, Plan, Rows
    >>> people = polars.DataFrame({"city": ["cork", "dublin", "cork"]})
    >>> plans = [Plan((Rows(),)), Plan((Rows(),), (Grouping("city", ("cork", "dublin")),))]
    >>> [tally.answers[0].tolist() for tally in tally_all(people, plans)]
    [3, [2, 1]]
    """
    if not plans:
        return []
    import_extra("narwhals", "engines")  # These modules import it; columns in memory do without.
    from dpnoise.statistics.engines import files, frames  # noqa: PLC0415

    if isinstance(source, Files):
        return files.tally_all(source, plans, progress)
    with frames.replace_engine_errors():
        return frames.answer_all(source, plans)


@scrub_traceback
def count_persons_by_group(
    source: object,
    columns: Sequence[str],
    unit: Unit | None,
    *,
    text: Collection[str] = (),
    progress: Callable[[float], object] | None = None,
) -> PersonCounts:
    """Return the groups of columns together, and the exact number of persons in each.

    The result is not private. At most `unit.max_groups` groups of each person are counted. Rows
    without a key in one of the columns are left out. Without a unit, every row is a person. `text`
    lists the columns of a frame that are declared to be text. `progress` is the same as for
    `tally`.

    Examples
    --------
    >>> import polars
    >>> visits = polars.DataFrame({"who": [1, 1, 2], "city": ["cork", "cork", "cork"]})
    >>> count_persons_by_group(visits, ["city"], Unit(("who",)))
    PersonCounts(keys=[('cork',)], persons=array([2]))
    """
    import_extra("narwhals", "engines")
    from dpnoise.statistics.engines import discovery, files, frames  # noqa: PLC0415

    if isinstance(source, Files):
        return files.count_persons_by_group(source, columns, unit, progress)
    with frames.replace_engine_errors():
        return discovery.count_persons_by_group(source, columns, unit, text=text)


@scrub_traceback
def is_invented(source: object) -> bool:
    """Return whether the people in the data are invented: a CSV file or a frame that says so.

    Examples
    --------
    >>> import polars
    >>> is_invented(polars.DataFrame({"age": [38, 41], "invented_person": ["yes", "yes"]}))
    True
    """
    import_extra("narwhals", "engines")
    from dpnoise.statistics.engines import files, frames  # noqa: PLC0415
    from dpnoise.statistics.engines.runners import as_narwhals  # noqa: PLC0415

    if isinstance(source, Files):
        return INVENTED in files.names_in_csv(source)
    with frames.replace_engine_errors():
        return INVENTED in as_narwhals(source).collect_schema().names()
