"""`doctor`: everything on this machine that works against locality, each with its remedy.

Each check is one small class in a list; docs/doctor.md is made from their texts
(`python -m numabind._doctor`).
"""

from __future__ import annotations

from numabind._discover import Questions, discover, discover_here
from numabind._doctor import devices, environment, firmware, kernel, limits
from numabind._doctor.scene import Check, Scene
from numabind._errors import MachineError
from numabind._finding import SEVERITIES, Finding
from numabind._sysfs import NODE, Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKS: tuple[Check, ...] = (
    *limits.CHECKS,
    *firmware.CHECKS,
    *kernel.CHECKS,
    *environment.CHECKS,
    *devices.CHECKS,
)


def look(environ: Mapping[str, str], root: str | None = None) -> Scene:
    """The scene here, or in a captured tree. UsageError and MachineError as discovery has them."""
    if root is None:
        return Scene(Root("/"), discover_here(environ, Questions()), environ)
    return Scene(Root(root), discover(root), environ)


def examine(scene: Scene) -> tuple[Finding, ...]:
    """All findings, the serious first."""
    found = [finding for check in CHECKS for finding in check.look(scene)]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def doctor(environ: Mapping[str, str], root: str | None = None) -> tuple[Finding, ...]:
    """Look and examine; a machine that can't be read at all is a finding, too."""
    try:
        scene = look(environ, root)
    except MachineError as error:
        return (
            Finding(
                "no-topology" if error.path.endswith(NODE) else "machine-unreadable",
                "serious",
                "the machine can't be read, so nothing is placed",
                str(error),
                "mount /sys (and /proc) into the container, read-only",
            ),
        )
    return examine(scene)


def as_markdown() -> str:
    """The page docs/doctor.md."""
    lines = [
        "# What the doctor looks for",
        "",
        "`numabind doctor` looks for what follows; `--json` has each finding as `{name, severity,",
        "cause, evidence, remedy}` in `findings`. Severities: *serious* (a worker can't be in its",
        "place; exit code 1), *warning* (it costs), *note* (worth knowing). Made from the checks'",
        "own texts by `python -m numabind._doctor`.",
        "",
    ]
    for check in CHECKS:
        lines += [f"## `{check.name}`", "", check.about, ""]
    return "\n".join(lines).rstrip() + "\n"
