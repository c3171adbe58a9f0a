"""Which devices a process sees: one row for each rule of each runtime."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numabind._handle import find_uuid
from numabind._machine import Partition
from numabind._visible import present_devices, visible, worker_devices
from samples import gpu, machine, with_devices

# Four equal GPUs: UUIDs GPU-000-aa … GPU-333-aa.
FOUR = with_devices(*(gpu(n) for n in range(4)))
TWINS = with_devices(gpu(0, uuid="GPU-1234-a"), gpu(1, uuid="GPU-1235-b"))
MIG = with_devices(
    gpu(0, partitions=(Partition("MIG-aa-1", 1, 0), Partition("MIG-ab-2", 2, 0))),
    gpu(1, partitions=(Partition("MIG-ba-3", 1, 0),)),
)
AMD = with_devices(*(gpu(n, vendor="amd", vendor_id=0x1002) for n in range(4)))
INTEL = with_devices(*(gpu(n, vendor="intel", vendor_id=0x8086) for n in range(4)))
GAUDI = with_devices(*(gpu(n, vendor="habana", vendor_id=0x1DA3) for n in range(4)))


def ordinals(where, **environ: str) -> list[int]:
    """The numbers (of `gpu`) of the visible devices."""
    pcis = [device.pci for device in where.devices]
    return [pcis.index(handle.device.pci) for handle in visible(where, environ).handles]


CUDA = {
    "numbers": ("0,1", [0, 1]),
    "order counts": ("3,1,2", [3, 1, 2]),
    "spaces": (" 2 , 0 ", [2, 0]),
    "empty hides all": ("", []),
    "-1 hides all": ("-1", []),
    "NoDevFiles hides all": ("NoDevFiles", []),
    "the list ends at -1": ("0,-1,1", [0]),
    "the list ends past the last": ("1,4,0", [1]),
    "the list ends at a word": ("1,x,0", [1]),
    "the list ends at an empty entry": ("2,,0", [2]),
    "a repeated number empties it": ("0,1,0", []),
    "a repeated device empties it": ("0,GPU-000-aa", []),
    "repeated after the end does not": ("0,9,0", [0]),
    "UUID": ("GPU-222-aa", [2]),
    "UUID prefixes": ("GPU-3,GPU-1", [3, 1]),
    "UUID in capitals": ("GPU-222-AA", [2]),
    "bare prefix names nothing": ("GPU-", []),
    "UUID of no device": ("GPU-9", []),
    "UUID and number": ("GPU-3,1", [3, 1]),
    "another script's digit": ("٣", []),
    "five thousand digits": ("9" * 5000, []),
}


@pytest.mark.parametrize(("value", "seen"), CUDA.values(), ids=CUDA)
def test_cuda_visible_devices(value: str, seen: list[int]) -> None:
    assert ordinals(FOUR, CUDA_VISIBLE_DEVICES=value) == seen
    assert visible(FOUR, {"CUDA_VISIBLE_DEVICES": value}).source == "CUDA_VISIBLE_DEVICES"


def test_without_the_variable_all_are_visible() -> None:
    found = visible(FOUR, {})
    assert [handle.label for handle in found.handles] == [d.pci for d in FOUR.devices]
    assert (found.source, found.ordered, found.problems) == (None, True, ())


def test_an_ambiguous_prefix_names_nothing() -> None:
    assert ordinals(TWINS, CUDA_VISIBLE_DEVICES="GPU-123") == []
    assert ordinals(TWINS, CUDA_VISIBLE_DEVICES="GPU-1235") == [1]


MIG_ROWS = {
    "UUID": ("MIG-ab-2", ["MIG-ab-2"]),
    "UUID prefix": ("MIG-b", ["MIG-ba-3"]),
    "ambiguous prefix": ("MIG-a", []),
    "only the first instance counts": ("MIG-ab-2,MIG-ba-3", ["MIG-ab-2"]),
    "instance numbers": ("MIG-GPU-000-aa/2/0", ["MIG-ab-2"]),
    "of the other GPU": ("MIG-GPU-111-aa/1/0", ["MIG-ba-3"]),
    "no such instance": ("MIG-GPU-000-aa/7/0", []),
    "no instance named": ("MIG-GPU-000-aa", []),
    "repeated": ("MIG-ab-2,MIG-ab-2", []),
    "a GPU by its number is its first instance": ("1,0", ["MIG-ba-3"]),
    "a GPU by its UUID": ("GPU-000-aa", ["MIG-aa-1"]),
}


@pytest.mark.parametrize(("value", "labels"), MIG_ROWS.values(), ids=MIG_ROWS)
def test_mig_instances(value: str, labels: list[str]) -> None:
    found = visible(MIG, {"CUDA_VISIBLE_DEVICES": value}).handles
    assert [handle.label for handle in found] == labels


def test_beside_a_gpu_in_mig_mode_cuda_shows_no_other() -> None:
    mixed = with_devices(FOUR.devices[3], MIG.devices[1])
    seen = visible(mixed, {})
    assert [handle.label for handle in seen.handles] == ["MIG-ba-3"]
    assert "MIG" in seen.remark


def test_an_instance_is_on_its_gpu() -> None:
    (handle,) = visible(MIG, {"CUDA_VISIBLE_DEVICES": "MIG-ba-3"}).handles
    assert handle.device == MIG.devices[1]


UNLIKE = with_devices(gpu(0, device_id=0x26B9, name="L40S"), gpu(1, name="H100"))
UNREAD = with_devices(gpu(0, device_id=0), gpu(1, device_id=0))
ORDER = {
    "equal GPUs": (FOUR, {}, True, []),
    "unlike GPUs": (UNLIKE, {}, False, ["device-order-unknown"]),
    "fastest first": (
        *(UNLIKE, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}),
        *(False, ["device-order-unknown"]),
    ),
    "bus order": (UNLIKE, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, True, []),
    "numbers of unlike GPUs": (
        *(UNLIKE, {"CUDA_VISIBLE_DEVICES": "1"}),
        *(False, ["device-order-unknown"]),
    ),
    "UUIDs of unlike GPUs": (UNLIKE, {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0"}, True, []),
    "UUID and number": (
        *(UNLIKE, {"CUDA_VISIBLE_DEVICES": "GPU-1,0"}),
        *(False, ["device-order-unknown"]),
    ),
    "models not read": (UNREAD, {}, True, ["device-order-assumed"]),
}


@pytest.mark.parametrize(("where", "environ", "ordered", "said"), ORDER.values(), ids=ORDER)
def test_whether_the_order_is_known(where, environ, ordered: bool, said: list[str]) -> None:
    found = visible(where, environ)
    assert (found.ordered, [p.name for p in found.problems]) == (ordered, said)


def test_what_is_said_of_unlike_gpus_names_them() -> None:
    (said,) = visible(UNLIKE, {}).problems
    assert "H100, L40S" in said.cause
    assert "PCI_BUS_ID" in said.remedy


ROCM = {
    "nothing set": ({}, [0, 1, 2, 3]),
    "ROCR": ({"ROCR_VISIBLE_DEVICES": "3,1"}, [3, 1]),
    "ROCR by UUID": ({"ROCR_VISIBLE_DEVICES": "GPU-2,0"}, [2, 0]),
    "HIP": ({"HIP_VISIBLE_DEVICES": "2"}, [2]),
    "CUDA is HIP's other name": ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
    "HIP before CUDA": ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}, [2]),
    "HIP numbers what ROCR left": (
        {"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"},
        [1],
    ),
    "ROCR left too few": ({"ROCR_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "1"}, []),
    "HIP's list ends": ({"HIP_VISIBLE_DEVICES": "0,-1,1"}, [0]),
    "ROCR hides all": ({"ROCR_VISIBLE_DEVICES": ""}, []),
    # What ROCr's and HIP's sources do where CUDA does otherwise.
    "ROCR ends at a repeated one": ({"ROCR_VISIBLE_DEVICES": "2,0,2,1"}, [2, 0]),
    "ROCR reads no more entries than GPUs": ({"ROCR_VISIBLE_DEVICES": "0,1,2,3,0"}, [0, 1, 2, 3]),
    "ROCR in hexadecimal": ({"ROCR_VISIBLE_DEVICES": "0x2"}, [2]),
    "ROCR in octal": ({"ROCR_VISIBLE_DEVICES": "010,1"}, []),
    "ROCR with spaces": ({"ROCR_VISIBLE_DEVICES": " 3 , 1 "}, [3, 1]),
    "ROCR in small letters": ({"ROCR_VISIBLE_DEVICES": "gpu-111-AA"}, [1]),
    "ROCR: no UUID": ({"ROCR_VISIBLE_DEVICES": "1,GPU-,2"}, [1]),
    "ROCR: another vendor's word": ({"ROCR_VISIBLE_DEVICES": "all"}, []),
    "HIP: empty is not set": ({"HIP_VISIBLE_DEVICES": ""}, [0, 1, 2, 3]),
    "HIP: empty, so CUDA's": ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "3"}, [3]),
    "HIP: a repeated one counts once": ({"HIP_VISIBLE_DEVICES": "2,0,2,1"}, [2, 0, 1]),
    "HIP takes no spaces": ({"HIP_VISIBLE_DEVICES": "0, 1"}, [0]),
    "HIP takes no zero before": ({"HIP_VISIBLE_DEVICES": "1,02"}, [1]),
    "HIP by UUID": ({"HIP_VISIBLE_DEVICES": "GPU-333-aa,1"}, [3, 1]),
    "HIP: no such UUID": ({"HIP_VISIBLE_DEVICES": "GPU-9,1"}, []),
    "NVIDIA's order has no say": ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("environ", "seen"), ROCM.values(), ids=ROCM)
def test_rocm(environ: dict[str, str], seen: list[int]) -> None:
    assert ordinals(AMD, **environ) == seen


OTHERS = {
    "Level Zero: nothing set": (INTEL, {}, [0, 1, 2, 3]),
    "Level Zero: order does not count": (INTEL, {"ZE_AFFINITY_MASK": "2,0"}, [0, 2]),
    "Level Zero: subdevices": (INTEL, {"ZE_AFFINITY_MASK": "1.0,1.1"}, [1]),
    "Level Zero: CUDA's variable has no say": (INTEL, {"CUDA_VISIBLE_DEVICES": "1"}, [0, 1, 2, 3]),
    "Habana: numbers": (GAUDI, {"HABANA_VISIBLE_DEVICES": "3,0"}, [3, 0]),
    "Habana: an index that is not there": (GAUDI, {"HABANA_VISIBLE_DEVICES": "1,9,0"}, [1]),
    "Level Zero: empty is not set": (INTEL, {"ZE_AFFINITY_MASK": ""}, [0, 1, 2, 3]),
    "Level Zero: repeated": (INTEL, {"ZE_AFFINITY_MASK": "3,3"}, [3]),
    "Level Zero: none": (INTEL, {"ZE_AFFINITY_MASK": "7"}, []),
    "Habana: all": (GAUDI, {"HABANA_VISIBLE_DEVICES": "all"}, [0, 1, 2, 3]),
    "NVIDIA: HIP's variable has no say": (FOUR, {"HIP_VISIBLE_DEVICES": "1"}, [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("where", "environ", "seen"), OTHERS.values(), ids=OTHERS)
def test_other_runtimes(where, environ: dict[str, str], seen: list[int]) -> None:
    assert ordinals(where, **environ) == seen


def test_workers_have_devices_of_one_vendor() -> None:
    mixed = with_devices(
        gpu(0, vendor="aspeed", computes=False), gpu(1, vendor="intel"), gpu(2, vendor="nvidia")
    )
    assert [d.pci for d in worker_devices(mixed)] == ["0000:12:00.0"]
    assert [d.pci for d in worker_devices(machine("display_gpu"))] == [
        "0000:17:00.0",
        "0000:65:00.0",
        "0000:b3:00.0",
    ]
    assert worker_devices(with_devices()) == ()


def test_ordinals_count_those_that_the_driver_shows() -> None:
    lent = with_devices(gpu(0, index=None), gpu(1, index=0), gpu(2, index=None), gpu(3, index=1))
    assert [d.pci for d in present_devices(lent.devices)] == ["0000:11:00.0", "0000:13:00.0"]
    assert ordinals(lent, CUDA_VISIBLE_DEVICES="1") == [3]
    # Without a driver that numbers them, all count.
    assert ordinals(machine("no_driver"), CUDA_VISIBLE_DEVICES="1") == [1]


ENTRIES = st.sampled_from([*"01234", "-1", "", "GPU-0", "GPU-1", "GPU-", "x", " 2 "])


@given(st.lists(ENTRIES, max_size=6) | st.lists(st.text(max_size=8), max_size=3))
def test_any_list_gives_devices_each_once(entries: list[str]) -> None:
    seen = ordinals(FOUR, CUDA_VISIBLE_DEVICES=",".join(entries))
    assert len(set(seen)) == len(seen) <= len(",".join(entries).split(","))


@given(st.text(max_size=20))
def test_any_text_is_a_uuid_or_none(text: str) -> None:
    handle = find_uuid(text, MIG.devices)
    assert handle is None or text.lower().startswith(("gpu-", "mig-"))
