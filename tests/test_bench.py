"""bench and calibrate: statistics by hand and by property, copies with a stand-in for the GPU."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numabind import Machine, MachineError, UsageError, plan
from numabind._bench import bench, calibrate, copies, memory
from numabind._bench.arena import Arena, Misplaced, chain
from numabind._bench.children import Child, ChildError
from numabind._bench.copiers import find_copier
from numabind._bench.copies import CopyError, Site, turns
from numabind._bench.results import Bench, Copy, Pair, Samples, load
from numabind._bench.verdict import Ratio, mean, ratio, verdict
from numabind._discover import find_override
from numabind._machine import Allowed, Cpu, Device, Host, Node
from numabind._measuring import calibrate_verb
from numabind._pci import parse_map
from numabind._problems import Problem, problem
from numabind._report.bench import bench_text
from numabind._report.html import page
from numabind._sysfs import Root
from samples import gpu, with_devices

GIB = 1 << 30
MIB = 1 << 20
CPUS = frozenset(os.sched_getaffinity(0))
rates = st.lists(st.floats(0.5, 500), min_size=1, max_size=12).map(lambda x: Samples(tuple(x)))


def quiet(_: str) -> None:
    pass


def flat(value: float, rounds: int = 9) -> Samples:
    return Samples((value,) * rounds)


# Statistics


def test_a_ratio_is_of_rounds_not_of_medians() -> None:
    """The machine halves its speed in round two; the ratio does not notice."""
    found = ratio(Samples((10.0, 5.0, 10.0)), Samples((5.0, 2.5, 4.0)))
    assert found is not None
    assert found.values == (2.0, 2.0, 2.5)
    assert (found.median, found.noise) == (2.0, 0.25)
    assert found.text == "2.00x (2.00 to 2.50)"


CLEAR = {
    "all above": ((1.3, 1.4, 1.5, 1.4, 1.6), True),
    "all below": ((0.7, 0.8, 0.7, 0.6, 0.7), True),
    "one round the other way": ((1.3, 1.4, 1.5, 0.99, 1.6), False),
    "one round equal": ((1.3, 1.4, 1.5, 1.0, 1.6), False),
    "too few rounds": ((1.3, 1.4, 1.5, 1.4), False),
    "too small to matter": ((1.01, 1.015, 1.01, 1.02, 1.01), False),
}


@pytest.mark.parametrize(("values", "clear"), CLEAR.values(), ids=CLEAR)
def test_what_counts_as_a_difference(values: tuple[float, ...], clear: bool) -> None:
    assert Ratio(values).clear is clear


@given(rates, rates)
def test_a_ratio_turned_over_is_as_clear(a: Samples, b: Samples) -> None:
    there, back = ratio(a, b), ratio(b, a)
    assert there is not None
    assert back is not None
    same_way = there.clear and back.clear
    # 1.0201 and 1/1.0201: only at the threshold can they part.
    assert same_way or there.clear == back.clear or abs(there.median - 1) < 0.025


@given(rates, st.floats(0.1, 10))
def test_the_unit_does_not_matter(a: Samples, factor: float) -> None:
    scaled = Samples(tuple(value * factor for value in a.values))
    found = ratio(scaled, a)
    assert found is not None
    assert found.median == pytest.approx(factor)


def test_the_mean_is_geometric_and_by_round() -> None:
    found = mean([Samples((1.0, 2.0)), Samples((4.0, 8.0))])
    assert found is not None
    assert found.values == pytest.approx((2.0, 4.0))
    assert mean([]) is None


# Verdicts


def of_memory(near: Samples, far: Samples, nodes: int = 2) -> Bench:
    pairs = tuple(
        Pair(c, m, 2, near if c == m else far, flat(100))
        for c in range(nodes)
        for m in range(nodes)
    )
    return Bench("here", "today", tuple(range(nodes)), pairs)


def of_gpu(**rate: float) -> Bench:
    """One GPU on node 0 of two; rates by place."""
    made = tuple(
        Copy("0000:10:00.0", way, place, node, rate=flat(rate[place]))
        for way in ("h2d", "d2h")
        for place, node in (("local", 0), ("remote", 1), ("unbound", None))
    )
    return Bench("here", "today", (0, 1), of_memory(flat(9), flat(9)).memory, made, "fake 1")


def test_verdicts() -> None:
    assert verdict(of_memory(flat(30), flat(20))).text == (
        "binding is worth 1.50x here (CPU memory bandwidth, local against other nodes; "
        "1.50 to 1.50)"
    )
    noisy = Samples((10.0, 11.0, 9.0, 10.0, 10.0))
    same = verdict(of_memory(noisy, flat(10, 5)))
    assert same.text == "no difference on this machine (within the noise of 10%)"
    assert same.worth == 1.0
    one = verdict(of_memory(flat(30), flat(20), nodes=1))
    assert "nothing to bind to" in one.text
    assert verdict(of_memory(flat(30, 3), flat(20, 3))).text.startswith("can't tell: fewer than 5")
    wrong = verdict(of_memory(flat(20), flat(30)))
    assert "1.50x" in wrong.text
    assert "calibrate" in wrong.text
    assert verdict(Bench(nodes=(0, 1))).worth is None


def test_copies_decide_where_there_are_some() -> None:
    """Unbound is told, but decides nothing: where it lands is luck."""
    found = verdict(of_gpu(local=50, remote=25, unbound=20))
    assert found.worth == pytest.approx(2.0)
    assert {one.against: one.ratio.median for one in found.comparisons if "alone" in one.what} == {
        "other nodes": pytest.approx(2.0),
        "unbound": pytest.approx(2.5),
    }
    assert verdict(of_gpu(local=50, remote=50, unbound=20)).worth == 1.0


# The JSON, the text and the page


def full() -> Bench:
    refused = problem("bytes-differ", "0000:10:00.0: 4096 bytes came back from the GPU changed")
    made = of_gpu(local=50, remote=25, unbound=40)
    bad = Copy("0000:10:00.0", "h2d", "remote", 1, pinned=False, problem=refused)
    away = Pair(1, 2, 2, problem=problem("pages-misplaced", "3 of 9 pages meant for node 2"))
    return Bench(
        made.host, made.made, made.nodes, (*made.memory, away), (*made.copies, bad), "fake 1", 9.5,
        (problem("no-copier", "none"),),
    )  # fmt: skip


def test_json_and_back(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(full().as_dict()))
    assert load(str(file)) == full()
    assert json.loads(file.read_text())["verdict"]["worth"] == pytest.approx(2.0)


BROKEN = {
    "no schema": ({"schema": None}, "schema"),
    "a list": ({"memory": {}}, "memory"),
    "a sample": ({"memory": [{"cpu_node": 0, "memory_node": 0, "workers": 1,
                              "bandwidth_gib_s": {"samples": [float("nan")]}}]}, "samples"),
    "a direction": ({"copies": [{"direction": "up", "place": "local"}]}, "direction"),
    "a place": ({"copies": [{"direction": "h2d", "place": "near"}]}, "place"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "named"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named(tmp_path: Path, change: dict[str, object], named: str) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({**full().as_dict(), **change}))
    with pytest.raises(MachineError, match=named) as caught:
        load(str(file))
    assert str(file) in str(caught.value)


def test_refused_figures_are_named_and_not_printed() -> None:
    said = bench_text(full())
    assert "refused: 1 of the figures: bytes-differ" in said
    assert "refused: 1 of the figures: pages-misplaced: 3 of 9 pages" in said
    assert "problem: no-copier" in said
    rows = {tuple(line.split()[:4]): line.split() for line in said.splitlines()}
    assert rows["0000:10:00.0", "h2d", "pinned", "alone"][4::2] == ["50.0", "25.0", "40.0"]
    assert rows["0000:10:00.0", "h2d", "pageable", "alone"][5] == "refused"
    assert said.splitlines()[-1].startswith("binding is worth 2.00x here")


def test_the_page_has_the_heat_maps() -> None:
    machine = with_devices(gpu(0))
    made = page(machine, plan(machine), measured=full())
    assert "Binding is worth 2.00x here" in made
    # Local is the fastest and has no heat, remote the slowest and has all.
    assert '<td class="h0" title="50.0 to 50.0">50.0</td>' in made
    assert '<td class="h7" title="25.0 to 25.0">25.0</td>' in made
    assert "<td>–</td>" in made
    assert 'id="bench"' not in page(machine, plan(machine))


# Memory and children


def test_a_chain_comes_by_every_place_once() -> None:
    places = chain(1 << 10, 8)
    at, seen = 0, set()
    for _ in range(1 << 10):
        seen.add(at)
        at = places[at]
    assert at == 0
    assert seen == set(range(0, 8 << 10, 8))


def test_copying_copies_the_first_half_to_the_second() -> None:
    data = bytearray(b"ab" * 4096 + bytes(8192))
    done, taken = memory.copy_for(memoryview(data), 1)
    assert data[8192:] == data[:8192]
    assert done >= 8192
    assert taken > 0


SIZES = {
    "usual": (32 * MIB, 100 * GIB, 256 * MIB),
    "large caches": (400 * MIB, 100 * GIB, 1600 * MIB),
    "little free": (32 * MIB, 512 * MIB, 128 * MIB),
    "too little for the caches": (100 * MIB, 512 * MIB, None),
    "too little at all": (0, 100 * MIB, None),
}


@pytest.mark.parametrize(("cache", "free", "size"), SIZES.values(), ids=SIZES)
def test_buffers_are_much_larger_than_the_caches(cache: int, free: int, size: int | None) -> None:
    assert memory.bytes_to_use(cache, free) == size


def test_layout_takes_one_cpu_of_each_core_and_no_gpu_memory(tmp_path: Path) -> None:
    nodes = (
        Node(0, frozenset(range(8)), 8 * GIB),
        Node(1, frozenset(), 64 * MIB, kind="memory"),
        Node(2, frozenset(), 80 * GIB, kind="gpu"),
    )
    cpus = tuple(Cpu(n, 0, 0, n % 4, 0) for n in range(8))
    machine = Machine(nodes, cpus, (), Allowed(frozenset(range(1, 8)), frozenset({0, 1, 2}), 3.5))
    found = memory.layout(machine, Root(str(tmp_path)))
    # CPU 0 is not allowed, so core 0 gives its sibling 4; the quota allows three.
    assert found.cpus == ((0, (1, 2, 3)),)
    assert found.memory == ((0, 256 * MIB),)
    assert [(node, said.name) for node, said in found.problems] == [(1, "too-little-free")]


def test_pages_that_are_elsewhere_refuse() -> None:
    arena = Arena(MIB, None)
    (node,) = arena.nodes()
    arena.node = node
    arena.check()
    arena.node = node + 1
    with pytest.raises(
        Misplaced, match=rf"256 of 256 pages meant for node {node + 1} are on {node}"
    ):
        arena.check()
    arena.node = None
    arena.check()


def test_children_answer_and_end() -> None:
    child = Child(lambda: lambda question: [question, os.getpid()])
    child.ask({"a": 1})
    assert child.answer() == [{"a": 1}, child.pid]
    child.end()
    assert not Path(f"/proc/{child.pid}").exists()


def test_a_child_that_dies_is_told() -> None:
    child = Child(lambda: lambda _: os.kill(os.getpid(), signal.SIGKILL))
    child.ask(1)
    with pytest.raises(ChildError, match="ended early"):
        child.answer()
    child.end()


# Copies, with a copier that keeps time itself


class Fake:
    """Two GPUs whose speed depends on the node of the memory; its clock is what copies take.

    `speed` gives GiB/s for a GPU and the node that the arena was meant for.
    """

    name = "fake 1"
    gpus = ("0000:10:00.0", "0000:11:00.0")

    def __init__(self, speed, broken: str = "", corrupt: bool = False) -> None:
        self.speed, self.broken, self.corrupt = speed, broken, corrupt
        self.now = 0.0
        self.memory: dict[int, bytearray] = {}
        self.pinned: set[Arena] = set()
        self.masks: dict[object, frozenset[int]] = {}

    def clock(self) -> float:
        return self.now

    def fail(self, what: str) -> None:
        if what == self.broken:
            raise CopyError(f"{what} failed")

    def open(self, gpu: int, size: int) -> None:
        self.fail(f"open {gpu}")
        self.memory[gpu] = bytearray(size)

    def pin(self, arena: Arena) -> None:
        self.fail("pin")
        self.pinned.add(arena)

    def unpin(self, arena: Arena) -> None:
        self.pinned.remove(arena)

    def start(self, gpu: int, host, to_device: bool) -> None:
        self.fail(f"start {gpu}")
        self.masks[host.arena.node] = frozenset(os.sched_getaffinity(0))
        if to_device:
            self.memory[gpu][:] = host.view
        else:
            host.view[:] = self.memory[gpu]
            host.view[0] ^= self.corrupt
        rate = self.speed(gpu, host.arena.node) / (1 if host.arena in self.pinned else 2)
        self.now += host.size / GIB / rate

    def wait(self, gpu: int) -> None:
        pass


@pytest.fixture
def unmoved() -> object:
    before = os.sched_getaffinity(0)
    yield None
    assert os.sched_getaffinity(0) == before


def two_nodes(own: tuple[int | None, ...] = (0, 1)) -> Site:
    """Node 0 is this machine's first CPU, node 1 its last; pages are not looked up (one node)."""
    nodes = ((0, frozenset({min(CPUS)})), (1, frozenset({max(CPUS)})))
    return Site(nodes, CPUS, tuple(zip(Fake.gpus, own, strict=True)), size=MIB, numa=False)


