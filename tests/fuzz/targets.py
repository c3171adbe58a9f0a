"""What is fuzzed, as functions that hypothesis calls; TARGETS names them.

Each asks two things of whatever it is given. No traceback: only numabind's own errors leave. No
wrong bind: a plan's CPUs are online and allowed, its memory nodes are in Mems_allowed.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.damage import DAMAGES, DATA, LIST, NUMBERS, Damage, damaged, files_of
from machines.build import build
from machines.spec import GpuSpec, NodeSpec, Shape, paired
from numabind import NumabindError, UsageError, bind, plan
from numabind._bind import Request, prepare
from numabind._catalogue import CATALOGUE
from numabind._cli import main
from numabind._discover import Questions, discover, discover_here
from numabind._doctor import doctor
from numabind._errors import MachineError
from numabind._machine import Machine
from numabind._options import MEMORY, MODES, make_options, options_of
from numabind._pci import parse_map
from numabind._report.html import page
from numabind._report.text import machine_text, plan_text
from numabind._residency import bytes_by_node, parse_numa_maps, read_numa_maps
from numabind._sysfs import Root
from numabind._visible import visible
from samples import CPUS, SHM, machine, pretend

NO_RUNTIME = Questions(runtime=False)
AMD = {"vendor": 0x1002, "device": 0x74A1, "klass": 0x120000, "driver": "amdgpu"}
# Small, since each file is damaged in turn: two nodes with CPUs, one of a GPU's own memory, a cut
# cpuset, a quota, and devices that differ in what the firmware says of them.
SMALL = Shape(
    (NodeSpec(0, "0-1,4-5"), NodeSpec(1, "2-3,6-7", 1), NodeSpec(2, kind="gpu")),
    paired(4),
    (
        GpuSpec("0000:17:00.0", 0, memory_node=2),
        GpuSpec("0000:b3:00.0", 1),
        GpuSpec("0000:c1:00.0", -1, local_cpulist="2-3,6-7", **AMD),
    ),
    allowed_cpus="0-2,4-7",
    allowed_nodes="0-1",
    cgroup="/job",
    cpu_max="300000 100000",
)
ALLOWED, MEMS = frozenset({0, 1, 2, 4, 5, 6, 7}), frozenset({0, 1})
TRUE_NODES = {"0000:17:00.0": 0, "0000:b3:00.0": 1, "0000:c1:00.0": 1}


class Tree:
    """The machine on disk, once for a process."""

    def __init__(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="fuzz", dir=SHM))
        atexit.register(shutil.rmtree, self.scratch, ignore_errors=True)
        self.root = build(SMALL, self.scratch / "root")
        self.aside = self.scratch / "aside"
        self.aside.mkdir()
        self.paths = files_of(self.root)


@cache
def tree() -> Tree:
    """The one tree."""
    return Tree()


def check_plan(found: Machine, cpus: frozenset[int], mems: frozenset[int]) -> None:
    """Plan in every way; nothing may be outside of `cpus` and `mems`, and JSON must come of it."""
    online = frozenset(cpu.id for cpu in found.cpus)
    for mode, smt in product(MODES, (True, False)):
        for workers, reserve in ((None, 0), (5, 1)):
            share = "cyclic" if workers else None
            try:
                made = plan(found, workers, mode=mode, smt=smt, reserve=reserve, share=share)
            except UsageError:
                continue
            for place in made.placements:
                assert place.cpus <= found.allowed.cpus & online & cpus, place
                assert place.memory_nodes <= found.allowed.nodes & mems, place
                assert not place.bound or place.cpus, place
                assert place.threads >= 1
                assert {said.name for said in place.problems} <= CATALOGUE.keys()
            json.dumps(made.as_dict())
            plan_text(made)


def truth(hit: set[str], machine: Machine) -> tuple[frozenset[int], frozenset[int]]:
    """What may be used, as far as the files that say so are whole."""
    touched = {path for path in hit if "status" in path or f"{path}/".startswith("proc/self/")}
    touched |= hit & {"proc"}
    if touched:
        return machine.allowed.cpus, machine.allowed.nodes
    return ALLOWED, MEMS


def trees(damages: list[Damage]) -> None:
    """A machine with damaged files is read, or refused by name; a GPU's node is never a wrong one.

    Wrong is what the files don't say: only damage to what the node is told by may change it.
    """
    here = tree()
    with damaged(here.root, here.aside, here.paths, damages) as hit:
        try:
            found = discover(here.root, NO_RUNTIME)
        except MachineError as error:
            assert str(here.root) in str(error)
            doctor({}, str(here.root))
            return
        check_plan(found, *truth(hit, found))
        if not any("node" in p or "local_cpu" in p or "online" in p or "pci" in p for p in hit):
            told = ("sys", "sys/devices", "sys/devices/system", "sys/bus")
            if not hit & set(told):
                for device in found.devices:
                    assert device.node == TRUE_NODES[device.pci], (device, hit)
        assert Machine.from_dict(json.loads(json.dumps(found.as_dict()))) is not None
        machine_text(found)
        page(found, plan(found), (), doctor({}, str(here.root)), "now")


# -- snapshots

JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=8) | LIST,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def _spots(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The way to every value in a JSON document."""
    found = [path] if path else []
    items = enumerate(value) if isinstance(value, list) else ()
    pairs = value.items() if isinstance(value, dict) else items
    for key, inner in pairs:
        found += _spots(inner, (*path, key))
    return found


