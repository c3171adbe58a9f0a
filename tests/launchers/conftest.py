"""A job: a launcher started as a person does, on the machine that pretend.py describes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launchers.pretend import assert_near, workers, write_snapshot

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
WORKER = str(HERE / "worker.py")


@dataclass
class Done:
    """What a finished launcher left behind."""

    code: int
    out: str
    err: str
    workers: dict[int, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)

    def all_near(self, count: int = 4) -> None:
        """Each rank is one worker, near its GPU, and says so."""
        assert self.code == 0, self.err
        assert sorted(self.workers) == list(range(count)), self.out + self.err
        for rank, found in self.workers.items():
            assert_near(found, rank)

    def warned(self) -> list[str]:
        """The names in numabind's WARNING lines."""
        lines = self.err.splitlines()
        found = [line.partition("numabind: WARNING ")[2] for line in lines]
        return [text.partition(":")[0] for text in found if text]


class Job:
    """Runs commands with the snapshot in the environment, and reads what workers said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.events = folder, folder / "events"
        kept = ("HOME", "LANG", "LC_ALL", "TMPDIR")
        self.environ = {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(HERE.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMABIND_SNAPSHOT": str(write_snapshot(folder)),
            "NUMABIND_EVENTS": str(self.events),
            "NUMABIND_MEMORY": "none",
        }

    def run(self, *command: str, affinity: set[int] | None = None, **more: str | None) -> Done:
        """Run it; `more` is added to the environment, None takes away."""
        environ = {k: v for k, v in {**self.environ, **more}.items() if v is not None}
        self.events.unlink(missing_ok=True)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            preexec_fn=None if affinity is None else lambda: os.sched_setaffinity(0, affinity),
        )
        seen = workers(done.stdout, self.events)
        return Done(done.returncode, done.stdout, done.stderr, seen)

    def python(self, program: str, *words: str, launch: bool = False, **more: str | None) -> Done:
        """Run a program that is given as text, under `numabind launch` if asked."""
        path = self.folder / "program.py"
        path.write_text(program)
        before = ["numabind", "launch", "--quiet", "--"] if launch else []
        return self.run(*before, sys.executable, str(path), *words, **more)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)
