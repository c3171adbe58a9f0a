"""What bench found, as heat maps for the page."""

from __future__ import annotations

from numabind._bench.results import DIRECTIONS, Bench, Samples
from numabind._bench.verdict import verdict
from numabind._report.drawing import STEPS
from numabind._report.markup import Html, join, scrolls, section, tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Cells = Mapping[tuple[str, str], Samples | None]


def bench_section(bench: Bench | None) -> Html | None:
    """The verdict and a heat map for each kind of figure; None without a bench."""
    if bench is None:
        return None
    memory = [(f"CPUs of {p.cpu_node}", f"memory of {p.memory_node}", p) for p in bench.memory]
    maps = [
        _heat(
            "Bandwidth of CPU memory, GiB/s copied",
            {(cpu, node): pair.bandwidth for cpu, node, pair in memory},
        ),
        _heat(
            "Latency of CPU memory, ns",
            {(cpu, node): pair.latency for cpu, node, pair in memory},
            less_is_better=True,
        ),
    ]
    for pinned in (True, False):
        for direction, words in DIRECTIONS.items():
            cells: dict[tuple[str, str], Samples | None] = {}
            for copy in bench.copies:
                if (copy.direction, copy.pinned) == (direction, pinned):
                    alone = copy.arrangement is None
                    own = f"node {copy.node}" if copy.node is not None else "unbound"
                    own += " (local)" if copy.place == "local" and alone else ""
                    cells[(copy.gpu, own if alone else f"all: {copy.arrangement}")] = copy.rate
            kind = "pinned" if pinned else "pageable"
            maps.append(_heat(f"Copies {words}, {kind} memory, GiB/s", cells))
    when = f"Measured {bench.made}. " if bench.made else ""
    hint = f"{when}The middle one of several rounds; the stronger the colour, the slower. "
    hint += "A dash: refused, because its place or its bytes could not be confirmed."
    said = verdict(bench).text
    return section(
        "bench",
        "Measured",
        tag("p", f"{said[0].upper()}{said[1:]}.", class_="bench"),
        tag("p", hint, class_="hint"),
        *(drawn for drawn in maps if drawn is not None),
    )


def _heat(title: str, cells: Cells, less_is_better: bool = False) -> Html | None:
    known = [samples.median for samples in cells.values() if samples is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    rows = list(dict.fromkeys(row for row, _ in cells))
    heads = list(dict.fromkeys(head for _, head in cells))

    def cell(samples: Samples | None) -> Html:
        if samples is None:
            return tag("td", "–")
        share = (samples.median - low) / (high - low) if high > low else 0.0
        slow = share if less_is_better else 1 - share if high > low else 0.0
        # Differences of a few per cent are no heat.
        slow = slow if high > 1.05 * low else 0.0
        digits = 0 if less_is_better or samples.median >= 100 else 1
        reach = f"{samples.low:.{digits}f} to {samples.high:.{digits}f}"
        shade = f"h{round(slow * (STEPS - 1))}"
        return tag("td", f"{samples.median:.{digits}f}", class_=shade, title=reach)

    body: Sequence[Html] = [
        tag("tr", tag("th", row, scope="row"), *(cell(cells.get((row, head))) for head in heads))
        for row in rows
    ]
    corner = tag("td", tag("span", "from, to", class_="sr"))
    table = tag(
        "table",
        tag("caption", title),
        tag("thead", tag("tr", corner, *(tag("th", head, scope="col") for head in heads))),
        tag("tbody", *body),
        class_="heat",
    )
    return join((scrolls(title, table),))
