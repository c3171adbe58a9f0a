"""Workers that launched.py has started: each says where its threads, policy and pages are."""

import os
import sys

import kernel

MIB = 64


def tensor_nodes():
    """Pages of the mapping that holds a torch tensor of 64 MiB, on each node."""
    import torch

    tensor = torch.ones(MIB << 18)  # of 4 bytes
    with open("/proc/self/numa_maps") as file:
        lines = [line.split() for line in file]
    words = max(
        (words for words in lines if int(words[0], 16) <= tensor.data_ptr()),
        key=lambda words: int(words[0], 16),
    )
    counts = (word[1:].split("=") for word in words if word[0] == "N" and word[1].isdigit())
    return {node: int(pages) for node, pages in counts}


def report(check, rank=None, tensor=False, **facts):
    """One JSON line on what the kernel says of this process."""
    masks = {tuple(kernel.affinity(int(task))) for task in os.listdir("/proc/self/task")}
    kernel.say(
        check=check,
        rank=int(os.environ["LOCAL_RANK"]) if rank is None else rank,
        policy=kernel.mempolicy(),
        pages=kernel.Buffer(MIB).touch().nodes(),
        tensor=tensor_nodes() if tensor else None,
        masks=sorted(masks),
        omp=os.environ.get("OMP_NUM_THREADS"),
        **facts,
    )


def born(check, rank):
    """The target of a process that was started inside `spawning`: it calls nothing of numabind."""
    report(check, rank)


if __name__ == "__main__":
    report(sys.argv[1], tensor="tensor" in sys.argv)
