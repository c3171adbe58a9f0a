"""What differs between an outlier and the reference of its kind, aspect by aspect. Pure."""

from __future__ import annotations

from numabind._fleet.groups import Group, Kind
from numabind._fleet.topology import UNKNOWN
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    Key = tuple[str, str]

ABSENT = "absent"


@record
class Difference:
    """One aspect that an outlier has otherwise than the reference.

    `subject` and `aspect` as in `topology.Aspect`, and "memory" in bytes; `value` and `reference`
    are "absent" where that machine has no such node or GPU. `others` is how many machines of the
    kind are as the reference is.
    """

    subject: str
    aspect: str
    value: str
    reference: str
    others: int


class Differences:
    """Compares the groups of one kind with its reference."""

    def __init__(self, kind: Kind) -> None:
        self.values = [_values(group) for group in kind.groups]
        self.sizes = [len(group.members) for group in kind.groups]
        self._others: dict[Key, int] = {}

    def of(self, number: int) -> tuple[Difference, ...]:
        """All differences of the group with this number in the kind; none for the reference."""
        here, there = self.values[number], self.values[0]
        keys = sorted({*here, *there}, key=_order)
        return tuple(
            Difference(*key, here.get(key, ABSENT), there.get(key, ABSENT), self._count(key))
            for key in keys
            if here.get(key) != there.get(key)
        )

    def _count(self, key: Key) -> int:
        """How many machines are as the reference is."""
        if key not in self._others:
            there = self.values[0].get(key)
            pairs = zip(self.values, self.sizes, strict=True)
            self._others[key] = sum(size for values, size in pairs if values.get(key) == there)
        return self._others[key]


def _values(group: Group) -> dict[Key, str]:
    values = group.topology.values()
    for node, size in group.memory:
        values[f"node {node}", "memory"] = UNKNOWN if size is None else str(size)
    return values


def _order(key: Key) -> tuple[int, int, str, str]:
    """The machine first, then nodes by number, then GPUs by address."""
    kind, _, rest = key[0].partition(" ")
    number = int(rest) if kind == "node" else 0
    return ("machine", "node", "gpu").index(kind), number, rest, key[1]
