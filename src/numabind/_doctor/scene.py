"""What the doctor looks at: a machine, its files, and the environment it was called in."""

from __future__ import annotations

from numabind._errors import MachineError
from numabind._finding import Finding
from numabind._machine import Device, Machine
from numabind._record import record
from numabind._sysfs import Root
from numabind._visible import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@record
class Scene:
    """A machine, the root that its files are below, and an environment."""

    root: Root
    machine: Machine
    environ: Mapping[str, str]

    def text(self, path: str) -> str | None:
        """The text of a file; None if it is not there or may not be read."""
        try:
            return self.root.text(path)
        except MachineError:
            return None

    def number(self, path: str) -> int | None:
        """The whole number in a file; None if there is none."""
        text = self.text(path) or ""
        return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else None

    def names(self, path: str) -> list[str]:
        """The names in a directory; [] if it is not there or may not be read."""
        try:
            return self.root.listing(path)
        except MachineError:
            return []

    @property
    def gpus(self) -> list[Device]:
        """The devices that workers use."""
        return [device for device in self.machine.devices if device.computes]

    @property
    def shown(self) -> list[Device]:
        """The GPUs that this environment shows; all of them where it says nothing."""
        seen = visible(self.machine, self.environ)
        pcis = {handle.device.pci for handle in seen.handles}
        shown = [device for device in self.gpus if device.pci in pcis]
        return shown if seen.source is not None and shown else self.gpus

    @property
    def nodes_of_gpus(self) -> list[int]:
        """The nodes that the GPUs that are shown hang off."""
        return sorted({node for device in self.shown for node in device.near_nodes})

    @property
    def several_nodes(self) -> bool:
        """Whether there is anything that could be near or far."""
        return sum(bool(node.cpus) for node in self.machine.nodes) > 1

    @property
    def matters(self) -> bool:
        """Whether locality matters here: several nodes, and a GPU."""
        return self.several_nodes and bool(self.gpus)


class Check:
    """One thing to look for. `name` is stable; `about` says what it is and why it matters."""

    name = ""
    about = ""

    def look(self, scene: Scene) -> Iterable[Finding]:
        """What is found here; nothing if all is well."""
        raise NotImplementedError

    def finding(self, severity: str, cause: str, evidence: str, remedy: str) -> Finding:
        """A finding of this check."""
        return Finding(self.name, severity, cause, evidence, remedy)
