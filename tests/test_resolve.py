"""Which device belongs to which worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numabind import UsageError
from numabind._machine import Partition
from numabind._resolve import check_named, find_gpu, seat_of_rank, seats_of_all
from numabind._visible import visible
from samples import gpu, with_devices

FOUR = with_devices(
    gpu(0),
    gpu(1),
    gpu(2, partitions=(Partition("MIG-aa", 1, 0),)),
    gpu(3),
    gpu(4, vendor="aspeed", uuid=None, computes=False),
)
UNLIKE = with_devices(gpu(0, device_id=1), gpu(1, device_id=2))
NONE = with_devices()


def number(handle) -> int | None:
    return None if handle is None else int(handle.device.pci[5:7], 16) - 16


# name, CUDA_VISIBLE_DEVICES: which GPU
NAMED = {
    "UUID": ("GPU-333-aa", None, 3),
    "beginning of a UUID": ("gpu-3", None, 3),
    "UUID of a hidden GPU": ("GPU-333-aa", "0", 3),
    "MIG UUID": ("MIG-aa", None, 2),
    "MIG by numbers": ("MIG-GPU-222-aa/1/0", None, 2),
    "address": ("0000:11:00.0", None, 1),
    "NVML's address": ("00000000:11:00.0", None, 1),
    "short address": ("11:00.0", None, 1),
    "address of a display": ("0000:14:00.0", None, 4),
    "ordinal": ("2", None, 2),
    "ordinal among the visible": ("1", "3,2", 2),
    "spaces": (" 2 ", None, 2),
}


@pytest.mark.parametrize(("text", "mask", "wanted"), NAMED.values(), ids=NAMED)
def test_a_named_gpu(text: str, mask: str | None, wanted: int) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    handle, said = find_gpu(FOUR, visible(FOUR, environ), text)
    assert (number(handle), said) == (wanted, None)


NOT_FOUND = {
    "ordinal": ("9", "there are 4"),
    "UUID": ("GPU-9", "GPU-9"),
    "address": ("0000:99:00.0", "0000:99:00.0"),
    "instance": ("MIG-zz", "MIG-zz"),
}


@pytest.mark.parametrize(("text", "cause"), NOT_FOUND.values(), ids=NOT_FOUND)
def test_a_gpu_that_is_not_there(text: str, cause: str) -> None:
    handle, said = find_gpu(FOUR, visible(FOUR, {}), text)
    assert handle is None
    assert said is not None
    assert said.name == "device-not-found"
    assert cause in said.cause


def test_an_ambiguous_beginning_finds_nothing() -> None:
    twins = with_devices(gpu(0, uuid="GPU-12"), gpu(1, uuid="GPU-13"))
    handle, said = find_gpu(twins, visible(twins, {}), "GPU-1")
    assert handle is None
    assert said is not None
    assert said.name == "device-not-found"


def test_an_ordinal_among_unlike_gpus_is_unknown() -> None:
    handle, said = find_gpu(UNLIKE, visible(UNLIKE, {}), "0")
    assert handle is None
    assert said is not None
    assert said.name == "device-order-unknown"


@pytest.mark.parametrize(
    "text", ["", "first", "-1", "1.0", "GPU", "GPU-", "gpu0", "0000:17", "²", "1" * 99]
)
def test_a_name_without_a_form_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="GPU"):
        check_named(text, None)


def test_a_negative_rank_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="-1"):
        check_named(None, -1)


# machine, CUDA_VISIBLE_DEVICES, rank, size, share: which GPU, problems
RANKS = {
    "rank is the ordinal": (FOUR, None, 2, 4, None, 2, []),
    "among the visible": (FOUR, "3,1", 1, 2, None, 1, []),
    "size not known": (FOUR, None, 2, None, None, 2, []),
    "one visible, whatever the rank": (FOUR, "1", 5, 8, None, 1, []),
    "one visible, no rank": (FOUR, "1", None, None, None, 1, []),
    "no rank": (FOUR, None, None, None, None, None, ["no-local-rank"]),
    "rank out of range": (FOUR, None, 4, None, None, None, ["rank-without-device"]),
    "rank past the visible": (FOUR, "0,1", 2, 2, None, None, ["rank-without-device"]),
    "more workers, low rank": (FOUR, None, 1, 8, None, 1, ["more-workers-than-devices"]),
    "more workers, high rank": (FOUR, None, 6, 8, None, None, ["more-workers-than-devices"]),
    "block": (FOUR, None, 3, 8, "block", 1, []),
    "block, last": (FOUR, None, 7, 8, "block", 3, []),
    "block, uneven": (FOUR, None, 4, 6, "block", 2, []),
    "cyclic": (FOUR, None, 6, 8, "cyclic", 2, []),
    "share without need": (FOUR, None, 2, 4, "block", 2, []),
    "all hidden": (FOUR, "", 0, 1, None, None, ["no-device"]),
    "no device": (NONE, None, 0, 1, None, None, ["no-device"]),
    "unlike GPUs": (UNLIKE, None, 0, 2, None, None, ["device-order-unknown"]),
    "one number of unlike GPUs": (UNLIKE, "0", 0, 1, None, None, ["device-order-unknown"]),
    "one UUID of unlike GPUs": (UNLIKE, "GPU-1", 0, 1, None, 1, []),
}


@pytest.mark.parametrize("row", RANKS.values(), ids=RANKS)
def test_the_device_of_a_rank(row) -> None:
    where, mask, rank, size, share, wanted, said = row
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    seat = seat_of_rank(where, visible(where, environ), rank, size, share)
    assert (number(seat.handle), [p.name for p in seat.problems]) == (wanted, said)


def test_no_device_says_whether_a_variable_hides_them() -> None:
    (said,) = seat_of_rank(FOUR, visible(FOUR, {"CUDA_VISIBLE_DEVICES": ""}), 0, 1, None).problems
    assert said.cause == "CUDA_VISIBLE_DEVICES hides all 4 devices"


# CUDA_VISIBLE_DEVICES: what is said to a worker of local rank 3
REMARKS = {
    "0,1,x": "4 workers, 2 visible devices (CUDA_VISIBLE_DEVICES: 'x' names no device here",
    "0,0": "hides all 4 devices: '0' names a device twice, so CUDA shows none",
    "4,6": "hides all 4 devices: '4' is past the last of 4, and the list ends there",
    "GPU-9,0": "hides all 4 devices: 'GPU-9' names no device here",
    "-1": "hides all 4 devices",
}


@pytest.mark.parametrize("value", REMARKS)
def test_why_a_list_shows_fewer_devices_than_it_has_entries(value: str) -> None:
    (said,) = seat_of_rank(
        FOUR, visible(FOUR, {"CUDA_VISIBLE_DEVICES": value}), 3, 4, None
    ).problems
    assert REMARKS[value] in said.cause


def test_an_instance_of_which_nothing_is_known() -> None:
    seen = visible(UNLIKE, {"CUDA_VISIBLE_DEVICES": "MIG-aa"})
    (said,) = seat_of_rank(UNLIKE, seen, 0, 1, None).problems
    assert said.name == "no-device"
    assert "nvidia-ml-py" in said.cause


ALL = {
    "default": (FOUR, None, None, [0, 1, 2, 3]),
    "fewer": (FOUR, 2, None, [0, 1]),
    "block": (FOUR, 8, "block", [0, 0, 1, 1, 2, 2, 3, 3]),
    "cyclic": (FOUR, 6, "cyclic", [0, 1, 2, 3, 0, 1]),
    "no device": (NONE, None, None, [None]),
    "workers without device": (NONE, 3, None, [None, None, None]),
    "unlike GPUs": (UNLIKE, None, None, [None, None]),
}


@pytest.mark.parametrize(("where", "workers", "share", "wanted"), ALL.values(), ids=ALL)
def test_the_seats_of_a_machine(where, workers, share, wanted) -> None:
    seats = seats_of_all(where, visible(where, {}), workers, share)
    assert [number(seat.handle) for seat in seats] == wanted
    assert [seat.local_rank for seat in seats] == list(range(len(wanted)))


@pytest.mark.parametrize(
    ("workers", "said"), [(0, "1 to"), (-1, "1 to"), (1 << 40, "1 to"), (5, "--share")]
)
def test_a_number_of_workers_that_cannot_be(workers: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        seats_of_all(FOUR, visible(FOUR, {}), workers, None)


@given(st.integers(1, 40), st.sampled_from(["block", "cyclic"]))
def test_shared_devices_are_dealt_evenly(workers: int, share: str) -> None:
    seats = seats_of_all(FOUR, visible(FOUR, {}), workers, share)
    counts = [sum(number(seat.handle) == n for seat in seats) for n in range(4)]
    assert max(counts) - min(counts) <= 1


@given(st.text(max_size=16) | st.text("0123456789:.-GPUMIgpumi/", max_size=16))
def test_any_name_is_found_missing_or_a_usage_error(text: str) -> None:
    try:
        handle, said = find_gpu(FOUR, visible(FOUR, {}), text)
    except UsageError:
        return
    assert (handle is None) != (said is None)
