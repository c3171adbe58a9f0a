"""Which worker of this machine am I? A table of launchers' variables. Pure.

Sources: torchrun documentation, "Environment Variables"; srun(1), "OUTPUT ENVIRONMENT VARIABLES";
Open MPI, "Environment variables"; MPICH hydra (MPI_LOCALRANKID); MVAPICH user guide; HPE PALS
aprun(1); flux-run(1); IBM JSM jsrun(1).
"""

from __future__ import annotations

from numabind._errors import UsageError
from numabind._problems import Problem, problem
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# launcher, variable of the local rank, variables of the local size; the innermost launcher first,
# since torchrun is often started by srun and not the other way round.
LAUNCHERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("torchrun", "LOCAL_RANK", ("LOCAL_WORLD_SIZE",)),
    ("Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    ("MVAPICH", "MV2_COMM_WORLD_LOCAL_RANK", ("MV2_COMM_WORLD_LOCAL_SIZE",)),
    ("MPICH", "MPI_LOCALRANKID", ("MPI_LOCALNRANKS",)),
    ("JSM", "JSM_NAMESPACE_LOCAL_RANK", ("JSM_NAMESPACE_LOCAL_SIZE",)),
    ("PALS", "PALS_LOCAL_RANKID", ("PALS_LOCAL_SIZE",)),
    ("Flux", "FLUX_TASK_LOCAL_ID", ()),
    ("Slurm", "SLURM_LOCALID", ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")),
)

# What runtimes and schedulers name a process's devices in (docs/accelerators.md).
DEVICES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("ONEAPI_DEVICE_SELECTOR", "HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"),
    *("ASCEND_RT_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES"),
    *("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "VE_NODE_NUMBER"),
)
_NO_DEVICE = ("", "-1", "none", "void", "all", "nodevfiles")

# Set for what a bound process starts: "PID BORN GIVEN DEVICE THREADS CHOICES". The same PID is this
# process after exec; another is a child of a bound worker. It counts only while the mask is still
# GIVEN: a variable that travelled to another machine, or a mask that somebody changed since
# (taskset, a cpuset), says nothing about this process.
MARK = "NUMABIND_BOUND"


@record
class Worker:
    """One worker process: its rank among the workers of this machine, and how many those are.

    `launcher` is who said so; None for what nobody said. `own_devices` is how many devices the
    launcher gave to this worker alone, so that its local rank does not choose among them.
    """

    local_rank: int | None = None
    local_size: int | None = None
    launcher: str | None = None
    own_devices: int | None = None
    problems: tuple[Problem, ...] = ()


def names_one_device(value: str) -> bool:
    """Whether the text of one of DEVICES names a single device: "3", "GPU-5d0c", "level_zero:1"."""
    text = value.strip().lower()
    text = text.removeprefix("level_zero:") if ":" in text else text
    low, dash, high = text.partition("-")
    is_range = bool(dash) and low.isdigit() and high.isdigit()
    several = is_range or text == "gpu" or any(sign in text for sign in ",;:!*")
    return text not in _NO_DEVICE and not several


def detect(environ: Mapping[str, str]) -> Worker:
    """The worker that this environment describes; UsageError if a variable is not a number.

    Launchers nest: an outer one that started a single task here has no say. Of two that started
    several, the inner one counts, and the disagreement is a problem.
    """
    found: list[tuple[str, str, int, int | None]] = []
    for launcher, variable, sizes in LAUNCHERS:
        # -1 is what several trainers take, and some set, for "not distributed".
        if environ.get(variable, "").strip() in ("", "-1"):
            continue
        rank = _number(environ, variable)
        found.append((launcher, variable, rank, _first_size(environ, sizes)))
    if not found:
        # Of use to who names the rank by hand. Slurm's count is of any step, so it says nothing.
        sizes_alone = [name for entry in LAUNCHERS if entry[0] != "Slurm" for name in entry[2]]
        return Worker(local_size=_first_size(environ, sizes_alone))
    if len(found) > 1 and not any(name.startswith("SLURM_STEP_") for name in environ):
        # sbatch gives its script SLURM_LOCALID=0: that is a script, not one of several tasks.
        found = [entry for entry in found if entry[0] != "Slurm" or entry[2] != 0]
    several = [entry for entry in found if entry[3] != 1] or found[:1]
    launcher, variable, rank, size = several[0]
    problems = []
    for other in several[1:]:
        if other[2] != rank:
            problems.append(
                problem(
                    "launcher-variables-disagree",
                    f"{variable}={rank} but {other[1]}={other[2]}; {variable} was taken",
                )
            )
    if size is not None and rank >= size:
        problems.append(
            problem(
                "launcher-variables-disagree",
                f"{variable}={rank}, though {launcher} says there are {size} workers here",
            )
        )
    own = _own_devices(environ) if launcher == "Slurm" else None
    return Worker(rank, size, launcher, own, tuple(problems))


def _own_devices(environ: Mapping[str, str]) -> int | None:
    """The GPUs that Slurm gave to this task alone: --gpus-per-task, --gpu-bind=per_task or single.

    SLURM_GPUS_PER_TASK reads "2" or "a100:2", SLURMD_TRES_BIND "gpu:per_task:2".
    """
    each = environ.get("SLURM_GPUS_PER_TASK", "")
    bind = environ.get("SLURMD_TRES_BIND", "")
    text = bind if ":per_task:" in bind else each
    number = text.rpartition(":")[2].strip()
    if not (number.isascii() and number.isdigit() and len(number) < 6):
        return None
    return int(number) or None


def _first_size(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The first of these local sizes that is set."""
    for name in names:
        if environ.get(name, "").strip() not in ("", "-1"):
            return _size(environ, name)
    return None


def _number(environ: Mapping[str, str], variable: str) -> int:
    text = environ[variable].strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{variable}={environ[variable]!r:.60} is not a rank: unset or correct it")
    return int(text)


def _size(environ: Mapping[str, str], variable: str) -> int | None:
    """A local size; Slurm's "4(x2),3" counts if all nodes of the step have the same number."""
    parts = {part.partition("(")[0].strip() for part in environ[variable].split(",")}
    for text in parts:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise UsageError(
                f"{variable}={environ[variable]!r:.60} is no number of workers: unset or correct it"
            )
    return int(parts.pop()) or None if len(parts) == 1 else None
