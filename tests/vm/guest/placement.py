"""Bind a worker for each GPU, mode and memory policy in a forked child, and say what is so."""

import gc
import os
import time

import kernel
from kernel import Buffer, Witness, say

import numabind

MODES = ("node", "socket", "exclusive", "core-complex")
MEMORY = ("prefer", "bind", "local", "interleave", "weighted-interleave", "none")


def bound(facts, environ, mib, **how):
    def work():
        os.environ.update(environ)
        before = Witness()
        began = time.monotonic()
        binding = numabind.bind(**how)
        took = time.monotonic() - began
        after = Witness()
        say(
            check="placement",
            **facts,
            bound=binding.bound,
            cpus=kernel.affinity(),
            policy=kernel.mempolicy(),
            said_cpus=sorted(binding.cpus),
            said_policy=[binding.memory_policy, sorted(binding.memory_nodes)],
            said_gpu=binding.pci,
            budget=binding.threads,
            before=before.ask(),
            after=after.ask(),
            mib=mib,
            pages=Buffer(mib).touch().nodes(),
            problems=[problem.name for problem in binding.problems],
            seconds=round(took, 3),
        )

    code = kernel.child(work)
    if code:
        say(check="died", **facts, code=code)


def warm_up():
    """Import once what each child would import for itself."""
    import logging  # noqa: F401

    import numabind._apply
    import numabind._syscalls

    numabind.plan(numabind.discover())
    gc.freeze()
    if len(kernel.gpus()) != 4:  # two-socket keeps its 4 KiB pages
        with open("/sys/kernel/mm/transparent_hugepage/enabled", "w") as file:
            file.write("always")


def main():
    found = kernel.gpus()
    say(check="machine", gpus=found, cpus=kernel.affinity(), policy=kernel.mempolicy())
    warm_up()
    first = {node: pci for pci, node in reversed(found)}
    for rank, (pci, node) in enumerate(found):
        # The first GPU of a node sees everything; of many like nodes, those of the outer ones do.
        every = first[node] == pci and (len(first) <= 4 or rank in (0, len(found) - 1))
        for number, mode in enumerate(MODES):
            policies = MEMORY
            if not every:
                policies = [MEMORY[(rank + number) % len(MEMORY)]]
            elif number > 1 and len(found) not in (3, 4):
                # These modes have the memory of mode node: all of it on two-socket and snc2-smt.
                policies = MEMORY[:2]
            for memory in policies:
                # Touching is what costs here: all of it where the memory's place can differ.
                wide = mode == "node" or (mode == "socket" and "interleave" in memory)
                facts = {"gpu": pci, "mode": mode, "memory": memory, "by": "gpu"}
                bound(facts, {}, 64 if wide else 4, gpu=pci, mode=mode, memory=memory)
            facts = {"gpu": pci, "mode": mode, "memory": "prefer", "by": "rank"}
            environ = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(len(found))}
            bound(facts, {**environ, "NUMABIND_MODE": mode}, 64 if mode == "socket" else 4)


main()
