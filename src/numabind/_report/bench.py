"""What bench and calibrate found, as text."""

from __future__ import annotations

from numabind._bench.results import DIRECTIONS, Bench, Copy, Pair, Samples
from numabind._bench.verdict import comparisons, mean, verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numabind._problems import Problem


def bench_text(bench: Bench) -> str:
    """The figures, what was refused and why, and the verdict as the last line."""
    parts = []
    if any(pair.bandwidth for pair in bench.memory):
        workers = {pair.workers for pair in bench.memory if pair.bandwidth}
        many = "-".join(str(number) for number in sorted({min(workers), max(workers)}))
        parts += [
            f"CPU memory, GiB/s copied by {many} processes (middle of the rounds, lowest to "
            "highest)",
            _matrix(bench.memory, lambda pair: pair.bandwidth, 1),
            "",
            "CPU memory, ns for a load from memory beyond one from the first-level cache",
            _matrix(bench.memory, lambda pair: pair.latency, 0),
            "",
        ]
    if any(copy.rate for copy in bench.copies):
        parts += [
            f"Copies between GPU and host memory, GiB/s for each GPU, by {bench.copier}",
            _copies(bench.copies),
            "",
        ]
    shown = [f"{one.what}, local by {one.against}: {one.ratio.text}" for one in comparisons(bench)]
    parts += [*shown, ""] if shown else []
    refused = _refusals(bench)
    parts += [*refused, ""] if refused else []
    return "\n".join([*parts, verdict(bench).text])


def _matrix(pairs: Sequence[Pair], figure: Callable[[Pair], Samples | None], digits: int) -> str:
    memory = sorted({pair.memory_node for pair in pairs})
    rows = [("CPUS OF", *(f"MEMORY OF {node}" for node in memory))]
    by_place = {(pair.cpu_node, pair.memory_node): pair for pair in pairs}
    for cpu in sorted({pair.cpu_node for pair in pairs}):
        cells = (by_place.get((cpu, node)) for node in memory)
        rows.append(
            (f"node {cpu}", *(_cell(figure(pair) if pair else None, digits) for pair in cells))
        )
    return columns(rows)


def _cell(samples: Samples | None, digits: int) -> str:
    if samples is None:
        return "refused"
    return f"{samples.median:.{digits}f} ({samples.low:.{digits}f}-{samples.high:.{digits}f})"


def _copies(copies: Sequence[Copy]) -> str:
    """A row for each GPU, direction, kind of memory and company; places in columns."""
    rows: list[tuple[str, ...]] = [
        ("GPU", "WAY", "MEMORY", "AT ONCE", "LOCAL", "OTHER NODES", "UNBOUND")
    ]
    for gpu in dict.fromkeys(copy.gpu for copy in copies):
        for together in (False, True):
            for pinned in (True, False):
                for way in DIRECTIONS:
                    some = [
                        copy
                        for copy in copies
                        if (copy.gpu, copy.direction, copy.pinned) == (gpu, way, pinned)
                        and (copy.arrangement is not None) == together
                    ]
                    if some:
                        rows.append((gpu, way, *_row(some, pinned, together)))
    return columns(rows)


def _row(some: list[Copy], pinned: bool, together: bool) -> tuple[str, ...]:
    words = ("pinned" if pinned else "pageable", "all" if together else "alone")
    if any(copy.place == "unknown" for copy in some):
        each = ", ".join(
            f"node {copy.node}: {_cell(copy.rate, 1)}" for copy in some if copy.node is not None
        )
        return (*words, "node unknown", each, _of(some, "unbound"))
    return (*words, *(_of(some, place) for place in ("local", "remote", "unbound")))


def _of(some: Iterable[Copy], place: str) -> str:
    there = [copy.rate for copy in some if copy.place == place]
    if not there:
        return "-"
    known = [rate for rate in there if rate is not None]
    return _cell(mean(known) if known else None, 1)


def _refusals(bench: Bench) -> list[str]:
    """Each reason once, with how many figures it cost."""
    said: dict[Problem, int] = dict.fromkeys(bench.problems, 0)
    causes = [pair.problem for pair in bench.memory] + [copy.problem for copy in bench.copies]
    for cause in causes:
        if cause is not None:
            said[cause] = said.get(cause, 0) + 1
    return [
        f"refused: {count} of the figures: {problem.text}" if count else f"problem: {problem.text}"
        for problem, count in said.items()
    ]


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns, two blanks apart."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
