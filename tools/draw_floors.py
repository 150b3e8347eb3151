"""Draw the floors of the house: every module on its floor, and the imports between the floors.

Floors and imports are those that tests/test_house.py checks: run it by `make pictures`. The boxes
bring their own colours and the rest is grey, so that one picture serves light and dark pages.
"""

from collections import Counter
from pathlib import Path

from test_house import FLOORS, SOURCE, imported, module_name

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "floors.svg"

# All in units of the picture, which a phone shows about one to one.
LEFT, RIGHT, WIDTH = 22, 292, 360
BOX, ROOM, GAP, PAD = 24, 20, 6, 8
LETTER = 7.2  # The width of a letter of the size below.
LARGER = 1.3  # On a page with room for it.
STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #fff }
text.floor { fill: #7d8590; text-anchor: end }
text.room { fill: #dbe6f4 }
rect { fill: #2b5a8c; rx: 4 }
line { stroke: #7d8590; stroke-opacity: .35 }
path { fill: none; stroke: #b5761f; stroke-opacity: .6 }
"""


def from_the_top(modules: list[str]) -> list[str]:
    """Sort modules by their exact floors, the highest first."""
    return sorted(modules, key=lambda module: (-FLOORS[module], module))


def rooms_of(package: str) -> list[str]:
    """Return the modules inside a package."""
    inside = [module for module in FLOORS if module.startswith(f"{package}.")]
    return from_the_top(inside) if package else []


def name_of(module: str) -> str:
    """Return the last part of a module's name; the package dpnoise itself has none."""
    return module.rpartition(".")[2] or "dpnoise"


def width_of(module: str) -> float:
    """Return how wide a module's name is, with the space around it."""
    return LETTER * len(name_of(module)) + 2 * PAD


def rows(modules: list[str], width: float) -> list[list[tuple[str, float]]]:
    """Fill rows of this width with modules, each with the place where it begins."""
    filled: list[list[tuple[str, float]]] = []
    begin = width
    for module in modules:
        if begin + width_of(module) > width:
            filled.append([])
            begin = 0.0
        filled[-1].append((module, begin))
        begin += width_of(module) + GAP
    return filled


def label(module: str, kind: str, x: float, y: float) -> str:
    """Write a module's name, and what the test compares: its full name and its floor."""
    known = f'data-module="{module}" data-floor="{FLOORS[module]:g}"'
    return f'<text class="{kind}" x="{x:g}" y="{y + 16:g}" {known}>{name_of(module)}</text>'


def box(x: float, y: float, width: float, height: float) -> str:
    """Draw a box."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def draw_package(package: str, y: float) -> tuple[list[str], float]:
    """Draw a package with its rooms from y down; return it, and where it ends."""
    inside = rows(rooms_of(package), RIGHT - LEFT - 2 * PAD)
    height = BOX + ROOM * len(inside)
    parts = [box(LEFT, y, RIGHT - LEFT, height), label(package, "house", LEFT + PAD, y)]
    for line, row in enumerate(inside, start=1):
        parts += [label(room, "room", LEFT + 2 * PAD + x, y + ROOM * line) for room, x in row]
    return parts, y + height + GAP


def draw_floor(modules: list[str], y: float) -> tuple[list[str], float]:
    """Draw one floor from y down, its packages first; return it, and where it ends."""
    parts: list[str] = []
    for package in filter(rooms_of, modules):
        drawn, y = draw_package(package, y)
        parts += drawn
    for row in rows([module for module in modules if not rooms_of(module)], RIGHT - LEFT):
        for module, x in row:
            parts.append(box(LEFT + x, y, width_of(module), BOX))
            parts.append(label(module, "house", LEFT + x + PAD, y))
        y += BOX + GAP
    return parts, y


def arcs(middles: dict[int, float]) -> list[str]:
    """Draw all imports from one floor to another as one arc, wider where they are many."""
    counts = Counter(
        (int(FLOORS[module_name(path)]), int(FLOORS[name]))
        for path in SOURCE.rglob("*.py")
        for name in imported(path)
    )
    height = max(middles.values()) - min(middles.values())
    drawn = []
    for (upper, lower), count in sorted(counts.items()):
        fall = middles[lower] - middles[upper]
        bend = (WIDTH - RIGHT - GAP - 4) * 4 / 3 * fall / height
        curve = f"M{RIGHT + 4} {middles[upper]:g}c{bend:g} 0 {bend:g} {fall:g} 0 {fall:g}"
        drawn.append(f'<path d="{curve}" stroke-width="{0.5 + 0.2 * count:g}"/>')
    return drawn


def picture() -> str:
    """Return the whole picture."""
    parts: list[str] = []
    middles = {}
    y = 4.0
    for floor in sorted({int(floor) for floor in FLOORS.values()}, reverse=True):
        here = [module for module in FLOORS if "." not in module and int(FLOORS[module]) == floor]
        top = y
        drawn, y = draw_floor(from_the_top(here), y)
        middles[floor] = (top + y - GAP) / 2
        parts += [*drawn, f'<text class="floor" x="{LEFT - GAP}" y="{top + 16:g}">{floor}</text>']
        if floor > 0:
            parts.append(f'<line x1="2" y1="{y + 2:g}" x2="{RIGHT}" y2="{y + 2:g}"/>')
        y += 8
    size = f'width="{WIDTH * LARGER:g}" height="{y * LARGER:g}" viewBox="0 0 {WIDTH} {y:g}"'
    words = "The modules of dpnoise on their floors, and the imports, which all go down"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    heading = [opening, f"<title>{words}</title>", f"<style>{STYLE}</style>"]
    return "\n".join([*heading, *arcs(middles), *parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture())
    print(f"Drew {len(FLOORS)} modules: {PICTURE.name}")
