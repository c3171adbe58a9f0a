"""Vendors whose devices are known by PCI address: one small class each, in `BY_NAME`.

What the kernel does not number is taken in bus order, which is said where it matters; of boards
that are known to number otherwise nothing is taken. Sources: Intel Gaudi documentation, "Multiple
Tenants on HPU"; CANN, "ASCEND_RT_VISIBLE_DEVICES"; Cloud TPU, "TPU_VISIBLE_CHIPS"; AWS Neuron
Runtime, "NEURON_RT_VISIBLE_CORES"; NEC VEOS, "VE_NODE_NUMBER".
"""

from __future__ import annotations

from numabind._cpulist import format_list, parse_list
from numabind._errors import MachineError
from numabind._handle import Handle, Visible, in_driver_order, is_number, listed
from numabind._machine import Device, Partition
from numabind._problems import Problem, problem
from numabind._record import replace
from numabind._sysfs import PCI, Root
from numabind._vendors import Identified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Plain:
    """Devices in bus order; `variable` lists numbers among them, "" where there is none.

    `variables` are tried in turn: the first that is set counts. "all" is all. `numbered` says where
    the kernel numbers them: a folder below the PCI function, and what the names in it begin with.
    `scattered` is a vendor whose numbers are known not to follow the bus.
    """

    variables: tuple[str, ...] = ()
    numbered: tuple[tuple[str, str], ...] = ()
    scattered = False

    @property
    def assigned(self) -> str:
        """The variable that a scheduler writes."""
        return self.variables[0] if self.variables else ""

    def identify(self, root: Root, devices: tuple[Device, ...], _runtime: bool) -> Identified:
        """With the number that the kernel gives each, where it does."""
        return Identified(tuple(replace(d, index=self.number(root, d)) for d in devices), {})

    def number(self, root: Root, device: Device) -> int | None:
        """N of "accelN" and the like, below the PCI function; None without one."""
        for folder, stem in self.numbered:
            for name in root.listing(f"{PCI}/{device.pci}/{folder}"):
                if name.startswith(stem) and is_number(name[len(stem) :]):
                    return int(name[len(stem) :])
        return None

    def handles(
        self, devices: tuple[Device, ...], _environ: Mapping[str, str]
    ) -> tuple[Handle, ...]:
        """The devices, by the driver's numbers where it has some."""
        return in_driver_order(tuple(Handle(device) for device in devices))

    def visible(self, devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
        """What the variable leaves, in its order."""
        every = self.handles(devices, environ)
        ordered, said = self.order(devices)
        for variable in self.variables:
            value = environ.get(variable)
            if value is not None and value.strip() != "all":
                return Visible(self.choose(value, every), variable, ordered, said)
        return Visible(every, None, ordered, said)

    def order(self, devices: tuple[Device, ...]) -> tuple[bool, tuple[Problem, ...]]:
        """Whether the order of the devices is known, and what is to be said if it is not.

        Where all hang off the same nodes, one is as good as another.
        """
        places = {device.near_nodes for device in devices}
        if len(places) < 2 or all(device.index is not None for device in devices):
            return True, ()
        nodes = format_list({node for near in places for node in near})
        cause = f"no readable file has the numbers of these {len(devices)} devices (nodes {nodes})"
        if self.scattered:
            return False, (problem("device-order-unknown", cause),)
        return True, (problem("device-order-assumed", cause),)

    def choose(self, value: str, every: tuple[Handle, ...]) -> tuple[Handle, ...]:
        """The handles that the variable's text names."""
        return listed(value, every)


class Gaudi(Plain):
    """Intel Gaudi. Index and module id are two numberings of the same devices.

        cat /sys/class/accel/accel0/device/module_id    (older drivers: /sys/class/habanalabs/hl0)
            5

    HABANA_VISIBLE_DEVICES has indices (it can change with a reboot), HABANA_VISIBLE_MODULES module
    ids. Without either, local rank r takes module r.
    """

    variables = ("HABANA_VISIBLE_DEVICES",)
    numbered = (("accel", "accel"), ("habanalabs", "hl"))
    modules = "HABANA_VISIBLE_MODULES"

    @property
    def assigned(self) -> str:
        """What Ray writes."""
        return self.modules

    def identify(self, root: Root, devices: tuple[Device, ...], _runtime: bool) -> Identified:
        """Index, module id; hidden where this process may not open the device file."""
        found = []
        shown = [name for name in root.listing("dev/accel") if name.startswith("accel")]
        for device in devices:
            index = self.number(root, device)
            if index is not None and shown and not root.usable(f"dev/accel/accel{index}"):
                index = None
            module = root.text(f"{PCI}/{device.pci}/module_id") or ""
            number = int(module) if is_number(module) else None
            found.append(replace(device, index=index, minor=index, module=number))
        return Identified(tuple(found), {})

    def visible(self, devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
        """What both variables leave; by module id where the driver tells it."""
        seen = super().visible(devices, environ)
        left = seen.handles
        modules = {handle.device.module: handle for handle in left}
        unknown = None in modules
        value = environ.get(self.modules)
        if value is not None and value.strip() != "all":
            find = {str(number): handle for number, handle in modules.items()}.get
            left = listed(value, left, None if unknown else find)
            seen = replace(seen, source=self.modules)
        elif seen.source is None and not unknown:
            left = tuple(sorted(left, key=lambda handle: handle.device.module or 0))
        if not unknown:
            seen = replace(seen, ordered=True, problems=())
        return replace(seen, handles=left)

    def choose(self, value: str, every: tuple[Handle, ...]) -> tuple[Handle, ...]:
        """By the driver's index; by position where it has none."""
        if any(handle.index is None for handle in every):
            return listed(value, every)
        return listed(value, every, {str(handle.index): handle for handle in every}.get)


class Ascend(Plain):
    """Huawei Ascend NPUs (torch_npu). Their numbers are those of the board's slots.

        cat /sys/bus/pci/devices/0000:c1:00.0/devdrv_sysfs_bdf_to_devid    (devdrv_sysfs.c; root's)
            bdf      udevid add_id
            c1:00.0  0      0
            01:00.0  1      1

    /dev/davinciN has N = udevid, and a container those that it was lent, numbered from 0. The list
    in ASCEND_RT_VISIBLE_DEVICES ends at the first entry that is no number here; numbers that do not
    rise are an error that leaves no device (CANN's runtime, Runtime::GetVisibleDevices).
    """

    variables = ("ASCEND_RT_VISIBLE_DEVICES",)
    scattered = True
    table = "devdrv_sysfs_bdf_to_devid"

    def identify(self, root: Root, devices: tuple[Device, ...], _runtime: bool) -> Identified:
        """The numbers that the driver's table has; hidden where there is no device file."""
        shown = {n[7:] for n in root.listing("dev") if n[:7] == "davinci" and is_number(n[7:])}
        found = []
        for device in devices:
            index = None
            for line in (self._text(root, device) or "").splitlines():
                words = line.split()
                if len(words) > 1 and device.pci.endswith(f":{words[0]}") and is_number(words[1]):
                    index = int(words[1])
            if shown and index is not None and not root.usable(f"dev/davinci{index}"):
                index = None
            found.append(replace(device, index=index, minor=index))
        return Identified(tuple(found), {})

    def _text(self, root: Root, device: Device) -> str | None:
        try:
            return root.text(f"{PCI}/{device.pci}/{self.table}")
        except MachineError:
            return None  # EACCES: the file is root's

    def choose(self, value: str, every: tuple[Handle, ...]) -> tuple[Handle, ...]:
        """Rising numbers, without spaces."""
        numbers: list[int] = []
        for entry in value.split(","):
            if not is_number(entry) or int(entry) >= len(every):
                break
            if numbers and int(entry) <= numbers[-1]:
                return ()
            numbers.append(int(entry))
        return tuple(every[number] for number in numbers)


class Tpu(Plain):
    """Google TPU chips, /dev/accelN; TPU_VISIBLE_DEVICES is the older name."""

    variables = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
    numbered = (("accel", "accel"),)


class Neuron(Plain):
    """AWS Inferentia and Trainium: a worker has NeuronCores, of which a device has several.

    NEURON_RT_VISIBLE_CORES is a list with ranges, "0-3,8"; NEURON_RT_NUM_CORES takes the first
    ones. Trainium 2 shows its eight cores as four unless NEURON_LOGICAL_NC_CONFIG is 1. A device's
    number is in its registers only (aws-neuron-driver, neuron_dhal_v2.c), and not in bus order:
    Neuron documentation, "Neuron LS", has device 0 at cc:00.0 and 1 at b5:00.0.
    """

    variables = ("NEURON_RT_VISIBLE_CORES",)
    scattered = True
    # Inferentia 1, Trainium 1, Inferentia 2, Trainium 2: AWS Neuron, "NeuronDevice" architectures.
    cores = {0x7064: 4, 0x7164: 2, 0x7264: 2, 0x7364: 8}  # noqa: RUF012

    def handles(
        self, devices: tuple[Device, ...], environ: Mapping[str, str]
    ) -> tuple[Handle, ...]:
        """The cores, device by device."""
        logical = environ.get("NEURON_LOGICAL_NC_CONFIG", "2").strip()
        found = []
        for device in devices:
            count = self.cores.get(device.device_id, 1)
            if count == 8 and logical != "1":
                count = 4
            found += [Handle(device, Partition("", number=n)) for n in range(count)]
        return tuple(found)

    def visible(self, devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
        """The cores that the variables name."""
        count = environ.get("NEURON_RT_NUM_CORES", "").strip()
        if is_number(count) and not environ.get(self.assigned):
            every = self.handles(devices, environ)
            return Visible(every[: int(count)], "NEURON_RT_NUM_CORES", *self.order(devices))
        return super().visible(devices, environ)

    def choose(self, value: str, every: tuple[Handle, ...]) -> tuple[Handle, ...]:
        """By ranges of core numbers."""
        try:
            numbers = parse_list(value.replace(" ", ""))
        except ValueError:
            return ()
        return tuple(handle for number, handle in enumerate(every) if number in numbers)


class VectorEngine(Plain):
    """NEC SX-Aurora: one node number."""

    variables = ("VE_NODE_NUMBER",)


class Cambricon(Plain):
    """Cambricon MLU."""

    variables = ("MLU_VISIBLE_DEVICES",)


class MooreThreads(Plain):
    """Moore Threads MUSA."""

    variables = ("MUSA_VISIBLE_DEVICES",)


class MetaX(Plain):
    """MetaX, whose runtime reads CUDA's variable."""

    variables = ("CUDA_VISIBLE_DEVICES",)


class Tenstorrent(Plain):
    """Tenstorrent."""

    variables = ("TT_VISIBLE_DEVICES",)
    numbered = (("tenstorrent", "tenstorrent!"),)


BY_NAME: dict[str, Plain] = {
    "habana": Gaudi(),
    "huawei": Ascend(),
    "google": Tpu(),
    "amazon": Neuron(),
    "nec": VectorEngine(),
    "cambricon": Cambricon(),
    "mthreads": MooreThreads(),
    "metax": MetaX(),
    "tenstorrent": Tenstorrent(),
}