@cache
def _document(name: str) -> str:
    return json.dumps((machine(SMALL) if name == "small" else machine(name)).as_dict())


CHANGES = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.sampled_from(["set", "del", "copy"]), JSON),
    min_size=1,
    max_size=4,
)


def changed(document: str, changes: list[tuple[int, str, object]]) -> object:
    """A JSON document with values replaced, left out, or copied from another place."""
    data = json.loads(document)
    for number, kind, value in changes:
        spots = _spots(data)
        if not spots:
            break
        *way, last = spots[number % len(spots)]
        owner = data
        for key in way:
            owner = owner[key]
        if kind == "del":
            del owner[last]
        elif kind == "copy":
            source = data
            for key in spots[number * 7919 % len(spots)]:
                source = source[key]
            owner[last] = json.loads(json.dumps(source))
        else:
            owner[last] = value
    return data


def snapshots(name: str, changes: list[tuple[int, str, object]], tail: bytes) -> None:
    """A changed snapshot is read or refused by name, and planned within what it allows."""
    text = json.dumps(changed(_document(name), changes)).encode()
    if len(tail) == 3:
        text = text[: len(text) * tail[0] // 256] + tail + text[len(text) * tail[1] // 256 :]
    file = tree().scratch / "snapshot.json"
    file.write_bytes(text)
    try:
        found = Machine.load(file)
    except MachineError as error:
        assert str(file) in str(error)
        return
    check_plan(found, found.allowed.cpus, found.allowed.nodes)
    machine_text(found)
    page(found, plan(found), (), (), "now")
    again = Machine.from_dict(json.loads(json.dumps(found.as_dict())))
    assert again == found


# -- numa_maps

LINE = st.one_of(
    st.sampled_from(
        [
            "7f0e40000000 prefer (many):1 anon=16384 dirty=16384 N1=16384 kernelpagesize_kB=4",
            "7f0e40000000 weighted interleave:0-1 file=/a\\040b huge dirty=2 N0=2",
            "0400000 bind=static:0 heap anon=1 N0=1 kernelpagesize_kB=4",
            "7ffc0000 default stack anon=3 N0=3",
        ]
    ),
    st.lists(
        st.one_of(
            st.sampled_from(
                ["7f00", "default", "prefer", "(many):0", "weighted", "interleave:0-1", "huge"]
            ),
            st.builds("{}={}".format, st.sampled_from(["N0", "N", "anon", "file"]), NUMBERS),
            st.text(max_size=6),
        ),
        max_size=7,
    ).map(" ".join),
)


def numa_maps(lines: list[str], tail: bytes) -> None:
    """Any text of numa_maps is counted or refused; what is counted is not negative."""
    text = "\n".join(lines)
    try:
        mappings = parse_numa_maps(text)
    except ValueError:
        mappings = ()
    assert all(number >= 0 for number in bytes_by_node(mappings).values())
    root = tree().scratch / "books"
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8", "surrogatepass") + tail
    (root / "proc/self/numa_maps").write_bytes(data)
    try:
        read = read_numa_maps(Root(str(root)))
    except MachineError as error:
        assert "numa_maps" in str(error)
    else:
        assert read is not None


# -- the environment

WORDS = st.one_of(
    NUMBERS.map(str),
    LIST,
    st.sampled_from(
        [
            *("", " ", "-1", "0", "1", "0,1", "1,0", "0,0", "4(x2),3", "none", "all", "void"),
            *("GPU-", "GPU-000", "MIG-", "MIG-GPU-000/1/2", "0.1", "PCI_BUS_ID", "a100:2"),
            *("gpu:per_task:2", "gpu:per_task:x", "gpu:single:1", *MODES, *MEMORY),
            *("level_zero:0", "*:*.*", "!level_zero:1;*:gpu", "COMPOSITE", "compact", "{0:4}"),
            *("OFF", "true", "\N{ARABIC-INDIC DIGIT THREE}", "1e3", "0x1", "+1", "1_0"),
        ]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
)
VARIABLES = (
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    *("MPI_LOCALNRANKS", "JSM_NAMESPACE_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID"),
    *("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID"),
    *("SLURM_GPUS_PER_TASK", "SLURMD_TRES_BIND", "SLURM_CPU_BIND", "TORCHELASTIC_RUN_ID"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "HABANA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_PROC_BIND"),
    *("NUMABIND", "NUMABIND_MODE", "NUMABIND_MEMORY", "NUMABIND_STRICT", "NUMABIND_BOUND"),
    *("NUMABIND_LAUNCH", "NUMABIND_LAUNCH_BEFORE", "ONEAPI_DEVICE_SELECTOR", "OMP_PLACES"),
    *("KMP_AFFINITY", "GOMP_CPU_AFFINITY", "ZE_FLAT_DEVICE_HIERARCHY"),
)
MARK = st.lists(WORDS | st.sampled_from(["-", "0000:01:00.0", "node,none,1,0,None"]), max_size=8)
ENVIRONS = st.dictionaries(st.sampled_from(VARIABLES), WORDS, max_size=6)


@cache
def _pretended() -> str:
    folder = Path(tempfile.mkdtemp(dir=tree().scratch))
    return str(pretend(folder))


def environments(environ: dict[str, str], mark: str | None, name: str) -> None:
    """Variables of any text choose a device or are refused; the place is within what is allowed."""
    if mark is not None:
        environ = {**environ, "NUMABIND_BOUND": mark}
    found = machine(SMALL if name == "small" else name)
    try:
        seen = visible(found, environ)
        given_options = options_of(environ)
        for place in plan(found, None, seen, **given_options).placements:
            assert place.cpus <= found.allowed.cpus
    except UsageError:
        pass
    environ = {**environ, "NUMABIND_SNAPSHOT": _pretended()}
    try:
        request = Request(make_options(options_of(environ)), environ)
        _, place = prepare(request)
    except NumabindError:
        return
    assert place.cpus <= frozenset(CPUS)
    doctor(environ)


def binds(environ: dict[str, str], mark: str | None) -> None:
    """`bind()` in a child of its own returns whatever the environment says, within the mask."""
    for name in VARIABLES:
        os.environ.pop(name, None)
    environ = {**environ, "NUMABIND_SNAPSHOT": _pretended(), "NUMABIND_MEMORY": "none"}
    if mark is not None:
        environ["NUMABIND_BOUND"] = mark
    born = frozenset(os.sched_getaffinity(0))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        said = "died"
        try:
            os.environ.update(environ)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                binding = bind()
            except NumabindError:
                said = "refused" if environ.get("NUMABIND_STRICT", "").strip() == "1" else "raised"
            else:
                now = frozenset(os.sched_getaffinity(0))
                so = now <= born and (now == binding.cpus if binding.bound else now == born)
                said = "fine" if so else f"{now} of {born}: {binding}"
                binding.restore()
        except BaseException as error:
            said = repr(error)
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    assert said in ("fine", "refused"), said


# -- NUMABIND_MAP

MAP_LINE = st.one_of(
    st.builds(
        "{} {}{}".format,
        st.sampled_from(["0000:17:00.0", "b3:00.0", "GPU-", "GPU-0", "0000:c1:00.0", "17:00"]),
        st.sampled_from(["nodes=", "cpus=", "node=", ""]),
        LIST | WORDS,
    ),
    st.text(max_size=20),
    st.just("# nothing"),
)


def maps(lines: list[str], tail: bytes) -> None:
    """A map of any text is used or refused, and no line of it lets a worker out of its cpuset."""
    text = "\n".join(lines)
    file = tree().scratch / "map"
    file.write_bytes(text.encode("utf-8", "surrogatepass") + (tail if len(tail) > 20 else b""))
    try:
        discover_here({"NUMABIND_MAP": str(file), "NUMABIND_SNAPSHOT": _pretended()}, NO_RUNTIME)
    except UsageError as error:
        assert "NUMABIND_" in str(error)
    try:
        overrides = parse_map(text)
        found = discover(tree().root, Questions(runtime=False, overrides=overrides))
    except (ValueError, UsageError):
        return
    check_plan(found, ALLOWED, MEMS)


# -- the command line

FLAG = st.sampled_from(
    [
        *("--mode", "--memory", "--no-smt", "--reserve", "--share", "--workers", "--json", "--gpu"),
        *("--root", "--snapshot", "--strict", "--quiet", "--", "-q", "--local-rank", "-o", "-n"),
        *("--min-local", "--pages", "--tree", "--anonymize", "--version", "--help", "--prometheus"),
    ]
)
VERB = st.sampled_from(["show", "plan", "snapshot", "doctor", "status", "run", "launch", "", "x"])


def commands(verb: str, words: list[str]) -> None:
    """Any words end in 0, 1 or 2, and what is wrong is said in one line."""
    words = [word for word in words if "/" not in word and word != "-o"]
    cut = words.index("--") if "--" in words else len(words)
    # Without a command: fuzzing must not start one. And `-o` and `top` would write and wait.
    words = [verb, *words[:cut]]
    if verb in ("run", "launch"):
        words = [verb, *(word for word in words[1:] if word.startswith("--")), "--gpu", "x"]
        words += ["--", "true"] if verb == "run" else []
    root = ["--root", str(tree().root)] if verb in ("show", "plan", "snapshot", "doctor") else []
    out, err = io.StringIO(), io.StringIO()
    if verb == "launch":
        words = ["launch", "--mode", "wrong", *words[1:-2], "--", "true"]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code: object = main([*words, *root])
        except SystemExit as ended:
            code = ended.code or 0
    assert code in (0, 1, 2), (words, code)
    if code == 2:
        assert err.getvalue().count("\n") == 1, (words, err.getvalue())


Target = tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]
TARGETS: dict[str, Target] = {
    "trees": (trees, (DAMAGES,)),
    "snapshots": (
        snapshots,
        (
            st.sampled_from(["small", "quota", "unlike_gpus", "sparse"]),
            CHANGES,
            st.binary(max_size=3),
        ),
    ),
    "numa-maps": (
        numa_maps,
        (
            st.lists(LINE | st.text(max_size=30), max_size=6),
            st.binary(max_size=8),
        ),
    ),
    "environments": (
        environments,
        (
            ENVIRONS,
            st.none() | MARK.map(" ".join),
            st.sampled_from(["small", "unlike_gpus", "mi300x"]),
        ),
    ),
    "binds": (
        binds,
        (
            ENVIRONS,
            st.none() | MARK.map(" ".join),
        ),
    ),
    "maps": (
        maps,
        (
            st.lists(MAP_LINE, max_size=4),
            DATA,
        ),
    ),
    "commands": (
        commands,
        (
            VERB,
            st.lists(FLAG | WORDS, max_size=5),
        ),
    ),
}


def fuzz(name: str, how: settings) -> None:
    """Run a target once over, as `how` says."""
    function, inputs = TARGETS[name]
    how(given(*inputs)(function))()
