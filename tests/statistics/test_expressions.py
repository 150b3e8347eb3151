"""Expressions are parsed, and nothing else than a small part of Python is accepted."""

import pytest

from dpnoise.core.errors import ArgumentError, ArgumentTypeError
from dpnoise.statistics.expressions import (
    DATE,
    NUMBER,
    TEXT,
    kind_of,
    parse_condition,
    parse_value,
    possible_values,
    source_columns,
)

KINDS = [
    ("age >= 18 and sex == 'f'", {"age": NUMBER, "sex": TEXT}),
    ("18 <= age < 65", {"age": NUMBER}),
    ("age in (1, 2)", {"age": NUMBER}),
    ("sex not in ['f', 'm']", {"sex": TEXT}),
    ("left > entered", {"left": NUMBER, "entered": NUMBER}),
    ("date(left) > date(entered)", {"left": DATE, "entered": DATE}),
    ("left > date('2024-02-29')", {"left": DATE}),
    ("month(left) == 2 or year(left) == 1999", {"left": DATE}),
    ("map(code, {'a': 1}) > 0 and map(number, {1: 'a'}) == 'a'", {"code": TEXT, "number": NUMBER}),
    ("column('with space') == 'x' and column('class') > 0", {"with space": TEXT, "class": NUMBER}),
    # Python would read the letter \ufb01 as fi.
    ("\ufb01eld > 0", {"\ufb01eld": NUMBER}),
    ("band > 0 and month < 3", {"band": NUMBER, "month": NUMBER}),
]


@pytest.mark.parametrize(("text", "kinds"), KINDS)
def test_the_kind_of_a_column_follows_from_its_use(text: str, kinds: dict[str, str]) -> None:
    used = source_columns(parse_condition(text))
    assert {column.name: column.kind for column in used} == kinds


OUTSIDE = [
    *("__import__('os').system('x') > 0", "age.real > 0", "age[0] > 0", "(lambda: 1)() > 0"),
    *("[x for x in age] > 0", "f'{age}' == 'a'", "(age := 3) > 0", "age / 2 > 1", "age ** 2 > 1"),
    *("age // 2 > 1", "age % 2 > 1", "age @ 2 > 1", "~age > 1", "+age > 1", "age << 1 > 1"),
    *("age is None", "age > True", "age > None", "age > 1j", "b'a' == sex", "... == age"),
    *("len(age) > 0", "max(age, 3) > 0", "month(left, entered) > 0", "month() > 0"),
    *("band(age, 0, 18, last=3) == 'a'", "month(*left) > 0", "age > (1, 2)"),
    *("age > 18 and", "age = 18", "age >", "age\0 > 1", "age > '", "import os", "sex == '\\d'"),
    *("age > 18; age", "with space > 1", "(" * 300 + "age" + ")" * 300 + " > 1"),
    *("age" + " + age" * 16_000 + " > 1", "age > " + "9" * 5000),
]


@pytest.mark.parametrize("text", OUTSIDE)
def test_everything_else_of_python_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"^where must consist of columns, numbers, text in "):
        parse_condition(text)


