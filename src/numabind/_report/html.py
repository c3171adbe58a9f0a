"""A machine, its plan, and what status and doctor found, as one self-contained HTML page.

The page needs no network and no script: boxes, tables and `details`, and a stylesheet inside it.
"""

from __future__ import annotations

import numabind
from numabind._bench.results import Bench
from numabind._finding import Finding
from numabind._machine import Machine
from numabind._placement import Plan
from numabind._problems import NOTES
from numabind._process import Process
from numabind._report.crew import Crew, is_near
from numabind._report.document import document, facts_list
from numabind._report.drawing import distances_section, machine_section
from numabind._report.heat import bench_section
from numabind._report.markup import Html, count, join, size, tag
from numabind._report.tables import (
    findings_section,
    problems_of,
    problems_section,
    processes_section,
    workers_section,
)


def page(
    machine: Machine,
    plan: Plan,
    processes: tuple[Process, ...] = (),
    findings: tuple[Finding, ...] = (),
    made: str = "",
    *,
    measured: Bench | None = None,
) -> str:
    """The page as text, to be saved as UTF-8.

    `processes` and `findings` have their part only if there are some; `made` is when, in words,
    `measured` what `numabind bench` found.
    """
    crew = Crew(plan)
    parts = {
        "machine": ("Machine", machine_section(machine, crew)),
        "workers": ("Workers", workers_section(machine, plan, crew)),
        "problems": ("In the way", problems_section(machine, plan, crew)),
        "findings": ("Findings", findings_section(findings)),
        "processes": ("Processes", processes_section(machine, processes, crew)),
        "bench": ("Measured", bench_section(measured)),
        "distances": ("Distances", distances_section(machine)),
    }
    return document(
        machine.host.name or "This machine",
        join((_summary(machine, plan, processes, findings), _facts(machine))),
        parts,
        origin=" · ".join(_origin(machine, made)),
        css=crew.css(),
    )


def _origin(machine: Machine, made: str) -> list[str]:
    words = [f"numabind {numabind.__version__} report"]
    words += [f"made {made}"] if made else []
    words += [f"Linux {machine.host.kernel}"] if machine.host.kernel else []
    return words


def _sentence(
    machine: Machine,
    plan: Plan,
    processes: tuple[Process, ...] = (),
    findings: tuple[Finding, ...] = (),
) -> str:
    """The page in a sentence: "8 workers, all near their GPU; 2 problems"."""
    total = len(plan.placements)
    near = sum(is_near(placement) for placement in plan.placements)
    parts = []
    if not total:
        parts.append("no workers planned")
    elif not any(placement.device for placement in plan.placements):
        parts.append(f"{count(total, 'worker')}, no GPU to be near")
    elif total == 1:
        parts.append("1 worker, near its GPU" if near else "1 worker, not near its GPU")
    elif near == total:
        parts.append(f"{total} workers, all near their GPU")
    else:
        parts.append(f"{near or 'none'} of {total} workers near their GPU")
    away = sum(process.verdict == "elsewhere" for process in processes)
    if processes:
        parts.append(f"{away or 'none'} of {count(len(processes), 'process')} elsewhere")
    problems = sum(said.name not in NOTES for said in problems_of(machine, plan))
    parts.append(count(problems, "problem") if problems else "no problems")
    if findings:
        parts.append(count(len(findings), "finding"))
    return "; ".join(parts)


def _summary(
    machine: Machine, plan: Plan, processes: tuple[Process, ...], findings: tuple[Finding, ...]
) -> Html:
    said = _sentence(machine, plan, processes, findings)
    bad = (
        any(placement.device and not is_near(placement) for placement in plan.placements)
        or any(process.verdict == "elsewhere" for process in processes)
        or any(found.severity == "serious" for found in findings)
    )
    worth = any(p.name not in NOTES for p in problems_of(machine, plan)) or bool(findings)
    mood = "bad" if bad else "fair" if worth else "good"
    return tag("p", said[0].upper() + said[1:], class_=f"summary {mood}")


def _facts(machine: Machine) -> Html:
    packages = {cpu.package for cpu in machine.cpus if cpu.package is not None}
    cores = {cpu.id if cpu.core is None else cpu.core for cpu in machine.cpus}
    groups = {cpu.l3 for cpu in machine.cpus if cpu.l3 is not None}
    memory = sum(node.memory_bytes or 0 for node in machine.nodes if node.kind != "gpu")
    facts = (
        ("Packages", len(packages) or "unknown"),
        ("NUMA nodes", len(machine.nodes) if machine.host.numa else "none"),
        ("L3 groups", len(groups) or "unknown"),
        ("Cores", len(cores)),
        ("CPUs", len(machine.cpus)),
        ("Memory", size(memory or None)),
        ("GPUs", sum(device.computes for device in machine.devices)),
    )
    return facts_list(facts)
