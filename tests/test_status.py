"""What status makes of what it read: places, shares, samples, exit codes, text and metrics."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Self

import numabind
from launchers.pretend import ADDRESSES, ALL, CPUS, HALVES, write_snapshot
from machines.build import build
from machines.known import KNOWN
from machines.shapes import SHAPES
from numabind import _holders, _pages, _proc, discover
from numabind._arguments import StatusArguments, lean_status
from numabind._parser import make_parser
from numabind._process import Pages, Process, Stray
from numabind._report.status import prometheus_text, size, status_text
from numabind._residency import parse_numa_maps
from numabind._status import _elsewhere, _strays, with_share
from numabind._sysfs import Root
from numabind._vendors.amd import read_processes
from numabind._verbs import below
from samples import NO_RUNTIME

BIN = Path(sys.executable).with_name("numabind")
GIB = 1 << 30


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Make this machine one of two nodes with four GPUs."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "NUMABIND_SNAPSHOT": str(write_snapshot(tmp_path)), "NUMABIND_MEMORY": "none"}


def numabind_status(environ: dict[str, str], *words: str | int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN), "status", *map(str, words)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


class Worker:
    """A worker under `numabind run` that sleeps."""

    def __init__(self, environ: dict[str, str], *words: str) -> None:
        command = [str(BIN), "run", "--quiet", *words, "--", "sleep", "100"]
        self.process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)
        self.pid = self.process.pid
        deadline = time.monotonic() + 30
        while _proc.name(self.pid) != "sleep" and time.monotonic() < deadline:
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def only(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode in (0, 1), done.stderr
    (process,) = json.loads(done.stdout)["processes"]
    assert isinstance(process, dict)
    return process


# -- places


def test_what_numabind_bound_is_near_its_gpu(environ: dict[str, str]) -> None:
    with Worker(environ, "--gpu", ADDRESSES[3]) as worker:
        process = only(numabind_status(environ, "--json", worker.pid))
        assert process["devices"] == [ADDRESSES[3]]
        assert (process["device_source"], process["nodes"]) == ("numabind", "1")
        assert (process["threads"], process["threads_near"]) == (1, 1)
        os.sched_setaffinity(worker.pid, CPUS)
        process = only(numabind_status(environ, "--json", worker.pid))
        assert process["threads_near"] == 0
        (stray,) = process["threads_elsewhere"]
        assert (stray["tid"], stray["name"]) == (worker.pid, "sleep")
        assert "threads-elsewhere" in {said["name"] for said in process["problems"]}
        done = numabind_status(environ, "--min-local=0", worker.pid)
        assert done.returncode == 1
        assert "1 threads are elsewhere" in done.stderr


def test_a_mask_that_shrank_since(environ: dict[str, str], tmp_path: Path) -> None:
    snapshot = json.loads(Path(environ["NUMABIND_SNAPSHOT"]).read_text())
    first, second = snapshot["nodes"]
    first["cpus"], second["cpus"] = ALL, ""
    snapshot["cpus"] = [{**cpu, "node": 0} for cpu in snapshot["cpus"]]
    file = tmp_path / "whole.json"
    file.write_text(json.dumps(snapshot))
    environ = {**environ, "NUMABIND_SNAPSHOT": str(file)}
    with Worker(environ, "--gpu", ADDRESSES[0]) as worker:
        process = only(numabind_status(environ, "--json", worker.pid))
        assert "affinity-not-kept" not in {said["name"] for said in process["problems"]}
        os.sched_setaffinity(worker.pid, CPUS[:1])
        process = only(numabind_status(environ, "--json", worker.pid))
    (said,) = (s for s in process["problems"] if s["name"] == "affinity-not-kept")
    assert f"was given CPUs {ALL} and has {CPUS[0]}" in said["cause"]


def test_a_rank_in_the_environment_says_which_gpu(environ: dict[str, str]) -> None:
    with subprocess.Popen(["sleep", "100"], env={**environ, "LOCAL_RANK": "2"}) as worker:
        try:
            process = only(numabind_status(environ, "--json", worker.pid))
        finally:
            worker.kill()
    assert (process["devices"], process["device_source"]) == ([ADDRESSES[2]], "environment")
    assert process["threads_near"] == 0


def test_a_process_without_a_gpu_belongs_where_it_is_bound(environ: dict[str, str]) -> None:
    with subprocess.Popen(["sleep", "100"], env=environ) as plain:
        try:
            process = only(numabind_status(environ, "--json", plain.pid))
            assert (process["device_source"], process["nodes"]) == (None, None)
            assert process["verdict"] == "unknown"
            os.sched_setaffinity(plain.pid, HALVES[1])
            process = only(numabind_status(environ, "--json", plain.pid))
            assert (process["device_source"], process["nodes"]) == ("affinity", "1")
        finally:
            plain.kill()


def test_a_tree(environ: dict[str, str]) -> None:
    script = "sleep 100 & sleep 100 & wait"
    with subprocess.Popen(["sh", "-c", script], env=environ) as parent:
        try:
            while len(_proc.children(parent.pid)) < 2:
                time.sleep(0.02)
            family = [parent.pid, *_proc.children(parent.pid)]
            done = numabind_status(environ, "--json", "--tree", parent.pid)
            processes = json.loads(done.stdout)["processes"]
            assert [process["pid"] for process in processes] == family
        finally:
            for pid in family[1:]:
                os.kill(pid, 9)


def test_the_public_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMABIND_SNAPSHOT", raising=False)
    report = numabind.status([os.getpid()], method="numa_maps")
    (process,) = report.processes
    assert process.pid == os.getpid()
    assert process.threads == len(os.listdir("/proc/self/task"))
    assert process.pages is not None
    assert json.loads(json.dumps(report.as_dict()))["schema"] == 1
    resident = _proc.kibibytes(_proc.status(os.getpid()), "VmRSS")
    assert process.pages.resident == pytest.approx(resident, rel=0.1)


def test_nobody_holds_a_gpu_here(environ: dict[str, str]) -> None:
    done = numabind_status(environ)
    assert done.returncode == 0
    assert done.stdout.startswith("No process holds a GPU.")
    assert json.loads(numabind_status(environ, "--json").stdout)["processes"] == []


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no such process": (("4194305",), "no process 4194305"),
    "no number": (("abc",), "invalid int value"),
    "a negative one": (("--", "-5"), "no process -5"),
    "no such tree": (("--tree", "4194305"), "no process 4194305"),
    "a share that is none": (("--min-local", "95"), "95 is not from 0 to 1"),
    "a share that is a word": (("--min-local", "all"), "all is not from 0 to 1"),
    "an unknown way to count": (("--pages", "guess"), "invalid choice"),
    "two formats": (("--json", "--prometheus"), "choose one"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(environ: dict[str, str], words: tuple[str, ...], said: str) -> None:
    done = numabind_status(environ, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ([], {}),
        (["7", "8", "--json"], {"pids": (7, 8), "json": True}),
        (["--tree=7", "--pages", "sample"], {"tree": 7, "method": "sample"}),
        (["--min-local", "0.95", "--prometheus"], {"min_local": 0.95, "prometheus": True}),
    ],
)
def test_plain_words_are_read_as_argparse_reads_them(
    words: list[str], read: dict[str, Any]
) -> None:
    wanted = StatusArguments(**read)
    assert lean_status(["status", *words]) == wanted
    parsed = make_parser().parse_args(["status", *words])
    assert tuple(parsed.pids) == wanted.pids
    for name in ("tree", "method", "min_local", "prometheus"):
        assert getattr(parsed, name) == getattr(wanted, name)


@pytest.mark.parametrize(
    "words",
    [["-h"], ["x"], ["-7"], ["--tree"], ["--pages", "all"], ["--min-local=2"], ["--min-local=nan"],
     ["--pa", "sample"], ["--", "7"], ["--json=1"], ["٧"], ["9" * 10]],
)  # fmt: skip
def test_other_words_are_left_to_argparse(words: list[str]) -> None:
    assert lean_status(["status", *words]) is None


def test_one_number_is_one_process() -> None:
    (process,) = numabind.status(os.getpid()).processes
    assert process.pid == os.getpid()


ENDED_LEADER = """
import ctypes, threading, time
memory = bytearray(32 << 20)
def stay():
    print("ready", flush=True)
    time.sleep(60)
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDED_LEADER], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while _proc.status(child.pid)["State"][0] != "Z":
            time.sleep(0.01)
        (process,) = numabind.status(child.pid).processes
        child.kill()
    assert process.pages is not None
    assert process.pages.resident >= 32 << 20