def measured(fake: Fake, site: Site | None = None, **more: object) -> tuple[Copy, ...]:
    return copies.measure(site or two_nodes(), fake, 60, quiet, clock=fake.clock, **more)


@pytest.mark.usefixtures("unmoved")
def test_each_gpu_alone_and_all_at_once() -> None:
    """GPU n is on node n: 0.4 GiB/s there, 0.2 elsewhere; half of it pageable."""
    fake = Fake(lambda gpu, node: 0.4 if gpu == node else 0.2)
    found = measured(fake)
    table = {
        (c.gpu[6], c.direction, c.place, c.pinned, c.arrangement): c.rate.median for c in found
    }
    for way in ("h2d", "d2h"):
        assert table["0", way, "local", True, None] == pytest.approx(0.4)
        assert table["0", way, "remote", True, None] == pytest.approx(0.2)
        assert table["1", way, "local", True, None] == pytest.approx(0.4)
        assert table["1", way, "unbound", False, None] == pytest.approx(0.1)
        # The fake has one clock: two GPUs at once take twice as long.
        assert table["1", way, "local", True, "local"] == pytest.approx(0.2)
        assert table["0", way, "remote", True, "remote+1"] == pytest.approx(0.1)
    assert {len(c.rate.values) for c in found} == {9}
    assert all(c.problem is None for c in found)
    site = two_nodes()
    assert fake.masks == {**dict(site.nodes), None: CPUS}, "threads are where the memory is"


