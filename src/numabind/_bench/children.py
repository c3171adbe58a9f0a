"""Forked processes that do work of their own and answer questions over a pipe.

Threads would share the interpreter's lock while they copy. A child ends when its parent does: its
end of the pipe closes then.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager

from numabind._errors import NumabindError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


class ChildError(NumabindError):
    """A child ended before it answered."""


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let a Ctrl-C wait while a child is forked and noted down.

    One that came between would be a traceback of the child's, or leave it to itself.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child:
    """A forked process. `make` runs there first; what it returns answers each question.

    Questions and answers are what JSON can hold. Make it and keep it within `interrupts_held`.
    """

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        hear, ask = os.pipe()
        listen, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ask)
            os.close(listen)
            _serve(make, hear, answer)
        os.close(hear)
        os.close(answer)
        self._ask = os.fdopen(ask, "w", encoding="utf-8")
        self._listen = os.fdopen(listen, encoding="utf-8")

    def ask(self, question: Any) -> None:
        """Put a question; the child works on it meanwhile."""
        try:
            self._ask.write(json.dumps(question) + "\n")
            self._ask.flush()
        except BrokenPipeError as error:
            raise ChildError("a measuring process ended early (out of memory?)") from error

    def answer(self) -> Any:
        """Wait for the answer to the last question. ChildError if the child ended."""
        line = self._listen.readline()
        if not line.endswith("\n"):
            raise ChildError("a measuring process ended early (out of memory?)")
        return json.loads(line)

    def end(self) -> None:
        """Stop it, whatever it is at."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._listen.close()
        try:
            self._ask.close()
        except BrokenPipeError:
            return  # a question that it never read


def _serve(make: Callable[[], Callable[[Any], Any]], hear: int, answer: int) -> None:
    """The child's whole life."""
    # Ctrl-C reaches the whole group; the parent ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    code = 1
    try:
        reply = make()
        with os.fdopen(hear, encoding="utf-8") as questions:
            for line in questions:
                os.write(answer, (json.dumps(reply(json.loads(line))) + "\n").encode())
        code = 0
    except BrokenPipeError:
        code = 0
    except MemoryError:
        code = 1
    finally:
        os._exit(code)
