"""One direction: a module imports only modules above it in this list, wherever in its text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src/numabind"
ORDER = [
    *(
        "_record",
        "_address",
        "_cpulist",
        "_catalogue.memory",
        "_catalogue.placing",
        "_catalogue",
        "_problems",
        "_errors",
        "_files",
        "_fields",
        "_machine",
        "_snapshot",
        "_sysfs",
        "_pci",
    ),
    *("_handle", "_near", "_vendors", "_vendors.nvidia", "_vendors.amd"),
    *("_vendors.selector", "_vendors.intel", "_vendors.others", "_visible", "_worker", "_discover"),
    *(
        "_resolve",
        "_options",
        "_placement",
        "_place",
        "_plan",
        "_hazards",
        "_inherited",
        "_syscalls",
        "_residency",
    ),
    *("_apply", "_assigned", "_binding", "_bind", "_spawn", "_bound", "ray", "_home", "_slab"),
    *("torch._loader", "torch._cuda", "torch._pool", "torch._tensors", "torch._rehome"),
    *("torch._threads", "torch._activations", "torch._setup", "torch"),
    *("_process", "_finding", "_proc", "_pages", "_holders", "_status"),
    *("_doctor.scene", "_doctor.kernel", "_doctor.firmware", "_doctor.limits"),
    *("_doctor.environment", "_doctor.devices", "_doctor", "_doctor.__main__"),
    *("_bench.results", "_bench.verdict", "_bench.calibrate", "_bench.arena", "_bench.children"),
    *("_bench.memory", "_bench.copies", "_bench.copiers", "_bench"),
    *("_fleet.topology", "_fleet.memory", "_fleet.groups", "_fleet.snapshots"),
    *("_fleet.differences", "_fleet.words", "_fleet.hosts", "_fleet.wire"),
    *("_fleet.slurm", "_fleet.answer", "_fleet"),
    *("_report", "_report.text", "_report.status", "_report.findings", "_report.colour"),
    *("_report.markup", "_report.document", "_report.crew", "_report.drawing", "_report.tables"),
    *("_report.bench", "_report.heat", "_report.html", "_report.fleet", "_report.fleet_page"),
    *("_arguments", "_parser", "_grammar", "_completion", "_manual", "_terminal", "_top", "_verbs"),
    *("_progress", "_measuring", "_clustered"),
    *("_launched", "_watch", "_launch"),
    *("_autobind.sitecustomize", "_commands", "_cli", "__main__"),
]
# The vendors' dispatcher names its readers and loads one when there is a device for it.
DISPATCHERS = {
    "_vendors": {
        *("_vendors", "_vendors.nvidia", "_vendors.amd", "_vendors.intel", "_vendors.others")
    },
    # The model; its JSON is read and written where that is asked for.
    "_machine": {"_snapshot"},
    "_doctor": {"_doctor"},
    # The records' JSON has the verdict in it.
    "_bench": {"_bench"},
    "_bench.results": {"_bench.verdict"},
    "_fleet": {"_fleet"},
}
LONGEST = 410
FILES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


def imported(path: Path) -> set[str]:
    """The modules of numabind that a file imports, TYPE_CHECKING blocks left out."""
    tree = ast.parse(path.read_text())
    typing = [
        n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    ]
    skipped = {id(inner) for block in typing for n in block.body for inner in ast.walk(n)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in inside if name.removeprefix("numabind.") in FILES}
            found.add(str(node.module))
    return {name.removeprefix("numabind.") for name in found if name.startswith("numabind.")}


def test_the_list_is_whole() -> None:
    assert set(FILES) - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_imports_go_upwards(module: str) -> None:
    above = set(ORDER[: ORDER.index(module)]) | DISPATCHERS.get(module, set())
    assert imported(FILES[module]) <= above


@pytest.mark.parametrize("module", FILES)
def test_files_stay_short(module: str) -> None:
    assert len(FILES[module].read_text().splitlines()) <= LONGEST


def test_importing_numabind_imports_nothing_of_it() -> None:
    tree = ast.parse(FILES["__init__"].read_text())
    names = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)}
    assert names == {"__future__"}