UNPRIVILEGED = """
import os
from numabind import _holders, _proc
class Everything(dict):
    __contains__ = lambda self, pid: True
if os.fork():
    os.wait()
else:
    os.setuid(12345)
    print(_proc.may_trace(), _holders._unseen({}) > _holders._unseen(Everything()) == 0)
"""


def test_other_users_processes_are_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False True\n"
    assert _proc.may_trace()
    assert _holders._unseen({}) == 0


SEEN_BY_NOBODY = """
import os
from numabind import _proc
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
print(_proc.hidden())
"""


@pytest.mark.root
@pytest.mark.parametrize("how", [0, 1, 2, 4])
def test_who_hides_processes(how: int) -> None:
    script = f'mount -t proc -o hidepid={how} proc /proc && exec "$0" -c "$1"'
    words = ["unshare", "--mount", "sh", "-c", script, sys.executable, SEEN_BY_NOBODY]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ("mounted with hidepid" in done.stdout) == (how > 0)


@pytest.mark.root
def test_numbers_of_another_namespace_are_nobodys_here(environ: dict[str, str]) -> None:
    """In a PID namespace of its own that still has the /proc of the one above."""

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        above = ["unshare", "--pid", "--fork", str(BIN), "status", *words]
        return subprocess.run(above, env=environ, capture_output=True, text=True, check=False)

    done = ask("1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no process 1: /proc is that of another PID namespace" in done.stderr
    done = ask("--json")
    assert [said["name"] for said in json.loads(done.stdout)["problems"]] == ["processes-unseen"]
    assert ask("--min-local", "0").returncode == 1


def test_names_are_read_as_they_are() -> None:
    process = os.getpid()
    file = Path(f"/proc/{process}/task/{process}/comm")
    before = file.read_bytes()
    try:
        file.write_bytes(b"a\rb\n\n")
        assert _proc.name(process, process) == "a\rb\n\n"
    finally:
        file.write_bytes(before.removesuffix(b"\n"))


def test_metrics_are_utf8_whatever_the_terminal_is(environ: dict[str, str]) -> None:
    words = [sys.executable, "-c", "open('/proc/self/comm', 'w').write('né'); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, env={**environ, "LC_ALL": "C.UTF-8"}) as it:
        while _proc.name(it.pid) != "né":
            time.sleep(0.02)
        command = [str(BIN), "status", "--prometheus", str(it.pid)]
        ascii_only = {**environ, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run(command, env=ascii_only, capture_output=True, check=True)
        it.kill()
    assert ',name="né",' in done.stdout.decode("utf-8")


def test_what_is_below_is_never_in_the_answer(environ: dict[str, str]) -> None:
    script = '"$0" status --json --min-local 1 2 2>&-'
    done = subprocess.run(
        ["sh", "-c", script, str(BIN)], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    json.loads(done.stdout)


def test_nothing_is_near_where_near_is_not_known() -> None:
    assert Process(7, "x", threads=3).as_dict()["threads_near"] is None


def test_a_number_of_another_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.readlink
    monkeypatch.setattr(
        os, "readlink", lambda path: "pid:[4026532999]" if path.endswith("ns/pid") else read(path)
    )
    with open("/dev/null"):
        assert _holders._is_stranger(os.getpid(), "/dev/nvidia")
    assert not _holders._is_stranger(1 << 22, "/dev/nvidia")


def test_wrong_arguments() -> None:
    for wrong in ({"method": "guess"}, {"pids": [0]}, {"tree": -1}, {"pids": ["1"]}):
        with pytest.raises(numabind.UsageError):
            numabind.status(**wrong)  # type: ignore[arg-type]


# -- device files


def test_open_files_name_gpus(tmp_path: Path) -> None:
    files = {
        str(tmp_path / "nvidia0"): "0000:17:00.0",
        str(tmp_path / "renderD129"): "0000:c1:00.0",
    }
    for path in files:
        Path(path).touch()
    assert _holders.opened_by(os.getpid(), files, frozenset()) == frozenset()
    with open(tmp_path / "renderD129", "rb"), open(tmp_path / "nvidia0", "rb"):
        both = _holders.opened_by(os.getpid(), files, frozenset())
        assert both == {"0000:17:00.0", "0000:c1:00.0"}
    assert _holders.opened_by(1 << 22, files, frozenset()) == frozenset(), "gone"


# machine: files, and the address of the device that each is of
DEVICE_FILES = {
    "AMD": ("mi300x_nps1", {"/dev/dri/renderD131": "0000:65:00.0"}),
    "AMD, a partition": (
        "mi300x_partitions",
        {"/dev/dri/renderD130": "0000:05:00.0", "/dev/dri/renderD137": "0000:85:00.0"},
    ),
    "Intel": ("aurora", {"/dev/dri/renderD129": "0000:42:00.0"}),
    "Gaudi": ("gaudi2", {"/dev/accel/accel2": "0000:33:00.0"}),
    "NVIDIA": ("hgx_h100", {"/dev/nvidia7": "0000:df:00.0"}),
}


@pytest.mark.parametrize(("name", "wanted"), DEVICE_FILES.values(), ids=DEVICE_FILES)
def test_whose_device_file_it_is(name: str, wanted: dict[str, str], tmp_path: Path) -> None:
    root = build({**SHAPES, **KNOWN}[name], tmp_path)
    files = _holders.device_files(discover(root, NO_RUNTIME).devices, Root(str(root)))
    assert wanted.items() <= files.items()


def test_kfd_says_who_has_memory_where(tmp_path: Path) -> None:
    # KFD nodes 0 and 1 are the sockets; 2 to 9 are the GPUs, with ids from 4098 on.
    vram = {"41/vram_4098": 0, "41/vram_4101": 4096, "42/vram_4099": 10, "42/vram_4105": 20}
    vram |= {"43/vram_4098": 0, "44/pasid": 32769}
    listed = tuple((f"sys/class/kfd/kfd/proc/{name}", f"{n}\n") for name, n in vram.items())
    shape = KNOWN["mi300x_nps1"]
    root = build(replace(shape, files=(*shape.files, *listed)), tmp_path)
    assert read_processes(Root(str(root))) == {
        41: {"0000:65:00.0"},
        42: {"0000:26:00.0", "0000:e5:00.0"},
    }


# -- pages

NUMA_MAPS = """\
55d0c0a00000 default file=/usr/bin/python3.11 anon=2 dirty=2 mapped=10 N0=6 N1=4 kernelpagesize_kB=4
7f0000000000 prefer (many):1 anon=512 dirty=512 active=0 N1=512 kernelpagesize_kB=4
7f0010000000 bind:1 file=/dev/shm/a\\040b dirty=3 N1=3 kernelpagesize_kB=4
7f0020000000 default huge anon=4 dirty=4 N0=1 N1=3 kernelpagesize_kB=2048
7f0030000000 default stack anon=5 dirty=5 N0=5 kernelpagesize_kB=4
7f0040000000 default file=/memfd:x\\040(deleted) dirty=2 N0=2 kernelpagesize_kB=4
7f0050000000 default
"""


@pytest.mark.parametrize("odd", ["\x0c", "\u2028", "\r", "\x85", "\xa0huge"])
def test_files_with_odd_names(odd: str) -> None:
    line = f"7f00 default file=/tmp/lib{odd}x mapped=3 N0=3 kernelpagesize_kB=4\n"
    (mapping,) = parse_numa_maps(line)
    assert (mapping.file, mapping.nodes, mapping.huge) == (f"/tmp/lib{odd}x", {0: 3}, False)


def test_files_with_odd_names_that_are_mapped(tmp_path: Path) -> None:
    import mmap

    path = tmp_path / "lib\r\x0c\u2028x"
    path.write_bytes(b"x" * 8192)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        assert memory[0] == ord("x")
        (seen,) = numabind.status([os.getpid()], method="numa_maps").processes
        assert seen.pages is not None
        assert _pages.count_sample(os.getpid()) is not None


def test_kinds() -> None:
    kinds = [_pages._kind(mapping, frozenset({0x7F0030000000})) for mapping in
             parse_numa_maps(NUMA_MAPS)]  # fmt: skip
    expected = ["file", "anonymous", "shared", "huge", "locked", "shared", "anonymous"]
    assert kinds == expected


def test_the_share_leaves_out_page_cache() -> None:
    pages = Pages("numa_maps", {0: {"anonymous": 10, "file": 900}, 1: {"anonymous": 30, "file": 1}})
    assert with_share(pages, frozenset({1})).local == 0.75
    assert with_share(pages, frozenset({0, 1})).local == 1.0
    assert with_share(Pages("numa_maps", {0: {"file": 5}}), frozenset({0})).local is None
    sampled = with_share(
        Pages("sample", {0: {"anonymous": 10}, 1: {"anonymous": 30}}, asked=4096, found=(0, 400)),
        frozenset({1}),
    )
    assert sampled.local == 0.75
    # Wilson's interval for 300 of 400, by hand: (0.7552 ∓ 0.0423) / 1.0096 about 0.7476.
    assert sampled.interval == pytest.approx((0.7053, 0.7899), abs=2e-3)


@given(st.integers(1, 10_000), st.data())
def test_intervals_hold_the_share(seen: int, data: st.DataObject) -> None:
    near = data.draw(st.integers(0, seen))
    low, high = _pages.interval(near / seen, seen)
    assert 0 <= low <= near / seen <= high <= 1


# Of ordinary memory and of hugetlbfs's: GiB, share of page cache, share that is near, draws.
POPULATIONS = {
    "one": ((30, 0.0, 0.5, 1500), None),
    "nearly all near": ((30, 0.5, 0.998, 1500), None),
    "few huge pages": ((100, 0.0, 0.5, 1500), (1, 0.0, 1.0, 2048)),
    "few hits in little": ((30, 0.3, 0.5, 110), (70, 0.0, 1.0, 2048)),
    "huge pages far": ((30, 0.7, 0.9, 1500), (30, 0.0, 0.1, 2048)),
}


@pytest.mark.parametrize("populations", POPULATIONS.values(), ids=POPULATIONS)
def test_95_of_100_intervals_hold_what_is_so(populations: tuple[Any, ...]) -> None:
    chance = random.Random(4)
    held, tries = 0, 300
    memory = [gib * (1 - cache) for gib, cache, _, _ in filter(None, populations)]
    parts = zip(memory, filter(None, populations), strict=True)
    truth = sum(gib * part[2] for gib, part in parts) / sum(memory)
    for _ in range(tries):
        by_node: dict[int, dict[str, int]] = {0: {}, 1: {}}
        found = [0, 0]
        for number, population in enumerate(populations):
            if population is None:
                continue
            gib, cache, part, draws = population
            hits = sum(chance.random() >= cache for _ in range(draws))
            near = sum(chance.random() < part for _ in range(hits))
            kind = "huge" if number else "anonymous"
            by_node[0][kind] = round(gib * GIB * near / draws)
            by_node[1][kind] = round(gib * GIB * (hits - near) / draws)
            if not number:
                by_node[1]["file"] = round(gib * GIB * (draws - hits) / draws)
            found[1 - number] = hits
        pages = Pages("sample", by_node, found=(found[0], found[1]))
        low, high = with_share(pages, frozenset({0})).interval or (1, 0)
        held += low <= truth <= high
    # Three standard deviations below 95 in 100.
    assert held >= tries * 0.91


RANGES = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 50)), min_size=1, max_size=20)


@given(RANGES, st.integers(1, 200), st.randoms(use_true_random=False))
def test_draws_are_spread_over_all_that_is_mapped(
    sizes: list[tuple[int, int]], draws: int, noise: Any
) -> None:
    ranges, address = [], 4096
    for number, (pages, gap) in enumerate(sizes):
        ranges.append(_pages.Range(address, address + pages * 4096, str(number)))
        address += (pages + gap) * 4096
    pages, spans = _pages.drawn(ranges, draws, noise.randbytes(4 * draws))
    starts = [0, *(end for _, end in spans)]
    kinds = [
        kind for start, (kind, end) in zip(starts, spans, strict=False) for _ in range(start, end)
    ]
    assert len(pages) == len(kinds) == draws
    total = sum(size for size, _ in sizes)
    before, flat = 0, {}
    for r in ranges:
        for page in range(r.start, r.end, 4096):
            flat[page] = before
            before += 1
    for number, (page, kind) in enumerate(zip(pages, kinds, strict=True)):
        r = ranges[int(kind)]
        assert r.start <= page < r.end
        # The number-th draw is from the number-th equal part.
        assert int(number * total / draws) <= flat[page] <= int((number + 1) * total / draws)


def test_ranges_of_this_process() -> None:
    ranges = _pages.read_ranges(os.getpid(), huge=False)
    assert {r.kind for r in ranges} <= {"anonymous", "file", "shared"}
    assert all(r.start < r.end for r in ranges)
    assert _pages.read_ranges(1 << 22, huge=False) == []


def test_a_sample_of_a_process_that_is_gone() -> None:
    assert _pages.count_sample(1 << 22) is None
    assert _pages.count_all(1 << 22) is None
    assert _pages.first_policy(1 << 22) is None


# -- what is said


def process(pid: int = 7, **more: Any) -> Process:
    pages = Pages("numa_maps", {0: {"anonymous": 3 * GIB}, 1: {"file": 1 << 20}}, local=1.0)
    known = {"devices": ("0000:17:00.0",), "nodes": frozenset({0}), "near": frozenset({0, 1})}
    return Process(
        pid, more.pop("name", "train"), **{**known, "threads": 4, "pages": pages, **more}
    )


def test_below() -> None:
    half = Pages("numa_maps", {0: {"anonymous": GIB}, 1: {"anonymous": GIB}}, local=0.5)
    stray = Stray(8, "x", frozenset({5}))
    found = below(
        [
            process(1),
            process(2, pages=half),
            process(3, strays=(stray,)),
            process(4, nodes=None),
            process(5, pages=None),
        ],
        0.9,
    )
    assert found == [
        "process 2: 50% of its memory is local, not 90%",
        "process 3: 1 threads are elsewhere",
        "process 4: where it belongs is not known",
        "process 5: its pages can't be told",
    ]


def test_page_cache_is_no_ground_for_a_verdict() -> None:
    pages = Pages("numa_maps", {0: {"file": 10 * GIB, "anonymous": 2 << 20}})
    assert _elsewhere(with_share(pages, frozenset({1})), frozenset({1}), True) == []
    pages = Pages("numa_maps", {0: {"anonymous": 85 << 20}, 1: {"file": GIB, "huge": 15 << 20}})
    (said,) = _elsewhere(with_share(pages, frozenset({0})), frozenset({0}), False)
    assert said.cause == "85% of its memory is on node 0, where its CPUs are; 15 MiB on node 1"
    little = Pages("numa_maps", {1: {"anonymous": 1 << 20}}, local=0.0)
    assert below([process(pages=little)], 0.9) == []


def test_names_of_threads_do_not_move_the_cursor() -> None:
    said = _strays((Stray(8, "\x1b[31mX\n", frozenset({5})),), 2, frozenset({0}))
    assert "?[31mX? (8: 5)" in said.cause


def test_a_thread_is_no_process() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with pytest.raises(numabind.UsageError, match=f"is a thread of process {os.getpid()}"):
            numabind.status([thread.native_id or 0])
    finally:
        stop.set()
        thread.join()


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen(["true"])
    while "Z" not in _proc.status(child.pid).get("State", ""):
        time.sleep(0.02)
    assert numabind.status([child.pid]).ended == (child.pid,)
    child.wait()


def test_text() -> None:
    text = status_text([process(strays=(Stray(8, "x", frozenset({5})),), name="a\x1b[2Jb")])
    heading, row, *_ = text.splitlines()
    assert heading.split() == ["PID", "NAME", "GPU", "NODE", "THREADS", "POLICY", "RESIDENT",
                               "LOCAL", "VERDICT"]  # fmt: skip
    assert row.split() == ["7", "a?[2Jb", "0000:17:00.0", "0", "3/4", "-", "3", "GiB", "100%",
                           "near"]  # fmt: skip
    assert "\x1b" not in text
    assert "7    0     3 GiB  anonymous 3 GiB" in re.sub(r" {2,}", lambda m: m.group(), text)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1023, "0.999 KiB"), (1 << 20, "1 MiB"), (5 * GIB // 2, "2.5 GiB"),
     (3 << 40, "3 TiB"), (999 << 20, "999 MiB")],
)  # fmt: skip
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