MISTAKES = [
    ("age", "where must be a condition such as age >= 18, got 'age' at character 1."),
    ("x > 1 and month(d)", "where must be a condition such as age >= 18, got 'month(d)' at char"),
    ("age > 1 if x else 2", "where must be a condition such as age >= 18, got 'age > 1 if x else"),
    (
        "sex > 'f'",
        "text in quotes, and dates as date('2024-01-31'), got \"sex > 'f'\"",
    ),
    ("'a' == 'b'", "got \"'a' == 'b'\" at character 1."),
    ("1 < 2 or age > 1", "where must use a column, got '1 < 2' at character 1."),
    ("1 + 1 < 3", "where must use a column"),
    ("band(3, 1, 2) == '1 to 2'", "where must use a column"),
    ("sex == ''", "where must have text that is not empty, in UTF-8, got \"''\" at character 8"),
    ("sex == '\\ud800'", "where must have text that is not empty, in UTF-8"),
    ("age > 1e999", "where must have finite numbers, got '1e999' at character 7."),
    ("age > " + "9" * 400, "where must have finite numbers"),
    ("age in sex", "where must have a list after in, got 'sex' at character 8: city in ('cork'"),
    ("age in ()", "where must have a list after in"),
    ("sex in ('a', 3)", "where must have text in quotes here, got '3' at character 14."),
    ("d > date('2024-1-31')", "where must write a date as date('2024-01-31'), got"),
    ("d > date('2023-02-29')", "where must have a date that exists, got \"'2023-02-29'\" at char"),
    ("month(date('2024-01-31')) == 1", "where must name a column of dates"),
    ("band(age, 18, 0) == 'a'", "where must give bands ascending edges, got 'band(age, 18, 0)'"),
    ("map(code, {}) == 'a'", "where must map codes of one kind to results of one kind, got '{}'"),
    ("map(code, {'a': 1, 2: 3}) > 1", "where must map codes of one kind"),
    ("map(code, {'a': 1}, 'b') > 1", "where must map codes of one kind"),
    ("map(code, {'a': 1, **other}) > 1", "where must map codes of one kind"),
    ("map(code, {'a': 1, 'a': 2}) > 1", "where must map each code once"),
    ("map(code, {1: 2, 1.0: 3}) > 1", "where must map each code once"),
    (
        f"map(code, {dict(enumerate(range(101)))}) > 1",
        "where must map each code once, to at most 100 results, got '{0: 0, 1: 1,",
    ),
    ("map(age + 1, {1: 2}) > 1", "where must consist of"),
    ("age > 1 and age == 'x'", "Column 'age' is used as a number and as text. Use it in one way,"),
    ("age > 1 and month(age) == 2", "Column 'age' is used as a number and as a date."),
    ("age = 18", "got 'age = 18' at character 5: write == to compare."),
    ("age => 18", "write <= or >=."),
    ("age > 18 AND sex == 'f'", "write and, or, not, in and !=."),
    ("with space > 1", "write a name with spaces as column('name with spaces')."),
    ("", "where must have 1 to 100,000 characters, got ''."),
    ("a" * 100_001, "where must have 1 to 100,000 characters"),
    ("-" * 60 + "age > 1", "where must have at most 50 levels"),
    ("ä > 1 and ö.x > 1", "got 'ö.x' at character 11."),
    ("(age > 1 and\nsex.x > 1)", "got 'sex.x' at character 1 of line 2."),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        parse_condition(text)
    assert message in str(error.value)


def test_an_expression_is_text() -> None:
    with pytest.raises(ArgumentTypeError, match="where must be an expression in quotes, got 3"):
        parse_condition(3)


def test_nothing_of_an_expression_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentError):
        parse_condition("print('run') == 'a'")
    with pytest.raises(ArgumentError):
        parse_value("x", "[print('run')]")
    assert capsys.readouterr().out == ""


NEGATIONS = [
    ("not age < 18", "age >= 18"),
    ("not age >= 18", "age < 18"),
    ("not age <= 18", "age > 18"),
    ("not age > 18", "age <= 18"),
    ("not age == 18", "age != 18"),
    ("not age != 18", "age == 18"),
    ("not sex == 'f'", "sex != 'f'"),
    ("not sex in ('f', 'm')", "sex not in ('f', 'm')"),
    ("not (age > 1 and sex == 'f')", "age <= 1 or sex != 'f'"),
    ("not (age > 1 or sex == 'f')", "age <= 1 and sex != 'f'"),
    ("not not age > 1", "age > 1"),
]


@pytest.mark.parametrize(("text", "same"), NEGATIONS)
def test_not_is_applied_to_the_comparisons_below_it(text: str, same: str) -> None:
    """So a missing value matches neither a comparison nor its negation, as in SQL."""
    assert parse_condition(text) == parse_condition(same)


VALUES = [
    ("month(d)", NUMBER, tuple(range(1, 13))),
    ("weekday(d)", NUMBER, tuple(range(1, 8))),
    ("year(d)", NUMBER, None),
    ("a + b", NUMBER, None),
    ("-a", NUMBER, None),
    ("band(a, 0, 1000.5)", TEXT, ("0 to 1,000.5", "1,000.5 or more")),
    ("map(a, {'x': 'y', 'z': 'y'})", TEXT, ("y",)),
    ("map(a, {'x': 'y'}, 'other')", TEXT, ("y", "other")),
    ("map(a, {1: 5, 2: 6})", NUMBER, (5, 6)),
]


@pytest.mark.parametrize(("text", "kind", "values"), VALUES)
def test_a_derived_column_has_a_kind_and_perhaps_known_values(
    text: str, kind: str, values: tuple[object, ...] | None
) -> None:
    value = parse_value("x", text)
    assert (kind_of(value), possible_values(value)) == (kind, values)


@pytest.mark.parametrize("text", ["age", "column('age')", "3", "'text'"])
def test_a_derived_column_computes_something(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"^derived\['x'\] must compute something, got"):
        parse_value("x", text)


@pytest.mark.parametrize("text", ["age > 3", "date(d)", "1 + 'a'", "band(age, 0)", "a if b else c"])
def test_a_derived_column_is_a_number_or_text(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"^derived\['x'\] must consist of"):
        parse_value("x", text)


def test_a_filter_may_use_derived_columns() -> None:
    derived = {"band": parse_value("band", "band(age, 0, 18)"), "m": parse_value("m", "month(d)")}
    used = parse_condition("band == '0 to 18' and m in (1, 2)", derived)
    assert used == parse_condition("band(age, 0, 18) == '0 to 18' and month(d) in (1, 2)")
    for text in ("band > 3", "m == 'a'", "month(m) == 3", "band < 'a'"):
        with pytest.raises(ArgumentError, match="where must"):
            parse_condition(text, derived)
