"""The frame of a self-contained page: head, stylesheet, title, links to its parts."""

from __future__ import annotations

from importlib import resources

import numabind
from numabind._report.markup import Html, join, tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def document(
    name: str, top: Html, parts: Mapping[str, tuple[str, Html | None]], *, origin: str, css: Html
) -> str:
    """The page as text. `parts` are by anchor: the words of the link, and the section if any.

    `top` stands below the title `name`, `origin` above it; `css` comes after the stylesheet.
    """
    shown = {at: part for at, part in parts.items() if part[1]}
    links = (tag("li", tag("a", said, href=f"#{at}")) for at, (said, _) in shown.items())
    style = resources.files("numabind._report").joinpath("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"numabind {numabind.__version__}"),
        tag("title", f"{name} – numabind report"),
        tag("style", Html(style), css),
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#main", class_="skip"),
        tag(
            "header",
            tag("p", origin, class_="eyebrow"),
            tag("h1", tag("bdi", name)),
            top,
            class_="top",
        ),
        tag("nav", tag("ul", *links), aria_label="Parts of this page"),
        tag("main", join(part for _, part in shown.values()), id="main", tabindex="-1"),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def facts_list(facts: Iterable[tuple[str, object]]) -> Html:
    """Words and their numbers, side by side."""
    return tag(
        "dl",
        *(tag("div", tag("dt", word), tag("dd", str(value))) for word, value in facts),
        class_="facts",
    )
