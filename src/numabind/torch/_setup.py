"""One call that gives a trainer with offload its place, its host memory and its threads."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from numabind._bind import bind, log_problems
from numabind._binding import Binding
from numabind._errors import UsageError
from numabind._problems import Problem, problem
from numabind._record import record
from numabind.torch._activations import check_min_bytes, offload_activations
from numabind.torch._threads import optimizer_threads

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    import torch
    from typing_extensions import Unpack

    from numabind._options import OptionWords

KINDS = (None, "states", "full")


@record
class Offload:
    """What setup_cpu_offload did: the Binding (None if nothing is offloaded), and the threads.

    `threads` is what the optimizer's steps have, None unless it runs on the CPU ("full").
    """

    optimizer: str | None
    binding: Binding | None
    threads: int | None
    activations: offload_activations | None
    problems: tuple[Problem, ...] = ()

    def saving(self) -> AbstractContextManager[object]:
        """The context to run forward in: activations go to host memory if that was asked for."""
        import contextlib

        return self.activations if self.activations is not None else contextlib.nullcontext()


class _Hooks:
    """Threads for each optimizer's step, as global hooks of torch.optim."""

    def __init__(self, threads: optimizer_threads) -> None:
        import torch
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self.threads, self.open = threads, _Open()
        # A compiled step would trace them.
        self.handles = (
            register_optimizer_step_pre_hook(torch.compiler.disable(self.before)),
            register_optimizer_step_post_hook(torch.compiler.disable(self.after)),
        )

    def before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.after(optimizer)  # if its step before raised, the post hook never ran
        on_host = any(p.device.type == "cpu" for g in optimizer.param_groups for p in g["params"])
        if on_host:
            self.threads.__enter__()
            self.open.steps.append(id(optimizer))

    def after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        while id(optimizer) in self.open.steps:
            self.leave()

    def leave(self) -> None:
        self.open.steps.pop()
        self.threads.__exit__()

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        while self.open.steps:
            self.leave()


class _Open(threading.local):
    """The optimizers whose steps a thread is in, the innermost last (one may step another)."""

    def __init__(self) -> None:
        self.steps: list[int] = []


# torch's hooks are the whole process's, and so is what was set up: a second call replaces it.
_hooks: list[_Hooks] = []


def setup_cpu_offload(
    optimizer: str | None = None,
    activations: bool = False,
    *,
    gpu: str | None = None,
    min_bytes: int = 64 << 10,
    **options: Unpack[OptionWords],
) -> Offload:
    """Put this worker next to its GPU if it offloads anything to host memory, and size its threads.

    `optimizer` says what of it is on the host: None, its "states" (copied to the GPU for the step),
    or "full": the step runs on the CPU, and only then do torch.optim's steps on host parameters get
    this worker's threads, each step and no longer (after one that raised: until that optimizer's
    next step, or the next call of this function). `activations`: what autograd saves goes to host
    memory, inside `with offload.saving():`. With neither, nothing is done; what an earlier call
    bound stays so.

    The GPU is torch's current device, found by its UUID, if CUDA is already in use; else what
    `numabind.bind` finds. Call it first; it may also be called after init_process_group, when it
    moves what can be moved (move_pages) and says what was placed elsewhere for good. `options` are
    `bind`'s. Twice is once: a second call leaves what the last one asks for. Raises UsageError for
    a wrong argument, BindError only under strict.
    """
    if optimizer not in KINDS:
        raise UsageError(f'optimizer must be None, "states" or "full", not {optimizer!r:.40}')
    if not isinstance(activations, bool):
        raise UsageError(f"activations must be True or False, not {activations!r:.40}")
    check_min_bytes(min_bytes)
    for hooks in _hooks:
        hooks.remove()
    _hooks.clear()
    if optimizer is None and not activations:
        return Offload(None, None, None, None)
    options.setdefault("move_pages", True)
    binding = bind(gpu if gpu is not None else current_gpu(), **options)
    said = _left_elsewhere(binding)
    log_problems(said)
    threads = None
    if optimizer == "full":
        sized = optimizer_threads()
        threads = sized.threads
        _hooks.append(_Hooks(sized))
    saving = offload_activations(min_bytes) if activations else None
    return Offload(optimizer, binding, threads, saving, (*binding.problems, *said))


def current_gpu() -> str | None:
    """The UUID of torch's current device; None if torch has not begun to use CUDA.

    A CUDA ordinal is never used: it means another GPU under CUDA_VISIBLE_DEVICES.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def _left_elsewhere(binding: Binding) -> tuple[Problem, ...]:
    if not binding.pages_left:
        return ()
    cause = f"{binding.pages_left} pages would not move, {binding.pages_moved or 0} were moved"
    return (problem("placed-elsewhere", cause),)
