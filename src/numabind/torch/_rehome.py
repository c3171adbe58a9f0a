"""Moving the host tensors of a module or an optimizer into a pool's slabs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numabind._errors import UsageError
from numabind._record import record
from numabind.torch._pool import Pool, shared_pool

if TYPE_CHECKING:
    from typing import Any

    import torch


@record
class Rehomed:
    """What was moved: how many storages (tensors that share memory share one), and their bytes."""

    storages: int
    bytes: int


def rehome(
    target: torch.nn.Module | torch.optim.Optimizer,
    node: int | None = None,
    pool: Pool | None = None,
) -> Rehomed:
    """Put the host tensors of a module or an optimizer on the worker's NUMA node.

    A module's parameters, gradients and buffers, also those that FSDP2's CPUOffloadPolicy keeps on
    the host, or an optimizer's states (and the host parameters it steps that are no FSDP2 ones:
    those are the module's). Contents, strides and identity stay: parameters are the same objects
    with the same values, and tensors that shared memory share it still. Tensors on a GPU are left
    alone. `node` and `pool` are as in `empty_pinned` and `Pool`.

    States are made by the first step: for an optimizer that has none yet, they are moved when that
    step is done, and the answer is of nothing moved. Call it before anything keeps the address of a
    tensor (a CUDA graph, say). Raises UsageError for a target that is neither.
    """
    import torch

    chosen = pool if pool is not None else shared_pool(node)
    moving = _Moving(chosen)
    if isinstance(target, torch.nn.Module):
        # Module._apply keeps each Parameter and tells FSDP2 that its shards have moved.
        target._apply(moving.moved)  # noqa: SLF001
    elif isinstance(target, torch.optim.Optimizer):
        if not target.state:
            _after_first_step(target, chosen)
        _move_states(target, moving)
    else:
        raise UsageError(f"a module or an optimizer is wanted, not {type(target).__name__}")
    return Rehomed(len(moving.storages), sum(s.nbytes() for s in moving.storages.values()))


def _after_first_step(optimizer: torch.optim.Optimizer, pool: Pool) -> None:
    def move(*_: Any) -> None:
        handle.remove()
        _move_states(optimizer, _Moving(pool))

    handle = optimizer.register_step_post_hook(move)


def _move_states(optimizer: torch.optim.Optimizer, moving: _Moving) -> None:
    for state in optimizer.state.values():
        for name, value in list(state.items()):
            state[name] = moving.anywhere(value)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not hasattr(parameter, "_local_tensor"):
                parameter.data = moving.moved(parameter.data)
                if parameter.grad is not None:
                    parameter.grad.data = moving.moved(parameter.grad.data)


class _Moving:
    """One round of moving: which storage went where."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.kept: list[torch.UntypedStorage] = []  # so that no address is used twice meanwhile

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
        """The tensor in the pool; itself if it is there already or no plain tensor of the host."""
        import torch

        local = getattr(tensor, "_local_tensor", None)
        if local is not None:
            return self._distributed(tensor, local)
        plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
        if (
            not plain
            or tensor.is_quantized
            or type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        ):
            return tensor
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0 or self.pool.holds(storage.data_ptr()):
            return tensor
        home = self.storages.get(storage.data_ptr())
        if home is None:
            home = self.pool.empty(storage.nbytes(), torch.uint8).untyped_storage()
            home.copy_(storage)
            self.storages[storage.data_ptr()] = home
            self.kept.append(storage)
        with torch.no_grad():
            new = torch.empty(0, dtype=tensor.dtype)
            new.set_(home, tensor.storage_offset(), tensor.size(), tensor.stride())
        return new.requires_grad_(
            tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter)
        )

    def _distributed(self, tensor: Any, local: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        moved = self.moved(local)
        if moved is local:
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
