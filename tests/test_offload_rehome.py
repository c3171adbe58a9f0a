"""Tensors of a module or an optimizer moved into a pool, and training on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

import numabind
import numabind.torch as offload


def block() -> nn.Module:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8, 64)).square().sum().backward()
        optimizer.step()


def in_pool(pool: offload.Pool, *tensors: torch.Tensor) -> bool:
    return all(pool.holds(t.data_ptr()) for t in tensors)


def test_a_module_and_its_optimizer_train_on_as_before() -> None:
    pool = offload.Pool(0)
    models = block(), block()
    optimizers = [torch.optim.Adam(m.parameters(), fused=True) for m in models]
    parameters = list(models[0].parameters())
    moved = offload.rehome(models[0], pool=pool)
    assert moved.storages == len(parameters)
    assert moved.bytes == sum(p.numel() * 4 for p in parameters)
    assert offload.rehome(optimizers[0], pool=pool).storages == 0
    for model, optimizer in zip(models, optimizers, strict=True):
        trained(model, optimizer, 3)
    assert all(a is b for a, b in zip(models[0].parameters(), parameters, strict=True))
    assert in_pool(pool, *parameters)
    states = [v for s in optimizers[0].state.values() for v in s.values()]
    assert len(states) == 3 * len(parameters)
    assert in_pool(pool, *states)
    for mine, plain in zip(parameters, models[1].parameters(), strict=True):
        assert torch.equal(mine, plain)
    models[0].zero_grad()
    assert offload.rehome(models[0], pool=pool).bytes == 0


def test_tensors_that_share_memory_share_it_still() -> None:
    pool = offload.Pool(0)
    model = nn.Module()
    flat = torch.arange(12.0)
    model.a, model.b = nn.Parameter(flat[:4]), nn.Parameter(flat[4:].view(2, 4))
    model.c = model.a
    model.register_buffer("whole", flat)
    assert offload.rehome(model, pool=pool) == offload.Rehomed(1, 48)
    with torch.no_grad():
        model.a.zero_()
    assert model.c is model.a
    assert model.whole.tolist() == [0, 0, 0, 0, 4, 5, 6, 7, 8, 9, 10, 11]
    assert model.b.shape == (2, 4)


@pytest.mark.filterwarnings("ignore")
def test_fsdp2_offloaded_parameters(tmp_path: Any) -> None:
    """Its shards are in the pool, it uses them, and so do the optimizer's states."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        pool = offload.Pool(0)
        mesh = init_device_mesh("cpu", (1,))
        models = block(), block()
        for model in models:
            for layer in model:
                fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
            fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
        optimizers = [torch.optim.Adam(m.parameters()) for m in models]
        assert offload.rehome(models[0], pool=pool).storages > 0
        offload.rehome(optimizers[0], pool=pool)
        for model, optimizer in zip(models, optimizers, strict=True):
            trained(model, optimizer, 2)
        shards = [p.to_local() for p in models[0].parameters()]  # type: ignore[attr-defined]
        assert in_pool(pool, *shards)
        states = [v for s in optimizers[0].state.values() for v in s.values()]
        locals_ = [v.to_local() if hasattr(v, "to_local") else v for v in states]
        assert in_pool(pool, *locals_)
        for mine, plain in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(mine.to_local(), plain.to_local())  # type: ignore[attr-defined]
    finally:
        torch.distributed.destroy_process_group()


def test_a_target_that_is_neither() -> None:
    with pytest.raises(numabind.UsageError, match="module or an optimizer"):
        offload.rehome(torch.ones(3))  # type: ignore[arg-type]
