"""The doctor: each check on a machine that has its fault, and on one that has not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace as changed
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines.build import build
from machines.shapes import SHAPES
from numabind import discover
from numabind._discover import Questions
from numabind._doctor import CHECKS, Scene, as_markdown, doctor, examine, limits
from numabind._finding import SEVERITIES, Finding
from numabind._machine import Partition
from numabind._record import replace
from numabind._report.findings import findings_text
from numabind._sysfs import Root
from samples import SHM

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).with_name("numabind")
NO_RUNTIME = Questions(runtime=False)
Files = dict[str, str]


@cache
def built(shape: str, **changes: Any) -> Path:
    """The tree of this shape; many files, so it is written once."""
    directory = Path(tempfile.mkdtemp(dir=SHM))
    _made.append(directory)
    return build(changed(SHAPES[shape], **changes), directory)


def scene(
    shape: str, files: Files | None = None, environ: dict[str, str] | None = None, **changes: Any
) -> Scene:
    """A machine of this shape with these files until the test's end, read."""
    directory = built(shape, **changes)
    for name, text in (files or {}).items():
        path = directory / name
        _before.append((path, path.read_bytes() if path.exists() else None))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Scene(Root(str(directory)), discover(directory, NO_RUNTIME), environ or {})


_made: list[Path] = []
_before: list[tuple[Path, bytes | None]] = []


@pytest.fixture(autouse=True)
def _put_back() -> Any:
    yield
    while _before:
        path, data = _before.pop()
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)


@pytest.fixture(autouse=True, scope="module")
def _clean() -> Any:
    yield
    while _made:
        shutil.rmtree(_made.pop())


def named(scene: Scene, name: str) -> list[Finding]:
    """What the check of this name finds."""
    (check,) = (check for check in CHECKS if check.name == name)
    return list(check.look(scene))


NODE = "sys/devices/system/node"
PCI = "sys/bus/pci/devices"
# hgx_h100: two nodes, four GPUs on each; the first on node 0.
H100 = "hgx_h100"
FIRST = SHAPES[H100].gpus[0].pci


def meminfo(node: int, free_kib: int, total_kib: int = 1 << 20, cache_kib: int = 0) -> str:
    return (
        f"Node {node} MemTotal:       {total_kib} kB\n"
        f"Node {node} MemFree:        {free_kib} kB\n"
        f"Node {node} Inactive(file): {cache_kib} kB\n"
    )


GUEST = "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n"


def large(pid: int, gib: int, policy: str) -> Files:
    """A process with that much memory of its own, under this policy."""
    return {
        f"proc/{pid}/status": f"Name:\tpython\nRssAnon:\t{gib << 20} kB\n",
        f"proc/{pid}/numa_maps": f"555500000000 {policy} file=/usr/bin/python3 mapped=1 N0=1\n",
        f"proc/{pid}/cgroup": "0::/job\n",
    }


def group(limit: str, used: str, cache: str = "0") -> Files:
    """The cgroup of this process with these bytes."""
    base = "sys/fs/cgroup/pod"
    return {
        "proc/self/cgroup": "0::/pod\n",
        f"{base}/memory.max": f"{limit}\n",
        f"{base}/memory.current": f"{used}\n",
        f"{base}/memory.stat": f"anon 1\ninactive_file {cache}\n",
    }


def frequency(driver: str, governor: str, preference: str) -> Files:
    """How the first two CPUs are driven."""
    base = "sys/devices/system/cpu/cpufreq/policy0"
    return {
        f"{base}/related_cpus": "0 1\n",
        f"{base}/scaling_driver": f"{driver}\n",
        f"{base}/scaling_governor": f"{governor}\n",
        f"{base}/energy_performance_preference": f"{preference}\n",
    }


