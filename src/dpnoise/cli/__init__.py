"""The command line: one file for each command.

Every command is one library call, and what it prints. Exit status: 0 done, 1 an audit found
something, 2 an error that says what to do, 130 interrupted. Whatever writes a file writes beside it
and renames: nothing half-written is left.
"""

import argparse
import os
import sys

import dpnoise
from dpnoise.cli import attack, audit, leakage, paper, release, sample
from dpnoise.errors import DpnoiseError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    asked = _parser().parse_args(arguments)
    try:
        status: int | None = asked.run(asked)
    except BrokenPipeError:
        # Whoever read the output has seen enough. Nothing more may be written, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (DpnoiseError, OSError) as error:
        print(f"dpnoise: {error}", file=sys.stderr)  # noqa: T201 - this is the command line
        return 2
    except KeyboardInterrupt:
        print("dpnoise: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    return status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dpnoise", description=dpnoise.__doc__)
    parser.add_argument("--version", action="version", version=dpnoise.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    release.add(commands)
    sample.add_sample(commands)
    sample.add_cost(commands)
    attack.add(commands)
    audit.add(commands)
    leakage.add(commands)
    paper.add(commands)
    return parser
