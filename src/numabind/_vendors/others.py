"""Vendors whose devices are known by PCI address: one small class each, in `BY_NAME`.

What the kernel does not number is taken in bus order. Sources: Intel Gaudi documentation, "Multiple
Tenants on HPU"; CANN, "ASCEND_RT_VISIBLE_DEVICES"; Cloud TPU, "TPU_VISIBLE_CHIPS"; AWS Neuron
Runtime, "NEURON_RT_VISIBLE_CORES"; NEC VEOS, "VE_NODE_NUMBER".
"""

from __future__ import annotations

from numabind._cpulist import parse_list
from numabind._handle import Handle, Visible, in_driver_order, is_number, listed
from numabind._machine import Device, Partition
from numabind._record import replace
from numabind._sysfs import PCI, Root
from numabind._vendors import Identified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Plain:
    """Devices in bus order; `variable` lists numbers among them, "" where there is none.

    `variables` are tried in turn: the first that is set counts. "all" is all.
    """

    variables: tuple[str, ...] = ()

    @property
    def assigned(self) -> str:
        """The variable that a scheduler writes."""
        return self.variables[0] if self.variables else ""

    def identify(self, _root: Root, devices: tuple[Device, ...], _runtime: bool) -> Identified:
        """The devices as they are."""
        return Identified(devices, {})

    def handles(
        self, devices: tuple[Device, ...], _environ: Mapping[str, str]
    ) -> tuple[Handle, ...]:
        """The devices, by the driver's numbers where it has some."""
        return in_driver_order(tuple(Handle(device) for device in devices))

    def visible(self, devices: tuple[Device, ...], environ: Mapping[str, str]) -> Visible:
        """What the variable leaves, in its order."""
        every = self.handles(devices, environ)
        for variable in self.variables:
            value = environ.get(variable)
            if value is not None and value.strip() != "all":
                return Visible(self.choose(value, every), variable)
        return Visible(every)

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
            base = f"{PCI}/{device.pci}"
            index = None
            for stem in ("accel", "habanalabs"):
                for name in root.listing(f"{base}/{stem}"):
                    tail = name.removeprefix("accel_controlD").removeprefix("accel")
                    tail = tail.removeprefix("hl")
                    index = int(tail) if is_number(tail) and index is None else index
            if index is not None and shown and not root.usable(f"dev/accel/accel{index}"):
                index = None
            module = root.text(f"{base}/module_id") or ""
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
            return Visible(listed(value, left, None if unknown else find), self.modules)
        if seen.source is None and not unknown:
            left = tuple(sorted(left, key=lambda handle: handle.device.module or 0))
        return replace(seen, handles=left)

    def choose(self, value: str, every: tuple[Handle, ...]) -> tuple[Handle, ...]:
        """By the driver's index; by position where it has none."""
        if any(handle.index is None for handle in every):
            return listed(value, every)
        return listed(value, every, {str(handle.index): handle for handle in every}.get)


class Ascend(Plain):
    """Huawei Ascend NPUs (torch_npu)."""

    variables = ("ASCEND_RT_VISIBLE_DEVICES",)


class Tpu(Plain):
    """Google TPU chips; TPU_VISIBLE_DEVICES is the older name."""

    variables = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")


class Neuron(Plain):
    """AWS Inferentia and Trainium: a worker has NeuronCores, of which a device has several.

    NEURON_RT_VISIBLE_CORES is a list with ranges, "0-3,8"; NEURON_RT_NUM_CORES takes the first
    ones. Trainium 2 shows its eight cores as four unless NEURON_LOGICAL_NC_CONFIG is 1.
    """

    variables = ("NEURON_RT_VISIBLE_CORES",)
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
            return Visible(every[: int(count)], "NEURON_RT_NUM_CORES")
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
