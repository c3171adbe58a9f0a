"""Slabs, pools, activations, threads and re-homing: what can be seen on a machine with one node."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
from typing import Any

import pytest
import torch
import torch.distributed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import numabind
import numabind.torch as offload
from numabind._home import home_node
from numabind._machine import Allowed, Cpu, Machine, Node
from numabind._slab import HUGE, make_slab
from numabind.torch import _pool, _setup

GIB = 1 << 30
OFF = logging.CRITICAL


@pytest.fixture(autouse=True)
def as_before(caplog: pytest.LogCaptureFixture) -> Any:
    """Threads, masks, environment and hooks are put back."""
    threads, environ = torch.get_num_threads(), dict(os.environ)
    mask = os.sched_getaffinity(0)
    yield
    offload.setup_cpu_offload(None)
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(environ)
    os.sched_setaffinity(0, mask)


# -- which node


def two_nodes(memory: tuple[int, int] = (GIB, GIB)) -> Machine:
    cpus = tuple(Cpu(i, node=i // 2) for i in range(4))
    nodes = tuple(
        Node(n, frozenset({2 * n, 2 * n + 1}), memory_bytes=size) for n, size in enumerate(memory)
    )
    return Machine(nodes, cpus, (), Allowed(frozenset(range(4)), frozenset({0, 1})))


ALL = frozenset(range(4))
HOMES: dict[str, tuple[Machine, Any, frozenset[int], int | None]] = {
    "the policy's one node": (two_nodes(), ("preferred-many", frozenset({1})), ALL, 1),
    "the policy beats the mask": (two_nodes(), ("bind", frozenset({0})), frozenset({2}), 0),
    "interleave names no home": (two_nodes(), ("interleave", frozenset({1})), ALL, None),
    "a policy of two nodes": (two_nodes(), ("preferred-many", frozenset({0, 1})), ALL, None),
    "the mask's node": (two_nodes(), ("default", frozenset()), frozenset({2, 3}), 1),
    "a policy that is hidden": (two_nodes(), None, frozenset({3}), 1),
    "a mask over both": (two_nodes(), ("default", frozenset()), frozenset({1, 2}), None),
    "a node without memory": (two_nodes((GIB, 0)), None, frozenset({2}), 0),
}


@pytest.mark.parametrize("case", HOMES)
def test_which_node_memory_belongs_to(case: str) -> None:
    machine, policy, mask, wanted = HOMES[case]
    node, why = home_node(machine, policy, mask)
    assert node == wanted
    assert (why is None) == (wanted is not None)
    assert why is None or why.name == "no-home-node"


# -- slabs


def test_a_slab_is_touched_in_whole_and_read_back() -> None:
    slab = make_slab(5 << 20, 0, threads=3)
    assert (slab.size, slab.elsewhere, slab.problems) == (3 * HUGE, 0, ())
    assert bytes(slab.memory[:64]) == bytes(64)
    with open("/proc/self/smaps") as file:
        resident = 0
        inside = False
        for line in file:
            first = line.split(" ", 1)[0]
            if "-" in first:
                low, high = (int(x, 16) for x in first.split("-"))
                inside = low <= slab.address < high
            elif inside and line.startswith("Rss:"):
                resident = int(line.split()[1]) << 10
    assert resident >= slab.size


def test_touching_leaves_the_callers_mask() -> None:
    before = os.sched_getaffinity(0)
    make_slab(16 << 20, 0, threads=4)
    assert os.sched_getaffinity(0) == before


def test_more_than_there_is() -> None:
    with pytest.raises(MemoryError):
        make_slab(1 << 46, None)


# -- pools


def test_a_tensor_goes_with_its_last_view() -> None:
    pool = offload.Pool(0)
    tensor = pool.empty((1000, 1000), torch.float32)
    assert tensor.is_contiguous()
    assert tensor.shape == (1000, 1000)
    view = tensor[10:20].t()
    del tensor
    assert pool.used_bytes >= 4_000_000
    del view
    assert pool.used_bytes == 0
    assert pool.mapped_bytes == _pool.SLAB
    assert pool.trim() == _pool.SLAB
    assert pool.mapped_bytes == 0


def test_nothing_is_kept_when_nothing_is_to_be() -> None:
    pool = offload.Pool(0, keep=0)
    tensor = pool.empty(40 << 20, torch.uint8)
    assert pool.mapped_bytes == 40 << 20
    del tensor
    assert pool.mapped_bytes == 0


def test_ten_thousand_cycles_leak_nothing() -> None:
    pool = offload.Pool(0)

    def cycle(i: int) -> None:
        held = [pool.empty((1 + (i * k) % 5000,), torch.float32) for k in (37, 101)]
        held[0].fill_(1.0)

    for i in range(100):
        cycle(i)
    gc.collect()
    fds, maps = len(os.listdir("/proc/self/fd")), pool.mapped_bytes
    watched = len(_pool._watched)
    for i in range(10_000):
        cycle(i)
    assert (pool.used_bytes, pool.mapped_bytes) == (0, maps)
    assert len(os.listdir("/proc/self/fd")) == fds
    assert len(_pool._watched) == watched


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 << 20)), max_size=40))
def test_blocks_never_overlap(steps: list[tuple[bool, int]]) -> None:
    pool = offload.Pool(0)
    held: list[torch.Tensor] = []
    for i, (take, size) in enumerate(steps):
        if take or not held:
            held.append(pool.empty(size, torch.uint8))
        else:
            held.pop(size % len(held))
        ranges = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t in held)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges)), i
        assert all(t.data_ptr() % 512 == 0 for t in held)
    held.clear()
    assert pool.used_bytes == 0


def test_threads_share_a_pool() -> None:
    pool, wrong = offload.Pool(0), []

    def work(number: int) -> None:
        for i in range(200):
            tensor = pool.empty(1 + i * 977 % 100_000, torch.uint8).fill_(number)
            if not bool((tensor == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert pool.used_bytes == 0


def test_a_tensor_outlives_its_pool() -> None:
    pool = offload.Pool(0)
    tensor = pool.empty(1000, torch.int64).copy_(torch.arange(1000))
    del pool
    gc.collect()
    assert tensor.sum() == 499_500
    before = len(_pool._watched)
    del tensor
    gc.collect()
    assert len(_pool._watched) == before - 1


def test_a_fork() -> None:
    """A child reads and writes its own copy, lets it go, and takes memory of its own."""
    pool = offload.Pool(0)
    tensor = pool.empty(1000, torch.int64).fill_(7)
    child = os.fork()
    if child == 0:
        good = pool.mapped_bytes == 0 and bool((tensor == 7).all())
        tensor.fill_(8)
        del tensor
        mine = pool.empty(10, torch.int64).fill_(9)
        os._exit(0 if good and int(mine.sum()) == 90 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bool((tensor == 7).all())
    del tensor
    assert pool.used_bytes == 0


def test_empty_pinned() -> None:
    tensor = offload.empty_pinned((3, 4), torch.bfloat16)
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((3, 4), torch.bfloat16, "cpu")
    assert offload.empty_pinned(5).dtype == torch.get_default_dtype()
    assert offload.empty_pinned((0, 4)).shape == (0, 4)
    assert offload.empty_pinned(()).shape == ()
    # The same pool serves a node whether it was named or found.
    assert _pool.shared_pool(0) is _pool.shared_pool()


def test_without_cuda_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "numabind")
    pool = offload.Pool(0)
    held = [pool.empty(_pool.SLAB, torch.uint8) for _ in range(2)]
    assert [p.name for p in pool.problems] == ["not-pinned"]
    assert sum("not-pinned" in r.message for r in caplog.records) == 1
    assert not held[0].is_pinned()


@pytest.mark.parametrize("node", [-1, 4000, "0", True, 1.0])
def test_a_node_that_is_none(node: Any) -> None:
    with pytest.raises(numabind.UsageError, match="node"):
        offload.empty_pinned(4, node=node)


@pytest.mark.parametrize("shape", [-1, (2, -3), (1.5,), "ab", (True,)])
def test_a_shape_that_is_none(shape: Any) -> None:
    with pytest.raises(numabind.UsageError, match="shape"):
        offload.empty_pinned(shape)


# -- threads


def test_threads_are_the_blocks_alone() -> None:
    torch.set_num_threads(1)
    with offload.optimizer_threads(2) as threads:
        assert (threads, torch.get_num_threads()) == (2, 2)
        with offload.optimizer_threads(1):
            assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 1
    with pytest.raises(ZeroDivisionError), offload.optimizer_threads(2):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 1


class Counting(torch.optim.SGD):
    """An optimizer that tells how many threads its step had."""

    threads = 0

    def step(self, closure: Any = None) -> Any:
        self.threads = torch.get_num_threads()
        if closure == "fail":
            raise RuntimeError("as asked")
        return super().step()


def test_an_optimizers_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    optimizer = Counting([nn.Parameter(torch.ones(3))], lr=0.1)
    assert offload.optimizer_threads(2).wrap(optimizer) is optimizer
    offload.optimizer_threads(5).wrap(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    scheduler.step()
    assert (optimizer.threads, torch.get_num_threads()) == (2, 1)
    with pytest.raises(RuntimeError, match="as asked"):
        optimizer.step("fail")
    assert torch.get_num_threads() == 1


def test_the_budget_follows_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    whole = offload.thread_budget()
    assert 1 <= whole <= len(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    assert offload.thread_budget() == 1


@pytest.mark.parametrize("threads", [0, -1, "2", True])
def test_threads_that_are_none(threads: Any) -> None:
    with pytest.raises(numabind.UsageError, match="threads"):
        offload.optimizer_threads(threads)


# -- setting up


def test_nothing_offloaded_binds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_setup, "bind", lambda *_, **__: pytest.fail("it bound"))
    done = offload.setup_cpu_offload(None, activations=False)
    assert (done.binding, done.threads, done.activations) == (None, None, None)


def test_only_full_sizes_threads() -> None:
    torch.set_num_threads(1)
    optimizer = Counting([nn.Parameter(torch.ones(3))], lr=0.1)
    states = offload.setup_cpu_offload("states", memory="none")
    assert states.binding is not None
    assert states.threads is None
    optimizer.step()
    assert optimizer.threads == 1
    full = offload.setup_cpu_offload("full", activations=True, memory="none")
    again = offload.setup_cpu_offload("full", activations=True, memory="none")
    assert again.threads == full.threads
    assert len(_setup._hooks) == 1
    optimizer.step()
    assert optimizer.threads == full.threads
    assert torch.get_num_threads() == 1
    with pytest.raises(RuntimeError, match="as asked"):
        optimizer.step("fail")
    optimizer.step()
    assert torch.get_num_threads() == 1
    assert again.binding is not None
    again.binding.restore()


def test_saving_is_a_context_either_way() -> None:
    without = offload.setup_cpu_offload("states", memory="none")
    with without.saving():
        pass
    with offload.setup_cpu_offload(None, activations=True, memory="none").saving() as saving:
        assert isinstance(saving, offload.offload_activations)


@pytest.mark.parametrize(("optimizer", "activations"), [("all", False), (1, False), (None, "yes")])
def test_wrong_arguments(optimizer: Any, activations: Any) -> None:
    with pytest.raises(numabind.UsageError, match="must be"):
        offload.setup_cpu_offload(optimizer, activations)


# -- re-homing


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
