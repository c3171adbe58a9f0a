"""Threads for an optimizer's step, and the one call that sets all up."""

from __future__ import annotations

import os
from typing import Any

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
