"""The pages in a browser: on a phone and a desktop, in light and dark mode, and printed."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from chromium import Chromium
from support import example_report, example_tables

from dpnoise.auditing.report import write_comparison
from dpnoise.statistics import report as published
from reproduction.page import page as paper_page
from reproduction.piece import CONFIRMED, VERDICTS, Judgement, Piece, Result, Table

PHONE, DESKTOP = 380, 1200

# The contrast of every text with its background, as defined by WCAG 2.
CONTRASTS = """
(() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const light = text => channels(text).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    while (element) {
      const colour = getComputedStyle(element).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0) return colour;
      element = element.parentElement;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest('title, desc')) continue;
    const style = getComputedStyle(element);
    const a = light(element.closest('svg') ? style.fill : style.color), b = light(behind(element));
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), texts.currentNode.data]);
  }
  return found;
})()
"""

# The colours of the background, of a bar and of the line of its margin.
COLOURS = """
[['body', 'backgroundColor'], ['svg .amount', 'fill'], ['svg .mark', 'stroke']]
  .map(([name, what]) => getComputedStyle(document.querySelector(name))[what])
  .map(colour => colour.match(/[\\d.]+/g).map(Number))
"""

# Elements beyond the window, and texts that leave their picture or overlap.
OVERFLOWS = """
(() => {
  const boxes = [...document.querySelectorAll('body *')]
    .filter(element => !element.closest('thead'))
    .map(element => [element, element.getBoundingClientRect()]);
  const outside = boxes.filter(([_, box]) => box.left < -1 || box.right > innerWidth + 1);
  const covered = [];
  for (const svg of document.querySelectorAll('svg')) {
    const texts = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
    const frame = svg.getBoundingClientRect();
    texts.forEach((a, i) => {
      if (a.top < frame.top - 1 || a.bottom > frame.bottom + 1) covered.push(a);
      texts.slice(i + 1).forEach(b => {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && tall > 3) covered.push([a, b]);
      });
    });
  }
  return [outside.map(([element]) => element.outerHTML.slice(0, 200)), covered];
})()
"""

# The sizes of every separate picture, its bars and curves; rectangles with the same start are one.
SIZES = """
[...document.querySelectorAll('svg:not([aria-hidden])')].map(svg => {
  const frame = svg.getBoundingClientRect(), bars = new Map();
  for (const rect of svg.querySelectorAll('rect:not(.track), path')) {
    const box = rect.getBoundingClientRect(), start = `${box.left} ${box.top}`;
    bars.set(start, [Math.max(box.width, bars.get(start)?.[0] ?? 0), box.height]);
  }
  return [frame.width, frame.height, [...bars.values()]];
})
"""


# For every row of published numbers: the widths of its picture and bar, and the visible text.
ROWS = """
[...document.querySelectorAll('.numbers tr:has(td)')].map(row => {
  const svg = row.querySelector('svg'), bar = svg.querySelector('.amount');
  const seen = [...row.querySelectorAll('th, td > span')]
    .filter(cell => cell.getBoundingClientRect().width > 1).map(cell => cell.textContent);
  const lines = [...svg.querySelectorAll('.mark')].map(line => line.getBoundingClientRect().width);
  const wide = element => element.getBoundingClientRect().width;
  return {frame: wide(svg), bar: wide(bar), lines, seen};
})
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


