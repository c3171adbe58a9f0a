"""Which node memory belongs to, slabs and pools: as far as a machine with one node shows it."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import numabind
import numabind.torch as offload
from numabind._home import home_node
from numabind._machine import Allowed, Cpu, Machine, Node
from numabind._problems import problem
from numabind._slab import HUGE, make_slab
from numabind.torch import _pool

GIB = 1 << 30


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


def test_tensors_that_grow_from_step_to_step_do_not_pile_up() -> None:
    pool = offload.Pool(0, keep=None)
    most = 0
    for step in range(24):
        held = [pool.empty((10 + 2 * step) << 20, torch.uint8) for _ in range(2)]
        most = max(most, pool.mapped_bytes)
        del held
    kept = pool.mapped_bytes
    assert 0 < kept <= most <= 3 * 56 << 20
    again = [pool.empty(56 << 20, torch.uint8) for _ in range(2)]
    assert pool.mapped_bytes <= most
    del again


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


@pytest.mark.parametrize("shape", [-1, (2, -3), (1.5,), "ab", (True,), None, 1.5, (0, 1 << 80)])
def test_a_shape_that_is_none(shape: Any) -> None:
    with pytest.raises(numabind.UsageError, match="shape"):
        offload.empty_pinned(shape)


@pytest.mark.parametrize("shape", [1 << 62, (1 << 40, 1 << 40), 1 << 45])
def test_a_shape_that_is_too_large(shape: Any) -> None:
    with pytest.raises(MemoryError, match="address space"):
        offload.empty_pinned(shape, torch.float64)


@pytest.mark.parametrize("dtype", ["float32", float, 4])
def test_a_dtype_that_is_none(dtype: Any) -> None:
    with pytest.raises(numabind.UsageError, match="dtype"):
        offload.empty_pinned(4, dtype)


def test_shapes_of_other_libraries_and_another_default_device() -> None:
    numbers = torch.arange(2, 4)
    with torch.device("meta"):
        tensors = [offload.empty_pinned(n) for n in (numbers.numpy(), numbers[1], (0, 3))]
    assert [tuple(t.shape) for t in tensors] == [(2, 3), (3,), (0, 3)]
    assert {t.device.type for t in tensors} == {"cpu"}


def test_a_thread_without_a_node_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []
    why = problem("no-home-node", "as made up")
    monkeypatch.setattr(_pool, "own_home_node", lambda _: asked.append(1) or (None, why))
    monkeypatch.setattr(_pool, "_homes", {})
    monkeypatch.setattr(_pool, "_shared", {})
    for _ in range(3):
        assert offload.empty_pinned(4).shape == (4,)
        with pytest.raises(numabind.BindError, match="no-home-node"):
            offload.empty_pinned(4, strict=True)
    assert len(asked) == 1
    assert sum("no-home-node" in r.message for r in caplog.records) == 1
