"""Tensors of a module or an optimizer moved into a pool, and training on."""

from __future__ import annotations

import copy
import itertools
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import numabind
import numabind.torch as offload
from numabind.torch._tensors import merged


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


def states(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values()]


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
    assert len(states(optimizers[0])) == 3 * len(parameters)
    assert in_pool(pool, *states(optimizers[0]))
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


def test_states_that_come_later_are_moved_too() -> None:
    """Of a parameter whose turn comes late, of a checkpoint, of a group that is added."""
    pool = offload.Pool(0)
    early, late, new = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = torch.optim.Adam([*early.parameters(), *late.parameters()])
    for _ in range(3):
        offload.rehome(optimizer, pool=pool)
    for layer in (early, late, new):
        if layer is new:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            assert in_pool(pool, *states(optimizer))
            optimizer.add_param_group({"params": list(new.parameters())})
        layer(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        assert in_pool(pool, *states(optimizer))
    assert len(states(optimizer)) == 3 * 6
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_the_optimizer_of_a_wrapper_is_meant() -> None:
    pool = offload.Pool(0)
    inner = torch.optim.Adam(nn.Linear(8, 8).parameters())
    prepared = accelerate.Accelerator(cpu=True).prepare(inner)
    assert offload.rehome(prepared, pool=pool).storages == 2
    inner.param_groups[0]["params"][0].sum().backward()
    prepared.step()
    assert in_pool(pool, *states(inner))
    with pytest.raises(numabind.UsageError, match="StepLR"):
        offload.rehome(torch.optim.lr_scheduler.StepLR(inner, 1))  # type: ignore[arg-type]


class Marked(nn.Parameter):
    """A parameter of a class of its own, as some libraries have."""


def test_objects_stay_what_they_are() -> None:
    pool = offload.Pool(0)
    module = nn.Module()
    module.marked = Marked(torch.ones(4))
    module.marked.tag = "mine"
    module.buffer = nn.Buffer(torch.arange(6).view(2, 3).t())
    module.negated = nn.Buffer(torch.ones(4, dtype=torch.complex64).conj().imag)
    module.sparse = nn.Buffer(torch.eye(3).to_sparse())
    before = dict(module.named_buffers())
    with torch.device("meta"):
        assert offload.rehome(module, pool=pool) == offload.Rehomed(2, 64, left=2)
    assert in_pool(pool, module.marked, module.buffer)
    assert (type(module.marked), module.marked.tag) == (Marked, "mine")
    assert all(getattr(module, name) is buffer for name, buffer in before.items())
    assert isinstance(module.buffer, nn.Buffer)
    assert module.buffer.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert module.negated.tolist() == [0, 0, 0, 0]


def flattened(module: nn.Module) -> torch.Tensor:
    """Have parameters be views on one buffer, as FSDP1 and DeepSpeed do."""
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    begin = 0
    for parameter in module.parameters():
        parameter.data = flat[begin : begin + parameter.numel()].view_as(parameter)
        begin += parameter.numel()
    return flat


HELD: dict[str, Any] = {
    "by a state_dict": lambda module: module.state_dict(),
    "by NumPy": lambda module: [p.detach().numpy() for p in module.parameters()],
    "by a flat buffer": flattened,
    "by another process": lambda module: module.share_memory(),
}


@pytest.mark.parametrize("case", HELD)
def test_memory_that_others_hold_stays_theirs_too(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    module, pool = nn.Linear(3, 3), offload.Pool(0)
    holder = HELD[case](module)
    assert offload.rehome(module, pool=pool) == offload.Rehomed(0, 0, left=2)
    assert "tensors-left: 2 tensors" in caplog.text
    if case != "by another process":
        del holder
        assert offload.rehome(module, pool=pool).left == 0
        assert in_pool(pool, *module.parameters())


def test_numpy_arrays_that_begin_at_one_address() -> None:
    array, module = np.arange(12.0), nn.Module()
    module.part, module.all = (nn.Parameter(torch.from_numpy(a)) for a in (array[:4], array))
    assert offload.rehome(module, pool=offload.Pool(0)).storages == 2
    assert (module.part.tolist(), module.all.tolist()) == ([0, 1, 2, 3], array.tolist())


def test_pages_are_counted_once_each() -> None:
    page = mmap.PAGESIZE
    tensor = offload.empty_pinned((4 * page,), torch.uint8)
    assert tensor.data_ptr() % 512 == 0
    first = -(-tensor.data_ptr() // page) * page - tensor.data_ptr()
    aligned = tensor[first : first + 2 * page]
    assert offload.pages(aligned) == {0: 2}
    assert offload.pages({"a": [aligned, aligned[:1]], "b": aligned[page - 1 : page + 1]}) == {0: 2}
    model = nn.Linear(1024, 1024)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    assert offload.pages(model)[0] >= 2 * 4 * 1024 * 1024 // page
    assert offload.pages(optimizer)[0] >= 4 * 4 * 1024 * 1024 // page
    assert offload.pages([torch.eye(2).to_sparse(), torch.empty(0), torch.ones(2).to("meta")]) == {}
    with pytest.raises(numabind.UsageError, match="wanted, not str"):
        offload.pages(["x"])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=8))
def test_merged_ranges(drawn: list[tuple[int, int]]) -> None:
    spans = [(low, low + size) for low, size in drawn]
    whole = merged(spans)
    inside = [n for low, high in whole for n in range(low, high)]
    assert inside == sorted({n for low, high in spans for n in range(low, high)})
    assert all(a[1] < b[0] for a, b in itertools.pairwise(whole))


def test_fsdp2_on_two_ranks_with_uneven_shards(tmp_path: Path) -> None:
    """Its shards are in the pool, padded ones too; it uses them, and so do the states."""
    worker, store = Path(__file__).parent / "sharded.py", tmp_path / "store"
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), str(store), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        out, err = rank.communicate()
        assert rank.returncode == 0, err.decode()
        assert json.loads(out) == {"equal": [True, True], "outside": [], "held": 6 + 3 * 6}


def test_a_target_that_is_neither() -> None:
    with pytest.raises(numabind.UsageError, match="module or an optimizer"):
        offload.rehome(torch.ones(3))  # type: ignore[arg-type]
