"""The fleet: equal machines are one group, others are named with what differs, files may be bad."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from numabind import Machine
from numabind._fleet import FleetReport, described, fleet
from numabind._fleet.differences import Differences
from numabind._fleet.groups import Group, Kind, Member, Snapshot, kinds_of
from numabind._fleet.hosts import folded
from numabind._fleet.memory import spans
from numabind._fleet.snapshots import Broken, Reader, files_in
from numabind._fleet.topology import topology_of
from numabind._fleet.wire import packed, unpacked
from numabind._fleet.words import sentences
from numabind._record import replace
from numabind._report.fleet import fleet_text
from numabind._report.fleet_page import page
from test_cli import numabind
from test_page import EVIL, Tree, sound

GIB = 1 << 30
BENCHMARK = Path(__file__).parent.parent / "benchmarks/fleet.py"


def named(machine: Machine, name: str | None, **host: object) -> Machine:
    return replace(machine, host=replace(machine.host, name=name, **host))


def memory(machine: Machine, *sizes: int | None) -> Machine:
    pairs = zip(machine.nodes, sizes, strict=True)
    return replace(machine, nodes=tuple(replace(node, memory_bytes=size) for node, size in pairs))


def gpu(machine: Machine, number: int, **fields: object) -> Machine:
    devices = list(machine.devices)
    devices[number] = replace(devices[number], **fields)
    return replace(machine, devices=tuple(devices))


def report(folder: Path, machines: Iterable[Machine]) -> FleetReport:
    for number, machine in enumerate(machines):
        machine.save(folder / f"m{number}.json")
    return fleet(str(folder), files_in(str(folder))[0])


def said(found: FleetReport) -> list[tuple[str, ...]]:
    return [outlier.text for kind in found.kinds for outlier in kind.outliers]


def test_all_planted_outliers_are_found_and_no_others() -> None:
    command = [sys.executable, str(BENCHMARK), "--nodes", "150"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "25 outliers found of 25 planted, 5 of 5 broken ones named" in done.stdout


H100 = "hgx_h100"
# How a machine differs from three of its like, and what is said of it.
OUTLIERS = {
    "nothing": (lambda m: m, ()),
    "names and serials": (
        lambda m: gpu(named(m, "other", boot_id="0", kernel="7.0"), 0, uuid="GPU-9", index=5),
        (),
    ),
    "some pages": (lambda m: memory(m, 256 * GIB - 4096 * 77, 255 * GIB), ()),
    "a DIMM of 24": (
        lambda m: memory(m, 256 * GIB, 256 * GIB * 23 // 24),
        ("node 1 has 245 GiB, where 3 others have 256 GiB",),
    ),
    "memory not known": (
        lambda m: memory(m, None, 256 * GIB),
        ("node 0 has memory of unknown size, where 3 others have 256 GiB",),
    ),
    "all GPUs moved by one bus": (
        lambda m: replace(
            m, devices=tuple(replace(d, pci=d.pci.replace("b:", "c:")) for d in m.devices)
        ),
        (
            "GPU 0 (0000:1b:00.0) is missing, where 3 others have it",
            "GPU 0 (0000:1c:00.0) is there, which 3 others lack",
        ),
    ),
    "two causes": (
        lambda m: gpu(named(m, "x", numa_balancing=None), 7, link_width=4),
        (
            "numa_balancing is unknown, where 3 others have 0",
            "GPU 7 (0000:df:00.0) has a link of x4, where 3 others have x16",
        ),
    ),
}


@pytest.mark.parametrize(("change", "words"), OUTLIERS.values(), ids=OUTLIERS)
def test_an_outlier_is_described(tmp_path: Path, change, words: tuple[str, ...]) -> None:
    usual = samples.machine(H100)
    found = report(tmp_path, [usual, change(usual), usual, usual])
    assert said(found) == ([words] if words else [])
    assert found.machines == 4


def test_kinds_of_machines_are_not_outliers_of_each_other(tmp_path: Path) -> None:
    shapes = [H100, "mi300x", "no_gpu", H100, "one_node", "no_gpu", H100, "mi300x"]
    found = report(tmp_path, map(samples.machine, shapes))
    titles = [(kind.title.partition(" (")[0], kind.machines) for kind in found.kinds]
    assert titles[0] == ("8 × NVIDIA H100 80GB HBM3", 3)
    assert sorted(size for _, size in titles) == [1, 2, 2, 3]
    assert said(found) == []


def test_many_machines_with_fewer_gpus_are_a_kind_and_one_is_an_outlier(tmp_path: Path) -> None:
    whole = samples.machine(H100)
    half = replace(whole, devices=whole.devices[:4])
    found = report(tmp_path, [whole, half, whole])
    assert said(found) == [("GPUs 4-7 are missing, where 2 others have them",)]
    found = report(tmp_path, [whole, half, whole, half])
    assert [kind.machines for kind in found.kinds] == [2, 2]
    assert said(found) == []
    moved = replace(whole, devices=tuple(replace(d, pci=f"0001{d.pci[4:]}") for d in whole.devices))
    found = report(tmp_path, [whole, moved, whole, moved])
    first, second = (kind.title for kind in found.kinds)
    assert second == f"{first} (2)"


def test_the_kernels_layout_is_said_once_and_not_for_each_gpu(tmp_path: Path) -> None:
    split = samples.machine("nps4")
    cpus = tuple(replace(cpu, node=0) for cpu in split.cpus)
    one = replace(split.nodes[0], cpus=frozenset(c.id for c in cpus), distances=(10,))
    devices = tuple(replace(d, node=0, near_nodes=(0,)) for d in split.devices)
    allowed = replace(split.allowed, nodes=frozenset({0}))
    whole = replace(split, nodes=(one,), cpus=cpus, devices=devices, allowed=allowed)
    (words,) = said(report(tmp_path, [whole, split, whole]))
    assert words == (
        f"{len(split.nodes)} nodes with CPUs, where 2 others have 1: "
        "NPS or sub-NUMA clustering is set otherwise",
    )


@given(st.dictionaries(st.integers(1, 1 << 50), st.integers(1, 9), min_size=1, max_size=30))
def test_sizes_of_one_span_are_within_a_64th(sizes: dict[int, int]) -> None:
    found = spans(sizes)
    assert found.keys() == sizes.keys()
    for stands in set(found.values()):
        span = [size for size in sizes if found[size] == stands]
        assert stands in span
        assert max(span) <= min(span) + min(span) // 64


@given(st.integers(1 << 20, 1 << 45), st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_no_size_has_an_edge_near_it(size: int, shares: list[float]) -> None:
    about = {size + int(size // 64 * share): 1 for share in shares}
    assert len(set(spans(about).values())) == 1


def snapshots(machines: Iterable[Machine]) -> list[Snapshot]:
    return [
        Snapshot(
            Member(f"m{number}.json"),
            topology_of(machine),
            tuple((node.id, node.memory_bytes) for node in machine.nodes),
        )
        for number, machine in enumerate(machines)
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(samples.machines(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_order_does_not_matter_and_nobody_is_lost(
    machines: list[Machine], dice: random.Random
) -> None:
    all_of_them = snapshots(machines * 3)
    found = kinds_of(all_of_them)
    members = [m for kind in found for group in kind.groups for m in group.members]
    assert sorted(m.file for m in members) == sorted(s.member.file for s in all_of_them)
    dice.shuffle(all_of_them)
    assert kinds_of(all_of_them) == found


@settings(max_examples=60, deadline=None)
@given(samples.machines(), samples.machines())
def test_whatever_differs_is_said(here: Machine, there: Machine) -> None:
    first, second = snapshots([here, there])
    groups = [Group(each.topology, each.memory, (each.member,)) for each in (second, first)]
    compared = Differences(Kind(tuple(groups)))
    differences = compared.of(1)
    words = sentences(differences, compared.values[1], compared.values[0], {})
    assert bool(differences) == bool(words)
    assert bool(words) == ((first.topology, first.memory) != (second.topology, second.memory))
    assert compared.of(0) == ()


@settings(max_examples=30, deadline=None)
@given(st.lists(samples.machines(), min_size=1, max_size=4))
def test_the_short_way_reads_what_the_long_way_does(
    tmp_path_factory: pytest.TempPathFactory, machines: list[Machine]
) -> None:
    folder = tmp_path_factory.mktemp("fleet")
    for number, machine in enumerate(machines * 2):
        gpus = tuple(replace(d, uuid=f"GPU-{number}") for d in machine.devices)
        named(replace(machine, devices=gpus), f"n{number}").save(folder / f"m{number}.json")
    found = list(Reader(str(folder)).read(files_in(str(folder))[0]))
    expected = [
        replace(each, member=Member(each.member.file, f"n{number}"))
        for number, each in enumerate(snapshots(machines * 2))
    ]
    assert found == expected


def test_what_each_boot_deals_anew_makes_no_snapshot_another(tmp_path: Path) -> None:
    usual = samples.machine(H100)
    for number in range(3):
        data = named(usual, f"n{number}", kernel=f"6.{number}", boot_id=f"{number}").as_dict()
        data["problems"] = [{"name": "x", "cause": f"pid {number}", "remedy": ""}]
        for device in data["devices"]:
            device |= {"index": (device["index"] + number) % 8, "uuid": f"GPU-{number}"}
        disk = {"pci": "0000:01:00.0", "node": 0, "names": [f"nvme{number}"]}
        data |= {"disks": [{**disk, "vendor_id": "0x1", "device_id": "0x1"}]}
        (tmp_path / f"{number}.json").write_text(json.dumps(data))
    reader = Reader(str(tmp_path))
    assert len({found.topology for found in reader.read(files_in(str(tmp_path))[0])}) == 1
    assert reader.checked == 1


BROKEN = {
    "empty": b"",
    "cut": b'{"schema": 1, "nodes": [',
    "binary": b"\x00\xff\xfe",
    "a list": b"[1]",
    "deep": b'{"schema":' * 100_000,
    "deep lists": b'{"a":' + b"[" * 600 + b"]" * 600 + b"}",
    "not packed": b"\x1f\x8b\x08\x00",
}


def test_broken_snapshots_are_named_and_skipped(tmp_path: Path) -> None:
    good = samples.machine(H100)
    bad: dict[str, object] = {
        "uuid": [{**good.as_dict()["devices"][0], "uuid": 7}],
        "nodes": [{**good.as_dict()["nodes"][0], "memory_bytes": -1}],
        "host": {"name": 5},
    }
    good.save(tmp_path / "a.json")
    (tmp_path / "deeper/still").mkdir(parents=True)
    with gzip.open(tmp_path / "deeper/still/b.json.gz", "wt") as file:
        json.dump(good.as_dict(), file)
    for name, data in BROKEN.items():
        end = ".json.gz" if name == "not packed" else ".json"
        (tmp_path / f"bad {name}{end}").write_bytes(data)
    for field, value in bad.items():
        key = "devices" if field == "uuid" else field
        text = json.dumps({**good.as_dict(), key: value})
        (tmp_path / f"bad {field}.json").write_text(text)
    os.mkfifo(tmp_path / "bad pipe.json")
    (tmp_path / "bad link.json").symlink_to("/nowhere")
    (tmp_path / "notes.txt").write_text("not a snapshot, and not meant to be one")
    for name in (".snapshot/a.json", "._a.json", "deeper/.a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("what a file server or tar leaves behind")
    done = numabind("fleet", "report", tmp_path, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["machines"] == 2
    assert [kind["machines"] for kind in found["kinds"]] == [2]
    names = {path.name for path in tmp_path.glob("bad *")}
    assert {each["file"] for each in found["broken"]} == names
    assert len(done.stderr.splitlines()) == len(names)
    for line in done.stderr.splitlines():
        assert line.startswith("numabind: WARNING bad ")


def test_a_folder_that_cannot_be_read_is_named_and_skipped(tmp_path: Path) -> None:
    samples.machine(H100).save(tmp_path / "a.json")
    # Root can read all but what is below more than PATH_MAX.
    deepest = os.open(tmp_path, os.O_DIRECTORY)
    for _ in range(20):
        os.mkdir("x" * 250, dir_fd=deepest)
        below = os.open("x" * 250, os.O_DIRECTORY, dir_fd=deepest)
        os.close(deepest)
        deepest = below
    os.close(deepest)
    files, closed = files_in(str(tmp_path))
    assert files == ("a.json",)
    assert [(each.file[:2], each.cause) for each in closed] == [("xx", "File name too long")]
    done = numabind("fleet", "report", tmp_path, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["broken"] == [each.__dict__ for each in closed]
    shutil.rmtree(tmp_path / ("x" * 250))  # pytest's own way needs short paths


def test_the_command_as_text_page_and_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    usual = samples.machine("two_socket")
    for number in range(3):
        named(usual, f"gpu{number:03}").save(folder / f"{number}.json")
    done = numabind("fleet", "report", folder)
    assert done.returncode == 0, done.stderr
    assert "gpu[000-002]" in done.stdout
    assert done.stdout.endswith("3 machines of 1 kind, all alike\n")
    gpu(named(usual, "gpu003"), 0, node=1, near_nodes=(1,)).save(folder / "3.json")
    done = numabind("fleet", "report", folder)
    assert done.returncode == 1
    assert "\noutlier: gpu003\n  GPU 0 (" in done.stdout
    output = tmp_path / "page.html"
    done = numabind("fleet", "report", folder, "-o", output)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    made = output.read_text()
    assert "gpu003" in sound(Tree(made), made).all("article")[0][1]


WRONG = {
    "no part": (["fleet"], "PART"),
    "no directory": (["fleet", "report", "/nowhere"], "/nowhere: No such file or directory"),
    "a file": (["fleet", "report", __file__], "test_fleet.py: Not a directory"),
    "nothing in it": (["fleet", "report", "/proc/self/fdinfo"], "no *.json"),
    "no engine": (["fleet", "survey"], "--ray --srun"),
    "nobody there": (["fleet", "survey", "--ray", "127.0.0.1:1"], "Connection refused"),
    "srun's options": (["fleet", "survey", "--ray", "auto", "--", "-N1"], "for srun"),
    "a time": (["fleet", "survey", "--srun", "--timeout", "0"], "seconds"),
}


@pytest.mark.parametrize(("words", "named"), WRONG.values(), ids=WRONG)
def test_wrong_usage_is_one_line(words: list[str], named: str) -> None:
    done = numabind(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert named in done.stderr


def evil_fleet() -> FleetReport:
    """A fleet with everything that a page can have, and a nasty name wherever one can stand."""
    usual = samples.machine(H100)
    odd = gpu(usual, 0, driver=EVIL, driver_version=EVIL, partitioning=EVIL)
    seen = [
        *(replace(each, member=Member(f"n{i}", f"{EVIL}{i}")) for i, each in enumerate(
            snapshots([usual] * 30 + [samples.machine("mi300x")] * 2)
        )),
        *(replace(each, member=Member(f"{EVIL}{i}.json")) for i, each in enumerate(
            snapshots([odd] * 9 + [memory(usual, 0, GIB)])
        )),
    ]  # fmt: skip
    kinds = described(kinds_of(seen), {"10de:2330": EVIL})
    missing = (Broken(EVIL, EVIL),)
    return FleetReport(kinds, missing, missing)


def test_names_are_escaped_in_the_page_and_in_the_text() -> None:
    found = evil_fleet()
    made = page(found, "today")
    tree = sound(Tree(made), made)
    assert "<script" not in made
    assert len(tree.all("article")) == 2
    assert EVIL.strip()[:8] not in made
    assert all(line.isprintable() for line in fleet_text(found).split("\n"))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1"], "n1"),
        (["n1", "n2", "n3", "n5"], "n[1-3,5]"),
        (["n9", "n10", "n11"], "n9,n[10-11]"),
        (["gpu-07.site", "gpu-08.site", "login"], "gpu-[07-08].site,login"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["x", "x"], "x,x"),
        (["n" + "9" * 5000], "n" + "9" * 5000),
        (["1" * 99_999 + "a1"], "1" * 99_999 + "a1"),
    ],
)
def test_names_are_folded_as_slurm_folds_them(names: list[str], text: str) -> None:
    assert folded(names) == text
    random.Random(1).shuffle(names)
    assert folded(names) == text


def test_long_lists_of_names_are_cut() -> None:
    assert folded((f"n{2 * i:02}" for i in range(9)), 3) == "n[00,02,04] and 6 more"
    assert folded((c for c in "abcde"), 2) == "a,b and 3 more"


def test_answers_of_nodes_that_print_at_once_are_put_together() -> None:
    machines = {f"n{i}": {"name": base64.b64encode(random.Random(i).randbytes(9000)).decode()}
                for i in range(4)}  # fmt: skip
    lines = [line for node, machine in machines.items() for line in packed(machine, node)]
    assert max(map(len, lines)) < 1000 and len(lines) > 40
    random.Random(0).shuffle(lines)
    noise = ["", "slurmstepd: hello", "numabind-node n9 0 2 AAAA", "numabind-node n8 0 1 !!!!"]
    assert unpacked([*noise, *lines]) == machines
    last = next(line for line in lines if line.split()[1] == "n3")
    assert unpacked(line for line in lines if line != last) == {
        node: machine for node, machine in machines.items() if node != "n3"
    }
