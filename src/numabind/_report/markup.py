"""HTML that escapes by itself: whatever is not `Html` already is text, and becomes harmless."""

from __future__ import annotations

from html import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_EMPTY = ("input", "meta", "br")


class Html(str):
    """Text that is markup already. Only `tag`, `text` and `join` make it from what others wrote."""

    __slots__ = ()


def text(value: object) -> Html:
    """Anything as text: escaped, with what can't be seen or encoded written out ("\\x1b").

    Line breaks stay; control and direction characters and half surrogates would change how the rest
    of the page reads, or could not be saved.
    """
    if isinstance(value, Html):
        return value
    seen = str(value)
    if not seen.isprintable():
        seen = "".join(
            c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in seen
        )
    return Html(escape(seen))


def join(parts: Iterable[object], between: str = "") -> Html:
    """The parts as one piece of markup; None and "" are left out."""
    return Html(escape(between).join(text(part) for part in parts if part not in (None, "")))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. `class_` is class, `aria_label` aria-label; None and False leave it out."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        words.append(attribute if value is True else f'{attribute}="{text(str(value))}"')
    start = f"<{' '.join(words)}>"
    return Html(start if name in _EMPTY else f"{start}{join(children)}</{name}>")


def count(number: int, noun: str) -> str:
    """ "1 node", "2 nodes", "2 processes"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def size(number: int | None) -> str:
    """Bytes for a person: "188 GiB", "1.50 MiB", "0"; None is "unknown"."""
    if number is None:
        return "unknown"
    value, unit = float(number), 0
    while value >= 999.5 and unit < 5:
        value, unit = value / 1024, unit + 1
    if unit == 0:
        return f"{number} B" if number else "0"
    digits = 0 if value >= 99.95 or value == int(value) else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {'KMGTP'[unit - 1]}iB"


def details(summary: object, *children: object, hidden: str = "") -> Html:
    """A part that opens; `hidden` tells a screen reader what the summary is about."""
    whose = tag("span", f" {hidden}", class_="sr") if hidden else None
    return tag("details", tag("summary", summary, whose), *children)


def scrolls(label: str, child: Html) -> Html:
    """A wide table that scrolls by itself, by keyboard too, so that the page does not."""
    return tag("div", child, class_="scroll", role="region", aria_label=label, tabindex="0")


def section(name: str, title: str, *children: object) -> Html:
    """A landmark with its heading; `name` is its anchor."""
    heading = tag("h2", title, id=f"{name}-h")
    return tag("section", heading, *children, id=name, aria_labelledby=f"{name}-h")
