"""Threads for an optimizer's step, and the one call that sets all up."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from typing import Any

import accelerate
import pytest
import torch
from torch import nn

import numabind
import numabind.torch as offload
from numabind.torch import _setup


@pytest.fixture(autouse=True)
def as_before() -> Any:
    """Threads, masks, environment and hooks are put back."""
    threads, environ = torch.get_num_threads(), dict(os.environ)
    mask = os.sched_getaffinity(0)
    yield
    offload.setup_cpu_offload(None)
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(environ)
    os.sched_setaffinity(0, mask)


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


def test_two_threads_in_one_block_each_get_their_own_back() -> None:
    both, first, second = offload.optimizer_threads(3), threading.Event(), threading.Event()
    found = []

    def outer() -> None:
        found.append(torch.get_num_threads())  # the first use of torch in a thread sets it up
        torch.set_num_threads(1)
        with both:
            first.set()
            second.wait(60)
        found.append(torch.get_num_threads())

    thread = threading.Thread(target=outer)
    torch.set_num_threads(2)
    thread.start()
    first.wait(60)
    with both:
        second.set()
        thread.join()
    assert found[1:] == [1]
    assert torch.get_num_threads() == 2


def test_a_scheduler_that_came_first_is_not_alarmed() -> None:
    optimizer = Counting([nn.Parameter(torch.ones(3))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    offload.optimizer_threads(2).wrap(optimizer)
    optimizer.step()
    scheduler.step()  # warnings are errors here
    copied = copy.deepcopy(optimizer)
    assert "step" not in vars(copied)


@pytest.mark.filterwarnings("ignore")
def test_a_grad_scaler_and_accelerate_step_a_wrapped_optimizer() -> None:
    torch.set_num_threads(1)
    optimizer = Counting([nn.Parameter(torch.ones(3))], lr=0.1)
    offload.optimizer_threads(2).wrap(optimizer)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(optimizer.param_groups[0]["params"][0].sum()).backward()
    scaler.step(optimizer)
    assert optimizer.threads == 2
    plain = Counting([nn.Parameter(torch.ones(3))], lr=0.1)
    prepared = accelerate.Accelerator(cpu=True).prepare(plain)
    offload.optimizer_threads(2).wrap(prepared).step()
    assert (plain.threads, torch.get_num_threads()) == (2, 1)


@pytest.mark.parametrize("what", [None, "adam", nn.Linear(1, 1), torch.optim.lr_scheduler.StepLR])
def test_what_is_no_optimizer_is_not_wrapped(what: Any) -> None:
    with pytest.raises(numabind.UsageError, match="an optimizer is wanted"):
        offload.optimizer_threads(2).wrap(what)


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


class Outer(torch.optim.SGD):
    """An optimizer that steps another one first, as wrappers do, and then fails if asked."""

    def __init__(self, inner: Counting) -> None:
        super().__init__(inner.param_groups[0]["params"], lr=0.1)
        self.inner, self.threads = inner, 0

    def step(self, closure: Any = None) -> Any:
        self.inner.step()
        self.threads = torch.get_num_threads()
        if closure is not None:
            closure()


def test_an_optimizer_in_an_optimizer_and_steps_that_raise() -> None:
    torch.set_num_threads(1)
    full = offload.setup_cpu_offload("full", memory="none")
    assert full.threads is not None
    wide = offload.optimizer_threads(full.threads + 1)
    _setup._hooks[0].threads = wide  # more than one, on any machine
    outer = Outer(Counting([nn.Parameter(torch.ones(3))], lr=0.1))
    for closure in (None, lambda: 1 / 0, None):
        with contextlib.suppress(ZeroDivisionError):
            outer.step(closure)
        assert outer.inner.threads == outer.threads == full.threads + 1
    assert torch.get_num_threads() == 1
    with pytest.raises(ZeroDivisionError):
        outer.step(lambda: 1 / 0)
    offload.setup_cpu_offload(None)
    assert torch.get_num_threads() == 1


def test_saving_is_a_context_either_way() -> None:
    without = offload.setup_cpu_offload("states", memory="none")
    with without.saving():
        pass
    with offload.setup_cpu_offload(None, activations=True, memory="none").saving() as saving:
        assert isinstance(saving, offload.offload_activations)


def test_a_wrong_size_is_wrong_whatever_is_asked() -> None:
    with pytest.raises(numabind.UsageError, match="min_bytes"):
        offload.setup_cpu_offload("states", min_bytes=-1)


WRONG = [("all", False), (1, False), (None, "yes")]


@pytest.mark.parametrize(("optimizer", "activations"), WRONG)
def test_wrong_arguments(optimizer: Any, activations: Any) -> None:
    with pytest.raises(numabind.UsageError, match="must be"):
        offload.setup_cpu_offload(optimizer, activations)
