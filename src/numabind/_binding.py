"""What binding answers: what a process has, read back, and how to undo it."""

from __future__ import annotations

import os

from numabind import _apply
from numabind._apply import Undo
from numabind._cpulist import format_list
from numabind._placement import Placement
from numabind._problems import HARMLESS, NOTES, Problem
from numabind._record import record
from numabind._sysfs import is_linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@record
class Binding:
    """What a process has, read back from the kernel, beside what was planned for it.

    `cpus` is the calling thread's mask, `memory_policy` and `memory_nodes` its policy in the
    kernel's words (None: the kernel would not tell); `threads` the budget. `threads_bound` counts
    the threads that were given the mask, `threads_kept` names those left with a narrower one.
    `pages_moved` and `pages_left` count what --move-pages did; `bytes_elsewhere` is memory that was
    touched before and lies on other nodes. None everywhere means not asked or not known.
    """

    pid: int
    local_rank: int | None
    device: str | None
    pci: str | None
    node: int | None
    bound: bool
    cpus: frozenset[int]
    memory_policy: str | None
    memory_nodes: frozenset[int]
    threads: int | None
    threads_bound: int = 0
    threads_kept: tuple[str, ...] = ()
    pages_moved: int | None = None
    pages_left: int | None = None
    bytes_elsewhere: int | None = None
    problems: tuple[Problem, ...] = ()
    placement: Placement | None = None
    undo: Undo = Undo()

    def restore(self) -> None:
        """Put back masks, memory policy and environment as they were before this bind.

        Acts on the process that was bound; in another (a forked child, say) it does nothing. The
        masks of all threads go back, also of those born since; a memory policy is its thread's own,
        so it goes back only where the thread that bound calls this, and threads born since keep
        theirs. Pages that were moved stay. Safe to call twice.
        """
        if self.undo.pid != os.getpid():
            return
        _apply.undo_masks(self.undo)
        _apply.undo_policy(self.undo)
        for name, value in self.undo.environ:
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def __enter__(self) -> Binding:  # noqa: PYI034 (Self is 3.11's; not subclassed)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    @property
    def misplacing(self) -> tuple[Problem, ...]:
        """The problems that keep the worker from its place."""
        return tuple(p for p in self.problems if p.name not in NOTES | HARMLESS)

    @property
    def text(self) -> str:
        """One line: rank, GPU, PCI address, node, CPUs, memory and threads."""
        who = "worker" if self.local_rank is None else f"rank {self.local_rank}"
        parts = [f"{who} bound" if self.bound else f"{who} not bound"]
        if self.device is not None:
            parts.append(f"gpu {self.device}")
            if self.pci != self.device:
                parts.append(f"pci {self.pci}")
        parts.append(f"node {'unknown' if self.node is None else self.node}")
        parts.append(f"cpus {format_list(self.cpus)}")
        memory = self.memory_policy or "unknown"
        if self.memory_nodes:
            memory += f":{format_list(self.memory_nodes)}"
        parts.append(f"memory {memory}")
        if self.threads is not None:
            one = any(said.name == "one-openmp-thread" for said in self.problems)
            kept = " (OMP_NUM_THREADS=1 stays)" if one else ""
            parts.append(f"threads {self.threads}{kept}")
        if self.pages_moved is not None:
            parts.append(f"pages moved {self.pages_moved}, left {self.pages_left}")
        elif self.bytes_elsewhere:
            parts.append(f"{self.bytes_elsewhere >> 20} MiB touched before are elsewhere")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, documented in docs/snapshot.md."""
        hidden = ("undo", "placement")
        return {
            **{name: value for name, value in self.__dict__.items() if name not in hidden},
            "cpus": format_list(self.cpus),
            "memory_nodes": format_list(self.memory_nodes),
            "threads_kept": list(self.threads_kept),
            "problems": [p.as_dict() for p in self.problems],
            "reasons": list(self.placement.reasons) if self.placement else [],
        }


def unbound(said: Problem) -> Binding:
    """The Binding of a process that was left alone."""
    cpus = _apply.own_mask() if is_linux() else frozenset[int]()
    return Binding(
        pid=os.getpid(),
        local_rank=None,
        device=None,
        pci=None,
        node=None,
        bound=False,
        cpus=cpus,
        memory_policy=None,
        memory_nodes=frozenset(),
        threads=None,
        problems=(said,),
    )
