"""Beside a launcher: notice workers that did not bind themselves, since `launch` has become it.

A small process of its own, no child of the launcher, that ends with it. It hears each worker's
report on an abstract Unix socket, and looks once a second for processes below the launcher whose
environment is a worker's. It sees neither other machines nor what lives less than a second.
"""

from __future__ import annotations

import _socket
import os
import select
import sys
import time
from contextlib import suppress

from numabind import _proc
from numabind._launched import identity, is_worker
from numabind._problems import problem
from numabind._terminal import say
from numabind._worker import detect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# A worker may be a shell that sets up its environment before it starts Python.
_PATIENCE = 30.0


def watch(command: str) -> str:
    """Start the watcher of this process, which is about to become a launcher.

    Returns the name that workers report to; "-" where there is none: a kernel without pidfd_open
    (before 5.3), no process or descriptor to be had, or a launcher that is process 1, whose every
    orphan this one would be. The job runs on without.
    """
    if os.getpid() == 1:
        return "-"
    try:
        return _watch(command)
    except (OSError, AttributeError):
        return "-"


def _watch(command: str) -> str:
    launcher = os.getpid()
    ended = _above_standard(os.pidfd_open(launcher))
    name = f"numabind-{launcher}-{os.urandom(4).hex()}"
    opened = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM).detach()
    inbox = _socket.socket(fileno=_above_standard(opened))
    inbox.bind(f"\0{name}")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # Forked twice: a launcher that waits for any child must not find this one.
    middle = os.fork()
    if middle == 0:
        # Whatever fails here (a limit of processes or descriptors): only one process may go on as
        # the launcher, or the job runs twice.
        try:
            if os.fork() == 0:
                _stay(_Watcher(launcher, os.path.basename(command), inbox, ended))
        finally:
            os._exit(0)
    with suppress(ChildProcessError):  # where SIGCHLD is ignored nobody waits for it
        os.waitpid(middle, 0)
    inbox.close()
    os.close(ended)
    return name


def _above_standard(descriptor: int) -> int:
    """The descriptor, moved above 2 where a closed standard stream made room for it there."""
    import fcntl

    if descriptor > 2:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved


def report(name: str) -> None:
    """Tell the watcher that this process bound itself; nothing if it is not there (any more)."""
    if name == "-":
        return
    try:
        outbox = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        outbox.settimeout(1.0)
        outbox.sendto(str(os.getpid()).encode(), f"\0{name}")
        outbox.close()
    except OSError:
        return


def _stay(watcher: _Watcher) -> NoReturn:
    """Be the watcher. It ends with the launcher, so the terminal's signals are not for it."""
    import signal

    try:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        # Whoever waits for the end of the launcher's output must not wait for this process.
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        watcher.run()
    finally:
        os._exit(0)


class _Watcher:
    def __init__(self, launcher: int, command: str, inbox: _socket.socket, ended: int) -> None:
        self.launcher, self.command = launcher, command
        self.inbox, self.ended = inbox, ended
        self.heard = False
        self.children = False
        # Workers that were found and not heard of: rank, name and since when.
        self.waiting: dict[int, tuple[int | None, str, float]] = {}
        self.settled: set[int] = set()

    def run(self) -> None:
        over = False
        either: list[Any] = [self.inbox, self.ended]
        while not over:
            ready, _, _ = select.select(either, [], [], 1.0)
            if self.inbox in ready:
                word = self.inbox.recv(32)
                if word.isdigit():
                    self.hear(int(word))
                continue  # until all that was sent is read
            over = self.ended in ready
            if not over:
                self.look()
            self.complain(0.0 if over else _PATIENCE)
        if self.children and not self.heard and not self.settled:
            said = problem("no-worker-bound", f"none of the processes below {self.command}")
            say((said,))

    def hear(self, pid: int) -> None:
        """The process bound itself: it, or the one it descends from, is a worker in its place."""
        self.heard = True
        above = pid
        while above not in (0, 1, self.launcher):
            self.settled.add(above)
            self.waiting.pop(above, None)
            above = _proc.parent(above)

    def look(self) -> None:
        """Find the topmost processes below the launcher whose environment is a worker's."""
        # Each with what it says of ranks, if it is settled: what has the same is part of it.
        wanted: list[tuple[int, str | None]] = [(self.launcher, None)]
        while wanted:
            above, known = wanted.pop()
            for child in _proc.children(above):
                self.children = True
                environ = _proc.environment(child)
                mine = identity(environ)
                if child in self.settled:
                    wanted.append((child, mine if is_worker(environ) else known))
                elif not is_worker(environ) or mine == known:
                    wanted.append((child, known))
                else:
                    _, _, since = self.waiting.get(child, (None, "", time.monotonic()))
                    name = _proc.name(child) or "gone"
                    self.waiting[child] = (_rank(environ), name, since)

    def complain(self, patience: float) -> None:
        """Name the workers that had their time and were not heard of."""
        for pid, (rank, name, since) in list(self.waiting.items()):
            if time.monotonic() - since < patience:
                continue
            del self.waiting[pid]
            self.settled.add(pid)
            who = f"rank {rank}" if rank is not None else "a worker"
            say((problem("worker-did-not-bind", f"{who}, process {pid}, is {name}"),))


def _rank(environ: dict[str, str]) -> int | None:
    try:
        return detect(environ).local_rank
    except ValueError:
        return None
