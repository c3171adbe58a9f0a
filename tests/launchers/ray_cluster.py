"""Run as a script by test_ray.py: surveys a real cluster of three nodes on this machine.

One node can't answer: its snapshot is not there. Prints the machines, what was logged, and what the
command makes of the same cluster.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import ray
from ray.cluster_utils import Cluster

import numabind.ray


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


if __name__ == "__main__":
    small = {"object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 4, **small})
    cluster.add_node(num_cpus=0, num_gpus=1, **small)
    broken = cluster.add_node(
        num_cpus=1, **small, env_vars={"NUMABIND_SNAPSHOT": "/nowhere/machine.json"}
    )
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    kept = Kept()
    logging.getLogger("numabind").addHandler(kept)
    found = numabind.ray.survey()
    alive = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    ray.shutdown()
    command = ("fleet", "survey", "--ray", cluster.address, "--json")
    done = subprocess.run(
        [sys.executable, "-m", "numabind", *command], capture_output=True, text=True, check=False
    )
    json.dump(
        {
            "alive": alive,
            "broken": broken.node_id,
            "machines": {name: machine.as_dict() for name, machine in found.items()},
            "said": kept.lines,
            "command": [done.returncode, done.stdout, done.stderr],
        },
        sys.stdout,
    )
    cluster.shutdown()
