"""Launchers on real nodes: what they start is in its place, and so are its pages.

For two-socket-big: two nodes of 4 CPUs and 2 GiB, GPUs 0 and 1 on node 0, 2 and 3 on node 1. Two
workers, with a GPU on each node.
"""

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys

import born
import kernel
from kernel import Buffer, say

import numabind

os.environ["CUDA_VISIBLE_DEVICES"] = "0,2"
GPUS = [pci for pci, _ in kernel.gpus()]
HERE = os.path.dirname(os.path.abspath(__file__))
TORCHRUN = ["--nproc-per-node=2", "--rdzv-backend=static", "--rdzv-endpoint=127.0.0.1:29555"]
PYTHON = sys.executable
LAUNCH = [PYTHON, "-m", "numabind", "launch", "--quiet", "--threads=auto", "--"]


def mine():
    return {"cpus": kernel.affinity(), "policy": kernel.mempolicy()}


def torchrun():
    """String entrypoints: that Python starts and `launch` binds, and below `numabind run`.

    This process was started by `launch`, and is torchrun: torch takes most of a minute to import in
    a machine that is emulated.
    """
    from torch.distributed.run import main

    main([*TORCHRUN, f"{HERE}/born.py", "torchrun, launch", "tensor"])
    for name in [name for name in os.environ if name.startswith("NUMABIND_LAUNCH")]:
        del os.environ[name]
    run = ["--no-python", PYTHON, "-m", "numabind", "run", "--quiet", "--"]
    main([*TORCHRUN, *run, PYTHON, f"{HERE}/born.py", "torchrun, run"])


@numabind.bound
def entrypoint(check):
    born.report(check)


def elastic():
    """A callable entrypoint."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="numabind",
        rdzv_backend="static",
        rdzv_endpoint="127.0.0.1:29556",
        rdzv_configs={"rank": 0},
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, entrypoint)("elastic_launch")


def spawning():
    before = mine()
    for method in "spawn", "fork":
        context = multiprocessing.get_context(method)
        for rank in range(2):
            child = context.Process(target=born.born, args=(f"spawning, {method}", rank))
            with numabind.spawning(local_rank=rank, workers=2):
                child.start()
            child.join()
    say(check="spawning restores", before=before, after=mine())
    try:
        with numabind.spawning(local_rank=1):
            inside = mine()
            subprocess.Popen(["/no/such/program"])
    except FileNotFoundError:
        say(check="failed start", before=before, inside=inside, after=mine())


def spawn_at_once():
    """Eight threads that start a process each, half of them for either node."""

    def start(number):
        with numabind.spawning(gpu=GPUS[number % 2 * 2]):
            command = [sys.executable, f"{HERE}/born.py", "at once"]
            child = subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": str(number % 2)})
        return child.wait(), mine()

    before = mine()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(start, range(8)))
    say(check="at once, after", before=before, ends=ends, main=mine())


@numabind.bound(rank_argument=0)
def of_a_pool(rank):
    born.report("bound", rank)


def bound():
    for method in "spawn", "fork", "forkserver":
        context = multiprocessing.get_context(method)
        children = [context.Process(target=of_a_pool, args=(rank,)) for rank in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        say(check="bound in a process", method=method, codes=[c.exitcode for c in children])


class Pages:
    """A dataset whose items are where a loader's worker is, and where its memory is."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        import torch.utils.data

        worker = torch.utils.data.get_worker_info().id
        return worker, kernel.affinity(), kernel.mempolicy(), Buffer(born.MIB).touch().nodes()


def loader():
    import torch.utils.data

    import numabind.torch

    deal = numabind.torch.worker_init_fn(reserve=1)
    with numabind.bind(gpu=GPUS[2]):
        loader = torch.utils.data.DataLoader(
            Pages(), batch_size=None, num_workers=2, worker_init_fn=deal
        )
        for worker, cpus, policy, pages in loader:
            say(check="loader", rank=worker, cpus=cpus, policy=policy, pages=pages)


def pages_of(*tensors):
    """4 KiB pages of the mappings that hold these tensors, on each node."""
    with open("/proc/self/numa_maps") as file:
        lines = [line.split() for line in file]
    found = {}
    for tensor in tensors:
        words = max(
            (words for words in lines if int(words[0], 16) <= tensor.data_ptr()),
            key=lambda words: int(words[0], 16),
        )
        size = int(words[-1].removeprefix("kernelpagesize_kB=")) // 4
        for word in words:
            node, equals, pages = word[1:].partition("=")
            if equals and word[0] == "N" and node.isdigit():
                found[node] = found.get(node, 0) + int(pages) * size
    return found


def offload():
    """Host memory on the node that was asked for, whatever thread touches it first."""
    import torch

    import numabind.torch

    os.sched_setaffinity(0, {0, 1, 2, 3})
    tensor = numabind.torch.empty_pinned((8 << 20,), torch.float32, node=1).fill_(1.0)
    say(check="pinned", node=1, cpus=kernel.affinity(), pages=pages_of(tensor))
    with numabind.bind(gpu=GPUS[2]):
        home = numabind.torch.Pool()
        say(check="pinned", node=home.node, cpus=[], pages=pages_of(home.empty(1000)))
    full = numabind.torch.Pool(1)
    most = [full.empty(1 << 30, torch.uint8) for _ in range(2)]
    names = [p.name for p in full.problems]
    say(check="node that is full", problems=names, pages=pages_of(*most))
    try:
        numabind.torch.Pool(1, strict=True).empty(1 << 30, torch.uint8)
    except numabind.BindError as error:
        say(check="strict", problems=[p.name for p in error.problems])
    del most
    full.trim()
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))
    optimizer = torch.optim.Adam(model.parameters())
    numabind.torch.rehome(model, node=1)
    numabind.torch.rehome(optimizer, node=1)
    saving = numabind.torch.offload_activations(min_bytes=0, node=1)
    for _ in range(2):
        with saving:
            loss = model(torch.randn(64, 512)).square().sum()
        say(check="activations", pages=pages_of(saving.pool.empty(1)))
        loss.backward()
        optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    say(check="states", pages=pages_of(*model.parameters(), *states), count=len(states))
    both = [numabind.torch.empty_pinned((4 << 20,), torch.uint8, node=0), tensor]
    say(check="pages", pages=numabind.torch.pages(both), states=numabind.torch.pages(optimizer))


if __name__ == "__main__":
    if "torch" in sys.argv:
        checks = torchrun, elastic, loader, offload
    else:
        checks = spawning, spawn_at_once, bound
    for check in checks:
        check()
    if "torch" not in sys.argv:
        subprocess.run([*LAUNCH, PYTHON, __file__, "torch"], check=True)
        say(check="end")
