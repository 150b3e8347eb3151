"""The site, opened from a folder: on a phone and a desktop, in light and dark mode."""

import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from chromium import Chromium
from mkdocs.commands.build import build
from mkdocs.config import load_config
from site_hooks import LONGEST_UNBROKEN

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
    for path in (ROOT / "docs").rglob("*.md")
)
PHONE, DESKTOP, SCREEN = 390, 1280, 800

# Tables, code and formulas that leave the window, pictures that did not load or do not fit, and
# rows outside a table.
MISFITS = """
(() => {
  const fits = box => box.left >= -1 && box.right <= innerWidth + 1;
  const kept = element => {
    if (fits(element.getBoundingClientRect())) return true;
    for (let box = element.parentElement; box; box = box.parentElement)
      if (['auto', 'scroll'].includes(getComputedStyle(box).overflowX) &&
          fits(box.getBoundingClientRect())) return true;
    return false;
  };
  const article = document.querySelector('article');
  const wide = [...article.querySelectorAll('table, pre, math')].filter(one => !kept(one));
  const pictures = [...article.querySelectorAll('img')].filter(img =>
    !img.complete || !img.naturalWidth || !fits(img.getBoundingClientRect()));
  const rows = [...article.querySelectorAll('p')].filter(p => p.textContent.startsWith('|'));
  return [...wide, ...pictures, ...rows].map(one => one.outerHTML.slice(0, 200));
})()
"""

# The size of each drawn formula, and whether it uses the font of the site.
FORMULAS = """
document.fonts.ready.then(() => [...document.querySelectorAll('math')].map(math => {
  const box = math.getBoundingClientRect();
  return [math.textContent, box.width, box.height, document.fonts.check('1em "STIX Two Math"')];
}))
"""

# The first result of a search for QUERY.
RESULTS = """
new Promise(resolve => {
  const found = () => {
    const links = [...document.querySelectorAll('.md-search-result__item > a')];
    if (links.length) resolve(links.map(link => link.href));
  };
  new MutationObserver(found).observe(document.body, {childList: true, subtree: true});
  document.querySelector('[data-md-toggle=search]').click();
  const query = document.querySelector('[data-md-component=search-query]');
  query.focus();
  query.value = 'QUERY';
  query.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));
})
"""

# The bottoms of all parts of the first screen.
FIRST_SCREEN = """
['.point img', '.point pre', '.point a[href="scoreboard.html"]', '.doors > :nth-child(1) a',
 '.doors > :nth-child(2) a', '.doors > :nth-child(3)']
  .map(name => document.querySelector(name).getBoundingClientRect().bottom)
"""


