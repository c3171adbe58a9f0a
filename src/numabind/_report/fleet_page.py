"""A fleet as one self-contained HTML page."""

from __future__ import annotations

import numabind
from numabind._fleet import FleetReport, KindReport, Outlier
from numabind._report.document import document, facts_list
from numabind._report.fleet import described, settings, summary, who
from numabind._report.markup import Html, count, details, join, scrolls, section, tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from numabind._fleet import Broken

# So many names stand in the open; more of them open on demand.
_OPEN = 8
_HEADS = {"GPU": "GPU", "CPUS": "CPUs", "PCI ADDRESSES": "PCI addresses"}


def page(report: FleetReport, made: str = "") -> str:
    """The page as text, to be saved as UTF-8; `made` is when, in words."""
    parts: dict[str, tuple[str, Html | None]] = {}
    for number, kind in enumerate(report.kinds):
        parts[f"kind{number}"] = (kind.title, _kind(f"kind{number}", kind, report))
    parts["broken"] = ("Not read", _missing("broken", "Snapshots not read", report.broken))
    parts["silent"] = ("No answer", _missing("silent", "Nodes without an answer", report.silent))
    bad = report.outliers or report.broken or report.silent
    said = tag("p", summary(report), class_=f"summary {'bad' if bad else 'good'}")
    facts = facts_list(
        (
            ("Machines", f"{report.machines:,}"),
            ("Kinds", len(report.kinds)),
            ("Outliers", f"{report.outliers:,}"),
            ("Not read", f"{len(report.broken):,}"),
        )
    )
    origin = f"numabind {numabind.__version__} fleet report" + (f" · made {made}" if made else "")
    return document("Fleet", join((said, facts)), parts, origin=origin, css=Html(""))


def _kind(name: str, kind: KindReport, report: FleetReport) -> Html:
    alike = len(kind.reference.members)
    hint = f"{alike:,} of {count(kind.machines, 'machine')} alike."
    nodes, gpus = described(kind)
    tables = [
        scrolls(f"{what} of {kind.title}", _table(f"{what} of each", rows))
        for what, rows in (("Nodes", nodes), ("GPUs", gpus))
        if len(rows) > 1
    ]
    rest = "; ".join(f"{word}: {value}" for word, value in settings(kind))
    return section(
        name,
        kind.title,
        tag("p", hint, class_="hint"),
        *tables,
        tag("p", rest, class_="hint"),
        details("All that are alike", tag("p", tag("code", who(kind.reference, report)))),
        *(_outlier(outlier, report) for outlier in kind.outliers),
    )


def _table(caption: str, rows: Sequence[tuple[str, ...]]) -> Html:
    # The text report has its headings in capitals.
    words = (_HEADS.get(word, word.capitalize()) for word in rows[0])
    head = (tag("th", word, scope="col") for word in words)
    body = (
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", tag("bdi", cell)) for cell in row[1:]),
        )
        for row in rows[1:]
    )
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *head)),
        tag("tbody", *body),
        class_="devs",
    )


def _outlier(outlier: Outlier, report: FleetReport) -> Html:
    members = outlier.group.members
    few = who(outlier.group, report, _OPEN)
    every = who(outlier.group, report)
    return tag(
        "article",
        tag(
            "h3",
            tag("span", "outlier", class_="badge warning"),
            " ",
            tag("bdi", few),
            tag("small", f" {count(len(members), 'machine')}") if len(members) > 1 else None,
        ),
        *(tag("p", f"{text}.") for text in outlier.text),
        details("All of them", tag("p", tag("code", every))) if every != few else None,
        class_="issue warning",
    )


def _missing(name: str, title: str, found: Sequence[Broken]) -> Html | None:
    if not found:
        return None
    rows = [("Name", "Cause"), *((each.file, each.cause) for each in found)]
    return section(name, title, scrolls(f"{title}, each with its cause", _table(title, rows)))
