"""What a scheduler gave to a worker: several devices, in whatever words. No scheduler runs here."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from numabind import BindError, MachineError
from numabind._assigned import Assigned, assigned_by_ray, runs_in_worker
from numabind._bind import Request, seat_of
from numabind._discover import as_shown_here
from numabind._handle import Handle
from numabind._options import Options
from numabind._plan import plan_seats
from numabind._problems import problem
from numabind._resolve import Seat, seat_assigned
from numabind._sysfs import Root
from numabind._visible import visible_if_given
from numabind._worker import detect
from samples import gpu, machine, with_devices

EIGHT = machine("hgx_h100")
FOUR = with_devices(gpu(0), gpu(1), gpu(2), gpu(3))
AMD = with_devices(*(gpu(n, vendor="amd", vendor_id=0x1002) for n in range(4)))
INTEL = with_devices(*(gpu(n, vendor="intel", vendor_id=0x8086) for n in range(4)))
UNLIKE = with_devices(gpu(0, device_id=1), gpu(1, device_id=2))


def numbers(handles: tuple[Handle, ...]) -> list[int]:
    return [int(handle.device.pci[5:7], 16) - 16 for handle in handles]


# machine, environment, Ray's words: which devices, in which order
GIVEN = {
    "one": (FOUR, {"CUDA_VISIBLE_DEVICES": "2"}, ("2",), [2]),
    "the variable's order": (FOUR, {"CUDA_VISIBLE_DEVICES": "3,1"}, ("1", "3"), [3, 1]),
    "left alone": (FOUR, {}, ("3", "2"), [2, 3]),
    "left alone, ten of them": (FOUR, {}, ("10", "2"), [2]),
    "a part of the variable": (
        FOUR,
        {"CUDA_VISIBLE_DEVICES": "GPU-333,0, 2"},
        ("2", "GPU-333"),
        [3, 2],
    ),
    "UUIDs": (FOUR, {}, ("GPU-111", "GPU-000"), [0, 1]),
    "AMD": (AMD, {"HIP_VISIBLE_DEVICES": "0,1,2,3"}, ("3",), [3]),
    "Intel": (INTEL, {}, ("1", "3"), [1, 3]),
    "none such": (FOUR, {}, ("7",), []),
}


@pytest.mark.parametrize(("there", "environ", "names", "expected"), GIVEN.values(), ids=GIVEN)
def test_which_devices(there, environ, names, expected) -> None:
    seen = visible_if_given(there, environ, names)
    assert numbers(seen.handles) == expected
    lacking = len(expected) < len(names)
    assert [p.name for p in seen.problems] == (["device-not-found"] if lacking else [])


def test_numbers_of_unlike_gpus_stay_unknown() -> None:
    seen = visible_if_given(UNLIKE, {}, ("0",))
    seat = seat_assigned(seen, None, named=False)
    assert seat.handle is None
    assert [p.name for p in seat.problems] == ["device-order-unknown"]
    by_uuid = seat_assigned(visible_if_given(UNLIKE, {}, ("GPU-111",)), None, named=False)
    assert by_uuid.handle is not None


def test_a_named_rank_beyond_the_assigned() -> None:
    seen = visible_if_given(FOUR, {}, ("0", "1"))
    seat = seat_assigned(seen, 2, named=True)
    assert seat.handle is None
    (said,) = seat.problems
    assert said.name == "rank-without-device"
    assert said.cause == "local rank 2, but Ray assigned 2 devices"


def together(*chosen: int, **options: object):
    handles = tuple(Handle(EIGHT.devices[number]) for number in chosen)
    seat = Seat(None, handles[0], others=handles[1:])
    return plan_seats(EIGHT, (seat,), Options(**options)).placements[0]


def alone(number: int, **options: object):
    seat = Seat(None, Handle(EIGHT.devices[number]))
    return plan_seats(EIGHT, (seat,), Options(**options)).placements[0]


@pytest.mark.parametrize("mode", ["node", "socket", "exclusive"])
def test_several_devices_have_what_each_would_have(mode: str) -> None:
    both, first, second = together(0, 1, mode=mode), alone(0, mode=mode), alone(1, mode=mode)
    assert both.bound
    assert both.node == first.node == second.node
    assert both.cpus == first.cpus | second.cpus
    assert both.memory_nodes == first.memory_nodes
    assert both.device == f"{first.device},{second.device}"
    assert both.problems == first.problems == ()


def test_devices_on_two_nodes() -> None:
    last = len(EIGHT.devices) - 1
    both, first, second = together(0, last), alone(0), alone(last)
    assert first.node != second.node
    assert both.node is None
    assert both.cpus == first.cpus | second.cpus
    assert both.memory_nodes == first.memory_nodes | second.memory_nodes
    (said,) = both.problems
    assert said.name == "devices-on-several-nodes"
    assert f"{second.device} is on node {second.node}" in said.cause
    assert together(0, last, memory="none").memory_policy == "none"


def test_a_device_without_a_node_leaves_all_unbound() -> None:
    lost = gpu(0, pci="0000:ff:00.0", numa_node=-1, node=None, near_nodes=())
    handles = (Handle(EIGHT.devices[0]), Handle(lost))
    seat = Seat(None, handles[0], others=handles[1:])
    placement = plan_seats(EIGHT, (seat,), Options()).placements[0]
    assert not placement.bound
    assert placement.memory_policy == "none"
    assert [p.name for p in placement.problems] == ["no-numa-node"]


@pytest.mark.parametrize(("amount", "size"), [(None, None), (1.0, 4), (0.5, 8), (2.0, 2), (3.0, 1)])
def test_how_many_workers_the_amount_means(amount, size) -> None:
    given = Assigned(("0",), amount)
    _, local_size = seat_of(FOUR, Request(Options(), {}, assigned=given))
    assert local_size == size


# Slurm's variables: which GPUs the task has, of those that CUDA_VISIBLE_DEVICES shows
SLURM = {
    "two for each, 22.05": ({"SLURMD_TRES_BIND": "gpu:per_task:2"}, "2,3", [2, 3]),
    "two for each": ({"SLURM_GPUS_PER_TASK": "2"}, "2,3", [2, 3]),
    "two for each of a type": ({"SLURM_GPUS_PER_TASK": "h100:2"}, "2,3", [2, 3]),
    "one for each": ({"SLURM_GPUS_PER_TASK": "1"}, "3", [3]),
    "all visible all the same": ({"SLURM_GPUS_PER_TASK": "2"}, "0,1,2,3", [1]),
    "not said": ({}, "2,3", [3]),
    "not a number": ({"SLURM_GPUS_PER_TASK": "many"}, "2,3", [3]),
    "torchrun inside": ({"SLURM_GPUS_PER_TASK": "2", "LOCAL_RANK": "0"}, "2,3", [2]),
}


@pytest.mark.parametrize(("environ", "shown", "expected"), SLURM.values(), ids=SLURM)
def test_devices_of_a_slurm_task(environ, shown, expected) -> None:
    task = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}
    known = {**task, "SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": shown, **environ}
    assert detect(known).launcher in ("Slurm", "torchrun")
    seat, _ = seat_of(FOUR, Request(Options(), known))
    assert seat.handle is not None
    assert numbers((seat.handle, *seat.others)) == expected


def fake_ray(mode: int, ids: list[str], amount: float) -> SimpleNamespace:
    context = SimpleNamespace(
        worker=SimpleNamespace(mode=mode),
        get_accelerator_ids=lambda: {"GPU": ids, "TPU": []},
        get_assigned_resources=lambda: {"CPU": 1.0, "GPU": amount},
    )
    return SimpleNamespace(
        WORKER_MODE=1, is_initialized=lambda: True, get_runtime_context=lambda: context
    )


def test_ray_is_asked_in_its_workers_only() -> None:
    assert assigned_by_ray(fake_ray(1, ["3"], 0.5)) == Assigned(("3",), 0.5)
    assert assigned_by_ray(fake_ray(1, [], 0.0)) is None
    assert assigned_by_ray(fake_ray(0, ["3"], 1.0)) is None
    for other in (None, SimpleNamespace(), SimpleNamespace(is_initialized=lambda: False)):
        assert not runs_in_worker(other)
        assert assigned_by_ray(other) is None


def test_errors_travel_between_processes() -> None:
    said = (problem("no-device", "none"),)
    error = pickle.loads(pickle.dumps(BindError(said)))
    assert error.problems == said
    assert str(error) == str(BindError(said))
    error = pickle.loads(pickle.dumps(MachineError("/a", "is odd", "mend it")))
    assert (error.path, error.cause) == ("/a", "is odd")
    assert str(error) == "/a: is odd (mend it)"


def test_a_snapshots_devices_have_the_numbers_of_this_process(tmp_path) -> None:
    """Slurm's ConstrainDevices: the job may open the third and fourth of four."""
    for number, device in enumerate(FOUR.devices):
        folder = tmp_path / "proc/driver/nvidia/gpus" / device.pci
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Device Minor: \t {number}\n")
    (tmp_path / "dev").mkdir()
    for number in (2, 3):
        (tmp_path / f"dev/nvidia{number}").touch()
    shown = as_shown_here(FOUR.devices, Root(str(tmp_path)))
    assert [device.index for device in shown] == [None, None, 0, 1]
    assert as_shown_here(FOUR.devices, Root(str(tmp_path / "dev"))) == FOUR.devices
