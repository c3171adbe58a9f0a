"""Whether an environment is that of a worker below `numabind launch`. Pure."""

from __future__ import annotations

from numabind._worker import LAUNCHERS

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
_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "HABANA_VISIBLE_DEVICES",
)


def identity(environ: Mapping[str, str]) -> str:
    """What an environment says of ranks, in one line."""
    return " ".join(environ.get(name, "-").strip().replace(" ", "_") or "-" for name in _IDENTITY)


def before(environ: Mapping[str, str]) -> str:
    """The value of BEFORE: what the launcher's own environment says of ranks and devices."""
    return "\n".join((identity(environ), *(environ.get(name, "") for name in _DEVICES)))


def is_worker(environ: Mapping[str, str]) -> bool:
    """Whether this is the environment of a worker below `numabind launch`."""
    if LAUNCH not in environ:
        return False
    ranks, *devices = environ.get(BEFORE, "").split("\n")
    if identity(environ) != ranks:
        return any(environ.get(name, "").strip() for name in _RANKS)
    for name, then in zip(_DEVICES, devices, strict=False):
        now = environ.get(name, "")
        if now != then and now.strip() and "," not in now:
            return True
    return False
