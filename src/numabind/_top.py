"""`top`: status, drawn again each second; plain lines where the output is no terminal."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time

from numabind._process import Process
from numabind._report.status import row
from numabind._report.text import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

HEADINGS = ("PID", "NAME", "GPU", "NODE", "THREADS", "RESIDENT", "LOCAL", "VERDICT")
_COLUMNS = (0, 1, 2, 3, 4, 6, 7, 8)  # of a row of `status`: the policy has no room in 80 columns


def _share(process: Process) -> float:
    known = process.pages is not None and process.pages.local is not None
    return process.pages.local if known else 2.0  # type: ignore[union-attr,return-value]


# The key that sorts by it, and what is then on top.
ORDERS: dict[str, Callable[[Process], Any]] = {
    "pid": lambda process: process.pid,
    "gpu": lambda process: (process.devices, process.pid),
    "memory": lambda process: -(process.pages.resident if process.pages else 0),
    "local": _share,
    "threads": lambda process: -len(process.strays),
}
_KEYS = {order[0]: order for order in ORDERS}
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_REVERSED, _PLAIN = "\x1b[7m", "\x1b[0m"


def top(
    look: Callable[[], Sequence[Process] | None], delay: float, count: int | None, order: str
) -> None:
    """Show what `look` finds every `delay` seconds, `count` times or until q, ^C or SIGTERM, or
    until it finds None.

    On a terminal the screen is redrawn and the keys of ORDERS sort; elsewhere lines are appended.
    """
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        _Screen(look, delay, count, order).run()
    else:
        _append(look, delay, count, order)


def _append(
    look: Callable[[], Sequence[Process] | None], delay: float, count: int | None, order: str
) -> None:
    while True:
        processes = look()
        if processes is None:
            return
        lines = lines_of(processes, order)
        moment = time.strftime("%H:%M:%S")
        for line in lines:
            print(f"{moment}  {line}")
        sys.stdout.flush()
        count = None if count is None else count - 1
        if count == 0:
            return
        time.sleep(delay)


def lines_of(processes: Sequence[Process], order: str) -> list[str]:
    """The table, heading first. Pure."""
    rows = [HEADINGS]
    for process in sorted(processes, key=ORDERS[order]):
        cells = row(process)
        # 0000: is the only PCI domain of most machines.
        gpu = cells[2].replace("0000:", "")
        rows.append(tuple(gpu if i == 2 else cells[i] for i in _COLUMNS))  # type: ignore[arg-type]
    return table(rows).splitlines()


def frame(processes: Sequence[Process], order: str, size: tuple[int, int], moment: str) -> str:
    """One screen of `size` columns and lines. Pure."""
    columns, height = size
    heading, *lines = lines_of(processes, order)
    away = sum(process.verdict == "elsewhere" for process in processes)
    unknown = sum(process.verdict == "unknown" for process in processes)
    summary = f"numabind top  {moment}  {len(processes)} processes, {away} elsewhere"
    summary += f", {unknown} unknown" if unknown else ""
    room = height - 4
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... and {len(lines) - room + 1} more"]
    if not lines:
        lines = ["No process holds a GPU. Name some: numabind top PID ..."]
    keys = "  ".join(f"{key}:{name}" for key, name in _KEYS.items())
    last = f"q:quit  sort by {keys}   (now {order})"
    body = [summary, "", heading, *lines]
    body += [""] * (height - 1 - len(body))
    screen = [line[: columns - 1] for line in body]
    marked = f"{_REVERSED}{screen[2]:{columns - 1}}{_PLAIN}"
    drawn = [*screen[:2], marked, *screen[3:], last[: columns - 1]]
    return _HOME + f"{_CLEAR_LINE}\r\n".join(drawn) + _CLEAR_LINE + _CLEAR_BELOW


class _Screen:
    def __init__(
        self,
        look: Callable[[], Sequence[Process] | None],
        delay: float,
        count: int | None,
        order: str,
    ) -> None:
        self.look, self.delay, self.count, self.order = look, delay, count, order
        self.stdin = sys.stdin.fileno()

    def run(self) -> None:
        import signal
        import termios

        before = termios.tcgetattr(self.stdin)

        def stop(_: int, __: FrameType | None) -> None:
            sys.exit(143)

        def suspend(_: int, __: FrameType | None) -> None:
            self.leave(before)
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, suspend)
            self.enter()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGHUP, stop)
        signal.signal(signal.SIGQUIT, stop)
        signal.signal(signal.SIGTSTP, suspend)
        self.enter()
        try:
            self.loop()
        except KeyboardInterrupt:
            pass
        finally:
            self.leave(before)

    def enter(self) -> None:
        import tty

        tty.setcbreak(self.stdin)
        self.write(_ENTER)

    def leave(self, before: list[Any]) -> None:
        import termios

        self.write(_LEAVE)
        termios.tcsetattr(self.stdin, termios.TCSANOW, before)

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def loop(self) -> None:
        while self.count is None or self.count > 0:
            processes = self.look()
            if processes is None:
                return
            due = time.monotonic() + self.delay
            while True:
                size = shutil.get_terminal_size()
                self.write(
                    frame(processes, self.order, (size[0], size[1]), time.strftime("%H:%M:%S"))
                )
                left = due - time.monotonic()
                ready = select.select([self.stdin], [], [], max(0.0, left))[0]
                if not ready:
                    break
                keys = os.read(self.stdin, 64).decode("ascii", "replace")
                if not keys or "q" in keys:
                    return
                self.order = next((_KEYS[key] for key in keys if key in _KEYS), self.order)
            self.count = None if self.count is None else self.count - 1
