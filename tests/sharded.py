"""One of two ranks that train a model sharded by FSDP2 and offloaded, with and without re-homing.

    sharded.py STORE RANK

Prints, as JSON, whether the results are equal, and which shards and states are not in the pool.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

import numabind.torch


def model() -> nn.Module:
    """Layers that two ranks can't share evenly: FSDP2 pads the second one's."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(7, 33), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 1))
    mesh = init_device_mesh("cpu", (2,))
    policy = CPUOffloadPolicy(pin_memory=False)
    for part in (layers[0], layers[2], layers[3], layers):
        fully_shard(part, mesh=mesh, offload_policy=policy)
    return layers


def train(pool: numabind.torch.Pool | None, again: bool = False) -> Any:
    """Four steps; re-homed before the first one, and again before the third."""
    layers = model()
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.1)
    saving = numabind.torch.offload_activations(min_bytes=0, pool=pool)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(4):
        if pool is not None and (step == 0 or (again and step == 2)):
            numabind.torch.rehome(layers, pool=pool)
            numabind.torch.rehome(optimizer, pool=pool)
        batch = torch.randn(5, 7)
        if pool is None:
            loss = layers(batch).square().sum()
        else:
            with saving:
                loss = layers(batch).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    states = {
        f"{number}.{key}": value
        for number, state in enumerate(optimizer.state.values())
        for key, value in state.items()
    }
    held = {**dict(layers.named_parameters()), **states}
    return [p.full_tensor() for p in layers.parameters()], held  # type: ignore[attr-defined]


def main() -> None:
    """Train three times and compare."""
    store, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    pool = numabind.torch.Pool(0)
    plain, _ = train(None)
    outside = []
    equal = []
    for again in (False, True):
        results, held = train(pool, again)
        equal.append(all(torch.equal(a, b) for a, b in zip(plain, results, strict=True)))
        for name, tensor in held.items():
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if local.numel() and not pool.holds(local.data_ptr()):
                outside.append(name)
    print(json.dumps({"equal": equal, "outside": outside, "held": len(held)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