@pytest.mark.usefixtures("unmoved")
@pytest.mark.parametrize(
    ("fake", "name", "refused"),
    [
        (Fake(lambda *_: 0.4, corrupt=True), "bytes-differ", {"0", "1"}),
        (Fake(lambda *_: 0.4, broken="open 1"), "copy-failed", {"1"}),
        (Fake(lambda *_: 0.4, broken="start 0"), "copy-failed", {"0"}),
    ],
    ids=["corrupt", "no memory", "no copy"],
)
def test_what_fails_gives_no_figure(fake: Fake, name: str, refused: set[str]) -> None:
    found = measured(fake)
    alone = [c for c in found if c.arrangement is None]
    assert {c.gpu[6] for c in alone if c.rate is None} == refused
    assert {c.problem.name for c in found if c.problem} == {name}
    # All at once is one figure: who is missing takes it from all.
    assert all(c.rate is None for c in found if c.arrangement is not None)


@pytest.mark.usefixtures("unmoved")
def test_without_pinning_only_pageable_is_measured() -> None:
    found = measured(Fake(lambda *_: 0.4, broken="pin"))
    assert {c.pinned for c in found if c.rate} == {False}
    assert {c.problem.cause for c in found if c.problem} == {"pinning: pin failed"}


@pytest.mark.usefixtures("unmoved")
def test_when_time_is_out_what_was_measured_stays() -> None:
    found = measured(Fake(lambda *_: 1e-4))
    assert {len(c.rate.values) for c in found} == {1}


