"""Names of machines, many in one line. Pure."""

from __future__ import annotations

import re

from numabind._fleet.groups import Member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.ASCII | re.DOTALL)


def label(member: Member, shared: Collection[str] = ()) -> str:
    """The host's name; with the file where there is none, or where several have it."""
    stem = member.file.removesuffix(".gz").removesuffix(".json")
    if member.host is None:
        return stem
    return f"{member.host} ({stem})" if member.host in shared else member.host


def folded(names: Iterable[str], most: int | None = None) -> str:
    """Names as Slurm and clush write and read them: "gpu[001-124,126],login1".

    With `most`, so many pieces at most, and how many machines are left out.
    """
    groups: dict[tuple[str, str, int], list[int]] = {}
    total = 0
    for name in names:
        total += 1
        found = _NUMBERED.fullmatch(name)
        if found:
            before, digits, after = found.groups()
            groups.setdefault((before, after, len(digits)), []).append(int(digits))
        else:
            groups.setdefault((name, "", 0), []).append(0)
    pieces: list[tuple[str, int]] = []
    for (before, after, width), numbers in sorted(groups.items()):
        if not width:
            pieces += [(before, 1)] * len(numbers)
        elif len(numbers) == 1:
            pieces.append((f"{before}{numbers[0]:0{width}}{after}", 1))
        else:
            runs = _runs(numbers, width)
            for start in range(0, len(runs), most or len(runs)):
                part = runs[start : start + (most or len(runs))]
                said = ",".join(text for text, _ in part)
                pieces.append((f"{before}[{said}]{after}", sum(count for _, count in part)))
    shown = pieces if most is None else pieces[:most]
    left = total - sum(count for _, count in shown)
    return ",".join(text for text, _ in shown) + (f" and {left:,} more" if left else "")


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
