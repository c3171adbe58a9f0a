"""The page without a browser: what must be on it, what must not, and how large it may be."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

import samples
from machines.shapes import H100, SHAPES, even_nodes, gpus
from machines.spec import Shape, paired
from numabind import Machine, Plan, __version__, plan
from numabind._cpulist import parse_list
from numabind._finding import Finding
from numabind._machine import Allowed, Cpu, Device, Host, Nic, Node, Partition
from numabind._problems import problem
from numabind._process import Pages, Process, Stray
from numabind._record import replace
from numabind._report.drawing import shown_nodes
from numabind._report.html import page
from numabind._report.markup import Html, count, join, size, tag, text

GIB = 1 << 30
EVIL = "<script>alert('x')</script>\" onload=\"y"
VOID = {"meta", "input", "br"}
# The issue's machine: 2 packages, 4 nodes each, 192 cores with two threads each, 8 GPUs.
LARGE = Shape(
    even_nodes(8, 24, offset=192, l3_cores=8, packages=2),
    paired(192),
    gpus(H100, "07 0f 47 4e 87 90 b7 bd", (3, 3, 1, 1, 7, 7, 5, 5)),
    hostname="gpu-node-017",
)


class Tree(HTMLParser):
    """Every element with its attributes and the text below it; refuses tags that do not match."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(markup)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice: {attrs}"
        element = (tag, dict(attrs), [])
        self.found.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, _, texts in self.open:
            texts.append(data)

    def all(self, tag: str, class_: str = "") -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, "".join(texts))
            for name, attributes, texts in self.found
            if name == tag and (not class_ or class_ in (attributes.get("class") or "").split())
        ]


def process(number: int = 0, **fields: object) -> Process:
    """A process whose pages are mostly on node 0."""
    known = {
        "pid": 4200 + number,
        "name": "python",
        "devices": ("0000:07:00.0",),
        "source": "nvml",
        "nodes": frozenset({0}),
        "near": frozenset({0, 1}),
        "threads": 12,
        "policy": "prefer (many):0",
        "pages": Pages("numa_maps", {0: {"anonymous": 3 * GIB}, 1: {"file": GIB}}, 0.75),
        **fields,
    }
    return Process(**known)


FINDING = Finding(
    "automatic-balancing",
    "warning",
    "The kernel moves pages between nodes by itself.",
    "/proc/sys/kernel/numa_balancing = 1",
    "sysctl -w kernel.numa_balancing=0",
)


def summary(machine: Machine, placed: Plan, **more: object) -> str:
    """The page in a sentence."""
    return Tree(page(machine, placed, **more)).all("p", "summary")[0][1]


def check(machine: Machine, placed: Plan, **more: object) -> Tree:
    """What holds of every page."""
    made = page(machine, placed, **more)
    made.encode()
    tree = Tree(made)
    # One box for each core and thread, each thread's number once.
    threads = [a["data-n"] for a, _ in tree.all("i") if "data-n" in a]
    assert sorted(int(n or "") for n in threads) == sorted(cpu.id for cpu in machine.cpus)
    cores = {(c.node, c.l3, c.id if c.core is None else c.core) for c in machine.cpus}
    assert len(tree.all("span", "core")) == len(cores) + 1  # and the one in the key
    titles = [said for _, said in tree.all("h4")]
    for node in shown_nodes(machine):
        assert titles.count(f"Node {node.id}") == 1
    hidden = {node.id for node in machine.nodes} - {node.id for node in shown_nodes(machine)}
    said = " ".join(t for _, t in tree.all("p", "hint"))
    listed = re.search(r"Nodes ([\d,-]+) hold neither", said)
    assert parse_list(listed[1] if listed else "") == hidden
    cards = [t for _, t in tree.all("li", "device")]
    for device in machine.devices:
        assert sum(device.pci in card for card in cards) == 1
    known = {cpu.package for node in machine.nodes for cpu in machine.cpus if cpu.node == node.id}
    packages = " ".join(t for _, t in tree.all("h3") if t.startswith("Package"))
    for package in known - {None}:
        assert package in {n for part in re.findall(r"[\d,-]+", packages) for n in parse_list(part)}
    return sound(tree, made)


