"""One node of two is shown and a CPU isolated: what a bind and the doctor make of it.

For cloud.json with numa=off and isolcpus=3.
"""

import os

import kernel
from kernel import say

import numabind
from numabind._doctor import doctor

for pci, node in kernel.gpus():
    with numabind.bind(gpu=pci) as binding:
        say(
            check="one node",
            node=node,
            cpus=kernel.affinity(),
            policy=kernel.mempolicy(),
            bound=binding.bound,
            problems=[said.name for said in binding.problems],
        )
say(check="doctor", of="as born", names=[found.name for found in doctor({})])
os.sched_setaffinity(0, {0, 1, 2, 3})
say(check="doctor", of="with all CPUs", names=[found.name for found in doctor({})])
