"""Takes JSON apart, naming the source and the field in every complaint."""

from __future__ import annotations

from numabind._cpulist import parse_list
from numabind._errors import MachineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# What the lists of a snapshot may hold in all: 64 nodes with 8,192 CPUs each, as numa=fake makes
# them, and as many devices. A file that lies must not take all memory.
_MOST_IDS = 1 << 20


class Fields:
    """The fields of one document; each method gives one or raises MachineError."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.room = _MOST_IDS

    def fail(self, field: str, cause: str) -> NoReturn:
        raise MachineError(self.source, f"{field} {cause}")

    def table(self, value: object, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(field, "is not a JSON object")
        return value

    def need(self, data: dict[str, Any], key: str, where: str) -> Any:
        if key not in data:
            self.fail(f"{where}{key}", "is missing")
        return data[key]

    def items(
        self, data: dict[str, Any], key: str, default: object = None, where: str = ""
    ) -> list[tuple[dict[str, Any], str]]:
        value = data.get(key, default)
        if value is None:
            self.fail(f"{where}{key}", "is missing")
        if not isinstance(value, (list, tuple)):
            self.fail(f"{where}{key}", "is not a list")
        return [
            (self.table(item, f"{where}{key}[{i}]"), f"{where}{key}[{i}].")
            for i, item in enumerate(value)
        ]

    def ids(self, data: dict[str, Any], key: str, where: str) -> frozenset[int]:
        value = self.need(data, key, where)
        if not isinstance(value, str):
            self.fail(f"{where}{key}", 'is not a list such as "0-3,8"')
        try:
            found = parse_list(value)
        except ValueError as error:
            self.fail(f"{where}{key}", f"is not a list: {error}")
        self.room -= len(found)
        if self.room < 0:
            self.fail(f"{where}{key}", "is one list too many: no machine has so many CPUs")
        return found

    def whole(self, data: dict[str, Any], key: str, where: str) -> int:
        value = self.maybe_whole(data, key, where)
        if value is None:
            self.fail(f"{where}{key}", "is missing")
        return value

    def maybe_whole(
        self, data: dict[str, Any], key: str, where: str, lowest: int = 0
    ) -> int | None:
        value = data.get(key)
        if value is not None and not is_natural(value, lowest):
            self.fail(f"{where}{key}", f"{value!r:.40} is not a whole number")
        return value

    def quota(self, data: dict[str, Any], key: str, where: str) -> float | None:
        value = data.get(key)
        if value is None:
            return None
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not real or not 0 < value < 1 << 63:  # also NaN and Infinity, which JSON readers take
            self.fail(f"{where}{key}", f"{value!r:.40} is not a number of CPUs")
        return float(value)

    def text(self, data: dict[str, Any], key: str, where: str) -> str | None:
        value = data.get(key)
        if value is not None and not isinstance(value, str):
            self.fail(f"{where}{key}", f"{value!r:.40} is not a text")
        return value

    def flag(self, data: dict[str, Any], key: str, where: str) -> bool:
        value = data.get(key, True)
        if not isinstance(value, bool):
            self.fail(f"{where}{key}", f"{value!r:.40} is neither true nor false")
        return value

    def hexadecimal(self, data: dict[str, Any], key: str, where: str) -> int:
        value = data.get(key, "0x0")
        try:
            number = int(value, 16)
        except (TypeError, ValueError):
            number = -1
        if number < 0:
            self.fail(f"{where}{key}", f'{value!r:.40} is not a number such as "0x10de"')
        return number


def is_natural(value: object, lowest: int = 0) -> bool:
    """Whether this is a whole number from `lowest` up that fits 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value < 1 << 63
