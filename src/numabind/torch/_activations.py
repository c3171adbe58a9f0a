"""Keeping what autograd saves for backward in host memory on the worker's node.

Source: torch.autograd.graph.saved_tensors_hooks; CUDA programming guide, "Overlapping Behavior":
copies overlap with kernels on another stream if the host memory is pinned.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from numabind._errors import UsageError
from numabind._problems import problem
from numabind.torch._pool import Pool
from numabind.torch._tensors import extent_of

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
    Left where they are: parameters and views of them, tensors of fewer than `min_bytes`, what is
    no plain strided tensor (sparse, nested, subclasses), and all once host memory has run out
    (`no-host-memory`, logged once). To change one of those in place before backward is a
    RuntimeError, as without this; what was copied may be changed. Works with
    torch.utils.checkpoint and around compiled modules. On a CPU the copy is in the pool (on the
    worker's node) and is used there.

    `pool` may be given to share one between steps; otherwise this object has one, so make it once
    and enter it for each step. UsageError for `min_bytes` below 0.
    """

    def __init__(
        self, min_bytes: int = 64 << 10, node: int | None = None, pool: Pool | None = None
    ) -> None:
        check_min_bytes(min_bytes)
        self.min_bytes = min_bytes
        # This class knows when its copies are done, so the pool need not wait for the device.
        self.pool = Pool(node, keep=None, waits=False) if pool is None else pool
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

    def _pack(self, tensor: torch.Tensor) -> _Kept | _Packed:
        extent = extent_of(tensor)
        size = extent * tensor.element_size() if extent else 0
        if extent == 0 or size < self.min_bytes or not offloadable(tensor, extent):
            return _Kept(tensor)
        try:
            host = self.pool.empty(extent, tensor.dtype)
        except MemoryError as error:
            self.pool._say((problem("no-host-memory", str(error)),))  # noqa: SLF001
            return _Kept(tensor)
        if tensor.device.type == "cpu":
            host.copy_(_flat(tensor, extent))
            return _Packed(tensor, host)
        return self._copies.to_host(tensor, host)

    def _unpack(self, packed: _Kept | _Packed) -> torch.Tensor:
        if isinstance(packed, _Kept):
            return packed.unchanged()
        if packed.device.type == "cpu":
            return packed.shaped(packed.host)
        return self._copies.to_device(packed)


def check_min_bytes(min_bytes: int) -> None:
    """UsageError for what is no size."""
    if not (type(min_bytes) is int and min_bytes >= 0):
        raise UsageError(f"min_bytes must be 0 or more, not {min_bytes!r:.40}")


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


class _Kept:
    """A saved tensor that stays where it is.

    Autograd looks after a saved tensor's version only where there are no hooks (saved_variable.cpp,
    SavedVariable::unpack), so that is done here.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version  # noqa: SLF001

    def unchanged(self) -> torch.Tensor:
        """The tensor; RuntimeError if it was changed since."""
        now = self.tensor._version  # noqa: SLF001
        if now != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: {self.tensor.type()} is at version {now}; expected "
                f"version {self.version} instead"
            )
        return self.tensor


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
