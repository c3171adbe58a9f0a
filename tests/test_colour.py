"""Colour only where it is wanted; and the text under it is the plain one."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from numabind._report.colour import wanted

BIN = Path(sys.executable).with_name("numabind")
CODES = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(**more: str) -> str:
    """The output of `numabind show` where standard output is a terminal."""
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", **more}
    ours, theirs = pty.openpty()
    with subprocess.Popen([str(BIN), "show"], env=environ, stdout=theirs) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # EIO: the other end is closed
                break
            if not piece:
                break
            said += piece
    os.close(ours)
    assert process.returncode == 0
    return said.decode().replace("\r\n", "\n")


def test_colour_on_a_terminal() -> None:
    plain = subprocess.run([str(BIN), "show"], capture_output=True, text=True, check=True).stdout
    assert not CODES.search(plain)
    coloured = on_a_terminal()
    assert CODES.search(coloured)
    assert CODES.sub("", coloured) == plain


@pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour(more: dict[str, str]) -> None:
    assert not CODES.search(on_a_terminal(**more))


def test_wanted() -> None:
    assert wanted({}, True)
    assert not wanted({}, False)
    assert wanted({"NO_COLOR": ""}, True), "empty is not set: no-color.org"
    assert not wanted({"NO_COLOR": "0"}, True)
