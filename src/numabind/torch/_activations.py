"""Keeping what autograd saves for backward in host memory on the worker's node.

Source: torch.autograd.graph.saved_tensors_hooks; CUDA programming guide, "Overlapping Behavior":
copies overlap with kernels on another stream if the host memory is pinned.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from numabind._errors import UsageError
from numabind.torch._pool import Pool

if TYPE_CHECKING:
    from collections import deque
    from typing import Any

    import torch


class offload_activations:  # noqa: N801 (used as a function is)
    """Keep what autograd saves inside this `with` block in host memory on the worker's node.

        with numabind.torch.offload_activations():
            loss = model(batch).sum()
        loss.backward()

    Each saved tensor is copied to a pool of pinned slabs and brought back, with the same strides,
    when backward wants it; gradients are the same to the last bit. On CUDA both copies run on a
    stream of their own, and while backward uses one tensor the one before it is on its way.
    Parameters, and views of them, are left where they are, and so are tensors of fewer than
    `min_bytes`. Works with torch.utils.checkpoint and around compiled modules. On a CPU the copy is
    in the pool (on the worker's node) and is used there.

    `pool` may be given to share one between steps; otherwise this object has one, so make it once
    and enter it for each step. UsageError for `min_bytes` below 0.
    """

    def __init__(
        self, min_bytes: int = 64 << 10, node: int | None = None, pool: Pool | None = None
    ) -> None:
        if not (type(min_bytes) is int and min_bytes >= 0):
            raise UsageError(f"min_bytes must be 0 or more, not {min_bytes!r:.40}")
        self.min_bytes = min_bytes
        # This class knows when its copies are done, so the pool need not wait for the device.
        self.pool = Pool(node, keep=1 << 62, waits=False) if pool is None else pool
        self._entered: list[Any] = []
        self._copies = _Copies()

    def __enter__(self) -> offload_activations:  # noqa: PYI034 (Self is 3.11's)
        import torch

        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        self._entered.append(hooks)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop().__exit__()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Packed:
        extent = extent_of(tensor)
        if extent * tensor.element_size() < self.min_bytes or not offloadable(tensor, extent):
            return tensor
        if tensor.device.type == "cpu":
            packed = _Packed(tensor, self.pool.empty(extent, tensor.dtype))
            packed.host.copy_(_flat(tensor, extent))
            return packed
        return self._copies.to_host(tensor, self.pool.empty(extent, tensor.dtype))

    def _unpack(self, packed: torch.Tensor | _Packed) -> torch.Tensor:
        if not isinstance(packed, _Packed):
            return packed
        if packed.device.type == "cpu":
            return packed.shaped(packed.host)
        return self._copies.to_device(packed)


def extent_of(tensor: torch.Tensor) -> int:
    """Elements from a strided tensor's first to its last in memory; 0 for other layouts."""
    import torch

    if tensor.layout != torch.strided or tensor.numel() == 0:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )


def offloadable(tensor: torch.Tensor, extent: int) -> bool:
    """Whether a saved tensor is a plain activation whose memory is mostly its own.

    Not a parameter or a view of one, which stays anyway; not a few elements strewn over much.
    """
    import torch

    if type(tensor) is not torch.Tensor or tensor.is_quantized or extent > 2 * tensor.numel():
        return False
    owner = tensor if tensor._base is None else tensor._base  # noqa: SLF001
    if isinstance(owner, torch.nn.Parameter) or (owner.is_leaf and owner.requires_grad):
        return False
    return not (tensor.is_conj() or tensor.is_neg()) and tensor.device.type in ("cpu", "cuda")


def _flat(tensor: torch.Tensor, extent: int) -> torch.Tensor:
    """The memory of a strided tensor, from its first element to its last."""
    return tensor.detach().as_strided((extent,), (1,), tensor.storage_offset())


class _Packed:
    """A saved tensor that is in host memory, and what is needed to bring it back as it was."""

    def __init__(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        self.device, self.host = tensor.device, host
        self.size, self.stride = tensor.size(), tensor.stride()
        self.before: weakref.ref[_Packed] | None = None
        self.fetched: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def shaped(self, flat: torch.Tensor) -> torch.Tensor:
        """These elements with the saved tensor's shape and strides."""
        return flat.as_strided(self.size, self.stride)


class _Copies:
    """Copies to and from a CUDA device on a stream of their own for each device."""

    def __init__(self) -> None:
        from collections import deque

        self.streams: dict[torch.device, torch.cuda.Stream] = {}
        self.last: weakref.ref[_Packed] | None = None
        # Host memory that a copy still uses, with the event that ends it.
        self.in_use: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        import torch

        if device not in self.streams:
            self.streams[device] = torch.cuda.Stream(device)
        return self.streams[device]

    def to_host(self, tensor: torch.Tensor, host: torch.Tensor) -> _Packed:
        """Start copying a tensor out; its device memory is free once that is done."""
        import torch

        side = self.stream(tensor.device)
        side.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(side):
            host.copy_(_flat(tensor, host.numel()), non_blocking=True)
        tensor.record_stream(side)
        packed = _Packed(tensor, host)
        packed.before, self.last = self.last, weakref.ref(packed)
        self._hold(side, host)
        return packed

    def to_device(self, packed: _Packed) -> torch.Tensor:
        """A saved tensor on its device again, and the one saved before it on its way."""
        import torch

        back, arrived = self._fetched(packed)
        earlier = packed.before() if packed.before is not None else None
        if earlier is not None:
            self._fetched(earlier)
        current = torch.cuda.current_stream(packed.device)
        current.wait_event(arrived)
        back.record_stream(current)
        # Kept no longer than wanted; asked for again (retain_graph), it is fetched again.
        packed.fetched = None
        return packed.shaped(back)

    def _fetched(self, packed: _Packed) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Its copy on the device, and the event that says it is there; begun if it was not."""
        import torch

        if packed.fetched is None:
            side = self.stream(packed.device)
            with torch.cuda.stream(side):
                back = torch.empty_like(packed.host, device=packed.device)
                back.copy_(packed.host, non_blocking=True)
                packed.fetched = back, side.record_event()
            self._hold(side, packed.host)
        return packed.fetched

    def _hold(self, side: torch.cuda.Stream, host: torch.Tensor) -> None:
        while self.in_use and self.in_use[0][0].query():
            self.in_use.popleft()
        self.in_use.append((side.record_event(), host))
