"""What numabind loads: no compute runtime, no heavy module, nothing at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from machines.build import build
from machines.shapes import SHAPES

NEVER = {"torch", "ray", "rich", "dataclasses", "numpy", "amdsmi", "cuda", "inspect"}
RUNTIMES = ("libcuda", "libcudart", "libamdhip", "libhsa", "libze_")
# Runs CODE, then says on the last line which modules and libraries that brought in.
WATCH = """
import sys
before = set(sys.modules)
import contextlib, io, json, os
with contextlib.redirect_stdout(io.StringIO()):
    exec(os.environ["CODE"])
maps = open("/proc/self/maps").read()
print(json.dumps([sorted(set(sys.modules) - before), maps]))
"""
ACTS = {
    "import": "import numabind",
    "import all": "from numabind import *",
    "discover": "import numabind; numabind.discover(ROOT)",
    "plan": "import numabind; numabind.plan(numabind.discover(ROOT), mode='core-complex')",
    "show": "from numabind._cli import main; assert main(['show', '--root', ROOT]) == 0",
    "plan verb": "from numabind._cli import main; assert main(['plan', '--root', ROOT]) == 0",
}


def heavy(modules: set[str]) -> set[str]:
    """Those of NEVER that numabind brought in."""
    # Since 3.14 Python's own argparse and logging bring these two, for colour.
    excused = {"dataclasses", "inspect"} if "_colorize" in modules else set()
    return {name.partition(".")[0] for name in modules} & NEVER - excused


def watched(code: str, root: Path | str = "") -> tuple[set[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", WATCH],
        env={**os.environ, "CODE": f"ROOT = {str(root)!r}; {code}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    modules, maps = json.loads(done.stdout.splitlines()[-1])
    return set(modules), maps


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SHAPES["sparse"], tmp_path_factory.mktemp("sparse"))


@pytest.mark.parametrize("code", ACTS.values(), ids=ACTS)
def test_no_runtime_and_no_heavy_module_is_loaded(code: str, sparse: Path) -> None:
    modules, maps = watched(code, sparse)
    assert "numabind" in modules
    assert heavy(modules) == set()
    # A tree of files is never asked through NVML, though it has NVIDIA's GPUs.
    assert "pynvml" not in modules
    assert [name for name in (*RUNTIMES, "libnvidia-ml") if name in maps] == []


def test_bind_initialises_no_runtime() -> None:
    modules, maps = watched("import numabind; numabind.bind()")
    assert heavy(modules) == set()
    assert [name for name in RUNTIMES if name in maps] == []


def test_importing_numabind_loads_no_other_module_of_it() -> None:
    modules, _ = watched("import numabind")
    assert {name for name in modules if name.startswith("numabind")} == {"numabind"}


def test_the_public_names_are_sorted_and_there() -> None:
    import numabind

    assert numabind.__all__ == sorted(numabind.__all__)
    assert dir(numabind) == numabind.__all__
    assert all(getattr(numabind, name) is not None for name in numabind.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        numabind.nothing  # noqa: B018


HEAVY = {
    "argparse",
    "collections",
    "ctypes",
    "dataclasses",
    "enum",
    "json",
    "logging",
    "re",
    "typing",
}
RUN = """
import os, sys
before = set(sys.modules)
from numabind import _cli
os.execvp = lambda *_: print(*sorted(set(sys.modules) - before))
_cli.main(["run", "--quiet", "--", "true"])
"""


STATUS = """
import os, sys
before = set(sys.modules)
from numabind import _cli
assert _cli.main(["status", "--pages", "sample", str(os.getpid())]) == 0
print(*sorted(set(sys.modules) - before))
"""


def test_a_status_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STATUS], capture_output=True, text=True, check=True, env={}
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "numabind._syscalls" in loaded
    assert loaded & (HEAVY | {"array", "numabind._plan", "numabind._bind"}) == set()


def test_a_run_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, check=True, env={}
    )
    loaded = set(done.stdout.split())
    assert "numabind._syscalls" in loaded
    assert loaded & HEAVY == set()
