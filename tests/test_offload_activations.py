"""What autograd saves, kept in a pool: the same gradients, whatever is saved."""

from __future__ import annotations

import contextlib
import gc
import mmap
import resource
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import numabind.torch as offload
from numabind.torch._tensors import extent_of


def block() -> nn.Module:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))


def gradients(model: nn.Module, run: Any, context: Any) -> list[torch.Tensor]:
    torch.manual_seed(2)
    batch = torch.randn(8, 32, 64, requires_grad=True)
    model.zero_grad()
    with context:
        loss = run(batch).square().sum()
    loss.backward()
    assert batch.grad is not None
    return [batch.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


WAYS = {
    "eager": nn.Module.train,
    "checkpointed": lambda model: lambda x: checkpoint(model, x, use_reentrant=False),
    "reentrant": lambda model: lambda x: checkpoint(model, x, use_reentrant=True),
    "compiled": lambda model: torch.compile(model, backend="aot_eager"),
    "bfloat16": torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_the_same_to_the_last_bit(way: str) -> None:
    model = block()
    run = WAYS[way](model)
    plain = gradients(model, run, contextlib.nullcontext())
    saving = offload.offload_activations(min_bytes=0)
    for _ in range(2):
        offloaded = gradients(model, run, saving)
        assert all(torch.equal(a, b) for a, b in zip(plain, offloaded, strict=True))
    assert saving.pool.mapped_bytes > 0
    gc.collect()
    assert saving.pool.used_bytes == 0


def test_what_is_saved_is_in_the_pool_and_parameters_are_not() -> None:
    model = nn.Linear(256, 256)
    saving = offload.offload_activations(min_bytes=1024)
    batch = torch.randn(512, 256) * 1.0
    with saving:
        out = model(batch)
    assert saving.pool.used_bytes == batch.numel() * 4
    batch.zero_()  # what autograd keeps is a copy
    out.sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.abs().sum() > 0


STRIDED = {
    "transposed": lambda: torch.randn(8, 16).t(),
    "expanded": lambda: torch.randn(8, 1).expand(8, 16),
    "a slice": lambda: torch.randn(8, 64)[:, :32],
    "of a batch": lambda: torch.randn(4, 8, 16)[2],
}


@pytest.mark.parametrize("case", STRIDED)
def test_strides_come_back(case: str) -> None:
    tensor = STRIDED[case]()
    saving = offload.offload_activations(min_bytes=0)
    packed = saving._pack(tensor)
    back = saving._unpack(packed)
    assert torch.equal(back, tensor)
    assert back.stride() == tensor.stride()


def changed_between(change: Any) -> Any:
    """Gradients where `change` is done to what was saved, or what torch says of it."""
    one = torch.linspace(1, 2, 20_000).requires_grad_()
    weight = nn.Parameter(torch.full((1,), 2.0))

    def run(saving: Any) -> Any:
        one.grad = None
        with saving, torch.enable_grad():
            scaled = one * 1.0
            out = (scaled * scaled).exp() + one[:5].sum() * weight
        with torch.no_grad():
            change(scaled, weight)
        try:
            out.sum().backward()
        except RuntimeError as error:
            return str(error)
        return one.grad.tolist()  # type: ignore[union-attr]

    return run


def test_to_change_what_was_saved_and_stayed_is_an_error() -> None:
    """Else gradients would be wrong, and nobody would know: hooks turn torch's own check off."""
    run = changed_between(lambda scaled, weight: weight.mul_(3))
    assert "modified by an inplace operation" in run(contextlib.nullcontext())
    assert "modified by an inplace operation" in run(offload.offload_activations())
    kept = offload.offload_activations(min_bytes=1 << 30)
    untouched = changed_between(lambda *_: None)(contextlib.nullcontext())
    run = changed_between(lambda scaled, weight: scaled.mul_(3))
    assert "modified by an inplace operation" in run(kept)
    assert run(offload.offload_activations(min_bytes=0)) == untouched


def squared_in_a_nest(x: torch.Tensor) -> torch.Tensor:
    nest = torch.nested.as_nested_tensor([x, x[:3]])
    return (nest * nest).to_padded_tensor(0.0)


UNUSUAL: dict[str, Any] = {
    "sparse": lambda x: (torch.eye(8).to_sparse() @ x).square(),
    "sparse rows": lambda x: (torch.eye(8).to_sparse_csr() @ x).square(),
    "of MKL-DNN": lambda x: x.to_mkldnn().relu().to_dense().square(),
    "nested": squared_in_a_nest,
    "complex": lambda x: torch.view_as_real(torch.complex(x, x * x).conj() * x),
    "negated": lambda x: torch.complex(x, x * x).conj().imag * x,
    "bool": lambda x: torch.where(x > 0, x * x, x).masked_fill(x.t() > 1, 2.0),
    "empty": lambda x: x[:0] @ x,
    "on no device": lambda x: x * (x.to("meta") * 2).size(0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_tensors_may_be_saved(case: str) -> None:
    """Twice through backward, and once more through its own graph."""
    plain, offloaded = [], []
    for into, saving in (
        (plain, contextlib.nullcontext()),
        (offloaded, offload.offload_activations(min_bytes=0)),
    ):
        torch.manual_seed(4)
        x = torch.randn(8, 8, requires_grad=True)
        with saving:
            out = UNUSUAL[case](x).sum()
        out.backward(retain_graph=True)
        out.backward()
        into.append(x.grad)
    assert torch.equal(plain[0], offloaded[0])


def test_second_derivatives() -> None:
    results = []
    for saving in (contextlib.nullcontext(), offload.offload_activations(min_bytes=0)):
        x = torch.linspace(-1, 1, 64).requires_grad_()
        with saving:
            (first,) = torch.autograd.grad((x.tanh() ** 3).sum(), x, create_graph=True)
            out = first.square().sum()
        out.backward()
        results.append(x.grad)
    assert torch.equal(results[0], results[1])  # type: ignore[arg-type]


def test_where_host_memory_has_run_out_activations_stay(caplog: pytest.LogCaptureFixture) -> None:
    saving = offload.offload_activations(min_bytes=0)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    x = torch.randn(1_000_000, requires_grad=True)
    gc.collect()  # so that no other test's slab goes meanwhile
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), hard))
    try:
        with saving:
            out = (x * 1.0).square().sum()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert [p.name for p in saving.pool.problems if p.name != "not-pinned"] == ["no-host-memory"]
    out.backward()
    assert torch.equal(x.grad, 2 * x)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms())
def test_extent_of_dense_tensors(sizes: list[int], order: Any) -> None:
    tensor = torch.zeros(sizes)
    dims = list(range(len(sizes)))
    order.shuffle(dims)
    assert extent_of(tensor.permute(dims)) == tensor.numel()
