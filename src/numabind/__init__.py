"""numabind puts every GPU worker next to its GPU, CPU threads and host memory both.

    import numabind

    binding = numabind.bind()      # this process: rank and GPU from the environment
    print(binding.text)

Names are imported on first use; importing numabind reads no file and changes nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numabind._bind import bind
    from numabind._binding import Binding
    from numabind._bound import bound
    from numabind._discover import discover
    from numabind._errors import BindError, MachineError, NumabindError, UsageError
    from numabind._machine import Allowed, Cpu, Device, Host, Machine, Nic, Node, Partition
    from numabind._options import Options
    from numabind._placement import Placement, Plan
    from numabind._plan import plan
    from numabind._problems import Problem
    from numabind._process import Pages, Process, Stray
    from numabind._spawn import spawning
    from numabind._status import Report, status

__all__ = [
    "Allowed",
    "BindError",
    "Binding",
    "Cpu",
    "Device",
    "Host",
    "Machine",
    "MachineError",
    "Nic",
    "Node",
    "NumabindError",
    "Options",
    "Pages",
    "Partition",
    "Placement",
    "Plan",
    "Problem",
    "Process",
    "Report",
    "Stray",
    "UsageError",
    "__version__",
    "bind",
    "bound",
    "discover",
    "plan",
    "spawning",
    "status",
]

__version__ = "0.1.0"

_WHERE = {
    "_bind": ("bind",),
    "_binding": ("Binding",),
    "_bound": ("bound",),
    "_discover": ("discover",),
    "_errors": ("BindError", "MachineError", "NumabindError", "UsageError"),
    "_machine": ("Allowed", "Cpu", "Device", "Host", "Machine", "Nic", "Node", "Partition"),
    "_options": ("Options",),
    "_placement": ("Placement", "Plan"),
    "_plan": ("plan",),
    "_problems": ("Problem",),
    "_process": ("Pages", "Process", "Stray"),
    "_spawn": ("spawning",),
    "_status": ("Report", "status"),
}


def __getattr__(name: str) -> object:
    for module, names in _WHERE.items():
        if name in names:
            import importlib

            value = getattr(importlib.import_module(f"numabind.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'numabind' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
