"""Which sizes of memory are the same size. Pure.

What firmware and kernel keep for themselves makes equal machines differ by up to some hundred MiB,
while a missing DIMM is at least a 32nd of a node (16 channels of two). So sizes are taken for one
where they are within a 64th of each other; and since no fixed rounding is without an edge that runs
through some fleet's size, the spans are laid where the machines are: the fullest first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The widest that a span is, as a part of its smallest size.
_PART = 64


def spans(sizes: Mapping[int, int]) -> dict[int, int]:
    """For each size in bytes the one that stands for its span: the span's median.

    `sizes` are numbers of machines by size. Of spans that are equally full the smallest sizes' one
    is first, so the answer depends on nothing else.
    """
    found: dict[int, int] = {}
    pieces = [sorted(sizes)]
    while pieces:
        piece = pieces.pop()
        if not piece:
            continue
        first, last = _fullest(piece, sizes)
        inside = piece[first:last]
        found.update(dict.fromkeys(inside, _median(inside, sizes)))
        pieces += [piece[:first], piece[last:]]
    return found


def _fullest(ordered: list[int], sizes: Mapping[int, int]) -> tuple[int, int]:
    """The bounds of the span that holds the most machines."""
    before = [0]
    for size in ordered:
        before.append(before[-1] + sizes[size])
    best = (0, 0, 0)
    for first, size in enumerate(ordered):
        last = bisect_right(ordered, size + size // _PART)
        held = before[last] - before[first]
        if held > best[0]:
            best = (held, first, last)
    return best[1:]


def _median(ordered: list[int], sizes: Mapping[int, int]) -> int:
    """The lower median, each size counted as often as there are machines."""
    before, total = [], 0
    for size in ordered:
        total += sizes[size]
        before.append(total)
    return ordered[bisect_left(before, (total + 1) // 2)]
