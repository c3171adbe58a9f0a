"""Reading a machine's files: what is there, what is missing, and what is not the kernel's."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.build import CPU, NODE, build
from machines.spec import GpuSpec, NodeSpec, Shape, paired
from numabind import MachineError, discover
from numabind import _sysfs as sysfs
from numabind._cpulist import parse_list
from numabind._sysfs import Root
from samples import NO_RUNTIME, machine

PCI = "sys/bus/pci/devices/0000:17:00.0"
# Two nodes of two cores with two threads each; siblings are N and N + 4.
SMALL = Shape(
    (NodeSpec(0, "0-1,4-5", memory_kib=1000), NodeSpec(1, "2-3,6-7", 1, 2000)),
    paired(4),
    (GpuSpec("0000:17:00.0", 1),),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return build(SMALL, tmp_path)


def read(root: Path):
    return discover(root, NO_RUNTIME)


def test_a_small_machine_is_read_whole(tree: Path) -> None:
    found = read(tree)
    assert [(n.id, sorted(n.cpus), n.memory_bytes, n.distances) for n in found.nodes] == [
        (0, [0, 1, 4, 5], 1000 * 1024, (10, 21)),
        (1, [2, 3, 6, 7], 2000 * 1024, (21, 10)),
    ]
    assert [(c.id, c.node, c.package, c.core, c.l3) for c in found.cpus] == [
        (0, 0, 0, 0, 0),
        (1, 0, 0, 1, 0),
        (2, 1, 1, 2, 2),
        (3, 1, 1, 3, 2),
        (4, 0, 0, 0, 0),
        (5, 0, 0, 1, 0),
        (6, 1, 1, 2, 2),
        (7, 1, 1, 3, 2),
    ]
    assert (found.allowed.cpus, found.allowed.nodes) == (set(range(8)), {0, 1})
    assert found.allowed.cpu_quota is None
    assert (found.host.name, found.host.kernel) == ("machine", "6.8.0-45-generic")
    (gpu,) = found.devices
    assert (gpu.pci, gpu.vendor, gpu.driver, gpu.device_id) == (
        "0000:17:00.0",
        "nvidia",
        "nvidia",
        0x2330,
    )
    assert (gpu.node, gpu.node_source, gpu.local_cpus) == (1, "numa_node", {2, 3, 6, 7})
    assert found.problems == ()


SHAPES_READ = {
    "node numbers with gaps": ("sparse", {0: "0-3", 2: "4-7", 5: "8-11"}),
    "offline CPUs": ("offline_cpus", {0: "0-3,8,10-11", 1: "4,6-7,12,14-15"}),
    "a node whose CPUs are offline": ("node_offline", {0: "0-7", 1: ""}),
    "a node without CPUs": ("cpuless", {0: "0-7", 1: "8-15", 2: ""}),
    "GPU memory nodes": ("gb200", {0: "0-71", 1: "72-143", 2: "", 10: "", 18: "", 26: ""}),
    "a kernel without NUMA": ("no_numa_kernel", {0: "0-15"}),
    "no topology, caches, distances, proc": ("bare", {0: "0-7", 1: "8-15"}),
}


@pytest.mark.parametrize(("shape", "nodes"), SHAPES_READ.values(), ids=SHAPES_READ)
def test_nodes_have_their_online_cpus(shape: str, nodes: dict[int, str]) -> None:
    found = machine(shape)
    assert {n.id: n.cpus for n in found.nodes} == {n: parse_list(c) for n, c in nodes.items()}
    assert {c.id: c.node for c in found.cpus} == {
        cpu: n for n, cpus in nodes.items() for cpu in parse_list(cpus)
    }


def test_a_core_is_named_by_its_lowest_online_cpu() -> None:
    found = machine("offline_cpus")
    assert found.offline_cpus == {5, 9, 13}
    # CPU 1's sibling 9 is offline; cores 2 and 10 are whole.
    assert {c.id: c.core for c in found.cpus if c.id in (1, 2, 10)} == {1: 1, 2: 2, 10: 2}


def test_kinds_of_nodes() -> None:
    gb200 = {n.id: n.kind for n in machine("gb200").nodes}
    assert gb200 == {0: "cpu", 1: "cpu", 2: "gpu", 10: "gpu", 18: "gpu", 26: "gpu"}
    assert [n.kind for n in machine("cpuless").nodes] == ["cpu", "cpu", "memory"]


def test_masks_serve_where_lists_are_missing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    lists = read(build(SMALL, tmp_path / "a"))
    masks = read(build(SMALL.without("cpulist", "package-lists"), tmp_path / "b"))
    assert masks == lists


def test_what_is_not_there_is_unknown() -> None:
    bare = machine("bare")
    assert {(c.package, c.core, c.l3) for c in bare.cpus} == {(None, None, None)}
    assert [n.distances for n in bare.nodes] == [(), ()]
    assert bare.allowed.cpus == set(range(16))
    assert bare.allowed.nodes == {0, 1}
    assert (bare.host.name, bare.host.boot_id) == (None, None)
    assert not machine("no_numa_kernel").host.numa
    assert {c.l3 for c in machine("vm_one_node").cpus} == {None}


def test_caches_are_not_read_unless_asked_for(tree: Path) -> None:
    (tree / CPU / "cpu0/cache/index3/level").write_bytes(b"\xff")
    root = Root(str(tree))
    assert {c.l3 for c in sysfs.read_cpus(root, frozenset({0, 1}), (), False)} == {None}
    with pytest.raises(MachineError, match="cpu0/cache/index3/level"):
        sysfs.read_cpus(root, frozenset({0, 1}), (), True)


def test_the_last_data_cache_counts_not_an_instruction_or_unknown_one(tree: Path) -> None:
    base = tree / CPU / "cpu0/cache"
    for number, kind in ((4, "Instruction"), (5, "Unknown")):
        (base / f"index{number}").mkdir()
        (base / f"index{number}/level").write_text("4\n")
        (base / f"index{number}/type").write_text(f"{kind}\n")
        (base / f"index{number}/shared_cpu_list").write_text("0-7\n")
    (base / "uevent").write_text("")
    assert sysfs.read_last_level_group(Root(str(tree)), 0) == {0, 1, 4, 5}


# Each file of the tree that is read, so that each is tried with each kind of damage.
FILES = [
    f"{CPU}/online",
    f"{CPU}/present",
    f"{CPU}/cpu0/topology/thread_siblings_list",
    f"{CPU}/cpu0/topology/physical_package_id",
    f"{CPU}/cpu0/topology/package_cpus_list",
    f"{CPU}/cpu0/cache/index3/level",
    f"{CPU}/cpu0/cache/index3/shared_cpu_list",
    f"{NODE}/online",
    f"{NODE}/node0/cpulist",
    f"{NODE}/node0/meminfo",
    f"{NODE}/node0/distance",
    f"{PCI}/vendor",
    f"{PCI}/device",
    f"{PCI}/numa_node",
    f"{PCI}/local_cpulist",
    "sys/fs/cgroup/user.slice/cpu.max",
]
DAMAGE = {
    "garbage": b"garbage\n",
    "truncated": b"0-",
    "binary": b"\x7fELF\x00\xff\xfe",
    "another script's digits": "٣\n".encode(),
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("path", FILES)
def test_a_damaged_file_is_named(tree: Path, path: str, content: bytes) -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_bytes(content)
    with pytest.raises(MachineError, match=re.escape(f"{tree}/")) as caught:
        read(tree)
    assert os.path.realpath(caught.value.path) == os.path.realpath(tree / path)


@pytest.mark.parametrize("path", FILES)
def test_a_missing_file_is_never_an_error(tree: Path, path: str) -> None:
    (tree / path).unlink(missing_ok=True)
    assert len(read(tree).cpus) == 8


@pytest.mark.parametrize("path", FILES)
def test_an_unreadable_file_is_named(tree: Path, path: str) -> None:
    # A directory can't be read by anyone, root included.
    (tree / path).unlink(missing_ok=True)
    (tree / path).mkdir(parents=True)
    with pytest.raises(MachineError, match="can't be read") as caught:
        read(tree)
    assert os.path.realpath(caught.value.path) == os.path.realpath(tree / path)


@pytest.mark.parametrize(
    "text", ["Cpus_allowed_list:\tx", "Mems_allowed_list:\t0-", "Cpus_allowed:\tq"]
)
def test_a_damaged_status_is_named(tree: Path, text: str) -> None:
    (tree / "proc/self/status").write_text(f"Name:\tx\n{text}\n")
    with pytest.raises(MachineError, match=f"proc/self/status: {text.partition('_l')[0][:12]}"):
        read(tree)


def test_a_root_that_is_no_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="shows no CPU"):
        read(tmp_path)


def test_a_node_without_any_list_is_named(tree: Path) -> None:
    (tree / NODE / "node1/cpulist").unlink()
    (tree / NODE / "node1/cpumap").unlink()
    with pytest.raises(MachineError, match="node1: has neither cpulist nor cpumap"):
        read(tree)


@pytest.mark.parametrize("number", [errno.ENODEV, errno.ENXIO, errno.ENOENT])
def test_a_file_that_vanishes_between_listing_and_reading_is_missing(
    tree: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "read", gone)
    assert Root(str(tree)).text(f"{NODE}/node1/cpulist") is None


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_read_that_fails_is_named(
    tree: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "read", fails)
    with pytest.raises(MachineError, match=re.escape(os.strerror(number))):
        Root(str(tree)).text(f"{NODE}/node1/cpulist")


def test_a_device_that_vanishes_after_the_listing_is_left_out(tree: Path) -> None:
    os.symlink("nowhere", tree / "sys/bus/pci/devices/0000:65:00.0")
    assert [d.pci for d in read(tree).devices] == ["0000:17:00.0"]


CGROUPS = {
    "none": ("0::/\n", {}, None),
    "no limit": ("0::/a\n", {"a/cpu.max": "max 100000"}, None),
    "own": ("0::/a\n", {"a/cpu.max": "400000 100000"}, 4.0),
    "half a CPU": ("0::/a\n", {"a/cpu.max": "50000 100000"}, 0.5),
    "the tightest of the parents": (
        "0::/a/b/c\n",
        {
            "a/cpu.max": "200000 100000",
            "a/b/cpu.max": "max 100000",
            "a/b/c/cpu.max": "300000 100000",
        },
        2.0,
    ),
    "only the mounted root": (
        "0::/../../b\n",
        {"cpu.max": "100000 100000", "../cpu.max": "1 2"},
        1.0,
    ),
    "version 1": (
        "4:cpu,cpuacct:/a\n0::/\n",
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "150000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
        1.5,
    ),
    "version 1, no limit": (
        "4:cpu,cpuacct:/a\n",
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "-1", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
        None,
    ),
    "another controller": ("3:memory:/a\n", {"memory/a/cpu.cfs_quota_us": "1"}, None),
}


@pytest.mark.parametrize(("cgroup", "files", "quota"), CGROUPS.values(), ids=CGROUPS)
def test_the_quota_of_the_cgroup(tmp_path: Path, cgroup, files, quota) -> None:
    for path, text in {"proc/self/cgroup": cgroup}.items() | {
        f"sys/fs/cgroup/{path}": text for path, text in files.items()
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = [each for each, _ in sysfs.cpu_quotas(Root(str(tmp_path)))]
    assert min(found, default=None) == quota


def test_allowed_is_cut_to_what_is_online(tree: Path) -> None:
    (tree / "proc/self/status").write_text("Cpus_allowed:\tff3\nMems_allowed:\t00000000,00000006\n")
    found = read(tree).allowed
    assert (found.cpus, found.nodes) == ({0, 1, 4, 5, 6, 7}, {1})


PARSERS = [
    sysfs.parse_number,
    sysfs.parse_distances,
    sysfs.parse_meminfo,
    sysfs.parse_status,
    sysfs.parse_cpu_max,
]


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
@given(text=st.text(max_size=40) | st.text("0123456789x- \nMemTotal:max", max_size=40))
def test_a_parser_raises_nothing_but_value_error(parser, text: str) -> None:
    try:
        parser(text)
    except ValueError:
        return
    assert parser(text) == parser(text)


@pytest.mark.parametrize(
    ("text", "number"), [("-1", -1), ("0x10de", 0x10DE), ("12", 12)], ids=["negative", "hex", "dec"]
)
def test_numbers(text: str, number: int) -> None:
    assert sysfs.parse_number(text) == number


@pytest.mark.parametrize("text", ["", "0 100000", "-5 100000", "1 0", "1 2 3", "1.5 1"])
def test_a_quota_that_no_kernel_writes_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        sysfs.parse_cpu_max(text)


@pytest.mark.parametrize("text", ["10 -1", "10 x"])
def test_distances_are_whole_numbers(text: str) -> None:
    with pytest.raises(ValueError):
        sysfs.parse_distances(text)
