"""The node that this thread's new memory should be on, whatever thread touches it first."""

from __future__ import annotations

from numabind import _apply
from numabind._errors import MachineError, UsageError
from numabind._machine import Machine
from numabind._problems import Problem, problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Policies that name the node or nodes that memory is meant for.
_NAMING = ("preferred", "preferred-many", "bind")


def home_node(
    machine: Machine, policy: tuple[str, frozenset[int]] | None, mask: frozenset[int]
) -> tuple[int | None, Problem | None]:
    """The node where a thread with this memory policy and CPU mask belongs. Pure.

    A policy that names one node is the worker's own word. Else the mask decides, if all of it is on
    one node that has memory. None, with the reason, where neither does; on a machine with one node
    that is the answer.
    """
    with_memory = [n.id for n in machine.nodes if n.memory_bytes != 0]
    if len(with_memory) == 1:
        return with_memory[0], None
    if policy is not None and policy[0] in _NAMING and len(policy[1]) == 1:
        return min(policy[1]), None
    nodes = {cpu.node for cpu in machine.cpus if cpu.id in mask}
    if len(nodes) == 1 and (node := nodes.pop()) in with_memory:
        return node, None
    cause = "this thread may run on CPUs of several nodes and has no memory policy of one node"
    return None, problem("no-home-node", cause)


def own_state() -> tuple[frozenset[int], tuple[str, frozenset[int]] | None]:
    """The calling thread's CPU mask and memory policy; None for one that the kernel hides."""
    from numabind import _syscalls

    try:
        policy: tuple[str, frozenset[int]] | None = _syscalls.get_memory_policy()
    except OSError:
        policy = None
    return _apply.own_mask(), policy


def own_home_node(environ: Mapping[str, str]) -> tuple[int | None, Problem | None]:
    """The same for the calling thread; what can't be read or understood is the reason."""
    from numabind._discover import Questions, discover_here

    try:
        questions = Questions(caches=False, network=False, runtime=False, settings=False)
        machine = discover_here(environ, questions)
    except (MachineError, UsageError) as error:
        return None, problem("no-home-node", str(error))
    mask, policy = own_state()
    return home_node(machine, policy, mask)
