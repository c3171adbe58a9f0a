"""The tensors that something holds, and where in the host's memory they are."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from numabind._errors import UsageError
from numabind._slab import nodes_of_pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import torch


def pages(target: Any) -> dict[int, int]:
    """How many pages of a target's host tensors are on each NUMA node, by the kernel's own books.

    `target` is a tensor, a module (parameters, gradients, buffers), an optimizer (states, and the
    parameters it steps with their gradients), or a list, tuple or dict of such. Pages are of
    mmap.PAGESIZE bytes (a huge page counts as so many), asked of the kernel one by one
    (move_pages); one that several tensors lie on counts once, one that was never touched does not
    count. Key -1 counts those that the kernel would not tell of. Of a sharded tensor this process's
    shard is counted; tensors on a GPU and sparse ones are not. UsageError for anything else.
    """
    total: dict[int, int] = {}
    for low, high in merged(span for leaf in leaves_of(target) if (span := span_of(leaf))):
        found = nodes_of_pages(low, high - low, mmap.PAGESIZE)
        for node, size in (found if found is not None else {-1: high - low}).items():
            total[node] = total.get(node, 0) + size // mmap.PAGESIZE
    return dict(sorted(total.items()))


def leaves_of(target: Any) -> Iterator[torch.Tensor]:
    """Every tensor that a target holds; of a wrapper (a sharded one, say) those that it is made of.

    The same one may come several times. UsageError for what holds none.
    """
    import torch

    target = innermost(target)
    if isinstance(target, torch.Tensor):
        flatten = getattr(target, "__tensor_flatten__", None)
        if flatten is None:
            yield target
        else:
            inner = (getattr(target, name) for name in flatten()[0])
            yield from leaves_of([part for part in inner if isinstance(part, torch.Tensor)])
    elif isinstance(target, torch.nn.Module):
        yield from _with_gradients(target.parameters())
        yield from (leaf for buffer in target.buffers() for leaf in leaves_of(buffer))
    elif isinstance(target, torch.optim.Optimizer):
        for state in target.state.values():
            yield from _inside(state)
        for group in target.param_groups:
            yield from _with_gradients(group["params"])
    elif isinstance(target, (Mapping, list, tuple, set, frozenset)):
        for item in target.values() if isinstance(target, Mapping) else target:
            yield from leaves_of(item)
    else:
        what = "a tensor, module, optimizer or a list of tensors"
        raise UsageError(f"{what} is wanted, not {type(target).__name__}")


def innermost(optimizer: Any) -> Any:
    """The optimizer that does the steps, out of wrappers that keep it as `.optimizer`.

    accelerate's and DeepSpeed's do; they have parameter groups, a learning-rate scheduler has none.
    """
    while hasattr(optimizer, "param_groups") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _with_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for parameter in parameters:
        yield from leaves_of(parameter)
        if parameter.grad is not None:
            yield from leaves_of(parameter.grad)


def _inside(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer's state, among numbers and whatever else it keeps."""
    import torch

    if isinstance(value, torch.Tensor):
        yield from leaves_of(value)
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _inside(item)


def extent_of(tensor: torch.Tensor) -> int:
    """Elements from a strided tensor's first to its last in memory; 0 for other layouts."""
    import torch

    if tensor.is_nested or tensor.layout != torch.strided or tensor.numel() == 0:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )


def span_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The whole pages that a host tensor lies on, [begin, end); None if on none."""
    from torch.nn.parameter import is_lazy

    if tensor.device.type != "cpu" or is_lazy(tensor):
        return None
    size = extent_of(tensor) * tensor.element_size()
    begin = tensor.data_ptr() if size else 0
    if not begin:
        return None
    end = -(-(begin + size) // mmap.PAGESIZE) * mmap.PAGESIZE
    return begin // mmap.PAGESIZE * mmap.PAGESIZE, end


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges without overlap that cover the same, in order. Pure."""
    whole: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if whole and low <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(high, whole[-1][1]))
        else:
            whole.append((low, high))
    return whole
