"""The system calls that Python lacks: memory policy and page moves. The only way to libc.

Sources: set_mempolicy(2), get_mempolicy(2), move_pages(2), include/uapi/linux/mempolicy.h. Each is
one line here; `_call` turns errno into the fitting OSError (EPERM into PermissionError).

`_ctypes` is what `ctypes` is written on; taken directly it costs 0.8 ms at start-up instead of 3.5.
(`array` would cost 7: it imports collections. So only moving pages uses it.) All arguments are C
longs or addresses, so nothing else of ctypes is wanted.
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
    from mmap import mmap

# arch: (set_mempolicy, get_mempolicy, move_pages), from the kernel's unistd headers.
_NUMBERS = {"x86_64": (238, 239, 279), "aarch64": (237, 236, 239)}

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
# Linux is built for at most 1024 nodes (CONFIG_NODES_SHIFT ≤ 10).
_NODES = 1024
_NOTHING = 0  # a null pointer


class _Long(_SimpleCData):  # type: ignore[type-arg]  # not subscriptable when run
    """A C long, as wide as a pointer on every Linux that we know."""

    _type_ = "l"


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
    words = _Mask()
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    # The kernel takes one from maxnode, so 1025 makes it read 1024 bits.
    mask, size = (words, _NODES + 1) if nodes else (_NOTHING, 0)
    _call("set_mempolicy", _number(0), mode, mask, size)


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


def page_nodes(pages: array[int], pid: int = 0) -> array[int]:
    """The node of each page of a process, by address ("Q"); negative errno for none.

    -ENOENT (Linux 6.12) and -EFAULT (6.1) both mean a page that was never touched. 0 is this
    process; another needs its user or CAP_SYS_PTRACE. OSError if the kernel refuses.
    """
    return _pages(pages, None, 0, pid)


def move_pages(pages: array[int], node: int) -> array[int]:
    """Move pages of this process to a node; the node where each is now, or a negative errno."""
    from array import array

    return _pages(pages, array("i", [node]) * len(pages), _MOVE)


def _pages(pages: array[int], nodes: array[int] | None, flags: int, pid: int = 0) -> array[int]:
    from array import array

    status = array("i", bytes(4 * len(pages)))
    targets = _NOTHING if nodes is None else nodes.buffer_info()[0]
    addresses = (pages.buffer_info()[0], targets, status.buffer_info()[0])
    _call("move_pages", _number(2), pid, len(pages), *addresses, flags)
    return status


def address_of(buffer: mmap) -> int:
    """The address of a mapping's first byte, which stays its own until it is closed."""
    return addressof(_Long.from_buffer(buffer))


def restore_default_signals() -> None:
    """Undo Python's ignoring of SIGPIPE and SIGXFSZ, which an exec'd program would inherit."""
    for number in (13, 25):
        _signal(_Long(number), _Long(_NOTHING))