def test_gpus_of_unknown_place_are_not_arranged() -> None:
    wanted = turns(two_nodes((0, None)), Fake.gpus, True)
    assert {turn.arrangement for turn in wanted} == {None, "unbound"}
    assert len(wanted) == 2 * (2 * 3 + 1)
    assert copies.place_of(None, 1) == "unknown"


def test_sizes_of_copies() -> None:
    assert copies.size_for([100 * GIB, 90 * GIB], 8) == 128 * MIB
    assert copies.size_for([GIB, 90 * GIB], 8) == 32 * MIB
    assert copies.size_for([100 * MIB], 8) is None


# Calibrate


def test_a_place_is_the_fastest_node_and_what_cant_be_told_from_it() -> None:
    near = {0: flat(50), 1: Samples((50.5, 49.5) * 4 + (50.0,)), 2: flat(30), 3: flat(31)}
    assert calibrate.locate("x", near).nodes == (0, 1)
    assert calibrate.locate("x", {0: flat(30), 1: flat(50)}).text == "x: node 1"
    few = calibrate.locate("x", {0: flat(30, 4), 1: flat(50, 4)})
    assert (few.nodes, few.cause) == ((), "4 rounds were measured, 5 are needed")
    assert calibrate.locate("x", {0: flat(30)}).nodes == ()


