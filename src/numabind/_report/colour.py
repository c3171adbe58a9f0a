"""Colour by rich, where it is installed and the output is a terminal; the text itself is the same.

NO_COLOR (no-color.org) and TERM=dumb turn it off.
"""

from __future__ import annotations

import os
import sys

# What a word or a line looks like, by regular expressions; later ones win.
STYLES = (
    (r"(?m)^(?=.*[A-Z])[A-Z0-9 ()%.]+$", "bold"),
    (r"(?m)^ *remedy: .*$", "dim"),
    (r"(?m)\bnear$", "green"),
    (r"(?m)\belsewhere$", "red"),
    (r"(?m)\bunknown$", "yellow"),
    (r"(?m)^problem: [a-z-]+", "yellow"),
    (r"(?m)^note: [a-z-]+", "cyan"),
    (r"(?m)^serious\b", "bold red"),
    (r"(?m)^warning\b", "yellow"),
    (r"(?m)^note\b", "cyan"),
)


def wanted(environ: dict[str, str] | os._Environ[str], terminal: bool) -> bool:
    """Whether colour is wanted at all. Pure."""
    return terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def show(text: str) -> None:
    """Print the text to standard output, in colour where that is wanted and rich is there."""
    if wanted(os.environ, sys.stdout.isatty()):
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            styled = Text(text)
            for pattern, style in STYLES:
                styled.highlight_regex(pattern, style)
            Console(soft_wrap=True, highlight=False).print(styled)
            return
    print(text)