def sound(tree: Tree, made: str) -> Tree:
    """What holds of a page whatever it is about."""
    # The page holds itself: no script, nothing fetched, and every anchor has its target.
    assert not tree.all("script") and not tree.all("link") and not tree.all("img")
    ids = [a["id"] for _, a, _ in tree.found if "id" in a]
    assert len(ids) == len(set(ids))
    for name, attributes, _ in tree.found:
        assert not any(key.startswith("on") for key in attributes), attributes
        assert "src" not in attributes
        if "href" in attributes:
            assert (attributes["href"] or "")[0] == "#", name
            assert (attributes["href"] or "")[1:] in ids
        for key in ("aria-labelledby",):
            assert key not in attributes or attributes[key] in ids
    assert "http" not in made.lower() and "url(" not in made and "@import" not in made
    # Headings go down one at a time; tables have captions and headings with a scope.
    levels = [int(name[1]) for name, _, _ in tree.found if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert len(tree.all("table")) == len(tree.all("caption"))
    assert all(a.get("scope") in ("row", "col") for a, _ in tree.all("th"))
    return tree


@pytest.mark.parametrize("mode", ["node", "exclusive"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_drawn_whole(shape: str, mode: str) -> None:
    machine = samples.machine(shape)
    check(machine, plan(machine, mode=mode))


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(samples.machines())
def test_any_machine_is_drawn_whole(machine: Machine) -> None:
    check(machine, plan(machine), processes=(process(),))


def test_the_large_machine_stays_small() -> None:
    machine = samples.machine(LARGE)
    everyone = tuple(
        process(
            i, devices=(d.pci,), strays=tuple(Stray(n, "pin", frozenset({0})) for n in range(64))
        )
        for i, d in enumerate(machine.devices)
    )
    for mode in ("node", "exclusive"):
        made = page(machine, plan(machine, mode=mode), everyone, (FINDING,) * 20, "today")
        assert len(made.encode()) < 200_000  # the issue allows 500


def test_names_are_escaped_wherever_they_stand() -> None:
    machine = samples.with_devices(
        samples.gpu(
            0,
            name=EVIL,
            driver=EVIL,
            vendor=EVIL,
            uuid=EVIL,
            node_source=EVIL,
            partitions=(Partition(EVIL, 1, 2),),
        )
    )
    machine = replace(machine, host=Host(EVIL, EVIL), problems=(problem("no-package", EVIL, EVIL),))
    strays = (Stray(1, EVIL, frozenset({0})),)
    pages = Pages(EVIL, {0: {EVIL: GIB}}, 1.0)
    bad = process(
        name=EVIL,
        devices=(EVIL,),
        source=EVIL,
        policy=EVIL,
        strays=strays,
        pages=pages,
        problems=(problem("no-package", EVIL, EVIL),),
    )
    placed = plan(machine)
    first = replace(placed.placements[0], reasons=(EVIL,), memory_policy=EVIL, device=EVIL)
    placed = replace(placed, placements=(first,))
    found = Finding(EVIL, EVIL, EVIL, EVIL, EVIL)
    tree = check(machine, placed, processes=(bad,), findings=(found,), made=EVIL)
    made = page(machine, placed, (bad,), (found,), EVIL)
    assert "<script" not in made
    assert made.count("&lt;script&gt;") > 25
    assert tree.all("h1")[0][1] == EVIL


def test_names_that_hide_or_turn_text_are_written_out() -> None:
    host = Host("a\x00b\x1b[31m\u202egnp\udcff\ud800é漢")
    tree = check(replace(samples.with_devices(), host=host), plan(samples.with_devices()))
    assert tree.all("h1")[0][1] == "a\\x00b\\x1b[31m\\u202egnp\\udcff\\ud800é漢"


def test_the_workers_stand_in_the_boxes_of_their_cpus() -> None:
    machine = samples.machine("hgx_h100")
    placed = plan(machine, mode="exclusive")
    boxes = {
        int(a["data-n"] or ""): (a, t) for a, t in check(machine, placed).all("i") if "data-n" in a
    }
    for placement in placed.placements:
        for cpu in placement.cpus:
            attributes, said = boxes[cpu]
            assert said == str(placement.local_rank)
            assert attributes["class"] == f"w{placement.local_rank}"
            assert attributes["title"] == f"CPU {cpu}: rank {placement.local_rank}"


def test_shared_cpus_name_all_their_workers_to_everyone() -> None:
    machine = samples.machine("hgx_h100")
    tree = check(machine, plan(machine))
    assert {t for a, t in tree.all("i") if "data-n" in a} == {"0-3", "4-7"}
    told = [a["aria-label"] for a, _ in tree.all("div", "cores")]
    assert told == ["ranks 0-3: CPUs 0-55,112-167", "ranks 4-7: CPUs 56-111,168-223"]


def test_a_worker_that_is_left_as_it_is_takes_no_box() -> None:
    machine = samples.machine("all_minus_one")
    placed = plan(machine)
    tree = check(machine, placed)
    assert {t for a, t in tree.all("i") if "data-n" in a} == {""}
    assert "left as it is" in tree.all("table", "workers")[0][1]
    assert summary(machine, placed) == "None of 4 workers near their GPU; 4 problems"
    assert "where they hang is unknown" in tree.all("main")[0][1]


def test_the_reasons_and_the_problems_are_all_there() -> None:
    machine = replace(
        samples.machine("container"), problems=(problem("nvml-unavailable", "no library"),)
    )
    placed = plan(machine)
    tree = check(machine, placed)
    workers = tree.all("table", "workers")[0][1]
    issues = [t for _, t in tree.all("article", "issue")]
    for placement in placed.placements:
        assert all(reason in workers for reason in placement.reasons)
        for said in placement.problems:
            mine = [t for t in issues if said.name in t and said.cause in t and said.remedy in t]
            assert len(mine) == 1
            assert f"rank {placement.local_rank}" in mine[0]
    assert sum("nvml-unavailable" in t for t in issues) == 1
    assert "note" in next(t for t in issues if "nvml-unavailable" in t)


def test_cpus_that_may_not_be_used_are_said_to_be() -> None:
    machine = samples.machine("container")
    tree = check(machine, plan(machine))
    barred = [a for a, _ in tree.all("i", "barred") if "data-n" in a]
    assert {int(a["data-n"] or "") for a in barred} == set(range(64, 128))
    assert barred[0]["title"] == "CPU 64: not allowed"
    assert any(
        "not allowed: CPUs 64-127" in (a["aria-label"] or "") for a, _ in tree.all("div", "cores")
    )


def test_distances_are_a_table_of_numbers() -> None:
    machine = samples.machine("nps4")
    table = check(machine, plan(machine)).all("table", "heat")[0][1]
    numbers = [str(d) for node in machine.nodes for d in node.distances]
    assert all(number in table for number in numbers)
    bare = samples.machine("bare")
    assert "shows no distances" in page(bare, plan(bare))
    alone = samples.machine("one_node")
    assert 'id="distances"' not in page(alone, plan(alone))


def test_pages_stand_by_node_with_the_near_ones_marked() -> None:
    machine = samples.machine("two_socket")
    away = process(
        1,
        name="late",
        nodes=frozenset({1}),
        strays=tuple(Stray(n, "pin_memory", frozenset({0, 1})) for n in (7, 8, 9)),
        pages=Pages(
            "sample", {0: {"huge": 3 * GIB}, 1: {}}, 0.25, (0.2, 0.3), 4000, swapped=1 << 20
        ),
        problems=(problem("pages-elsewhere", "75% of its pages are on node 0", "Move them."),),
    )
    blind = Process(9, "gone")
    tree = check(machine, plan(machine), processes=(process(), away, blind))
    table = tree.all("table", "pages")[0][1]
    assert "75.0%" in table and "25.0% (20.0% to 30.0%)" in table
    assert "from a sample of 4000 pages" in table and "swapped out 1 MiB" in table
    assert "pin_memory on CPUs 0-1, thread 7-9" in table
    assert "75% of its pages are on node 0" in table and "Move them." in table
    assert "Its pages could not be read." in table
    assert [t for _, t in tree.all("td", "own")] == ["3 GiB near", "0 near"]
    assert "9 of 12" in table
    assert "1 of 3 processes elsewhere" in tree.all("p", "summary")[0][1]


def test_pages_on_a_node_that_the_machine_does_not_know_are_shown() -> None:
    machine = samples.with_devices()
    odd = process(pages=Pages("numa_maps", {7: {"anonymous": GIB}}, 0.0))
    table = check(machine, plan(machine), processes=(odd,)).all("table", "pages")[0][1]
    assert "Node 7" in table


def test_findings_come_gravest_first_with_all_their_fields() -> None:
    machine = samples.machine("one_node")
    grave = replace(FINDING, name="acs", severity="serious")
    slight = replace(FINDING, name="a-note", severity="note")
    tree = check(machine, plan(machine), findings=(slight, FINDING, grave))
    issues = [t for _, t in tree.all("article", "issue") if "Evidence" in t]
    assert [t.split()[0] for t in issues] == ["serious", "warning", "note"]
    for value in FINDING.as_dict().values():
        assert value in issues[1]
    assert "3 findings" in summary(machine, plan(machine), findings=(FINDING,) * 3)


def test_parts_without_content_are_left_out_of_the_page_and_its_links() -> None:
    machine = samples.machine("one_node")
    tree = check(machine, plan(machine))
    links = [a["href"] for a, _ in tree.all("a")]
    assert links == ["#main", "#machine", "#workers", "#problems"]


def test_the_head_says_where_when_and_with_what() -> None:
    machine = samples.machine(LARGE)
    placed = plan(machine)
    tree = check(machine, placed, made="2026-11-02 09:14 UTC")
    assert tree.all("title")[0][1] == "gpu-node-017 – numabind report"
    said = tree.all("p", "eyebrow")[0][1]
    assert f"numabind {__version__}" in said and "made 2026-11-02 09:14 UTC" in said
    assert summary(machine, placed) == "8 workers, all near their GPU; no problems"
    facts = {t for _, t in tree.all("dd")}
    assert {"2", "8", "24", "192", "384", "2 TiB"} <= facts
    assert page(machine, placed) == page(machine, placed)


def test_partitions_show_their_worker() -> None:
    machine = samples.with_devices(
        samples.gpu(0, partitions=(Partition("MIG-a", 1, 0), Partition("MIG-b", 2, 0)))
    )
    placed = plan(machine)
    first = replace(placed.placements[0], device="MIG-b")
    tree = check(machine, replace(placed, placements=(first,)))
    parts = [t for _, t in tree.all("li") if t.startswith(("MIG", "rank 0MIG"))]
    assert parts == ["MIG 1/0 MIG-a", "rank 0MIG 2/0 MIG-b"]


def test_a_worker_of_several_devices_is_on_all_of_them() -> None:
    machine = samples.machine("two_socket")
    two = ",".join(device.pci for device in machine.devices[:2])
    placed = plan(machine)
    both = replace(placed.placements[0], device=two, pci=two)
    tree = check(machine, replace(placed, placements=(both,)))
    cards = [t for _, t in tree.all("li", "device") if "rank 0" in t]
    assert len(cards) == 2


CPUS = tuple(Cpu(n) for n in range(4))
ALL = Allowed(frozenset(range(4)), frozenset())
ODD = {
    "nothing at all": Machine((), (), (), Allowed(frozenset(), frozenset())),
    "CPUs without nodes, caches and cores": Machine((), CPUS, (), ALL),
    "a GPU and no nodes": Machine((), CPUS, (samples.gpu(0, node=None, near_nodes=()),), ALL),
    "memory only": Machine((Node(3, memory_bytes=GIB, kind="memory"),), CPUS, (), ALL),
    "GPU memory only": Machine((Node(3, memory_bytes=None, kind="gpu"),), CPUS, (), ALL),
    "a node of two packages": Machine(
        (Node(0, frozenset(range(4)), GIB, (10,)),),
        tuple(Cpu(n, 0, n // 2, n, n // 2) for n in range(4)),
        (),
        ALL,
    ),
    "a display and nothing else": Machine(
        (Node(0, frozenset(range(4)), GIB, (10,)),),
        tuple(Cpu(n, 0) for n in range(4)),
        (Device("0000:69:00.0", "aspeed", computes=False, node=0),),
        ALL,
    ),
}


@pytest.mark.parametrize("machine", ODD.values(), ids=ODD)
def test_machines_that_tell_little_are_drawn_as_far_as_they_do(machine: Machine) -> None:
    check(machine, plan(machine), processes=(process(), Process(1, "")))
    check(machine, Plan(plan(machine).options, ()))


@pytest.mark.parametrize(
    ("number", "said"),
    [
        *((None, "unknown"), (0, "0"), (512, "512 B"), (1024, "1 KiB"), (1536, "1.50 KiB")),
        *((1023 * GIB, "1.00 TiB"), (188 * GIB, "188 GiB"), (15 * GIB + GIB // 2, "15.5 GiB")),
        *((2048 * GIB, "2 TiB"), (1 << 80, "1073741824 PiB")),
    ],
)
def test_sizes_are_short(number: int | None, said: str) -> None:
    assert size(number) == said


def test_markup_escapes_what_is_not_markup() -> None:
    assert tag("b", "<i>", Html("<i></i>"), title='"') == '<b title="&quot;">&lt;i&gt;<i></i></b>'
    assert tag("b", title=Html('"')) == '<b title="&quot;"></b>'
    assert tag("input", checked=True, disabled=False, id=None) == "<input checked>"
    assert join(["a", None, "", "<"], "&") == "a&amp;&lt;"
    assert text(text("<")) == "&lt;"
    assert count(1, "process") == "1 process"
    assert count(2, "process") == "2 processes"


def test_nics_hang_where_they_are() -> None:
    nics = (Nic("0000:b1:00.0", 1, ("mlx5_1", "<ib0>")), Nic("0000:02:00.0", None, ()))
    machine = replace(samples.machine("two_socket"), nics=nics)
    tree = check(machine, plan(machine))
    lists = tree.all("ul", "devices")
    hung = [text for found, text in lists if found.get("aria-label") == "NIC on node 1"]
    assert len(hung) == 1
    assert "0000:b1:00.0" in hung[0]
    assert "mlx5_1, <ib0>" in hung[0]
    assert "NIC: where it hangs is unknown" in page(machine, plan(machine))
