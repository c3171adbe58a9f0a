"""Run as a script by test_ray.py: surveys a real cluster of three nodes on this machine.

One node can't answer: its snapshot is not there. Prints the machines and what was logged.
"""

from __future__ import annotations

import json
import logging
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
    json.dump(
        {
            "alive": sorted(node["NodeID"] for node in ray.nodes() if node["Alive"]),
            "broken": broken.node_id,
            "machines": {name: machine.as_dict() for name, machine in found.items()},
            "said": kept.lines,
        },
        sys.stdout,
    )
    ray.shutdown()
    cluster.shutdown()
