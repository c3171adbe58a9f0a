"""The system calls that Python lacks: memory policy and page moves. The only ctypes.

Sources: set_mempolicy(2), get_mempolicy(2), move_pages(2), include/uapi/linux/mempolicy.h. Each is
one line here; `_check` turns errno into the fitting OSError (EPERM into PermissionError).
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array

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
_Mask = ctypes.c_ulong * (_NODES // 64)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _number(call: int) -> int:
    numbers = _NUMBERS.get(os.uname().machine)
    if numbers is None:
        raise OSError(38, f"memory policies are not known on {os.uname().machine}")
    return numbers[call]


def _check(call: str, *arguments: object) -> int:
    result = int(_libc.syscall(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)
    return result


def _mask(nodes: frozenset[int]) -> ctypes.Array[ctypes.c_ulong]:
    words = _Mask()
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    return words


def set_memory_policy(policy: str, nodes: frozenset[int]) -> None:
    """Set the calling thread's policy: a name of POLICIES and its nodes. OSError as errno says."""
    # The kernel takes one from maxnode, so 1025 makes it read 1024 bits.
    mask, size = (_mask(nodes), _NODES + 1) if nodes else (None, 0)
    _check("set_mempolicy", _long(_number(0)), _long(POLICIES[policy]), mask, _long(size))


def get_memory_policy() -> tuple[str, frozenset[int]]:
    """The calling thread's policy and nodes. OSError as errno says."""
    mode, words = ctypes.c_int(), _Mask()
    nothing = ctypes.c_void_p()
    _check(
        "get_mempolicy",
        _long(_number(1)),
        ctypes.byref(mode),
        words,
        _long(_NODES),
        nothing,
        _long(0),
    )
    nodes = frozenset(
        64 * i + bit for i, word in enumerate(words) if word for bit in range(64) if word >> bit & 1
    )
    number = mode.value & ~_MODE_FLAGS
    return _NAMES.get(number, f"policy-{number}"), nodes


def page_nodes(pages: array[int]) -> array[int]:
    """The node of each page of this process, by address ("Q"); negative errno for none.

    -ENOENT (Linux 6.12) and -EFAULT (6.1) both mean a page that was never touched.
    """
    return _pages(pages, None, 0)


def move_pages(pages: array[int], node: int) -> array[int]:
    """Move pages of this process to a node; the node where each is now, or a negative errno."""
    from array import array

    return _pages(pages, array("i", [node]) * len(pages), _MOVE)


def _pages(pages: array[int], nodes: array[int] | None, flags: int) -> array[int]:
    from array import array

    status = array("i", bytes(4 * len(pages)))
    _check(
        "move_pages",
        _long(_number(2)),
        _long(0),
        _long(len(pages)),
        ctypes.c_void_p(pages.buffer_info()[0]),
        ctypes.c_void_p(nodes.buffer_info()[0] if nodes is not None else None),
        ctypes.c_void_p(status.buffer_info()[0]),
        _long(flags),
    )
    return status


def _long(value: int) -> ctypes.c_long:
    return ctypes.c_long(value)


def restore_default_signals() -> None:
    """Undo Python's ignoring of SIGPIPE and SIGXFSZ, which an exec'd program would inherit."""
    for number in (13, 25):
        _libc.signal(number, None)
