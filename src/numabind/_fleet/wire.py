"""A snapshot as lines that many nodes can print to one stream at once. Pure.

srun hands on the output of its tasks in pieces of some kB, and cuts lines that are longer; whole
short lines stay whole, though those of several tasks mix (srun(1), --unbuffered).
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_MARK = "numabind-node"
_WIDTH = 700
_LONGEST = 64 << 20


def packed(answer: dict[str, Any], node: str) -> list[str]:
    """The lines of one node's answer: mark, node, place, number of lines, a piece."""
    data = base64.b64encode(zlib.compress(json.dumps(answer).encode())).decode()
    pieces = [data[start : start + _WIDTH] for start in range(0, len(data), _WIDTH)]
    return [f"{_MARK} {node} {i} {len(pieces)} {piece}" for i, piece in enumerate(pieces)]


def unpacked(lines: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The answers by node. Other lines, and answers that are not whole, are left out."""
    pieces: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        words = line.split()
        if len(words) == 5 and words[0] == _MARK:
            _, node, place, count, piece = words
            pieces.setdefault((node, count), {})[place] = piece
    found = {}
    for (node, count), parts in pieces.items():
        if count == str(len(parts)):
            answer = _whole([parts.get(str(place)) for place in range(len(parts))])
            if answer is not None:
                found[node] = answer
    return found


def _whole(pieces: list[str | None]) -> dict[str, Any] | None:
    if None in pieces:
        return None
    try:
        data = base64.b64decode("".join(piece or "" for piece in pieces), validate=True)
        answer = json.loads(zlib.decompressobj().decompress(data, _LONGEST))
    except (binascii.Error, zlib.error, ValueError):
        return None
    return answer if isinstance(answer, dict) else None
