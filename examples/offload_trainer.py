"""A small transformer, trained with optimizer states and activations in host memory.

    torchrun --nproc-per-node 2 examples/offload_trainer.py               # with numabind
    torchrun --nproc-per-node 2 examples/offload_trainer.py --without     # as it would be otherwise
    torchrun --nproc-per-node 2 examples/offload_trainer.py --both        # one after the other

On GPUs each rank copies activations out and back and steps its optimizer on the CPU; without any,
the model runs on the CPU too (gloo). Rank 0 prints the time of a step, and at the end each rank
where the pages of its offloaded memory are, by the kernel's own books.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import numabind
import numabind.torch

WIDTH, HEADS, LAYERS, BATCH, TOKENS, WORDS = 256, 4, 4, 8, 128, 512


class Model(nn.Module):
    """A causal language model of a few million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Next-word scores, (batch, tokens, words)."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.size(1), device=words.device)
        return self.head(self.layers(self.embed(words), mask=mask, is_causal=True))


class HostAdam:
    """Adam on the CPU over host copies of the parameters, which may live on a GPU."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.host = [nn.Parameter(p.detach().to("cpu", copy=True)) for p in self.parameters]
        self.adam = torch.optim.AdamW(self.host, lr=1e-3, fused=True)

    def step(self) -> None:
        """Gradients to the host, averaged over the ranks; step; parameters back."""
        for mine, host in zip(self.parameters, self.host, strict=True):
            if mine.grad is None:
                continue
            host.grad = mine.grad.to("cpu")
            dist.all_reduce(host.grad)
            host.grad /= dist.get_world_size()
        self.adam.step()
        with torch.no_grad():
            for mine, host in zip(self.parameters, self.host, strict=True):
                mine.copy_(host, non_blocking=True)
                mine.grad = None

    def tensors(self) -> list[torch.Tensor]:
        """All of it that stays in host memory."""
        states = [v for state in self.adam.state.values() for v in state.values()]
        return [*self.host, *(v for v in states if isinstance(v, torch.Tensor))]


def tell(line: str) -> None:
    """Print a whole line in one write, so that ranks that share a pipe don't tear each other's."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def train(steps: int, device: torch.device, offload: numabind.torch.Offload | None) -> None:
    """Train for some steps; rank 0 prints the median step."""
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = HostAdam(model)
    if offload is not None:
        numabind.torch.rehome(optimizer.adam)
    torch.manual_seed(1 + dist.get_rank())
    times = []
    loss = torch.zeros(())
    for _ in range(steps):
        words = torch.randint(WORDS // 8, (BATCH, TOKENS + 1), device=device)
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        with offload.saving() if offload is not None else contextlib.nullcontext():
            scores = model(words[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    name = "with numabind" if offload is not None else "without"
    if dist.get_rank() == 0:
        median = statistics.median(times[1:] or times)
        tell(f"{name}: {1000 * median:.1f} ms a step, loss {loss.item():.3f}")
    dist.barrier()
    on_nodes = numabind.torch.pages(optimizer.tensors()).items()
    where = ", ".join(f"node {node}: {pages}" for node, pages in on_nodes)
    tell(f"{name}: rank {dist.get_rank()}: pages of its optimizer: {where}")
    dist.barrier()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10, help="training steps (10)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--without", action="store_true", help="train without numabind")
    which.add_argument("--both", action="store_true", help="without, then with")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be 1 or more")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    if options.without or options.both:
        train(options.steps, device, None)
    if not options.without:
        offload = numabind.torch.setup_cpu_offload("full", activations=True)
        train(options.steps, device, offload)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
