"""Files that a person names: read whole, but not without end; written whole or not at all."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

# A snapshot of 4,096 CPUs takes 0.6 MB.
_LONGEST = 64 << 20


def read_text(path: str) -> str:
    """The text of a file, unpacked if its name ends in ".gz".

    OSError as from open; ValueError if it is too long, not UTF-8, or not packed by gzip.
    """
    # A pipe that nobody writes to would keep a worker from starting; opened so, it reads as empty,
    # and one that has a writer is waited for.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with open(handle, "rb") as file:
        data = file.read(_LONGEST + 1) if not path.endswith(".gz") else _unpacked(file)
    if len(data) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST >> 20} MiB")
    return data.decode()


def _unpacked(file: BinaryIO) -> bytes:
    import gzip
    import zlib

    try:
        with gzip.GzipFile(fileobj=file) as packed:
            return packed.read(_LONGEST + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"not packed by gzip, or cut short: {error}") from error


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
