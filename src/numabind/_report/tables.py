"""The parts of the page that are lists: workers, what stands in the way, processes, findings."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._finding import SEVERITIES, Finding
from numabind._machine import Device, Machine
from numabind._placement import Placement, Plan
from numabind._problems import NOTES, Problem
from numabind._process import KINDS, Pages, Process, Stray
from numabind._report.crew import COLOURS, Crew, memory_text
from numabind._report.drawing import STEPS, device_name
from numabind._report.markup import Html, count, details, join, scrolls, section, size, tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_VERDICTS = {"near": "near its GPU", "elsewhere": "elsewhere", "unknown": "not known"}


def workers_section(machine: Machine, plan: Plan, crew: Crew) -> Html:
    """The placements as a table, and under each worker why it is where it is."""
    if not plan.placements:
        nobody = tag("p", "No workers are planned.", class_="hint")
        return section("workers", "Workers", nobody)
    names = {device.pci: device for device in machine.devices}
    head = ("Rank", "GPU", "Node", "CPUs", "Memory", "Threads")
    options = plan.options
    how = f"Planned with mode {options.mode}, memory {options.memory}"
    how += "" if options.smt else ", the first thread of each core"
    how += f", {count(options.reserve, 'core')} of each node kept free" if options.reserve else ""
    table = tag(
        "table",
        tag("caption", f"{how}."),
        tag("thead", _row(*(tag("th", word, scope="col", role="columnheader") for word in head))),
        *(_worker(i, placement, names, crew) for i, placement in enumerate(plan.placements)),
        class_="workers",
        role="table",
    )
    return section("workers", "Workers", table)


def _row(*cells: Html) -> Html:
    return tag("tr", *cells, role="row")


def _worker(number: int, placement: Placement, names: dict[str, Device], crew: Crew) -> Html:
    devices = [names[pci] for pci in (placement.pci or "").split(",") if pci in names]
    model = ", ".join(dict.fromkeys(device_name(device) for device in devices))
    # A MIG instance's label is its UUID; elsewhere the label is the address.
    gpu = join((tag("code", placement.device or "none"), tag("bdi", model, class_="soft")), " ")
    cpus = join((tag("code", format_list(placement.cpus) or "none"), _kept(placement)), " ")
    cells = (
        ("GPU", gpu),
        ("Node", "unknown" if placement.node is None else str(placement.node)),
        ("CPUs", cpus),
        ("Memory", memory_text(placement)),
        ("Threads", str(placement.threads)),
    )
    why = tag("ul", *(tag("li", reason) for reason in placement.reasons), class_="why")
    return tag(
        "tbody",
        _row(
            tag("th", crew.chips((number,)), scope="row", role="rowheader"),
            *(tag("td", value, data_l=label, role="cell") for label, value in cells),
        ),
        _row(tag("td", tag("span", "Why: ", class_="sr"), why, colspan="6", role="cell")),
        class_=f"w{number % COLOURS}",
        role="rowgroup",
    )


def _kept(placement: Placement) -> Html | None:
    return None if placement.bound else tag("span", "left as it is", class_="badge warning")


def problems_section(machine: Machine, plan: Plan, crew: Crew) -> Html:
    """Each problem once, with the ranks that have it."""
    several = len(plan.placements) > 1
    cards = [
        _issue(
            "note" if said.name in NOTES else "problem",
            said,
            crew.name(workers) if workers and several else "",
        )
        for said, workers in problems_of(machine, plan).items()
    ]
    nothing = tag("p", "Nothing stands in the way of the plan.", class_="hint good")
    return section("problems", "What stands in the way", *(cards or [nothing]))


def problems_of(machine: Machine, plan: Plan) -> dict[Problem, tuple[int, ...]]:
    """What the machine and the plan say, problems before notes, with the workers that have it."""
    found: dict[Problem, list[int]] = {said: [] for said in (*machine.problems, *plan.problems)}
    for worker, placement in enumerate(plan.placements):
        for said in dict.fromkeys(placement.problems):
            found.setdefault(said, []).append(worker)
    ordered = sorted(found, key=lambda said: (said.name in NOTES, said.name))
    return {said: tuple(found[said]) for said in ordered}


def _issue(severity: str, said: Problem | Finding, who: str = "") -> Html:
    """One thing found: how grave, its name, whose it is, what is so, and what to do."""
    evidence = said.evidence if isinstance(said, Finding) else ""
    parts = (
        ("Evidence", tag("code", evidence) if evidence else None),
        ("Remedy", said.remedy),
    )
    return tag(
        "article",
        tag(
            "h3",
            tag("span", severity, class_=f"badge {severity}"),
            " ",
            tag("code", said.name),
            tag("small", f" {who}") if who else None,
        ),
        tag("p", said.cause if said.cause.endswith((".", "!", "?")) else f"{said.cause}."),
        tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in parts if v)),
        class_=f"issue {severity}",
    )


def findings_section(findings: tuple[Finding, ...]) -> Html | None:
    """What the doctor found, the gravest first; None if there is nothing."""
    if not findings:
        return None
    rank = {severity: i for i, severity in enumerate(SEVERITIES)}
    ordered = sorted(findings, key=lambda found: (rank.get(found.severity, 9), found.name))
    cards = (_issue(found.severity, found) for found in ordered)
    return section("findings", "The doctor's findings", *cards)


def processes_section(machine: Machine, processes: tuple[Process, ...], crew: Crew) -> Html | None:
    """Each process's threads and its pages by node, shaded; None without processes."""
    if not processes:
        return None
    pages = [process.pages for process in processes if process.pages]
    used = {node for one in pages for node in one.by_node if one.on(node)}
    shown = sorted(used | {node.id for node in machine.nodes if node.memory_bytes})
    head = ("Process", "Verdict", "Policy", "Threads near", "Pages near")
    columns = [tag("th", word, scope="col") for word in head]
    columns += [tag("th", f"Node {node}", scope="col", class_="num") for node in shown]
    caption = (
        "Resident memory by node. An outline marks the nodes near the process's GPU; "
        "the stronger the colour, the larger the share of the process's pages."
    )
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *columns)),
        *(_process(process, shown, crew) for process in processes),
        class_="pages",
    )
    return section("processes", "Processes", scrolls("Pages of each process by node", table))


