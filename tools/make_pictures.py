"""Make the pictures of the docs with the commands that the docs show."""

import os
from pathlib import Path

import matplotlib as mpl
from ink import SETTINGS

from dpnoise import cli

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
COMMANDS = {
    "income-by-city.png": "release --sample --column income --query mean --lower 0 "
    "--upper 200000 --epsilon 1 --group-by city=dublin,cork,limerick,galway,waterford --force",
    "income-histogram.png": "release --sample --column income --query histogram "
    "--edges 0,20000,40000,60000,80000,100000,120000 --epsilon 0.5 --force",
    "leakage.png": "leakage",
}


def main() -> None:
    """Run each command with --plot."""
    os.environ["COLUMNS"] = "78"
    for name, command in COMMANDS.items():
        print(f"$ dpnoise {command} --plot {name}")
        with mpl.rc_context(SETTINGS):
            status = cli.main([*command.split(), "--plot", str(PICTURES / name)])
        if status != 0:
            raise SystemExit(2)


if __name__ == "__main__":
    main()