def paper_results() -> list[Result]:
    """Return invented results of every verdict, with long names, and source code."""
    table = Table("What was measured", ("n", "w" * 40), [(2**53, 0.5), (4, "long " * 30)])
    results = []
    for i, verdict in enumerate(VERDICTS):
        judgement = Judgement(verdict, "Because " + "so " * 60, [table])
        words = (f"Section {i}: a statement", f"Section {i}", "The paper says so.")
        piece = Piece(f"piece-{i}", *words, lambda _: Judgement(CONFIRMED, ""), (Chromium.open,))
        results.append(Result(piece, judgement, 1.0))
    return results


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write one page of each kind; the long one has very long names."""
    folder = tmp_path_factory.mktemp("pages")
    finding = example_report.finding(
        attack="a" * 200,
        event="no " + "w" * 300 + " leads from 1152921504606846976 to y " + "and so on " * 60,
        value0=2.0**60,
        value1=2.0**60 + 1024,
        hits0=19_999_999,
        trials0=20_000_000,
        trials1=20_000_000,
    )
    others = replace(finding, broken=False)
    reports = {
        "broken": example_report.broken_report(),
        "not-broken": example_report.unbroken_report(),
        "nothing": replace(example_report.broken_report(), findings=[], observations=[]),
        "script": replace(example_report.broken_report(), target="<script>alert(1)</script>"),
        "long": replace(
            example_report.broken_report(),
            target="<b>" + "n" * 300,
            version="9." * 100,
            command="dpnoise audit --target " + "c" * 300,
            versions={"p" * 100: "1." * 100},
            skipped={"s" * 100: "r" * 300},
            findings=[finding, others],
        ),
    }
    for name, report in reports.items():
        report.to_html(folder / f"{name}.html")
    write_comparison(
        [*example_report.several_reports(), *reports.values()], folder / "comparison.html"
    )
    for name, table in example_tables.EVERY_KIND.items():
        title = example_tables.HOSTILE if name == "hostile" else None
        table.to_html(folder / f"published-{name}.html", title)
    persons = published.render_record(example_tables.person_record(), "Visits of patients in 2026")
    (folder / "published-persons.html").write_text(persons, encoding="utf-8")
    reproduced = paper_page(paper_results(), "Measured " + "by a command " * 20)
    (folder / "paper.html").write_text(reproduced, encoding="utf-8")
    return {path.stem: path for path in folder.glob("*.html")}


KINDS = (
    *("broken", "not-broken", "nothing", "script", "long", "comparison", "paper"),
    *(f"published-{name}" for name in (*example_tables.EVERY_KIND, "persons")),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_opens_without_messages_or_requests(
    browser: Chromium, pages: dict[str, Path], kind: str
) -> None:
    browser.open(pages[kind], DESKTOP)
    assert browser.evaluate("document.readyState") == "complete"
    messages = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert browser.events_of(*messages, "Page.javascriptDialogOpening") == []
    urls = [event["request"]["url"] for event in browser.events_of("Network.requestWillBeSent")]
    assert urls == [pages[kind].as_uri()]


def test_the_browser_reports_a_script(browser: Chromium, tmp_path: Path) -> None:
    """Shows that the test above can fail."""
    path = tmp_path / "loud.html"
    path.write_text("<!doctype html><script>console.error('heard')</script><img src=absent.png>")
    browser.open(path, DESKTOP)
    assert browser.events_of("Runtime.consoleAPICalled")
    assert len(browser.events_of("Network.requestWillBeSent")) == 2


def test_the_policy_stops_a_script_that_got_in(
    browser: Chromium, pages: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "bitten.html"
    script = "<body><script>document.title = 'bitten'</script>"
    path.write_text(pages["broken"].read_text().replace("<body>", script))
    browser.open(path, DESKTOP)
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.title") != "bitten"


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaves_the_window_and_no_text_covers_another(
    browser: Chromium, pages: dict[str, Path], kind: str, width: int
) -> None:
    browser.open(pages[kind], width)
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(OVERFLOWS) == [[], []]


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_shows(
    browser: Chromium, pages: dict[str, Path], kind: str, width: int
) -> None:
    browser.open(pages[kind], width)
    figures = browser.evaluate(SIZES)
    assert figures
    for width_of_figure, height, bars in figures:
        assert width_of_figure > 0.8 * min(width, 800)
        assert height >= 50
        assert bars
        assert all(bar[0] > 0.9 and bar[1] > 0.9 for bar in bars)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_text_has_the_contrast_that_readers_need(
    browser: Chromium, pages: dict[str, Path], kind: str, scheme: str
) -> None:
    browser.open(pages[kind], PHONE, scheme=scheme)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    contrasts = browser.evaluate(CONTRASTS)
    assert len(contrasts) > 30
    assert [text for contrast, text in contrasts if contrast < 4.5] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_prints_dark_on_white(browser: Chromium, pages: dict[str, Path], kind: str) -> None:
    browser.open(pages[kind], DESKTOP, scheme="dark", media="print")
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(255, 255, 255)"
    assert min(contrast for contrast, _ in browser.evaluate(CONTRASTS)) >= 4.5
    assert browser.print_to_pdf().startswith(b"%PDF")


@pytest.mark.parametrize("kind", KINDS)
def test_a_screen_reader_finds_headings_in_order_and_named_pictures(
    browser: Chromium, pages: dict[str, Path], kind: str
) -> None:
    browser.open(pages[kind], PHONE)
    levels = browser.evaluate(
        "[...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    nodes = browser.ask("Accessibility.getFullAXTree")["nodes"]
    roles = [(node["role"]["value"], node.get("name", {}).get("value")) for node in nodes]
    images = [name for role, name in roles if role in {"image", "img", "SvgRoot"}]
    separate_pictures = "document.querySelectorAll('svg:not([aria-hidden])').length"
    assert len(images) == browser.evaluate(separate_pictures)
    # The other pictures are bars next to their numbers, or parts of a picture.
    bars = "[...document.querySelectorAll('svg[aria-hidden]:not(svg svg)')]"
    rows_with_bars = f"{bars}.map(svg => svg.closest('tr'))"
    assert browser.evaluate(
        f"{rows_with_bars}.every(row => row.querySelector('.value').textContent)"
    )
    assert all(images)
    if browser.evaluate("document.querySelectorAll('table').length"):
        assert {"table", "row", "cell", "columnheader"} <= {role for role, _ in roles}


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("name", ["plain", "many", "extreme"])
def test_every_published_number_can_be_read_next_to_its_bar(
    browser: Chromium, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.open(pages[f"published-{name}"], width)
    rows = browser.evaluate(ROWS)
    releases = [published_number.release for published_number in example_tables.EVERY_KIND[name]]
    numbers = [
        len(published_number.value) if published_number.labels else 1
        for published_number in releases
    ]
    single = browser.evaluate("document.querySelectorAll('.alone').length")
    assert len(rows) + single == sum(numbers)
    for row in rows:
        assert row["frame"] > 250
        assert len([text for text in row["seen"] if text]) >= 3, "label, number and margin"


def test_bars_are_as_long_as_their_numbers_on_every_screen(
    browser: Chromium, pages: dict[str, Path]
) -> None:
    for width in (PHONE, DESKTOP):
        browser.open(pages["published-many"], width)
        rows = browser.evaluate(ROWS)
        values = [float(row["seen"][1].replace(",", "")) for row in rows]
        longest = max(row["bar"] for row in rows)
        for value, row in zip(values, rows, strict=True):
            assert row["bar"] == pytest.approx(longest * value / max(values), abs=0.5)
            assert max(row["lines"]) > 1, "the margin"


def test_the_head_of_a_long_table_stays_in_sight(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["published-many"], DESKTOP)
    top = "document.querySelector('.numbers thead th').getBoundingClientRect().top"
    assert browser.evaluate(f"scrollTo(0, 3000), {top}") == pytest.approx(0, abs=1)


# The words of a table's head, without its first column, that are broken into two lines.
BROKEN_WORDS = """
[...document.querySelectorAll('.numbers thead th:not(:first-child, :has(*))')].flatMap(cell => {
  const text = cell.firstChild;
  return [...text.textContent.matchAll(/[^\\s]+/g)].filter(word => {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    return range.getClientRects().length > 1;
  }).map(word => word[0]);
})
"""


@pytest.mark.parametrize("width", [660, 720, DESKTOP])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("published-")])
def test_no_word_of_a_head_is_broken(
    browser: Chromium, pages: dict[str, Path], kind: str, width: int
) -> None:
    browser.open(pages[kind], width)
    assert browser.evaluate(BROKEN_WORDS) == []


def contrast(*colours: list[float]) -> float:
    """Return the contrast of two colours, as defined by WCAG 2."""
    lights = []
    for colour in colours:
        parts = [part / 255 for part in colour]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize(
    ("scheme", "media"), [("light", "screen"), ("dark", "screen"), ("dark", "print")]
)
def test_a_bar_stands_out_from_the_paper_and_its_margin_from_the_bar(
    browser: Chromium, pages: dict[str, Path], scheme: str, media: str
) -> None:
    browser.open(pages["published-plain"], DESKTOP, scheme=scheme, media=media)
    paper, bar, margin = browser.evaluate(COLOURS)
    assert contrast(paper, bar) >= 3
    assert contrast(bar, margin) >= 3
    assert contrast(paper, margin) >= 3
