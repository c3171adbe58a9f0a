"""What the tests use of numavm: boot a topology, run a command there, get its output."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from numavm.kernel import find_kernels

HERE = Path(__file__).resolve().parent
TOPOLOGIES = sorted(path.stem for path in (HERE / "topologies").glob("*.json"))


def available() -> str | None:
    """Why no virtual machine can be booted here; None if one can."""
    for tool in ("qemu-system-x86_64", "busybox", "zstd"):
        if not shutil.which(tool):
            return f"{tool} is not installed (tests/setup.sh installs it)"
    if not find_kernels():
        return "no guest kernel: python tests/vm/numavm --setup"
    return None


def topology(name: str) -> dict[str, Any]:
    """The topology file of this name."""
    data = json.loads((HERE / "topologies" / f"{name}.json").read_text())
    assert isinstance(data, dict)
    return data


def boot(
    name: str,
    command: list[str],
    *,
    timeout: float = 300,
    environ: dict[str, str] | None = None,
    share: tuple[Path, ...] = (),
    share_rw: tuple[Path, ...] = (),
    kernel_args: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Boot the topology, run the command in the guest, and return its output and exit code.

    "python3" as the command is this interpreter with its installed packages. Paths below /tmp must
    be shared to be seen. The exit code is the command's, 124 after `timeout` seconds, 125 if the
    machine failed.
    """
    words = [sys.executable, str(HERE / "numavm"), "--topology", name, "--timeout", str(timeout)]
    # What the tests were started from may lie below /tmp.
    shares = {str(path) for path in (*share, HERE.parent.parent, Path(sys.prefix))}
    words += [word for path in sorted(shares) for word in ("--share", path)]
    words += [word for path in share_rw for word in ("--share-rw", str(path))]
    words += [word for pair in (environ or {}).items() for word in ("--env", "=".join(pair))]
    words += [word for argument in kernel_args for word in ("--kernel-arg", argument)]
    return subprocess.run(
        [*words, "--cwd", str(HERE), "--", *command],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