def _process(process: Process, nodes: list[int], crew: Crew) -> Html:
    pages, verdict = process.pages, process.verdict
    name = (
        crew.chips(crew.of_devices(process.devices)),
        tag("bdi", process.name, class_="name"),
        tag("span", f"pid {process.pid}", class_="soft"),
    )
    known = process.threads - len(process.strays) if process.near is not None else "unknown"
    near = f"{known} of {process.threads}"
    said = _VERDICTS[verdict] if process.devices or verdict != "near" else "near its CPUs"
    cells = [
        tag("td", tag("span", said, class_=f"badge {verdict}")),
        tag("td", tag("code", process.policy or "unknown")),
        tag("td", near),
        tag("td", _share(pages)),
        *(_cell(process, node) for node in nodes),
    ]
    return tag(
        "tbody",
        tag("tr", tag("th", join(name, " "), scope="row"), *cells),
        tag("tr", tag("td", _more(process), colspan=str(len(cells) + 1))),
    )


def _share(pages: Pages | None) -> str:
    if pages is None or pages.local is None:
        return "unknown"
    if pages.interval is None:
        return f"{pages.local:.1%}"
    low, high = pages.interval
    return f"{pages.local:.1%} ({low:.1%} to {high:.1%})"


def _cell(process: Process, node: int) -> Html:
    own = process.nodes is not None and node in process.nodes
    if process.pages is None:
        return tag("td", "–", class_="num own" if own else "num")
    here, all_of_it = process.pages.on(node), process.pages.resident
    shade = (here * (STEPS - 1) + all_of_it - 1) // all_of_it if all_of_it else 0
    hue = "h" if not own else "n"
    mark = tag("span", " near", class_="sr") if own else None
    return tag("td", size(here), mark, class_=f"num {hue}{shade}{' own' if own else ''}")


def _more(process: Process) -> Html:
    """What the row has no room for."""
    devices = ", ".join(process.devices) or "none"
    how = f" (from {process.source})" if process.source else ""
    parts: list[object] = [tag("p", "GPU ", tag("code", devices), how)]
    if process.near is not None:
        which = "CPUs near it " if process.devices else "CPUs that it is bound to "
        parts.append(tag("p", which, tag("code", format_list(process.near) or "none")))
    parts += [_kinds(process.pages), _strays(process.strays)]
    parts += [_issue("problem", said) for said in process.problems]
    return details("More", *parts, hidden=f"about {process.name}, pid {process.pid}")


def _kinds(pages: Pages | None) -> Html | None:
    if pages is None:
        return tag("p", "Its pages could not be read.")
    how = "every page counted"
    if pages.method == "sample":
        how = f"from a sample of {pages.asked or 0} pages"
    parts = [
        f"{kind} "
        + ", ".join(
            f"{size(kinds[kind])} on node {node}"
            for node, kinds in sorted(pages.by_node.items())
            if kinds.get(kind)
        )
        for kind in _known_kinds(pages)
    ]
    if pages.swapped:
        parts.append(f"swapped out {size(pages.swapped)}")
    listed = tag("ul", *(tag("li", part) for part in parts))
    return join((tag("p", f"{size(pages.resident)} resident, {how}."), listed))


def _known_kinds(pages: Pages) -> Iterable[str]:
    found = {kind for kinds in pages.by_node.values() for kind, amount in kinds.items() if amount}
    return [*(k for k in KINDS if k in found), *sorted(found - set(KINDS))]


def _strays(strays: tuple[Stray, ...]) -> Html | None:
    """Threads elsewhere, those of one name and mask in one line."""
    if not strays:
        return None
    alike: dict[tuple[str, frozenset[int]], list[int]] = {}
    for stray in strays:
        alike.setdefault((stray.name, stray.cpus), []).append(stray.tid)
    lines = (
        tag(
            "li",
            tag("bdi", name),
            f" on CPUs {format_list(cpus) or 'none'}, thread {format_list(frozenset(ids))}",
        )
        for (name, cpus), ids in alike.items()
    )
    return join((tag("p", "Threads that may run elsewhere:"), tag("ul", *lines)))
