"""Never run, only type-checked (mypy --strict): numabind.torch as a user's program calls it."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

import numabind
import numabind.torch


def train(model: torch.nn.Module, data: Dataset[torch.Tensor], steps: int) -> float:
    offload: numabind.torch.Offload = numabind.torch.setup_cpu_offload(
        optimizer="full", activations=True, gpu="0000:5d:00.0", memory="bind"
    )
    binding: numabind.Binding | None = offload.binding
    threads: int | None = offload.threads
    said: list[str] = [problem.text for problem in offload.problems]
    print(binding, threads, said)
    optimizer = numabind.torch.optimizer_threads().wrap(torch.optim.AdamW(model.parameters()))
    loader = DataLoader(
        data, num_workers=2, worker_init_fn=numabind.torch.worker_init_fn(reserve=2, then=print)
    )
    moved: numabind.torch.Rehomed = numabind.torch.rehome(model, node=0)
    total = moved.bytes + numabind.torch.rehome(optimizer).storages
    for batch in loader:
        with offload.saving():
            loss: torch.Tensor = model(batch).sum()
        torch.autograd.backward(loss)
        optimizer.step()
        total += int(loss)
    return total / steps


def buffers(shape: tuple[int, ...]) -> list[torch.Tensor]:
    pool = numabind.torch.Pool(node=1, strict=True, keep=1 << 30, waits=False)
    with numabind.torch.offload_activations(min_bytes=1 << 20, pool=pool) as saving:
        own: numabind.torch.Pool = saving.pool
    with numabind.torch.optimizer_threads(numabind.torch.thread_budget()) as now:
        count: int = now
    raw: memoryview = pool.block(4096)
    sizes: list[int] = [count, pool.node or 0, pool.mapped_bytes, pool.used_bytes, pool.trim()]
    print(own, raw, sizes)
    return [
        pool.empty(shape, torch.bfloat16),
        numabind.torch.empty_pinned(1024),
        numabind.torch.empty_pinned(shape, torch.float32, node=0, strict=True),
    ]


numabind.torch.empty_pinned("1024")  # type: ignore[arg-type]
numabind.torch.setup_cpu_offload(activations="yes")  # type: ignore[arg-type]
numabind.torch.rehome(torch.zeros(1))  # type: ignore[arg-type]