# Guesses 0 by the keyboard in both games, and lets the attacker guess; returns what is shown.
PLAY = """
[...document.querySelectorAll('.game')].map(game => {
  const texts = name => game.querySelector('.' + name).textContent;
  const first = [texts('number'), texts('bits')];
  game.querySelector('[data-guess]').dispatchEvent(
    new KeyboardEvent('keydown', {key: '0', bubbles: true}));
  const verdict = texts('verdict');
  game.querySelector('.more').click();
  const part = name => game.querySelector('.' + name).getBoundingClientRect().width;
  const bar = part('attacker-bar') / part('track');
  return [...first, verdict, texts('you-score'), texts('attacker-score'), bar, texts('verdict')];
})
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site into a folder, as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def await_promise(browser: Chromium, promise: str) -> object:
    """Return the result of a promise in the page."""
    parameters = {"expression": promise, "awaitPromise": True, "returnByValue": True}
    return browser.ask("Runtime.evaluate", **parameters)["result"]["value"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_loads_nothing_from_elsewhere_and_draws_its_formulas(
    browser: Chromium, site: Path, page: str
) -> None:
    for width in (PHONE, DESKTOP):
        browser.open(site / page, width)
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert browser.evaluate(MISFITS) == []
        urls = [event["request"]["url"] for event in browser.events_of("Network.requestWillBeSent")]
        assert len(urls) > 1
        assert all(url.startswith((site.as_uri(), "data:", "blob:")) for url in urls), urls
        assert browser.events_of("Runtime.exceptionThrown", "Log.entryAdded") == []
    formulas = await_promise(browser, FORMULAS)
    assert isinstance(formulas, list)
    source = (ROOT / "docs" / page).with_suffix(".md").read_text()
    assert bool(formulas) == bool(re.search(r"^ *```math|\$\S[^$`]*\S\$", source, re.MULTILINE))
    for text, width, height, in_font in formulas:
        assert width > 5, text
        assert height > 5, text
        assert in_font
        assert not re.search(r"[\\&$]", text), "the converter did not know a command"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_follows_the_scheme_of_the_reader(
    browser: Chromium, site: Path, scheme: str
) -> None:
    browser.open(site / "leakage.html", DESKTOP, scheme=scheme)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = map(int, re.findall(r"\d+", paper)[:3])
    assert (red + green + blue > 3 * 200) == (scheme == "light")


def search(browser: Chromium, site: Path, query: str) -> list[str]:
    """Return the pages that a search on the home page lists on its first screen."""
    browser.open(site / "index.html", DESKTOP)
    urls = await_promise(browser, RESULTS.replace("QUERY", query))
    assert isinstance(urls, list)
    assert urls
    assert all(url.startswith(site.as_uri()) for url in urls)
    return [re.sub("[?#].*", "", url.removeprefix(f"{site.as_uri()}/")) for url in urls]


def test_search_finds_in_a_folder(browser: Chromium, site: Path) -> None:
    assert (site / search(browser, site, "Theorem 5.1")[0]).exists()


@pytest.mark.parametrize("query", ["sensitivity", "epsilon", "delta"])
def test_search_lists_the_definition_of_a_term_first(
    browser: Chromium, site: Path, query: str
) -> None:
    assert search(browser, site, query)[0] in {"glossary.html", "limitations.html"}


@pytest.mark.parametrize("query", ["sensitivity", "epsilon", "budget", "scale", "laplace"])
def test_search_lists_guides_before_the_api(browser: Chromium, site: Path, query: str) -> None:
    pages = search(browser, site, query)
    of_api = [page.startswith("api/") for page in pages]
    assert of_api == sorted(of_api), pages
    assert of_api.count(False) >= 5


def test_the_first_screen_shows_picture_code_scoreboard_and_three_doors(
    browser: Chromium, site: Path
) -> None:
    browser.open(site / "index.html", DESKTOP)
    ends = browser.evaluate(FIRST_SCREEN)
    assert len(ends) == 6
    assert max(ends) <= SCREEN


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_game_is_played_by_keys_and_buttons(browser: Chromium, site: Path, width: int) -> None:
    """The attacker of sums is certain in about 78 of 100 guesses, and that of releases in none."""
    browser.open(site / "guess.html", width)
    sums, releases = browser.evaluate(PLAY)
    for number, bits, verdict, you, attacker, bar, _ in (sums, releases):
        right, guesses = map(int, re.findall(r"\d+", attacker)[:2])
        assert bar == pytest.approx(right / guesses, abs=0.02)
        assert math.isfinite(float(number))
        assert re.fullmatch("…[01]{31}", bits)
        assert re.match(r"It was [01]\. You were (right|wrong)\. The attacker", verdict)
        assert re.fullmatch(r"[01] of 1, (0|100)\s%", you)
        score = r"\d+ of 101, \d+\s%, certain in \d+; allowed 73\s%\s±\s9\s%"
        assert re.fullmatch(score, attacker)
    of_buttons = [int(re.findall(r"certain (\d+) times", game[-1])[0]) for game in (sums, releases)]
    of_scores = [int(re.findall(r"certain in (\d+)", game[4])[0]) for game in (sums, releases)]
    assert of_buttons[0] > 50
    assert of_buttons[0] <= of_scores[0] <= of_buttons[0] + 1
    assert of_buttons[1] == of_scores[1] == 0


def test_every_bar_of_the_game_has_the_mark_of_the_guarantee(browser: Chromium, site: Path) -> None:
    browser.open(site / "guess.html", DESKTOP)
    marks = browser.evaluate("[...document.querySelectorAll('.guarantee')].map(m => m.style.left)")
    assert len(marks) == 4
    guarantee = 100 * math.e / (1 + math.e)
    assert all(float(mark.removesuffix("%")) == pytest.approx(guarantee) for mark in marks)


def test_no_file_of_the_site_asks_for_one_elsewhere(site: Path) -> None:
    """Links may lead elsewhere, but files that the browser loads may not."""
    loads = re.compile(
        r"""<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|srcset|href)=["']?(https?:|//)"""
        r"""|url\(["']?(?:https?:|//)|@import["' ]+(?:https?:|//)"""
    )
    canonical = re.compile(r'<link rel="canonical"[^>]*>')  # A name for search engines.
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".css", ".svg"}]
    assert len(files) > len(PAGES)
    assert [path for path in files if loads.search(canonical.sub("", path.read_text()))] == []
    assert loads.search('<script src="https://unpkg.com/shim">'), "the check detects one"


def test_every_page_links_to_the_repository_and_to_where_it_is_published(site: Path) -> None:
    """The page of a missing page is shown under any address, so its links are absolute."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    published = urls["Documentation"]
    for page in PAGES:
        text = (site / page).read_text()
        assert f'href="{urls["Source"]}"' in text, page
        assert f'<link rel="canonical" href="{published}{page}">' in text, page
    missing = (site / "404.html").read_text()
    paths = re.findall(r"""(?:href|src)="(/[^"#]*)""", missing)
    folder = urlsplit(published).path
    assert f"{folder}assets/site.css" in paths
    for path in paths:
        assert path.startswith(folder), path
        assert (site / path.removeprefix(folder)).exists(), path


# The words of inline code that are drawn on two lines, and those that a browser may break there.
BROKEN_WORDS = """
[...document.querySelectorAll('article :not(pre) > code')].flatMap(code => {
  const words = [];
  const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const {0: word, index} of texts.currentNode.data.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, index);
      range.setEnd(texts.currentNode, index + word.length);
      const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (tops.size > 1) words.push(word);
    }
  }
  return words;
})
"""


@pytest.mark.parametrize("page", ["auditing.html", "command-line.html", "scoreboard.html"])
def test_an_option_in_a_text_is_not_broken(browser: Chromium, site: Path, page: str) -> None:
    for width in (PHONE, DESKTOP):
        browser.open(site / page, width)
        broken = browser.evaluate(BROKEN_WORDS)
        assert [word for word in broken if "-" in word and len(word) <= LONGEST_UNBROKEN] == []