within = st.floats(0.99, 1.01)


@given(st.lists(st.lists(within, min_size=9, max_size=9), min_size=2, max_size=6))
def test_differences_within_two_per_cent_are_never_a_place(noise: list[list[float]]) -> None:
    """Noise of ±1% each: no median of ratios is above 1.02 by more than rounding."""
    table = {node: Samples(tuple(values)) for node, values in enumerate(noise)}
    found = calibrate.locate("x", table)
    assert found.nodes == () or max(r.median for r in table.values()) > 1.0099


@given(
    st.integers(0, 5),
    st.lists(st.lists(st.floats(0.9, 1.1), min_size=9, max_size=9), min_size=6, max_size=6),
    st.floats(0.1, 1000),
)
def test_a_planted_place_is_found_whatever_the_unit(
    own: int, noise: list[list[float]], unit: float
) -> None:
    """1.5 times as fast, noise of ±10%: the slowest sample beats every other by 1.22."""
    table = {
        node: Samples(tuple(unit * (1.5 if node == own else 1.0) * value for value in values))
        for node, values in enumerate(noise)
    }
    assert calibrate.locate("x", table).nodes == (own,)


def machine(*numa_nodes: int | None) -> Machine:
    """Two nodes (this machine's CPUs) with a GPU for each of `numa_nodes`, as the firmware says."""
    nodes = tuple(Node(n, CPUS, 8 * GIB, (10, 20)) for n in (0, 1))
    gpus = tuple(
        Device(pci, "nvidia", node=node, numa_node=-1 if node is None else node)
        for pci, node in zip(Fake.gpus, numa_nodes, strict=False)
    )
    cpus = tuple(Cpu(cpu, 0, 0, cpu) for cpu in sorted(CPUS))
    return Machine(nodes, cpus, gpus, Allowed(CPUS, frozenset({0, 1})), Host("vm", numa=False))


def test_whose_word_is_doubtful() -> None:
    assert calibrate.doubtful(machine(0, 1)) == ()
    assert calibrate.doubtful(machine(0, 0)) == Fake.gpus
    assert calibrate.doubtful(machine(0, None)) == Fake.gpus[1:]
    assert calibrate.doubtful(machine(0)) == ()
    assert calibrate.doubtful(with_devices(gpu(0), gpu(1))) == ()


