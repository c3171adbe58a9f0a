"""numabind for PyTorch's own moving parts. Importing this does not import torch.

    import numabind.torch

    numabind.torch.setup_cpu_offload(optimizer="full", activations=True)
    buffer = numabind.torch.empty_pinned((1 << 20,), torch.float32)
    loader = DataLoader(data, worker_init_fn=numabind.torch.worker_init_fn(reserve=2))

Names are imported on first use. docs/offload.md tells of all that concerns offload.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numabind.torch._activations import offload_activations
    from numabind.torch._loader import worker_init_fn
    from numabind.torch._pool import Pool, empty_pinned
    from numabind.torch._rehome import Rehomed, rehome
    from numabind.torch._setup import Offload, setup_cpu_offload
    from numabind.torch._tensors import pages
    from numabind.torch._threads import optimizer_threads, thread_budget

__all__ = [
    "Offload",
    "Pool",
    "Rehomed",
    "empty_pinned",
    "offload_activations",
    "optimizer_threads",
    "pages",
    "rehome",
    "setup_cpu_offload",
    "thread_budget",
    "worker_init_fn",
]

_WHERE = {
    "_activations": ("offload_activations",),
    "_loader": ("worker_init_fn",),
    "_pool": ("Pool", "empty_pinned"),
    "_rehome": ("Rehomed", "rehome"),
    "_setup": ("Offload", "setup_cpu_offload"),
    "_tensors": ("pages",),
    "_threads": ("optimizer_threads", "thread_budget"),
}


def __getattr__(name: str) -> object:
    for module, names in _WHERE.items():
        if name in names:
            import importlib

            value = getattr(importlib.import_module(f"numabind.torch.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'numabind.torch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
