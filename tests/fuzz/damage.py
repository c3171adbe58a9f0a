"""Damages the files of a made-up machine, and mends them again: building one anew is slower."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st


@dataclass(frozen=True)
class Damage:
    """What is done to the `number`-th file of a tree (modulo how many there are)."""

    number: int
    kind: str
    data: bytes = b""


# What a file may be replaced by; the names say what is at its path afterwards.
KINDS = ("missing", "text", "fifo", "loop", "dangling", "directory", "huge", "socket", "device")
NUMBERS = st.integers(-2, 300) | st.sampled_from([2**17, 2**31, 2**63, 2**64, 10**30, -(2**63)])
LIST = st.lists(
    st.builds(lambda a, b: str(a) if b is None else f"{a}-{b}", NUMBERS, st.none() | NUMBERS),
    max_size=4,
).map(",".join)
MASK = st.lists(st.integers(0, 2**34).map("{:x}".format), max_size=4).map(",".join)
TEXT = st.one_of(
    NUMBERS.map(str),
    LIST,
    MASK,
    st.integers(0, 2**34).map("0x{:x}".format),
    st.text(max_size=20),
    st.sampled_from(
        ["", "\n", "\0", "N/A", "-1", "max", "max 100000", "0 0", "1e9", "٣", "0x", "-"]
    ),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
DATA = TEXT | TEXT.map(lambda text: text + b"\n") | st.binary(max_size=40)
DAMAGES = st.lists(
    st.builds(
        Damage,
        st.integers(0, 1 << 16),
        st.sampled_from(KINDS + ("text",) * 10 + ("missing",) * 3),
        DATA,
    ),
    min_size=1,
    max_size=6,
)


def files_of(root: Path) -> list[str]:
    """Every file, link and directory of a tree, relative to it, sorted."""
    found = []
    for folder, folders, files in os.walk(root):
        found += [os.path.relpath(os.path.join(folder, name), root) for name in folders + files]
    return sorted(found)


@contextmanager
def damaged(root: Path, aside: Path, paths: list[str], damages: list[Damage]) -> Iterator[set[str]]:
    """The tree with these damages; mended at the end. Gives the paths that were hit.

    `aside` is an empty directory on the same file system, where originals wait.
    """
    hit: list[str] = []
    try:
        for damage in damages:
            path = paths[damage.number % len(paths)]
            # What is below another damage, or above one, is left: there is nothing to replace.
            if any(path == one or f"{path}/".startswith(f"{one}/") for one in hit):
                continue
            if any(one.startswith(f"{path}/") for one in hit):
                continue
            os.rename(root / path, aside / str(len(hit)))
            hit.append(path)
            _replace(root / path, damage)
        yield set(hit)
    finally:
        for number, path in enumerate(hit):
            _remove(root / path)
            os.rename(aside / str(number), root / path)


def _replace(path: Path, damage: Damage) -> None:
    kind, data = damage.kind, damage.data
    if kind == "text":
        path.write_bytes(data)
    elif kind == "huge":
        path.write_bytes((data or b"1,") * (1 << 17) if len(data) < 9 else data * (1 << 14))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as one:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                # Such a name has 107 bytes at most.
                one.bind(f"/proc/self/fd/{folder}/{path.name}"[:107])
            finally:
                os.close(folder)
    elif kind == "directory":
        path.mkdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()
