"""The manual page: made from the parser, whole, and without fault."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numabind
from numabind._manual import manual
from test_completion import VERBS, options, output

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "man/numabind.1"


def test_the_page_is_up_to_date() -> None:
    """Else: make docs."""
    assert PAGE.read_text() == manual()
    assert f"numabind {numabind.__version__}" in manual()


def test_it_names_every_verb_option_and_variable() -> None:
    page = output("mandoc", "-T", "utf8", str(PAGE))
    page = re.sub(r".\x08", "", page)  # bold and underlined, as a terminal has them
    sections = dict(re.findall(r"^   (\w+)\n(.*?)(?=^ {0,3}\w)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == VERBS
    for verb in VERBS:
        named = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", sections[verb], re.MULTILINE))
        assert named == options(verb)
    variables = re.findall(r"`(NUMABIND(?:_[A-Z]+)?)[=`]", (ROOT / "README.md").read_text())
    assert set(re.findall(r"^ +(NUMABIND\w*)$", page, re.MULTILINE)) == set(variables)


def test_it_is_correct_roff() -> None:
    done = subprocess.run(
        ["mandoc", "-T", "lint", str(PAGE)], capture_output=True, text=True, check=False
    )
    # Without a date the page is the same whenever it is made.
    faults = [line for line in done.stdout.splitlines() if "missing date" not in line]
    assert faults == []
