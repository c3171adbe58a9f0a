"""The doctor's findings as text."""

from __future__ import annotations

from numabind._finding import SEVERITIES, Finding
from numabind._process import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def findings_text(findings: Sequence[Finding]) -> str:
    """Each finding with its evidence and remedy, and how many there are."""
    if not findings:
        return "Nothing on this machine works against locality."
    lines = []
    for finding in findings:
        lines += [
            f"{finding.severity}: {finding.name}: {printable(finding.cause)}.",
            f"  seen in: {printable(finding.evidence)}",
            f"  remedy: {printable(finding.remedy)}",
        ]
    counts = dict.fromkeys(SEVERITIES, 0)
    for finding in findings:
        counts[finding.severity] += 1
    lines += ["", ", ".join(f"{count} {severity}" for severity, count in counts.items())]
    return "\n".join(lines)
