"""Files that a person names: read whole, but never without end and never waiting for a writer."""

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
