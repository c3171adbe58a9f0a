"""`top`: status, drawn again each second; plain lines where the output is no terminal."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time

from numabind._process import Process
from numabind._report.status import row
from numabind._report.text import cut, table, width
from numabind._status import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

HEADINGS = ("PID", "NAME", "GPU", "NODE", "THREADS", "RESIDENT", "LOCAL", "VERDICT")
_COLUMNS = (0, 1, 2, 3, 4, 6, 7, 8)  # of a row of `status`: the policy has no room in 80 columns
_SHORT = 6  # what is left of a name at least
_BLINK = 0.5  # seconds within which a new size of the terminal is seen


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


def top(look: Callable[[], Report | None], delay: float, count: int | None, order: str) -> None:
    """Show what `look` finds every `delay` seconds, `count` times or until q, ^C or SIGTERM, or
    until it finds None.

    On a terminal the screen is redrawn and the keys of ORDERS sort; elsewhere lines are appended.
    """
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if terminal and os.environ.get("TERM") != "dumb":
        _Screen(look, delay, count, order).run()
    else:
        _append(look, delay, count, order)


def _append(look: Callable[[], Report | None], delay: float, count: int | None, order: str) -> None:
    while True:
        report = look()
        if report is None:
            return
        lines = [*lines_of(report.processes, order), *_notes(report)]
        moment = time.strftime("%H:%M:%S")
        for line in lines:
            print(f"{moment}  {line}")
        sys.stdout.flush()
        count = None if count is None else count - 1
        if count == 0:
            return
        time.sleep(delay)


def _notes(report: Report) -> list[str]:
    return [f"note: {said.text}" for said in report.problems]


def lines_of(processes: Sequence[Process], order: str, columns: int | None = None) -> list[str]:
    """The table, heading first; in few columns with shorter names, and one GPU of many. Pure."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for process in sorted(processes, key=ORDERS[order]):
        cells = row(process)
        # 0000: is the only PCI domain of most machines.
        gpu = cells[2].replace("0000:", "")
        if columns is not None and len(process.devices) > 1:
            gpu = f"{gpu.partition(',')[0]} +{len(process.devices) - 1}"
        rows.append(tuple(gpu if i == 2 else cells[i] for i in _COLUMNS))
    lines = table(rows).splitlines()
    over = 0 if columns is None else max(map(width, lines)) - columns
    if over > 0:
        room = max(_SHORT, max(width(cells[1]) for cells in rows) - over)
        lines = table([(cells[0], cut(cells[1], room), *cells[2:]) for cells in rows]).splitlines()
    return lines


def frame(report: Report, order: str, size: tuple[int, int], moment: str) -> str:
    """One screen of `size` columns and lines. Pure."""
    columns, height = size[0] - 1, size[1]
    processes = report.processes
    heading, *lines = lines_of(processes, order, columns)
    away = sum(process.verdict == "elsewhere" for process in processes)
    unknown = sum(process.verdict == "unknown" for process in processes)
    summary = f"numabind top  {moment}  {len(processes)} processes, {away} elsewhere"
    summary += f", {unknown} unknown" if unknown else ""
    room = max(1, height - 4)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... and {len(lines) - room + 1} more"]
    if not lines:
        lines = ["No process holds a GPU. Name some: numabind top PID ..."]
    keys = "  ".join(f"{key}:{name}" for key, name in _KEYS.items())
    last = f"q:quit  sort by {keys}   (now {order})"
    body = [summary, (_notes(report) or [""])[0], heading, *lines]
    body += [""] * (height - 1 - len(body))
    screen = [cut(line, columns) for line in body]
    screen[2] = f"{_REVERSED}{screen[2]:{columns}}{_PLAIN}"
    drawn = [*screen[: height - 1], cut(last, columns)]
    return _HOME + f"{_CLEAR_LINE}\r\n".join(drawn) + _CLEAR_LINE + _CLEAR_BELOW


class _Screen:
    def __init__(
        self,
        look: Callable[[], Report | None],
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
            report = self.look()
            if report is None:
                return
            moment = time.strftime("%H:%M:%S")
            due = time.monotonic() + self.delay
            while True:
                size = shutil.get_terminal_size()
                self.write(frame(report, self.order, (size[0], size[1]), moment))
                left = due - time.monotonic()
                if not select.select([self.stdin], [], [], min(max(0.0, left), _BLINK))[0]:
                    if left > _BLINK:
                        continue
                    break
                keys = os.read(self.stdin, 64).decode("ascii", "replace")
                if not keys or "q" in keys:
                    return
                self.order = next((_KEYS[key] for key in keys if key in _KEYS), self.order)
            self.count = None if self.count is None else self.count - 1
