"""The system calls that Python lacks: memory policy, page moves, populating. The only way to libc.

Sources: set_mempolicy(2), get_mempolicy(2), mbind(2), move_pages(2), madvise(2),
include/uapi/linux/mempolicy.h. Each is one line here; `_call` turns errno into the fitting OSError
(EPERM into PermissionError).

`_ctypes` is what `ctypes` is written on; taken directly it costs 0.8 ms at start-up instead of 3.5.
(`array` would cost 7: it imports collections. So only moving pages uses it, and asking takes any
sequence.) All arguments are C longs or addresses, so nothing else of ctypes is wanted.
"""

from __future__ import annotations

import os
from _ctypes import (
    FUNCFLAG_CDECL,
    FUNCFLAG_USE_ERRNO,
    Array,
    CFuncPtr,
    _SimpleCData,
    addressof,
    dlopen,
    dlsym,
    get_errno,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence
    from typing import Any

# arch: (set_mempolicy, get_mempolicy, move_pages, mbind, madvise), from the kernel's unistd.h.
_NUMBERS = {"x86_64": (238, 239, 279, 237, 28), "aarch64": (237, 236, 239, 235, 233)}

# The kernel's names and numbers of the policies (uapi/linux/mempolicy.h, enum).
POLICIES = {
    "default": 0,
    "preferred": 1,
    "bind": 2,
    "interleave": 3,
    "local": 4,
    "preferred-many": 5,
    "weighted-interleave": 6,
}
_NAMES = {number: name for name, number in POLICIES.items()}
_MODE_FLAGS = 1 << 13 | 1 << 14 | 1 << 15  # NUMA_BALANCING, RELATIVE_NODES, STATIC_NODES
_MOVE = 2  # MPOL_MF_MOVE: only pages that no other process maps
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE (Linux 5.14)
# Linux is built for at most 1024 nodes (CONFIG_NODES_SHIFT ≤ 10).
_NODES = 1024
_NOTHING = 0  # a null pointer


class _Long(_SimpleCData):  # type: ignore[type-arg]  # not subscriptable when run
    """A C long, as wide as a pointer on every Linux that we know."""

    _type_ = "l"


class _Byte(_SimpleCData):  # type: ignore[type-arg]
    """A byte of somebody's buffer."""

    _type_ = "b"


class _Mask(Array):  # type: ignore[type-arg]
    """A node mask of 1024 bits."""

    _type_ = _Long
    _length_ = _NODES // 64


class _Function(CFuncPtr):
    """A function of libc that takes and returns longs and sets errno."""

    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = _Long


_libc = dlopen(None, 0)  # type: ignore[arg-type]  # None is this process, as in ctypes.CDLL
_syscall = _Function(dlsym(_libc, "syscall"))
_signal = _Function(dlsym(_libc, "signal"))
_memset = _Function(dlsym(_libc, "memset"))


def _number(call: int) -> int:
    numbers = _NUMBERS.get(os.uname().machine)
    if numbers is None:
        raise OSError(38, f"memory policies are not known on {os.uname().machine}")
    return numbers[call]


def _call(name: str, *arguments: int | _Mask) -> None:
    """Make a system call; a mask is passed by address. OSError as errno says."""
    if _syscall(*(_Long(a) if isinstance(a, int) else a for a in arguments)) < 0:
        number = get_errno()
        raise OSError(number, os.strerror(number), name)


def set_memory_policy(policy: str, nodes: frozenset[int]) -> None:
    """Set the calling thread's policy: a name of POLICIES and its nodes. OSError as errno says."""
    set_raw_policy(POLICIES[policy], nodes)


def set_raw_policy(mode: int, nodes: frozenset[int]) -> None:
    """The same with the kernel's number of the policy, mode flags included."""
    if nodes and max(nodes) >= _NODES:
        raise OSError(22, f"no kernel has a node {max(nodes)}")
    _call("set_mempolicy", _number(0), mode, *_mask(nodes))


def _mask(nodes: frozenset[int]) -> tuple[int | _Mask, int]:
    words = _Mask()
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    # The kernel takes one from maxnode, so 1025 makes it read 1024 bits.
    return (words, _NODES + 1) if nodes else (_NOTHING, 0)


def bind_memory(address: int, size: int, policy: str, nodes: frozenset[int]) -> None:
    """Set the policy of a range of this process's memory, in bytes. OSError as errno says."""
    _call("mbind", _number(3), address, size, POLICIES[policy], *_mask(nodes), 0)


def populate(address: int, size: int) -> None:
    """Touch each page of a range for writing; other Python threads go on meanwhile.

    OSError as errno says: EINVAL before Linux 5.14, ENOMEM where memory has run out.
    """
    _call("madvise", _number(4), address, size, _POPULATE_WRITE)


def fill(address: int, size: int) -> None:
    """Write zeros over a range of this process's memory; other Python threads go on meanwhile."""
    _memset(_Long(address), _Long(0), _Long(size))


def address_of(buffer: object) -> int:
    """Where a writable buffer's memory begins."""
    return addressof(_Byte.from_buffer(buffer))  # type: ignore[arg-type]


def get_memory_policy() -> tuple[str, frozenset[int]]:
    """The calling thread's policy and nodes. OSError as errno says."""
    mode, nodes = get_raw_policy()
    number = mode & ~_MODE_FLAGS
    return _NAMES.get(number, f"policy-{number}"), nodes


def get_raw_policy() -> tuple[int, frozenset[int]]:
    """The kernel's number of the calling thread's policy, mode flags included, and its nodes."""
    mode, words = _Mask(), _Mask()
    _call("get_mempolicy", _number(1), mode, words, _NODES, _NOTHING, 0)
    nodes = frozenset(
        64 * i + bit for i, word in enumerate(words) if word for bit in range(64) if word >> bit & 1
    )
    return mode[0] & 0xFFFFFFFF, nodes  # the mode is an int, in the low half of the long


def page_nodes(pages: Sequence[int], pid: int = 0) -> list[int]:
    """The node of each page of a process, by address; negative errno for none.

    -ENOENT (Linux 6.12) and -EFAULT (6.1) both mean a page that was never touched. 0 is this
    process; another needs its user or CAP_SYS_PTRACE. OSError if the kernel refuses.
    """
    return _pages(pages, None, 0, pid)


def move_pages(pages: array[int], node: int) -> list[int]:
    """Move pages of this process to a node; the node where each is now, or a negative errno."""
    from array import array

    return _pages(pages, array("i", [node]) * len(pages), _MOVE)


def _pages(pages: Sequence[int], nodes: array[int] | None, flags: int, pid: int = 0) -> list[int]:
    # An array ("Q") is handed over as it is: making one of ours costs 0.3 µs a page.
    given = getattr(pages, "buffer_info", None)
    asked = _longs(() if given is not None else pages)
    where = addressof(asked) if given is None else given()[0]
    answers = _longs((), len(pages) // 2 + 1)
    targets = _NOTHING if nodes is None else nodes.buffer_info()[0]
    addresses = (where, targets, addressof(answers))
    _call("move_pages", _number(2), pid, len(pages), *addresses, flags)
    # The answers are ints, two to a long.
    return memoryview(answers).cast("B").cast("i")[: len(pages)].tolist()


def _longs(values: Sequence[int], length: int | None = None) -> Any:
    """A C array of longs, zeros after the values."""
    size = len(values) if length is None else length
    block = type("_Longs", (Array,), {"_type_": _Long, "_length_": size})
    return block(*values)


def restore_default_signals() -> None:
    """Undo Python's ignoring of SIGPIPE and SIGXFSZ, which an exec'd program would inherit."""
    for number in (13, 25):
        _signal(_Long(number), _Long(_NOTHING))
