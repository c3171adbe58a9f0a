"""Never run, only type-checked (mypy --strict): the public API as a user's program calls it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numabind
import numabind.ray

if TYPE_CHECKING:
    from collections.abc import Mapping

machine: numabind.Machine = numabind.discover()
elsewhere: numabind.Machine = numabind.discover(root="/captured")
loaded: numabind.Machine = numabind.Machine.load(Path("machine.json"))
loaded.save("copy.json")

made: numabind.Plan = numabind.plan(machine, workers=8, mode="exclusive", memory="prefer")
for placement in made.placements:
    rank: int | None = placement.local_rank
    cpus: frozenset[int] = placement.cpus
    nodes: frozenset[int] = placement.memory_nodes
    reasons: tuple[str, ...] = placement.reasons
    names: list[str] = [problem.name for problem in placement.problems]

binding: numabind.Binding = numabind.bind()
binding.restore()
numabind.bind(gpu="GPU-5d0c7a10")
numabind.bind(local_rank=3, mode="node", strict=True)
numabind.bind(moode="node")  # type: ignore[call-arg]
numabind.bind(reserve="2")  # type: ignore[arg-type]
with numabind.bind(gpu="0000:5d:00.0") as inside:
    text: str = inside.text
    data: Mapping[str, object] = inside.as_dict()

try:
    numabind.bind(strict=True)
except numabind.BindError as error:
    problems: tuple[numabind.Problem, ...] = error.problems
except numabind.UsageError:
    pass


@numabind.ray.bound
class Actor:
    def __init__(self, size: int) -> None:
        self.size = size


@numabind.ray.bound(mode="exclusive")
def task(size: int) -> str:
    return str(size)


number: int = Actor(3).size
word: str = task(3)
fleet: dict[str, numabind.Machine] = numabind.ray.survey(timeout=10)

options: numabind.Options = numabind.Options(mode="socket", reserve=2)
options.mode = "node"  # type: ignore[misc]


@numabind.bound
def train(step: int) -> str:
    return str(step)


@numabind.bound(rank_argument=0, mode="exclusive")
def train_rank(rank: int) -> str:
    return str(rank)


name: str = train(1) + train_rank(0)
train("one")  # type: ignore[arg-type]
with numabind.spawning(local_rank=3, workers=8, memory="bind") as born:
    child_cpus: frozenset[int] = born.cpus

report: numabind.Report = numabind.status([1], method="sample")
for seen in report.processes:
    share: float | None = seen.pages.local if seen.pages is not None else None
    verdict: str = seen.verdict
    where: frozenset[int] | None = seen.nodes
    strays: list[int] = [stray.tid for stray in seen.strays]
everyone: numabind.Report = numabind.status(tree=1)
ended: tuple[int, ...] = everyone.ended

for device in machine.devices:
    node: int | None = device.node
    parts: tuple[str, ...] = tuple(part.uuid for part in device.partitions)
nics: list[tuple[str, ...]] = [nic.names for nic in machine.nics if nic.rdma]
memory: dict[int, int | None] = {place.id: place.memory_bytes for place in machine.nodes}
cores: set[tuple[int | None, int | None]] = {(cpu.package, cpu.core) for cpu in machine.cpus}
quota: float | None = machine.allowed.cpu_quota
kernel: str | None = machine.host.kernel
near: numabind.Binding = numabind.bind(near="mlx5_0")