def asked(**flags: object) -> argparse.Namespace:
    known = {"output": None, "force": False, "all": False, "seconds": 60.0}
    return argparse.Namespace(**{**known, **flags})


def slow(gpu: int, node: int | None) -> float:
    return 0.4 if gpu == node else 0.2


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake(slow)
    monkeypatch.setattr(copies.measure, "__kwdefaults__",
                        {**copies.measure.__kwdefaults__, "clock": fake.clock})  # fmt: skip
    monkeypatch.setattr(copies, "SIZE", 8 * MIB)
    return fake


def test_the_map_is_written_read_and_never_overwritten(
    tmp_path: Path, fake_time: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "map"
    found = machine(None, None)
    assert calibrate_verb(asked(output=str(file)), found, lambda: fake_time) == 0
    text = file.read_text()
    assert "#   node 0: 0.40 (0.40 to 0.40, 9 rounds)" in text
    overrides = parse_map(text)
    assert [find_override(d, overrides).nodes for d in found.devices] == [(0,), (1,)]
    with pytest.raises(UsageError, match="--force"):
        calibrate_verb(asked(output=str(file)), found, lambda: fake_time)
    assert calibrate_verb(asked(output=str(file), force=True), found, lambda: fake_time) == 0
    assert capsys.readouterr().out == ""


def test_no_difference_writes_no_map(
    tmp_path: Path, fake_time: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "map"
    fake_time.speed = lambda *_: 0.4
    words = asked(output=str(file), json=True)
    assert calibrate_verb(words, machine(0, 0), lambda: fake_time) == 1
    assert not file.exists()
    out, err = capsys.readouterr()
    assert err.count("can't tell: the nodes differ by no more than the noise") == 2
    assert [place["nodes"] for place in json.loads(out)["places"]] == [[], []]


NOTHING = {
    "no GPU": (machine(), 1, "no GPU on this machine"),
    "one node": (with_devices(gpu(0)), 0, "one NUMA node"),
    "told": (machine(0, 1), 0, "the firmware tells the node of each GPU"),
    "no library": (machine(None), 1, "no-copier: none here"),
}


@pytest.mark.parametrize(("found", "code", "said"), NOTHING.values(), ids=NOTHING)
def test_when_there_is_nothing_to_calibrate(
    found: Machine, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate_verb(asked(), found, lambda: problem("no-copier", "none here")) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_no_library_finds_a_gpu_here() -> None:
    found = find_copier()
    assert isinstance(found, Problem)
    assert found.name == "no-copier"


# The command


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "numabind", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_bench_here(tmp_path: Path) -> None:
    """Whatever this machine is: figures, a verdict last, JSON that the report takes."""
    done = run("bench", "--no-gpus", "--json", "--seconds", "5")
    assert (done.returncode, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    here = Bench.from_dict(data)
    assert here.memory
    for pair in here.memory:
        assert pair.bandwidth is not None
        assert 0.01 < pair.bandwidth.low <= pair.bandwidth.high < 10000
        assert pair.latency is not None
    file = tmp_path / "bench.json"
    file.write_text(done.stdout)
    made = run("report", "--bench", str(file))
    assert data["verdict"]["text"][1:] in made.stdout
    assert bench_text(here).splitlines()[-1] == data["verdict"]["text"]


def test_interrupted_it_leaves_nobody_behind() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "numabind", "bench", "--seconds", "60"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for _ in range(2000):
        born = children.read_text().split()
        if born:
            break
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert born
    assert (process.returncode, out, err) == (130, "", "")
    assert not [pid for pid in born if Path(f"/proc/{pid}").exists()]


def test_bench_is_told_each_step_and_changes_nothing() -> None:
    before, told = os.sched_getaffinity(0), []
    found = bench(machine(), 1.0, told.append)
    assert os.sched_getaffinity(0) == before
    assert any("round 1 of 9" in line for line in told)
    assert found.copies == ()