def parse_prometheus(text: str) -> dict[str, dict[str, float]]:
    """By metric, values by labels; fails on what the format does not allow."""
    label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    sample = re.compile(rf"([a-z_]+)\{{({label}(?:,{label})*)\}} ([0-9.e+-]+)")
    found: dict[str, dict[str, float]] = {}
    for line in text.split("\n"):
        if line.startswith("# "):
            assert re.match(r"# (HELP [a-z_]+ .+|TYPE [a-z_]+ gauge)$", line)
            continue
        match = sample.fullmatch(line)
        assert match, line
        found.setdefault(match[1], {})[match[2]] = float(match[3])
    return found


def test_metrics() -> None:
    named = process(name='q"\\\n<script>')
    found = parse_prometheus(prometheus_text([named, process(9, nodes=None, near=None)]))
    resident = found["numabind_process_resident_bytes"]
    (key,) = (key for key in resident if 'pid="7"' in key and 'kind="anonymous"' in key)
    assert resident[key] == 3 * GIB
    assert r'name="q\"\\\n<script>"' in key
    assert list(found["numabind_process_near"].values()) == [1]
    threads = {k[-14:]: v for k, v in found["numabind_process_threads"].items()}
    assert sorted(threads.values()) == [0, 4]


@given(st.text())
def test_metrics_of_any_name(name: str) -> None:
    assert parse_prometheus(prometheus_text([process(name=name.replace("\r", ""))]))
