"""Moving the host tensors of a module or an optimizer into a pool's slabs."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from numabind._bind import log_problems
from numabind._errors import UsageError
from numabind._problems import problem
from numabind._record import record
from numabind.torch._pool import Pool, shared_pool
from numabind.torch._tensors import innermost, leaves_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    import torch


@record
class Rehomed:
    """What was moved: how many storages (tensors that share memory share one), and their bytes.

    `left` counts the tensors on the host that stay where they are (`tensors-left`): something
    else has that memory too, another process has it, or they are sparse, nested or quantized.
    """

    storages: int
    bytes: int
    left: int = 0


def rehome(
    target: torch.nn.Module | torch.optim.Optimizer,
    node: int | None = None,
    pool: Pool | None = None,
) -> Rehomed:
    """Put the host tensors of a module or an optimizer on the worker's NUMA node.

    A module's parameters, gradients and buffers, also those that FSDP2's CPUOffloadPolicy keeps on
    the host, or an optimizer's states (and the host parameters it steps that are no FSDP2 ones:
    those are the module's). Contents, strides and identity stay: parameters are the same objects
    with the same values, and the target's tensors that shared memory share it still. Tensors on a
    GPU are left alone. `node` and `pool` are as in `empty_pinned` and `Pool`.

    An optimizer's later states are moved too: those of its first step, of parameters whose turn
    comes later, and of a `load_state_dict`. A module's are not: call it again after `module.to`,
    or `load_state_dict(assign=True)`. Call it before anything keeps the address of a tensor (a CUDA
    graph, say). Memory that others hold too (a state_dict or graph that is alive, the flat buffers
    of FSDP1 and DeepSpeed) is left, which is said (`tensors-left`): they would not see what is
    written to a copy. Raises UsageError for a target that is neither.
    """
    import torch

    found = innermost(target)
    if not isinstance(found, (torch.nn.Module, torch.optim.Optimizer)):
        raise UsageError(f"a module or an optimizer is wanted, not {type(target).__name__}")
    if pool is not None and not isinstance(pool, Pool):
        raise UsageError(f"pool must be a Pool or None, not {pool!r:.40}")
    chosen = pool if pool is not None else shared_pool(node)
    moving = _Moving(chosen, found)
    if isinstance(found, torch.nn.Module):
        _move_module(found, moving)
    else:
        _move_states(found, moving)
        _move_later_states(found, chosen)
    return moving.done()


def _move_module(module: torch.nn.Module, moving: _Moving) -> None:
    sharded = False
    for tensor in (*module.parameters(), *module.buffers()):
        if hasattr(tensor, "_local_tensor"):
            sharded = True
            continue
        moving.in_place(tensor)
        if tensor.grad is not None:
            moving.in_place(tensor.grad)
    if sharded:
        # It keeps each Parameter, and FSDP2 hears of it. (FSDP1 makes its parameters anew then, and
        # an optimizer that has the earlier ones steps in vain: so only where it must be.)
        with _padding(moving.pool):
            module._apply(moving.moved)  # noqa: SLF001


def _padding(pool: Pool) -> AbstractContextManager[object]:
    """Have FSDP2 pad uneven shards in the pool, too.

    It pads a shard that it is given anew by `new_zeros` (FSDPParam.reset_sharded_param).
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Padding(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func is torch.Tensor.new_zeros and len(args) == 2 and not kwargs:
                like, size = args
                if like.device.type == "cpu" and isinstance(size, torch.Size):
                    return pool.empty(size, like.dtype).zero_()
            return func(*args, **(kwargs or {}))

    return Padding()


def _move_states(optimizer: torch.optim.Optimizer, moving: _Moving) -> None:
    for state in optimizer.state.values():
        for name, value in list(state.items()):
            state[name] = moving.anywhere(value)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not hasattr(parameter, "_local_tensor"):
                moving.in_place(parameter)
                if parameter.grad is not None:
                    moving.in_place(parameter.grad)


class _Later:
    """Moves an optimizer's states that come later."""

    def __init__(self, optimizer: torch.optim.Optimizer, pool: Pool) -> None:
        import torch

        self.pool, self.states = pool, len(optimizer.state)
        # A compiled step would trace them.
        optimizer.register_step_post_hook(torch.compiler.disable(self.stepped))
        optimizer.register_load_state_dict_post_hook(torch.compiler.disable(self.loaded))

    def stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if len(optimizer.state) != self.states:
            self.loaded(optimizer)

    def loaded(self, optimizer: torch.optim.Optimizer) -> None:
        self.states = len(optimizer.state)
        moving = _Moving(self.pool, optimizer)
        _move_states(optimizer, moving)
        moving.done()


def _move_later_states(optimizer: torch.optim.Optimizer, pool: Pool) -> None:
    """Once for each optimizer; the last pool counts."""
    later = getattr(optimizer, "numabind_later", None)
    if later is None:
        optimizer.numabind_later = _Later(optimizer, pool)  # type: ignore[attr-defined]
    else:
        later.pool = pool


class _Moving:
    """One round of moving a target's tensors: which storage went where, and what could not."""

    def __init__(self, pool: Pool, target: object) -> None:
        self.pool = pool
        # By address and size: NumPy arrays may begin at one address and not be the same.
        self.storages: dict[tuple[int, int], torch.UntypedStorage] = {}
        self.kept: list[torch.UntypedStorage] = []  # so that no address is used twice meanwhile
        self.left: dict[int, torch.Tensor] = {}
        self.known = _by_storage(target)
        self.collected = False

    def done(self) -> Rehomed:
        """What was moved; what was left is said."""
        if self.left:
            size = sum(t.numel() * t.element_size() for t in self.left.values() if not is_odd(t))
            cause = f"{len(self.left)} tensors, {size >> 20} MiB"
            log_problems((problem("tensors-left", cause),))
        size = sum(storage.nbytes() for storage in self.storages.values())
        return Rehomed(len(self.storages), size, len(self.left))

    def anywhere(self, value: Any) -> Any:
        """A state's value with its tensors moved, in lists, tuples and dicts too."""
        import torch

        if isinstance(value, torch.Tensor):
            return self.moved(value)
        if type(value) in (list, tuple):
            return type(value)(self.anywhere(item) for item in value)
        if type(value) is dict:
            return {key: self.anywhere(item) for key, item in value.items()}
        return value

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the pool: the same one, or a new one for a shard that has moved."""
        local = getattr(tensor, "_local_tensor", None)
        if local is not None:
            return self._distributed(tensor, local)
        self.in_place(tensor)
        return tensor

    def in_place(self, tensor: torch.Tensor) -> None:
        """Give a tensor that stays the same object its memory in the pool."""
        new = self._placed(tensor)
        if new is not None:
            tensor.data = new

    def _placed(self, tensor: torch.Tensor, is_shard: bool = False) -> torch.Tensor | None:
        """A plain tensor in the pool with this one's contents; None if it stays where it is."""
        import torch

        if tensor.device.type != "cpu":
            return None
        if not movable(tensor):
            self.left[id(tensor)] = tensor
            return None
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), storage.nbytes()
        if storage.nbytes() == 0 or self.pool.holds(key[0]):
            return None
        home = self.storages.get(key)
        if home is None:
            # FSDP2 has its own views on a shard, and makes them anew when it is moved.
            if not is_shard and self._others_hold(storage):
                self.left[id(tensor)] = tensor
                return None
            home = self.pool.empty(storage.nbytes(), torch.uint8).untyped_storage()
            home.copy_(storage)
            self.storages[key] = home
            self.kept.append(storage)
        with torch.no_grad():
            new = torch.empty(0, dtype=tensor.dtype, device="cpu")
            return new.set_(home, tensor.storage_offset(), tensor.size(), tensor.stride())

    def _others_hold(self, storage: torch.UntypedStorage) -> bool:
        """Whether there are tensors on this storage that are not the target's."""
        known = len(self.known.get((storage.data_ptr(), storage.nbytes()), ())) + 1  # and `storage`
        if users(storage) > known and not self.collected:
            gc.collect()  # load_state_dict leaves some behind in cycles
            self.collected = True
        return users(storage) > known

    def _distributed(self, tensor: Any, local: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        moved = self._placed(local, is_shard=True)
        if moved is None:
            same: torch.Tensor = tensor
            return same
        whole: torch.Tensor = DTensor.from_local(
            moved,
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.size(),
            stride=tensor.stride(),
        )
        return whole


def _by_storage(target: object) -> dict[tuple[int, int], dict[int, torch.Tensor]]:
    """A target's host tensors by identity, by the address and size of their storage.

    A view keeps the tensor that it was made from alive (`_base`): one that only the view has counts
    as the target's, too.
    """
    import torch

    nobody = references_to_base(torch.zeros(2, device="cpu")[:1])
    found: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
    for leaf in leaves_of(target):
        if leaf.device.type != "cpu" or is_odd(leaf):
            continue
        storage = leaf.untyped_storage()
        known = found.setdefault((storage.data_ptr(), storage.nbytes()), {})
        known[id(leaf)] = leaf
        if leaf._base is None or id(leaf._base) in known:  # noqa: SLF001
            continue
        if references_to_base(leaf) <= nobody:
            known[id(leaf._base)] = leaf._base  # noqa: SLF001
    return found


def references_to_base(view: torch.Tensor) -> int:
    """Python references to the tensor that a view was made from; torch may have one of its own."""
    return sys.getrefcount(view._base)  # noqa: SLF001


def users(storage: torch.UntypedStorage) -> int:
    """How many tensors and Python objects have this storage; 0 where torch does not tell."""
    import torch

    count = getattr(torch._C, "_storage_Use_Count", None)  # noqa: SLF001
    return 0 if count is None else int(count(storage._cdata))  # noqa: SLF001


def is_odd(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no storage of its own that strides lead through."""
    import torch
    from torch.nn.parameter import is_lazy

    if is_lazy(tensor) or tensor.is_nested or tensor.layout != torch.strided:
        return True
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def movable(tensor: torch.Tensor) -> bool:
    """Whether a host tensor is no more than a view on memory that is this process's alone."""
    if is_odd(tensor) or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return False
    return not tensor.untyped_storage().is_shared()
