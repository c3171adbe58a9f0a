"""How far a long verb is, on a terminal."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Progress:
    """One line on a terminal's stderr that is written over; nothing elsewhere."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.shown = sys.stderr is not None and sys.stderr.isatty()
        self.width = 0

    def __enter__(self) -> Callable[[str], None]:
        return self.say

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.say("")

    def say(self, text: str) -> None:
        """Show where the work is; "" clears the line."""
        if not self.shown:
            return
        line = f"numabind: {self.verb}: {text}"[:79] if text else ""
        sys.stderr.write(f"\r{line:{self.width}}\r{line}")
        sys.stderr.flush()
        self.width = len(line)
