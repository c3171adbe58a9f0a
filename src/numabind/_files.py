"""Files that a person names: read whole, but not without end; written whole or not at all."""

from __future__ import annotations

import os

# A snapshot of 4,096 CPUs takes 0.6 MB.
_LONGEST = 64 << 20


def read_text(path: str) -> str:
    """The text of a file. OSError as from open; ValueError if it is too long or not UTF-8."""
    # A pipe that nobody writes to would keep a worker from starting; opened so, it reads as empty,
    # and one that has a writer is waited for.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with open(handle, "rb") as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST >> 20} MiB")
    return data.decode()


def write_text(path: str, text: str) -> None:
    """Write a file as UTF-8: it appears whole or not at all. OSError as from open.

    A link is followed; a device or a pipe is written to, not replaced by a file.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    path = os.path.realpath(path)
    scratch = f"{path}.{os.getpid()}.tmp"
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(scratch, path)
    except BaseException:
        if os.path.exists(scratch):
            os.unlink(scratch)
        raise