SWAP = {
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2\tpartition\t9\t0\t-2\n",
    "proc/sys/vm/swappiness": "60\n",
}
NO_SWAP = {"sys/fs/cgroup/job/memory.swap.max": "0\n"}
GIB = 1 << 30
# The first GPU's slot: what a narrow one says, and one of an older generation.
NARROW = {f"{PCI}/{FIRST}/{which}_link_width": "8\n" for which in ("current", "max")}
OLD = {f"{PCI}/{FIRST}/{which}_link_speed": "8.0 GT/s PCIe\n" for which in ("current", "max")}
CROWDED = tuple(changed(gpu, numa_node=0) for gpu in SHAPES["snc2_smt"].gpus)
MSI = {f"{PCI}/{FIRST}/msi_irqs/77": "msi\n"}
NIC = {
    f"{PCI}/0000:77:00.0/class": "0x020000\n",
    f"{PCI}/0000:77:00.0/numa_node": "1\n",
    f"{PCI}/0000:77:00.0/msi_irqs/78": "msix\n",
}
# check: shape, files, environment, changes of the shape; severities that are found.
Case = tuple[str, Files, dict[str, str], dict[str, Any], list[str]]
CASES: dict[str, tuple[str, Case]] = {
    "balancing": ("numa-balancing", (H100, {}, {}, {"numa_balancing": 1}, ["warning"])),
    "balancing, off": ("numa-balancing", (H100, {}, {}, {}, [])),
    "balancing, no GPU": (
        "numa-balancing",
        (H100, {}, {}, {"numa_balancing": 1, "gpus": ()}, ["note"]),
    ),
    "balancing, one node": (
        "numa-balancing",
        ("one_node", {}, {}, {"numa_balancing": 1}, []),
    ),
    "isolated": (
        "isolated-cpus",
        (H100, {"sys/devices/system/cpu/isolated": "8-11,300\n"}, {}, {}, ["warning"]),
    ),
    "nohz": (
        "isolated-cpus",
        (H100, {"sys/devices/system/cpu/nohz_full": "8-11\n"}, {}, {}, ["note"]),
    ),
    "isolated, none": (
        "isolated-cpus",
        (
            H100,
            {
                "sys/devices/system/cpu/isolated": "\n",
                "sys/devices/system/cpu/nohz_full": "  (null)\n",
            },
            {},
            {},
            [],
        ),
    ),
    "isolated, not allowed": (
        "isolated-cpus",
        (
            H100,
            {"sys/devices/system/cpu/isolated": "8-11\n"},
            {},
            {"allowed_cpus": "0-7,56-60"},
            [],
        ),
    ),
    "limit": (
        "memory-limited",
        (H100, group(str(16 * GIB), str(8 * GIB)), {}, {}, ["note"]),
    ),
    "limit, reached": (
        "memory-limited",
        (H100, group(str(16 * GIB), str(16 * GIB)), {}, {}, ["warning"]),
    ),
    "limit, full of cache": (
        "memory-limited",
        (H100, group(str(1 << 50), str(1 << 50), str(1 << 49)), {}, {}, []),
    ),
    "limit, none": ("memory-limited", (H100, group("max", str(8 * GIB)), {}, {}, [])),
    "nodes off": (
        "nodes-not-real",
        (H100, {"proc/cmdline": "root=/dev/sda1 numa=off quiet\n"}, {}, {}, ["warning"]),
    ),
    "nodes off, one package": (
        "nodes-not-real",
        ("one_node", {"proc/cmdline": "numa=off\n"}, {}, {}, ["note"]),
    ),
    "nodes made up": (
        "nodes-not-real",
        ("one_node", {"proc/cmdline": "numa=fake=4\n"}, {}, {}, ["warning"]),
    ),
    "nodes, real": (
        "nodes-not-real",
        (H100, {"proc/cmdline": "numa_balancing=disable numa=nohmat\n"}, {}, {}, []),
    ),
    "slow": (
        "cpus-kept-slow",
        (H100, frequency("acpi-cpufreq", "powersave", ""), {}, {}, ["warning"]),
    ),
    "slow, passive": (
        "cpus-kept-slow",
        (H100, frequency("intel_cpufreq", "powersave", "power"), {}, {}, ["warning"]),
    ),
    "sparing": (
        "cpus-kept-slow",
        (H100, frequency("intel_pstate", "powersave", "power"), {}, {}, ["note"]),
    ),
    "fast, Intel's default": (
        "cpus-kept-slow",
        (H100, frequency("intel_pstate", "powersave", "balance_performance"), {}, {}, []),
    ),
    "fast": ("cpus-kept-slow", (H100, frequency("acpi-cpufreq", "schedutil", ""), {}, {}, [])),
    "swap": (
        "bound-memory-swaps",
        (H100, {**SWAP, **large(77, 64, "bind:0")}, {}, {}, ["warning"]),
    ),
    "swap, to come": (
        "bound-memory-swaps",
        (H100, SWAP, {"NUMABIND_MEMORY": "bind"}, {}, ["warning"]),
    ),
    "swap, prefer": (
        "bound-memory-swaps",
        (H100, {**SWAP, **large(77, 64, "prefer (many):0")}, {}, {}, []),
    ),
    "swap, refused by the cgroup": (
        "bound-memory-swaps",
        (H100, {**SWAP, **large(77, 64, "bind:0"), **NO_SWAP}, {}, {}, []),
    ),
    "swap, none": (
        "bound-memory-swaps",
        (H100, {"proc/swaps": "Filename\tType\n", **large(77, 64, "bind:0")}, {}, {}, []),
    ),
    "narrow slot": ("link-below-its-peers", (H100, NARROW, {}, {}, ["warning"])),
    "old slot": ("link-below-its-peers", (H100, OLD, {}, {}, ["warning"])),
    "slots, alike": ("link-below-its-peers", (H100, {}, {}, {}, [])),
    "a bad contact": (
        "link-below-its-peers",
        (H100, {f"{PCI}/{FIRST}/current_link_width": "8\n"}, {}, {}, []),
    ),
    "narrow slot of another model": (
        "link-below-its-peers",
        (H100, {**NARROW, f"{PCI}/{FIRST}/device": "0x20b0\n"}, {}, {}, []),
    ),
    "reclaim": (
        "zone-reclaim",
        (H100, {"proc/sys/vm/zone_reclaim_mode": "1\n"}, {}, {}, ["warning"]),
    ),
    "reclaim, off": ("zone-reclaim", (H100, {"proc/sys/vm/zone_reclaim_mode": "0\n"}, {}, {}, [])),
    "thp": (
        "no-huge-pages",
        (
            H100,
            {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"},
            {},
            {},
            ["note"],
        ),
    ),
    "thp, madvise": (
        "no-huge-pages",
        (
            H100,
            {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"},
            {},
            {},
            [],
        ),
    ),
    "full node": (
        "node-memory-low",
        (H100, {f"{NODE}/node1/meminfo": meminfo(1, 1 << 15)}, {}, {}, ["warning"]),
    ),
    "full of cache": (
        "node-memory-low",
        (H100, {f"{NODE}/node1/meminfo": meminfo(1, 1 << 15, cache_kib=1 << 18)}, {}, {}, []),
    ),
    "huge pages": (
        "huge-pages-elsewhere",
        (
            H100,
            {
                f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages": "64\n",
                f"{NODE}/node1/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
            },
            {},
            {},
            ["warning"],
        ),
    ),
    "huge pages, nowhere": (
        "huge-pages-elsewhere",
        (
            H100,
            {
                f"{NODE}/node{node}/hugepages/hugepages-2048kB/nr_hugepages": "0\n"
                for node in (0, 1)
            },
            {},
            {},
            [],
        ),
    ),
    "unknown node": ("no-numa-node", ("all_minus_one", {}, {}, {}, ["serious"] * 4)),
    "known node": ("no-numa-node", (H100, {}, {}, {}, [])),
    "contradiction": (
        "machine-contradicts-itself",
        (H100, {f"{PCI}/{FIRST}/numa_node": "1\n"}, {}, {}, ["warning"]),
    ),
    "no contradiction": ("machine-contradicts-itself", (H100, {}, {}, {}, [])),
    "cpus": (
        "cpus-not-allowed",
        (H100, {}, {}, {"allowed_cpus": "0-3"}, ["note", "serious"]),
    ),
    "cpus, all": ("cpus-not-allowed", (H100, {}, {}, {}, [])),
    "memory": (
        "memory-not-allowed",
        (H100, {}, {}, {"allowed_nodes": "0"}, ["serious"]),
    ),
    "memory, all": ("memory-not-allowed", (H100, {}, {}, {}, [])),
    "quota": ("cpu-time-limited", (H100, {}, {}, {"cpu_max": "400000 100000"}, ["note"])),
    "quota, none": ("cpu-time-limited", (H100, {}, {}, {}, [])),
    "one thread": ("one-openmp-thread", (H100, {}, {"OMP_NUM_THREADS": "1"}, {}, ["note"])),
    "several threads": ("one-openmp-thread", (H100, {}, {"OMP_NUM_THREADS": "8"}, {}, [])),
    "openmp": (
        "openmp-binds",
        (
            H100,
            {},
            {"OMP_PROC_BIND": "close", "KMP_AFFINITY": "granularity=fine,compact"},
            {},
            ["warning"] * 2,
        ),
    ),
    "CPU 0 for all": ("openmp-binds", (H100, {}, {"GOMP_CPU_AFFINITY": "0"}, {}, ["warning"])),
    "openmp, off": (
        "openmp-binds",
        (H100, {}, {"OMP_PROC_BIND": "false", "KMP_AFFINITY": "verbose,none"}, {}, []),
    ),
    "openmp places": ("openmp-binds", (H100, {}, {"OMP_PLACES": "cores"}, {}, ["warning"])),
    "openmp places, off": (
        "openmp-binds",
        (H100, {}, {"OMP_PLACES": "cores", "OMP_PROC_BIND": "false"}, {}, []),
    ),
    "framework": (
        "framework-binds",
        (H100, {}, {"SGLANG_SET_CPU_AFFINITY": "1", "I_MPI_PIN": "on"}, {}, ["warning"] * 2),
    ),
    "framework, off": ("framework-binds", (H100, {}, {"SGLANG_SET_CPU_AFFINITY": "0"}, {}, [])),
    "nccl": (
        "nccl-ignores-affinity",
        (H100, {}, {"NCCL_IGNORE_CPU_AFFINITY": "1"}, {}, ["warning"]),
    ),
    "nccl, off": ("nccl-ignores-affinity", (H100, {}, {"NCCL_IGNORE_CPU_AFFINITY": "0"}, {}, [])),
    "order": (
        "device-order-unknown",
        (H100, {f"{PCI}/{FIRST}/device": "0x20b0\n"}, {}, {}, ["serious"]),
    ),
    "order, set": (
        "device-order-unknown",
        (
            H100,
            {f"{PCI}/{FIRST}/device": "0x20b0\n"},
            {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            {},
            [],
        ),
    ),
    "cpus of a hidden GPU": (
        "cpus-not-allowed",
        (H100, {}, {"CUDA_VISIBLE_DEVICES": "0"}, {"allowed_cpus": "0-55,112-167"}, []),
    ),
    "no number": (
        "link-below-its-best",
        (H100, {f"{PCI}/{FIRST}/current_link_width": "--5\n"}, {}, {}, []),
    ),
    "order, alike": ("device-order-unknown", (H100, {}, {}, {}, [])),
    "off": ("turned-off", (H100, {}, {"NUMABIND": "0"}, {}, ["note"])),
    "on": ("turned-off", (H100, {}, {"NUMABIND": "1"}, {}, [])),
    "width": (
        "link-below-its-best",
        (H100, {f"{PCI}/{FIRST}/current_link_width": "8\n"}, {}, {}, ["warning"]),
    ),
    "speed": (
        "link-below-its-best",
        (H100, {f"{PCI}/{FIRST}/current_link_speed": "2.5 GT/s PCIe\n"}, {}, {}, ["note"]),
    ),
    "link": ("link-below-its-best", (H100, {}, {}, {}, [])),
    "interrupts": (
        "interrupts-elsewhere",
        (H100, {**MSI, "proc/irq/77/effective_affinity_list": "60\n"}, {}, {}, ["warning"]),
    ),
    "interrupts, near": (
        "interrupts-elsewhere",
        (H100, {**MSI, "proc/irq/77/effective_affinity_list": "3\n"}, {}, {}, []),
    ),
    "interrupts of a NIC": (
        "interrupts-elsewhere",
        (H100, {**NIC, "proc/irq/78/smp_affinity_list": "0-3\n"}, {}, {}, ["warning"]),
    ),
    "interrupts, not requested": (
        "interrupts-elsewhere",
        (H100, {**NIC, "proc/irq/78/effective_affinity_list": "\n"}, {}, {}, []),
    ),
    "irqbalance": ("irqbalance-runs", (H100, {"proc/99/comm": "irqbalance\n"}, {}, {}, ["note"])),
    "no irqbalance": ("irqbalance-runs", (H100, {"proc/99/comm": "sshd\n"}, {}, {}, [])),
    "flat guest": (
        "guest-hides-topology",
        ("all_gpus_on_one_node", {"proc/cpuinfo": GUEST}, {}, {}, ["warning"]),
    ),
    "guest of one node": (
        "guest-hides-topology",
        ("vm_one_node", {"proc/cpuinfo": GUEST}, {}, {"gpus": SHAPES[H100].gpus[:2]}, ["note"]),
    ),
    "guest that tells": ("guest-hides-topology", (H100, {"proc/cpuinfo": GUEST}, {}, {}, [])),
    "no guest": (
        "guest-hides-topology",
        ("all_gpus_on_one_node", {"proc/cpuinfo": GUEST.replace("hypervisor ", "")}, {}, {}, []),
    ),
    "one package": ("gpus-on-one-package", ("all_gpus_on_one_node", {}, {}, {}, ["note"])),
    "two packages": ("gpus-on-one-package", (H100, {}, {}, {}, [])),
    "crowded": ("gpus-crowd-one-node", ("snc2_smt", {}, {}, {"gpus": CROWDED}, ["warning"])),
    "not crowded": ("gpus-crowd-one-node", (H100, {}, {}, {}, [])),
}


@pytest.mark.parametrize("case", CASES)
def test_a_check(case: str) -> None:
    name, (shape, files, environ, changes, severities) = CASES[case]
    found = named(scene(shape, files, environ, **changes), name)
    assert [finding.severity for finding in found] == severities, found
    for finding in found:
        assert finding.name == name
        assert finding.evidence
        assert finding.remedy


def test_every_check_has_cases_for_and_against() -> None:
    covered: dict[str, set[bool]] = {}
    for name, case in CASES.values():
        covered.setdefault(name, set()).add(bool(case[-1]))
    elsewhere = {"no-topology", "inherited-mask", "memory-policy-denied", "multi-instance"}
    assert {check.name for check in CHECKS} == set(covered) | elsewhere
    assert all(both == {True, False} for both in covered.values())


def test_nodes_that_cannot_be_seen(tmp_path: Path) -> None:
    shown = scene("one_node")
    assert named(shown, "no-topology") == []
    build(SHAPES["bare"], tmp_path)
    machine = discover(tmp_path, NO_RUNTIME)
    shutil.rmtree(tmp_path / NODE, ignore_errors=True)
    status = tmp_path / "proc/self/status"
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text("Name:\tx\nMems_allowed_list:\t0-1\n")
    (found,) = named(Scene(Root(str(tmp_path)), machine, {}), "no-topology")
    assert found.severity == "serious"
    assert "nodes 0-1" in found.cause


def test_multi_instance() -> None:
    plain = scene(H100)
    assert named(plain, "multi-instance") == []
    first, *others = plain.machine.devices
    split = replace(first, partitions=(Partition("MIG-1", 1, 0), Partition("MIG-2", 2, 0)))
    machine = replace(plain.machine, devices=(split, *others))
    (found,) = named(replace(plain, machine=machine), "multi-instance")
    assert (found.severity, "2 MIG instances" in found.cause) == ("note", True)


def test_an_inherited_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    here = Scene(Root("/"), discover(), {})
    assert named(here, "inherited-mask") == []
    code = "from numabind._doctor import doctor; print([f.name for f in doctor({})])"
    done = subprocess.run(
        ["taskset", "-c", str(cpus[0]), sys.executable, "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ("inherited-mask" in done.stdout) == (len(cpus) > 1)


DENIED = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import kernel
kernel.deny(["get_mempolicy", "set_mempolicy"])
from numabind._doctor import doctor
for finding in doctor({}):
    print(finding.name, finding.evidence)
"""


def test_a_seccomp_filter() -> None:
    guest = str(ROOT / "tests/vm/guest")
    done = subprocess.run(
        [sys.executable, "-c", DENIED, guest], capture_output=True, text=True, check=True
    )
    assert (
        "memory-policy-denied get_mempolicy: EPERM; /proc/self/status: Seccomp = 2" in done.stdout
    )
    assert list(limits.MemoryPolicyDenied().look(Scene(Root("/"), discover(), {}))) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_every_machine_can_be_examined(shape: str) -> None:
    found = examine(scene(shape))
    order = [SEVERITIES.index(finding.severity) for finding in found]
    assert order == sorted(order)
    assert findings_text(found)


def test_a_machine_that_cannot_be_read(tmp_path: Path) -> None:
    (found,) = doctor({}, str(tmp_path))
    assert (found.name, found.severity) == ("machine-unreadable", "serious")


def test_balancing_names_the_largest_process_that_it_moves() -> None:
    files = {**large(77, 64, "default"), **large(78, 80, "prefer:0"), **large(79, 2, "default")}
    (found,) = named(scene(H100, files, numa_balancing=1), "numa-balancing")
    assert found.cause.endswith(": 64.0 GiB of process 77 (python), say")


READ = [
    "proc/sys/kernel/numa_balancing",
    "proc/cmdline",
    "proc/swaps",
    "proc/99/status",
    "proc/99/numa_maps",
    "proc/self/cgroup",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/nohz_full",
    "sys/devices/system/cpu/cpufreq/policy0/related_cpus",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
    "sys/fs/cgroup/memory.max",
    "proc/sys/vm/zone_reclaim_mode",
    "sys/kernel/mm/transparent_hugepage/enabled",
    f"{NODE}/node0/meminfo",
    f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages",
    f"{PCI}/{FIRST}/current_link_width",
    f"{PCI}/{FIRST}/max_link_speed",
    f"{PCI}/{FIRST}/msi_irqs/77",
    "proc/irq/77/effective_affinity_list",
    "proc/99/comm",
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    directory = tmp_path_factory.mktemp("tree")
    build(SHAPES[H100], directory)
    return Scene(Root(str(directory)), discover(directory, NO_RUNTIME), {})


@settings(deadline=None)
@given(st.sampled_from(READ), st.binary(max_size=200))
def test_garbage_is_no_finding_and_no_crash(tree: Scene, name: str, data: bytes) -> None:
    path = Path(tree.root.path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(data)
    try:
        examine(tree)
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


@given(st.dictionaries(
    st.sampled_from(["OMP_NUM_THREADS", "KMP_AFFINITY", "NUMABIND", "CUDA_DEVICE_ORDER"]),
    st.text(),
))  # fmt: skip
def test_any_environment(tree: Scene, environ: dict[str, str]) -> None:
    for finding in examine(replace(tree, environ=environ)):
        assert finding.severity in SEVERITIES


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {"PATH": os.environ["PATH"]}
    return subprocess.run(
        [str(BIN), "doctor", *words], env={**kept, **environ}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_the_command_on_this_machine() -> None:
    done = command(OMP_PROC_BIND="close", TERM="dumb")
    assert done.stderr == ""
    assert "warning: openmp-binds: " in done.stdout
    assert "  seen in: OMP_PROC_BIND = close\n  remedy: unset OMP_PROC_BIND\n" in done.stdout
    found = json.loads(command("--json", OMP_PROC_BIND="close").stdout)
    assert found["schema"] == 1
    assert {"name": "openmp-binds", "severity": "warning"}.items() <= found["findings"][0].items()


def test_exit_codes(tmp_path: Path) -> None:
    build(SHAPES["all_minus_one"], tmp_path)
    done = command("--root", str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("4 serious, ")
    (tmp_path / "fine").mkdir()
    build(SHAPES[H100], tmp_path / "fine")
    assert command("--root", str(tmp_path / "fine")).returncode == 0
    gone = command("--root", str(tmp_path / "gone"))
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)


def test_nothing_found() -> None:
    assert findings_text(()) == "Nothing on this machine works against locality."


def test_the_page_is_made_from_the_checks() -> None:
    assert (ROOT / "docs/doctor.md").read_text() == as_markdown()
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))
