"""Commands that start workers, and so are none themselves. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES = (
    *("torchrun", "deepspeed", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun"),
    *("jsrun", "horovodrun"),
)
# Programs that are launchers with one of these words after them.
_WITH = {"accelerate": ("launch",), "flux": ("run",), "colossalai": ("run",), "ray": ("start",)}
_MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    "deepspeed.launcher.runner",
)


def launcher_in(command: Sequence[str]) -> str | None:
    """The launcher that a command is, by its name; None for anything else.

    Python may stand before it: "python -m torch.distributed.run", "python /usr/bin/torchrun".
    """
    words = list(command)
    if words and _base(words[0]).startswith("python"):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] != "-m":
            words = words[1:]
        if words[:1] == ["-m"]:
            return words[1] if words[1:2] and words[1] in _MODULES else None
    if not words:
        return None
    name, after = _base(words[0]), words[1:2]
    known = name in _NAMES or (name in _WITH and after and after[0] in _WITH[name])
    return name if known else None


def _base(path: str) -> str:
    return path.rpartition("/")[2]
