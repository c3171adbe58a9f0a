"""Accelerators of vendors other than NVIDIA: what is read of them, and what each variable shows."""

from __future__ import annotations

from dataclasses import replace as changed
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.build import build
from machines.known import KNOWN
from machines.spec import GpuSpec, NodeSpec, Shape
from numabind import UsageError, discover
from numabind._machine import Machine
from numabind._resolve import check_named, find_gpu, seat_of_rank
from numabind._vendors.amd import parse_properties
from numabind._visible import TORCH, kinds_of, visible, visible_if_given, worker_devices
from samples import NO_RUNTIME, gpu, machine, with_devices

AMD = machine(KNOWN["mi300x_nps1"])
SPLIT = machine(KNOWN["mi300x_partitions"])
TILES = machine(KNOWN["aurora"])
GAUDI = machine(KNOWN["gaudi2"])
NEURON = machine(KNOWN["trainium"])
NPUS = machine(KNOWN["ascend"])


def labels(where: Machine, **environ: str) -> list[str]:
    return [handle.label for handle in visible(where, environ).handles]


def short(where: Machine, **environ: str) -> list[str]:
    """The buses of the visible devices, with the part's number."""
    return [label[5:7] + label[12:] for label in labels(where, **environ)]


# -- AMD


def test_an_amd_gpu_is_what_kfd_and_its_driver_say() -> None:
    first = AMD.devices[0]
    number = int(str(first.uuid)[4:], 16)
    assert first.uuid == f"GPU-{number:016x}"
    assert (first.index, first.minor, first.partitions) == (0, 128, ())
    assert [d.index for d in AMD.devices] == list(range(8))
    assert [d.minor for d in AMD.devices] == list(range(128, 136))


def test_partitions_are_devices_of_their_own() -> None:
    one, two = SPLIT.devices
    assert (one.partitioning, two.partitioning) == ("CPX/NPS4", "DPX/NPS1")
    assert [p.number for p in one.partitions] == list(range(8))
    assert [p.index for p in two.partitions] == [8, 9]
    assert [p.minor for p in two.partitions] == [136, 137]
    assert labels(SPLIT, ROCR_VISIBLE_DEVICES="9,0") == [
        "GPU-3d6b1a52b86bd101",
        "GPU-3d6b1a52b86bd000",
    ]
    assert labels(SPLIT, HIP_VISIBLE_DEVICES="GPU-3d6b1a52b86bd003") == ["GPU-3d6b1a52b86bd003"]


def test_partitions_without_uuids_of_their_own_are_numbered(tmp_path: Path) -> None:
    root = build(KNOWN["mi300x_partitions"], tmp_path)
    for file in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        text = file.read_text()
        kept = [line for line in text.split("\n") if not line.startswith("unique_id")]
        file.write_text("\n".join([*kept, "unique_id 4424516123432435712"]))
    where = discover(root, NO_RUNTIME)
    assert labels(where, ROCR_VISIBLE_DEVICES="9,1") == ["0000:85:00.0/1", "0000:05:00.0/1"]
    # The same number for all names none of them.
    assert labels(where, ROCR_VISIBLE_DEVICES="GPU-3d6b") == []


def test_kfds_order_counts_not_the_bus(tmp_path: Path) -> None:
    root = build(KNOWN["mi300x_nps1"], tmp_path)
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "2").rename(nodes / "40")
    where = discover(root, NO_RUNTIME)
    assert short(where) == ["26", "46", "65", "85", "a6", "c6", "e5", "05"]
    assert short(where, HIP_VISIBLE_DEVICES="7,0") == ["05", "26"]


def test_what_the_kernel_hides_is_not_counted(tmp_path: Path) -> None:
    root = build(KNOWN["mi300x_nps1"], tmp_path)
    for node in (2, 4):
        # A device cgroup makes the read fail; a directory does, too, and for root as well.
        file = root / f"sys/class/kfd/kfd/topology/nodes/{node}/properties"
        file.unlink()
        file.mkdir()
    where = discover(root, NO_RUNTIME)
    assert [d.index for d in where.devices] == [None, 0, None, 1, 2, 3, 4, 5]
    assert short(where, ROCR_VISIBLE_DEVICES="1,0") == ["65", "26"]


