"""What happens when the GPU's node is full. For tight: node 1 has 192 MiB, node 0 has 768 MiB."""

import kernel
from kernel import Buffer, say

import numabind

GPU = next(pci for pci, node in kernel.gpus() if node == 1)
MIB = 224  # more than node 1 has, less than both


def first_to_die():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def fill(memory):
    def work():
        first_to_die()
        binding = numabind.bind(gpu=GPU, memory=memory)
        say(check="filling", memory=memory, policy=kernel.mempolicy(), bound=binding.bound)
        say(check="filled", memory=memory, pages=Buffer(MIB).touch().nodes())

    say(check="ended", memory=memory, code=kernel.child(work))


def move_too_much():
    first_to_die()
    kernel.set_mempolicy("bind", [0])
    memory = Buffer(MIB).touch()
    kernel.set_mempolicy("default")
    before = memory.nodes()
    binding = numabind.bind(gpu=GPU, move_pages=True)
    say(
        check="moved",
        before=before,
        after=memory.nodes(),
        moved=binding.pages_moved,
        left=binding.pages_left,
        problems=[problem.text for problem in binding.problems],
        cpus=kernel.affinity(),
    )


for policy in ("bind", "prefer", "local", "none"):
    fill(policy)
say(check="ended", memory="move", code=kernel.child(move_too_much))
