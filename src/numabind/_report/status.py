"""What `status` saw: as a table for people, and as metrics for a node exporter's text collector."""

from __future__ import annotations

from numabind._cpulist import format_list
from numabind._process import Pages, Process, printable
from numabind._report.text import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEADINGS = ("PID", "NAME", "GPU", "NODE", "THREADS", "POLICY", "RESIDENT", "LOCAL", "VERDICT")
_NAME = 15  # what the kernel keeps of a process's name


def status_text(processes: Sequence[Process]) -> str:
    """A line for each process, its pages by node and kind, and what is wrong with the remedy."""
    if not processes:
        return "No process holds a GPU. Name one: numabind status PID, or --tree PID."
    parts = [table([HEADINGS, *(row(process) for process in processes)])]
    pages = page_rows(processes)
    if pages:
        parts.append(table([("PID", "NODE", "TOTAL", "KINDS"), *pages]))
    lines = []
    for process in processes:
        for said in process.problems:
            lines.append(f"{process.pid} {printable(process.name)}: {said.name}: {said.cause}.")
            lines.append(f"  remedy: {said.remedy}")
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def row(process: Process) -> tuple[str, ...]:
    """One process as the cells of HEADINGS."""
    pages = process.pages
    near = process.threads - len(process.strays)
    known = process.near is not None
    return (
        str(process.pid),
        printable(process.name)[:_NAME],
        ",".join(process.devices) or "-",
        format_list(process.nodes) if process.nodes else "-",
        f"{near}/{process.threads}" if known else str(process.threads),
        process.policy or "-",
        size(pages.resident) if pages else "-",
        local(pages),
        process.verdict,
    )


def local(pages: Pages | None) -> str:
    """The share of local pages: "98%", of a sample "98% ±1", unknown "-"."""
    if pages is None or pages.local is None:
        return "-"
    share = f"{_floor(pages.local)}%"
    if pages.interval is None:
        return share
    low, high = pages.interval
    return f"{share} ±{max(pages.local - low, high - pages.local) * 100:.1f}"


def _floor(share: float) -> str:
    """A percentage that says 100 only of all."""
    return "100" if share == 1 else f"{min(share * 100, 99.9):.1f}"


def page_rows(processes: Iterable[Process]) -> list[tuple[str, str, str, str]]:
    """For each process and node: the node, the bytes there, and which kinds they are of."""
    rows = []
    for process in processes:
        by_node = process.pages.by_node if process.pages else {}
        for node, kinds in sorted(by_node.items()):
            text = ", ".join(f"{kind} {size(kinds[kind])}" for kind in sorted(kinds))
            rows.append((str(process.pid), str(node), size(sum(kinds.values())), text))
        if process.pages and process.pages.swapped:
            rows.append((str(process.pid), "swap", size(process.pages.swapped), ""))
    return rows


def size(number: int) -> str:
    """Bytes as "3.2 GiB"."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


METRICS = (
    ("resident_bytes", "Resident bytes of a process by NUMA node and kind of page."),
    ("local_ratio", "Share of a process's memory on the nodes near its GPU, without page cache."),
    ("threads", "Threads of a process by whether they may only run near its GPU."),
    ("swapped_bytes", "Bytes of a process in swap."),
    ("near", "1 if the process is near its GPU, 0 if it is elsewhere; left out if unknown."),
)


def prometheus_text(processes: Iterable[Process]) -> str:
    """The Prometheus text format, version 0.0.4. Source: prometheus.io, "Exposition formats"."""
    samples: dict[str, list[str]] = {name: [] for name, _ in METRICS}
    for process in processes:
        about = {
            "pid": str(process.pid),
            "name": process.name,
            "gpu": ",".join(process.devices),
            "gpu_node": format_list(process.nodes or frozenset()),
        }

        def add(metric: str, value: float, about: dict[str, str] = about, **more: str) -> None:
            labels = ",".join(f'{k}="{_escaped(v)}"' for k, v in {**about, **more}.items())
            samples[metric].append(f"numabind_process_{metric}{{{labels}}} {value:.10g}")

        pages = process.pages
        if pages is not None:
            for node, kinds in sorted(pages.by_node.items()):
                for kind, number in sorted(kinds.items()):
                    add("resident_bytes", number, node=str(node), kind=kind)
            add("swapped_bytes", pages.swapped)
            if pages.local is not None:
                add("local_ratio", pages.local)
        if process.near is not None:
            add("threads", process.threads - len(process.strays), place="near")
            add("threads", len(process.strays), place="elsewhere")
        if process.verdict != "unknown":
            add("near", process.verdict == "near")
    lines = []
    for name, meaning in METRICS:
        lines.append(f"# HELP numabind_process_{name} {meaning}")
        lines.append(f"# TYPE numabind_process_{name} gauge")
        lines += samples[name]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    # Names are bytes to the kernel; the format wants UTF-8.
    clean = text.encode("utf-8", "replace").decode()
    return clean.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
