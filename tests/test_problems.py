"""The catalogue of problems: complete, used, and printed in docs/problems.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from numabind._catalogue import CATALOGUE
from numabind._problems import HARMLESS, NOTES, as_markdown, problem

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src/numabind").rglob("*.py"))


def said() -> set[str]:
    """The first argument of every call of `problem` in the source."""
    names = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "problem":
                given = node.args[0]
                # Where it is computed, all the texts in the expression are its possible values.
                names |= {
                    part.value
                    for part in ast.walk(given)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                }
    return names


def test_docs_are_made_from_the_catalogue() -> None:
    assert (ROOT / "docs/problems.md").read_text() == as_markdown()


def test_every_name_that_is_said_is_in_the_catalogue_and_the_other_way_round() -> None:
    assert said() == set(CATALOGUE)


def test_notes_and_harmless_are_of_the_catalogue_and_apart() -> None:
    assert not (NOTES | HARMLESS) - set(CATALOGUE)
    assert not NOTES & HARMLESS


@pytest.mark.parametrize("name", CATALOGUE)
def test_each_says_what_it_means_and_what_to_do(name: str) -> None:
    meaning, remedy = CATALOGUE[name]
    assert name == name.lower().strip()
    assert meaning.endswith(".")
    assert remedy.rstrip(")").endswith(".")


def test_a_problem_has_the_catalogues_remedy_or_a_sharper_one() -> None:
    plain = problem("one-node", "found here.")
    assert plain.text == "one-node: found here. Nothing to do."
    assert plain.as_dict() == {
        "name": "one-node",
        "cause": "found here",
        "remedy": "Nothing to do.",
    }
    assert problem("one-node", "found here", "Do that.").remedy == "Do that."
    with pytest.raises(KeyError):
        problem("no-such-name", "x")
