"""Runs the examples of a page, and compares what they print with what the page shows."""

import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, chdir, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from dpnoise import cli
from dpnoise.auditing import additive_noise
from support.alarms import LONG

NAMED_FILE = r"`(\w+\.(?:py|toml|json))`[^\n]*\n\n```(?:python|toml|json)\n(?!>>>)(.*?)^```$"
SMALL_BUDGET = "40000"  # Releases that break what the pages show to be broken, and no more.
NOISY = doctest.register_optionflag("NOISY")


class NoisyParser(doctest.DocTestParser):
    """Marks the examples of a page which say that their noise differs."""

    def parse(self, string: str, name: str = "<string>") -> list[str | doctest.Example]:
        """Return the parts of a page, with its noisy examples marked."""
        parts = super().parse(string, name)
        for example in parts:
            if isinstance(example, doctest.Example) and "# The noise differs" in example.source:
                example.options[NOISY] = True
        return parts


class NoisyChecker(doctest.OutputChecker):
    """Compares the words of noisy output; a number may be another, and its column wider."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Return whether an output is as the page shows it."""
        if optionflags & NOISY:
            want = want.replace(doctest.BLANKLINE_MARKER, "")
            want, got = (
                re.sub(r"[ \n]+", " ", re.sub(r"-?\d[\d,.]*", "0", x)) for x in (want, got)
            )
        return super().check_output(want, got, optionflags)


def without_side_channels() -> AbstractContextManager[Any]:
    """Leave out what audits observe of clocks and processes, except in `make test-long`."""
    if LONG:
        return nullcontext()
    return mock.patch.object(additive_noise, "run_side_channel_checks", return_value=[])


def check_python(page: Path) -> None:
    """Run the Python examples of a page."""
    test = NoisyParser().get_doctest(page.read_text(), {}, page.name, str(page), 0)
    with without_side_channels():
        failures, _ = doctest.DocTestRunner(NoisyChecker()).run(test)
    assert failures == 0


def shell_examples(text: str) -> list[tuple[str, str]]:
    """Return the commands of a page with their outputs: those in fences of `console`."""
    examples = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = example.splitlines(keepends=True)
            end = next(i for i, line in enumerate(lines) if not line.endswith("\\\n")) + 1
            examples.append(("".join(lines[:end]), "".join(lines[end:])))
    return examples


def is_exact(command: str) -> bool:
    """Return whether a command of ours draws no noise and times nothing."""
    return command.startswith("dpnoise cost") or "--check" in command.split()


def masked_output(text: str, *, exact: bool = False) -> str:
    """Return an output without bars, marks, the width of columns and line ends.

    Unless it is `exact`, all numbers are 0.
    """
    if exact:
        return " ".join(text.split())
    masked = re.sub(r"-?\d[\d,.]*(e[-+]?\d+)?", "0", re.sub(r"[█░]+|(?<=\d) \*", "", text))
    return " ".join(masked.split())


def margins_of_counts(text: str) -> list[tuple[str, ...]]:
    """Return the margins of counts in an output, which do not depend on the noise."""
    margins = []
    for line in text.splitlines():
        label, *numbers = re.split(r"  +(?:[\d,]+  +)?± ", re.sub(r"[█░*]", "", line).rstrip())
        if numbers and re.search(r"\b(count|persons|distinct)\b|^[\d,]+ to [\d,]+$", label.strip()):
            margins.append(tuple(numbers))
    return margins


def run_command(command: str, folder: Path, env: Mapping[str, str]) -> tuple[str, str]:
    """Return what a command prints: its output and its errors.

    Our command runs in this process, which takes a fraction of the time, and in a shell in
    `make test-long`. There, an audit also has its default budget and looks for side channels. Other
    programs and lines for a shell always run in a shell.
    """
    program, *arguments = shlex.split(command.replace("\\\n", " "))
    if LONG or program != "dpnoise" or re.search("[|<>$;&]", command):
        run = subprocess.run(
            ["/bin/sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        return run.stdout, run.stderr
    if arguments[0] == "audit" and not {"--budget", "--all"} & {*arguments}:
        arguments += ["--budget", SMALL_BUDGET]
    printed, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with (
        chdir(folder),
        mock.patch.dict(os.environ, {"COLUMNS": env["COLUMNS"]}),
        redirect_stdout(printed),
        redirect_stderr(errors),
        without_side_channels(),
    ):
        cli.main(arguments)
    texts = []
    for stream in (printed, errors):
        stream.seek(0)
        texts.append(stream.read())
    return texts[0], texts[1]


def check_commands(page: Path, folder: Path) -> None:
    """Run the commands of a page, and compare their outputs with those that it shows.

    Numbers may differ, but not the margins of counts, nor any number of a command without noise. A
    line of three dots stands for the rest of an output. A command that prints an error shows it,
    and prints nothing else. A block of Python without a prompt, of TOML or JSON, is the file that
    the line before it names. The commands run in a folder that has `examples` in it.
    """
    text, root = page.read_text(), Path(__file__).parents[2]
    (folder / "examples").symlink_to(root / "examples")
    for name, source in re.findall(NAMED_FILE, text, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(source)
    programs = Path(sys.executable).parent
    env = {**os.environ, "COLUMNS": "80", "PATH": f"{programs}:{os.environ['PATH']}"}
    for command, shown in shell_examples(text):
        printed, errors = run_command(command, folder, env)
        assert not errors or shown.startswith("dpnoise: "), errors
        exact = is_exact(command)
        want = masked_output(shown, exact=exact)
        got = masked_output(printed + errors, exact=exact)
        want, dots, rest = want.partition("...")
        assert not rest, "the rest of an output is left out, not a part in the middle"
        assert got.startswith(want) if dots else got == want, command
        shown_margins = margins_of_counts(shown)
        assert margins_of_counts(printed)[: len(shown_margins)] == shown_margins, command
        assert max(map(len, (command + shown).splitlines())) <= 80, command
