"""What Ray assigned to this process. Asks Ray only where Ray runs this process; never imports it.

Source: Ray, "Accelerator support" (RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES) and the reference
of `RuntimeContext.get_accelerator_ids`, whose answers are entries of the CUDA_VISIBLE_DEVICES that
the node was started with, else numbers from 0. They hold whatever the variable is now.
"""

from __future__ import annotations

from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@record
class Assigned:
    """The GPUs of a Ray task or actor, as Ray names them, and how much of GPUs that is (0.5, 2.0).

    Without an order: Ray keeps none.
    """

    ids: tuple[str, ...]
    amount: float | None = None


def runs_in_worker(ray: Any) -> bool:
    """Whether Ray runs a task or actor in this process; `ray` is the module, or None."""
    try:
        if ray is None or not ray.is_initialized():
            return False
        return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)
    except AttributeError:
        return False  # half imported, or another module of that name


def assigned_by_ray(ray: Any) -> Assigned | None:
    """What Ray gave the task or actor that this process runs; None elsewhere and for no GPU.

    `ray` is the module if it was imported, else None.
    """
    if not runs_in_worker(ray):
        return None
    context = ray.get_runtime_context()
    ids = tuple(str(name) for name in context.get_accelerator_ids().get("GPU", ()))
    amount = context.get_assigned_resources().get("GPU")
    return Assigned(ids, amount) if ids else None
