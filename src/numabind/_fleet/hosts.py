"""Names of machines, many in one line. Pure."""

from __future__ import annotations

import re

from numabind._fleet.groups import Member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# The last number of a name; a longer one is no number of a machine, and Python refuses to read it.
_NUMBER = re.compile(r"(?<!\d)\d{1,18}(?=\D*\Z)", re.ASCII)
# A file may claim any name for its host: what is longer than a domain name can be is cut.
_LONGEST = 255


def label(member: Member, shared: Collection[str] = ()) -> str:
    """The host's name; with the file where there is none, or where several have it."""
    stem = member.file.removesuffix(".gz").removesuffix(".json")
    if member.host is None:
        return stem
    host = member.host
    if len(host) > _LONGEST:
        host = host[:_LONGEST] + "…"
    return f"{host} ({stem})" if member.host in shared else host


def folded(names: Iterable[str], most: int | None = None) -> str:
    """Names as Slurm and clush write and read them: "gpu[001-124,126],login1".

    With `most`, so many ranges and single names at most, and how many machines are left out.
    """
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in names:
        found = _NUMBER.search(name)
        before, digits, after = (
            (name[: found.start()], found[0], name[found.end() :]) if found else (name, "", "")
        )
        groups.setdefault((before, after, len(digits)), []).append(int(digits or 0))
    pieces, left, room = [], 0, most
    for (before, after, width), numbers in sorted(groups.items()):
        runs = _runs(numbers, width)
        shown = runs if room is None else runs[:room]
        left += sum(count for _, count in runs[len(shown) :])
        room = None if room is None else room - len(shown)
        inside = ",".join(text for text, _ in shown)
        if not width:
            pieces += [before] * len(shown)
        elif len(numbers) == 1:
            pieces += [f"{before}{inside}{after}"] * len(shown)
        elif shown:
            pieces.append(f"{before}[{inside}]{after}")
    return ",".join(pieces) + (f" and {left:,} more" if left else "")


def _runs(numbers: list[int], width: int) -> list[tuple[str, int]]:
    """Ranges of the numbers, each with how many it holds."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [
        (f"{a:0{width}}-{b:0{width}}" if b > a else f"{a:0{width}}", b - a + 1) for a, b in found
    ]