def test_a_container_with_two_render_nodes(tmp_path: Path) -> None:
    shape = changed(
        KNOWN["mi300x_nps1"], files=(("dev/dri/renderD131", ""), ("dev/dri/renderD134", ""))
    )
    where = discover(build(shape, tmp_path), NO_RUNTIME)
    assert short(where) == ["65", "c6"]
    assert short(where, HIP_VISIBLE_DEVICES="1") == ["c6"]


def test_without_kfd_it_is_bus_order() -> None:
    where = machine(changed(KNOWN["mi300x_nps1"], kfd=False))
    assert [d.index for d in where.devices] == list(range(8))


@given(st.text(max_size=200))
def test_any_text_is_properties(text: str) -> None:
    assert all(value >= 0 for value in parse_properties(text).values())


def test_properties() -> None:
    text = "simd_count 304\nname gfx942\nunique_id 4424516123432437713\n\nbad -1\nlong 1 2"
    assert parse_properties(text) == {"simd_count": 304, "unique_id": 4424516123432437713}


# -- Intel: six cards of two tiles. FLAT counts tiles, COMPOSITE cards.

LEVEL_ZERO = {
    "tiles": ({"ZE_AFFINITY_MASK": "0,3,11"}, ["18/0", "42/1", "d9/1"]),
    "the order does not count": ({"ZE_AFFINITY_MASK": "3,0"}, ["18/0", "42/1"]),
    "FLAT": (
        {"ZE_AFFINITY_MASK": "1", "ZE_FLAT_DEVICE_HIERARCHY": "FLAT"},
        ["18/1"],
    ),
    "COMBINED counts alike": (
        {"ZE_AFFINITY_MASK": "1", "ZE_FLAT_DEVICE_HIERARCHY": "COMBINED"},
        ["18/1"],
    ),
    "FLAT: a card's tile names nothing": ({"ZE_AFFINITY_MASK": "0.1,2"}, ["42/0"]),
    "COMPOSITE": (
        {"ZE_AFFINITY_MASK": "1,5", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"},
        ["42", "d9"],
    ),
    "COMPOSITE: a tile": (
        {"ZE_AFFINITY_MASK": "1.1,5.0", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"},
        ["42/1", "d9/0"],
    ),
    "COMPOSITE: both tiles are one card": (
        {"ZE_AFFINITY_MASK": "1.1,1.0", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"},
        ["42"],
    ),
    "COMPOSITE: all": (
        {"ZE_FLAT_DEVICE_HIERARCHY": "composite"},
        ["18", "42", "6c", "98", "b2", "d9"],
    ),
}


@pytest.mark.parametrize(("environ", "seen"), LEVEL_ZERO.values(), ids=LEVEL_ZERO)
def test_level_zero(environ: dict[str, str], seen: list[str]) -> None:
    assert short(TILES, **environ) == seen


COMPOSITE = {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}
# ONEAPI_DEVICE_SELECTOR, other variables: the devices.
SELECTORS = {
    "numbers": ("level_zero:0,3", {}, ["18/0", "42/1"]),
    "the order does not count": ("level_zero:3,0", {}, ["18/0", "42/1"]),
    "repeated": ("level_zero:3,3;*:3", {}, ["42/1"]),
    "capitals": ("LEVEL_ZERO:GPU", COMPOSITE, ["18", "42", "6c", "98", "b2", "d9"]),
    "any backend": ("*:2", COMPOSITE, ["6c"]),
    "all": ("*:*", COMPOSITE, ["18", "42", "6c", "98", "b2", "d9"]),
    "terms add up": ("level_zero:0;level_zero:5", COMPOSITE, ["18", "d9"]),
    "another backend": ("opencl:gpu", {}, []),
    "two backends": ("opencl:cpu;level_zero:1", COMPOSITE, ["42"]),
    "processors": ("*:cpu", {}, []),
    "a tile": ("level_zero:1.1", COMPOSITE, ["42/1"]),
    "tiles of one card": ("level_zero:5.*", COMPOSITE, ["d9/0", "d9/1"]),
    "a card and its tile": ("level_zero:5.1,5", COMPOSITE, ["d9", "d9/1"]),
    "a tile has no tiles": ("level_zero:1.1,2", {}, ["42/0"]),
    "discarded": ("level_zero:*;!level_zero:0,5", COMPOSITE, ["42", "6c", "98", "b2"]),
    "discarded only": ("!level_zero:1,2,3,4", COMPOSITE, ["18", "d9"]),
    "past the last": ("level_zero:6,99", COMPOSITE, []),
    "of what the mask leaves": ("level_zero:1", {"ZE_AFFINITY_MASK": "4,7"}, ["98/1"]),
    "empty is not set": ("", COMPOSITE, ["18", "42", "6c", "98", "b2", "d9"]),
}


@pytest.mark.parametrize(("value", "environ", "seen"), SELECTORS.values(), ids=SELECTORS)
def test_a_selector(value: str, environ: dict[str, str], seen: list[str]) -> None:
    assert short(TILES, ONEAPI_DEVICE_SELECTOR=value, **environ) == seen


@pytest.mark.parametrize(
    "value",
    ["level_zero", "0", "zero:0", "level_zero:", "level_zero:0.0.1", "*:gpu.0", "*:x", "*:*.0"],
)
def test_a_selector_that_is_not_understood(value: str) -> None:
    seen = visible(TILES, {"ONEAPI_DEVICE_SELECTOR": value})
    assert not seen.ordered
    handle, said = find_gpu(TILES, seen, "1")
    assert handle is None
    assert said is not None
    assert said.name == "selector-not-understood"
    assert seat_of_rank(TILES, seen, 1, None, None).problems == (said,)


def test_what_ray_assigns_of_intels() -> None:
    environ = {"ONEAPI_DEVICE_SELECTOR": "level_zero:3,1", **COMPOSITE}
    given = visible_if_given(TILES, environ, ("3",))
    assert [handle.label for handle in given.handles] == ["0000:98:00.0"]
    assert given.problems == ()


def test_i915_shows_a_gt_for_each_tile(tmp_path: Path) -> None:
    shape = Shape(
        (NodeSpec(0, "0-3"),),
        gpus=tuple(
            GpuSpec(f"0000:{bus}:00.0", 0, 0x8086, device, 0x038000, name="", driver="i915")
            for bus, device in (("18", 0x0BD5), ("42", 0x7D55))
        ),
    )
    root = build(shape, tmp_path)
    for bus in ("18", "42"):
        for gt in ("gt0", "gt1"):
            (root / f"sys/bus/pci/devices/0000:{bus}:00.0/drm/card0/gt/{gt}").mkdir(parents=True)
        (root / f"sys/bus/pci/devices/0000:{bus}:00.0/drm/renderD128").mkdir()
    where = discover(root, NO_RUNTIME)
    # On other GPUs the second GT is the media engine's.
    assert short(where) == ["18/0", "18/1", "42"]
    assert [d.minor for d in where.devices] == [128, 128]


def test_the_processors_own_graphics_are_nobodys() -> None:
    shape = Shape(
        (NodeSpec(0, "0-3"),),
        gpus=(
            GpuSpec("0000:00:02.0", 0, 0x8086, 0x7D55, 0x030000, name="", driver="i915"),
            GpuSpec("0000:00:05.0", 0, 0x8086, 0x0BD5, 0x038000, name="", driver="xe"),
            GpuSpec("0000:00:0b.0", 0, 0x8086, 0x7D1D, 0x120000, name="", driver="intel_vpu"),
        ),
    )
    assert [d.pci for d in worker_devices(machine(shape))] == ["0000:00:05.0"]


# -- Gaudi: index i has module (5, 4, 7, 6, 2, 1, 0, 3)[i].

HABANA = {
    "rank r has module r": ({}, ["b3", "9b", "9a", "b4", "1a", "19", "34", "33"]),
    "indices": ({"HABANA_VISIBLE_DEVICES": "3,0"}, ["34", "19"]),
    "modules": ({"HABANA_VISIBLE_MODULES": "5,0"}, ["19", "b3"]),
    "modules of those indices": (
        {"HABANA_VISIBLE_DEVICES": "0,1,2,3", "HABANA_VISIBLE_MODULES": "4,0,5"},
        ["1a"],
    ),
    "all": (
        {"HABANA_VISIBLE_DEVICES": "all", "HABANA_VISIBLE_MODULES": "all"},
        ["b3", "9b", "9a", "b4", "1a", "19", "34", "33"],
    ),
}


@pytest.mark.parametrize(("environ", "seen"), HABANA.values(), ids=HABANA)
def test_gaudi(environ: dict[str, str], seen: list[str]) -> None:
    assert short(GAUDI, **environ) == seen


def test_gaudis_whose_driver_tells_no_module_id() -> None:
    gaudis = (changed(gpu, module=None) for gpu in KNOWN["gaudi2"].gpus)
    where = machine(changed(KNOWN["gaudi2"], gpus=tuple(gaudis)))
    assert short(where)[:2] == ["19", "1a"]
    assert short(where, HABANA_VISIBLE_MODULES="3,0") == ["34", "19"]


def test_a_gaudi_container(tmp_path: Path) -> None:
    files = (("dev/accel/accel1", ""), ("dev/accel/accel6", ""))
    where = discover(build(changed(KNOWN["gaudi2"], files=files), tmp_path), NO_RUNTIME)
    assert [d.index for d in where.devices] == [None, 1, None, None, None, None, 6, None]
    assert short(where) == ["b3", "1a"]
    assert short(where, HABANA_VISIBLE_DEVICES="1") == ["1a"]


# -- the others

CORES = ["10/0", "10/1", "20/0", "20/1", "a0/0", "a0/1", "b0/0", "b0/1"]
OTHERS = {
    "Neuron cores": (NEURON, {}, CORES),
    "Neuron: a range": (NEURON, {"NEURON_RT_VISIBLE_CORES": "1-2,7"}, ["10/1", "20/0", "b0/1"]),
    "Neuron: no list": (NEURON, {"NEURON_RT_VISIBLE_CORES": "x"}, []),
    "Neuron: how many": (NEURON, {"NEURON_RT_NUM_CORES": "3"}, CORES[:3]),
    "Ascend": (NPUS, {"ASCEND_RT_VISIBLE_DEVICES": "1,2,7"}, ["01", "c2", "42"]),
    "Ascend: the list ends": (NPUS, {"ASCEND_RT_VISIBLE_DEVICES": "0,8,3"}, ["c1"]),
    "Ascend: no spaces": (NPUS, {"ASCEND_RT_VISIBLE_DEVICES": "0, 3"}, ["c1"]),
    "Ascend: falling": (NPUS, {"ASCEND_RT_VISIBLE_DEVICES": "7,2"}, []),
    "Ascend: repeated": (NPUS, {"ASCEND_RT_VISIBLE_DEVICES": "2,2"}, []),
    "TPU": (machine(KNOWN["tpu"]), {"TPU_VISIBLE_CHIPS": "1,3"}, ["20", "b0"]),
    "TPU's older name": (machine(KNOWN["tpu"]), {"TPU_VISIBLE_DEVICES": "2"}, ["a0"]),
    "Vector Engine": (machine(KNOWN["vector_engine"]), {"VE_NODE_NUMBER": "1"}, ["a0"]),
    "CUDA's variable has no say": (
        *(NPUS, {"CUDA_VISIBLE_DEVICES": "0"}),
        ["c1", "01", "c2", "02", "81", "41", "82", "42"],
    ),
}


@pytest.mark.parametrize(("where", "environ", "seen"), OTHERS.values(), ids=OTHERS)
def test_others(where: Machine, environ: dict[str, str], seen: list[str]) -> None:
    assert short(where, **environ) == seen


def test_an_ascend_container(tmp_path: Path) -> None:
    files = (("dev/davinci1", ""), ("dev/davinci2", ""), ("dev/davinci_manager", ""))
    where = discover(build(changed(KNOWN["ascend"], files=files), tmp_path), NO_RUNTIME)
    assert short(where) == ["01", "c2"]
    assert short(where, ASCEND_RT_VISIBLE_DEVICES="1") == ["c2"]


def test_numbers_that_only_root_may_read_are_not_guessed(tmp_path: Path) -> None:
    root = build(KNOWN["ascend"], tmp_path)
    for file in root.glob("sys/devices/*/*/*/devdrv_sysfs_bdf_to_devid"):
        # For root, too, a directory can't be read.
        file.unlink()
        file.mkdir()
    seen = visible(discover(root, NO_RUNTIME), {})
    assert (seen.ordered, [p.name for p in seen.problems]) == (False, ["device-order-unknown"])


def test_bus_order_is_said_to_be_assumed_where_it_matters() -> None:
    seen = visible(machine(KNOWN["tpu"]), {})
    assert (seen.ordered, [p.name for p in seen.problems]) == (True, ["device-order-assumed"])
    assert visible(NPUS, {}).problems == visible(GAUDI, {}).problems == ()


def test_the_kernels_numbers_are_a_tpus(tmp_path: Path) -> None:
    root = build(KNOWN["tpu"], tmp_path)
    for number, bus in enumerate(("b0", "20", "a0", "10")):
        (root / f"sys/bus/pci/devices/0000:{bus}:00.0/accel/accel{number}").mkdir(parents=True)
    where = discover(root, NO_RUNTIME)
    assert short(where, TPU_VISIBLE_CHIPS="1,0") == ["20", "b0"]
    assert visible(where, {}).problems == ()


def test_trainium_2_shows_half_its_cores() -> None:
    where = with_devices(gpu(0, vendor="amazon", vendor_id=0x1D0F, device_id=0x7364))
    assert len(labels(where)) == 4
    assert len(labels(where, NEURON_LOGICAL_NC_CONFIG="1")) == 8


def test_a_maker_that_is_not_known_goes_by_address() -> None:
    where = with_devices(*(gpu(n, vendor="0x4242", vendor_id=0x4242) for n in range(2)))
    assert labels(where, CUDA_VISIBLE_DEVICES="1") == ["0000:10:00.0", "0000:11:00.0"]


def test_a_classless_function_of_another_device_is_none() -> None:
    shape = Shape(
        (NodeSpec(0, "0-3"),),
        gpus=(
            GpuSpec("0000:05:00.0", 0, 0x1AE0, 0x001F, 0xFF0000, name="", driver=None),
            GpuSpec("0000:06:00.0", 0, 0x8086, 0x4940, 0x0B4000, name="", driver="4xxx"),
            GpuSpec("0000:07:00.0", 0, 0x1D0F, 0x8061, 0x088000, name="", driver=None),
        ),
    )
    assert machine(shape).devices == ()


# -- several vendors, and PyTorch's names

BOTH = with_devices(
    *(gpu(n, pci_class=0x030200) for n in range(2)),
    *(gpu(n, vendor="intel", vendor_id=0x8086, uuid=None, pci_class=0x038000) for n in (2, 3)),
    gpu(4, vendor="habana", vendor_id=0x1DA3, uuid=None, pci_class=0x120000),
)
NAMES = {
    "cuda": ("cuda:1", {}, "0000:11:00.0"),
    "cuda among the visible": ("cuda:0", {"CUDA_VISIBLE_DEVICES": "1"}, "0000:11:00.0"),
    "xpu": ("xpu:1", {}, "0000:13:00.0"),
    "xpu among the visible": ("xpu:0", {"ZE_AFFINITY_MASK": "1"}, "0000:13:00.0"),
    "hpu": ("hpu:0", {}, "0000:14:00.0"),
    "capitals and spaces": (" XPU:0 ", {}, "0000:12:00.0"),
    "a bare number": ("1", {}, "0000:11:00.0"),
}


@pytest.mark.parametrize(("name", "environ", "pci"), NAMES.values(), ids=NAMES)
def test_pytorchs_names(name: str, environ: dict[str, str], pci: str) -> None:
    handle, said = find_gpu(BOTH, visible(BOTH, environ, kinds_of(name)), name)
    assert said is None
    assert handle is not None
    assert handle.device.pci == pci


@pytest.mark.parametrize("name", ["npu:0", "xpu:2"])
def test_a_name_without_a_device(name: str) -> None:
    handle, said = find_gpu(BOTH, visible(BOTH, {}, kinds_of(name)), name)
    assert handle is None
    assert said is not None
    assert said.name == "device-not-found"
    assert name in said.cause


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "cuda:-1", "xla:0", "cuda"])
def test_a_name_that_can_be_none(name: str) -> None:
    with pytest.raises(UsageError):
        check_named(name, None)


def test_rocms_devices_are_cuda_to_pytorch() -> None:
    handle, _ = find_gpu(AMD, visible(AMD, {}, kinds_of("cuda:3")), "cuda:3")
    assert handle is not None
    assert handle.device.pci == "0000:65:00.0"
    assert TORCH["npu"] == ("huawei",)


MIXED = {
    "GPU beside an integrated one": ((0x030000, "nvidia"), (0x038000, "amd"), "nvidia"),
    "accelerator beside a display card": ((0x120000, "habana"), (0x030000, "nvidia"), "habana"),
    "two kinds of accelerator": ((0x120000, "amd"), (0x030200, "nvidia"), "nvidia"),
    "unknown makers": ((0x120000, "0x4243"), (0x120000, "0x4242"), "0x4242"),
}


@pytest.mark.parametrize(("one", "other", "wanted"), MIXED.values(), ids=MIXED)
def test_workers_get_the_accelerators(
    one: tuple[int, str], other: tuple[int, str], wanted: str
) -> None:
    devices = (
        gpu(n, pci_class=pci_class, vendor=vendor)
        for n, (pci_class, vendor) in enumerate((one, other))
    )
    assert {d.vendor for d in worker_devices(with_devices(*devices))} == {wanted}


VARIABLES = [
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "ASCEND_RT_VISIBLE_DEVICES"),
    *("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "TPU_VISIBLE_CHIPS", "VE_NODE_NUMBER"),
    *("ZE_FLAT_DEVICE_HIERARCHY", "ONEAPI_DEVICE_SELECTOR"),
]
TERMS = st.lists(st.sampled_from(["level_zero:0", "!*:1", "*:*.*", "*:2.1,gpu", ",", ";", "3"]))
VALUES = (
    st.text("0123456789,.-xGPUMI all\n", max_size=12) | st.text(max_size=8) | TERMS.map(";".join)
)


MACHINES = [AMD, SPLIT, TILES, GAUDI, NEURON, *(machine(KNOWN[name]) for name in ("tpu", "ascend"))]


@given(st.sampled_from(MACHINES), st.dictionaries(st.sampled_from(VARIABLES), VALUES))
def test_any_environment_shows_each_device_once(where: Machine, environ: dict[str, str]) -> None:
    seen = labels(where, **environ)
    assert len(set(seen)) == len(seen)
    assert {handle.device for handle in visible(where, environ).handles} <= set(where.devices)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_snapshot_keeps_it_all(name: str) -> None:
    where = machine(KNOWN[name])
    assert Machine.from_dict(where.as_dict()) == where
