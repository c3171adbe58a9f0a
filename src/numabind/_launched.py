"""Whether an environment is that of a worker below `numabind launch`. Pure."""

from __future__ import annotations

from numabind._errors import UsageError
from numabind._worker import DEVICES, LAUNCHERS, detect, names_one_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# For what is launched: "NAME SAID [FIELD=VALUE ...]", the watcher's socket, the problems that were
# said before the start, and the options; and what the environment said of ranks and devices then.
LAUNCH = "NUMABIND_LAUNCH"
BEFORE = "NUMABIND_LAUNCH_BEFORE"
# What tells that an environment is another worker's. A Slurm job's script has a SLURM_LOCALID as
# its tasks do, torchrun below torchrun a LOCAL_RANK.
_RANKS = tuple(variable for _, variable, _ in LAUNCHERS)
_IDENTITY = (*_RANKS, "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")


def identity(environ: Mapping[str, str]) -> str:
    """What an environment says of ranks, in one line."""
    return " ".join(environ.get(name, "-").strip().replace(" ", "_") or "-" for name in _IDENTITY)


def before(environ: Mapping[str, str]) -> str:
    """The value of BEFORE: what the launcher's own environment says of ranks and devices."""
    shown = (environ.get(name, "").replace("\n", " ") for name in DEVICES)
    return "\n".join((identity(environ), *shown))


def ranks_in(environ: Mapping[str, str]) -> str:
    """The rank variables that an environment has, "LOCAL_RANK=3"."""
    return ", ".join(f"{name}={environ[name]}" for name in _RANKS if environ.get(name, "").strip())


def ranked_already(environ: Mapping[str, str]) -> bool:
    """Whether the environment of `launch` is one worker's of several, or looks so.

    A worker below with the same rank could not be told from its launcher.
    """
    try:
        worker = detect(environ)
    except UsageError:
        return False
    return worker.local_rank is not None and worker.local_size != 1


def is_sole_task(environ: Mapping[str, str]) -> bool:
    """Whether this is the only task here of srun or mpirun, which often is a launcher itself."""
    try:
        worker = detect(environ)
    except UsageError:
        return False
    return worker.local_size == 1 and worker.launcher != "torchrun"


def is_worker(environ: Mapping[str, str]) -> bool:
    """Whether this is the environment of a worker below `numabind launch`."""
    if LAUNCH not in environ:
        return False
    ranks, *devices = environ.get(BEFORE, "").split("\n")
    if len(devices) != len(DEVICES):
        devices = [""] * len(DEVICES)
    if identity(environ) != ranks:
        return any(environ.get(name, "").strip() for name in _RANKS)
    for name, then in zip(DEVICES, devices, strict=False):
        now = environ.get(name, "").replace("\n", " ")
        if now != then and names_one_device(now):
            return True
    return False
