"""Variables that fight the binding, or keep a worker from using its place."""

from __future__ import annotations

from numabind._doctor.scene import Check, Scene
from numabind._finding import Finding
from numabind._hazards import openmp_binders
from numabind._visible import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class OneThread(Check):
    """OMP_NUM_THREADS=1."""

    name = "one-openmp-thread"
    about = (
        "torchrun sets OMP_NUM_THREADS=1 for every worker unless it is set: CPU optimizers and "
        "data transforms then run on one core, whatever the worker is bound to. Source: "
        "torchrun's warning; OpenMP specification, OMP_NUM_THREADS."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A note."""
        if scene.environ.get("OMP_NUM_THREADS", "").strip() == "1":
            yield self.finding(
                "note",
                "OpenMP, and torch's CPU kernels with it, use one thread in each worker",
                "OMP_NUM_THREADS = 1",
                "numabind run --threads auto, or set it to the cores of a worker's place",
            )


class OpenMPBinds(Check):
    """OpenMP's own binding."""

    name = "openmp-binds"
    about = (
        "OMP_PROC_BIND, OMP_PLACES, KMP_AFFINITY and GOMP_CPU_AFFINITY have the OpenMP runtime "
        "set its threads' affinity after numabind did, and the main thread's with them: often one"
        " core for all workers. Source: OpenMP specification; libgomp and Intel OpenMP manuals."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for each variable; absolute CPU numbers fight worst."""
        for name, value in openmp_binders(scene.environ).items():
            yield self.finding(
                "warning",
                "the OpenMP runtime binds threads itself, after numabind has",
                f"{name} = {value}",
                f"unset {name}",
            )


# What makes a framework bind its workers itself; the values with which it does not.
_BINDERS = {
    "SGLANG_SET_CPU_AFFINITY": "SGLang",
    "SGLANG_AUTO_NUMA_BIND": "SGLang",
    "TLLM_NUMA_AWARE_WORKER_AFFINITY": "TensorRT-LLM",
    "ACCELERATE_CPU_AFFINITY": "accelerate",
    "VLLM_CPU_OMP_THREADS_BIND": "vLLM's CPU backend",
    "NRL_GPU_CPU_AFFINITY_FILE": "NeMo-RL",
    "MV2_ENABLE_AFFINITY": "MVAPICH",
    "I_MPI_PIN": "Intel MPI",
}
_NOT = ("", "0", "false", "no", "off", "disable", "nobind")


class FrameworkBinds(Check):
    """Frameworks with a binder of their own."""

    name = "framework-binds"
    about = (
        "A variable has the framework or MPI bind its workers itself, after numabind has: the "
        "last one wins, and several of these go by rank and not by where the GPU is. One owner is "
        "enough. Source: the documentation of each framework."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning for each variable."""
        for name, who in _BINDERS.items():
            value = scene.environ.get(name, "").strip()
            if value.lower() not in _NOT:
                yield self.finding(
                    "warning",
                    f"{who} binds its workers itself, too",
                    f"{name} = {value}",
                    f"unset {name}, or leave binding to it (NUMABIND=0)",
                )


class NcclIgnoresAffinity(Check):
    """NCCL_IGNORE_CPU_AFFINITY."""

    name = "nccl-ignores-affinity"
    about = (
        "With NCCL_IGNORE_CPU_AFFINITY=1 NCCL's own threads take the CPUs near the GPU by NCCL's "
        "topology, not the ones that the worker was bound to: under mode exclusive they run on "
        "other workers' cores. Source: NCCL user guide, NCCL_IGNORE_CPU_AFFINITY."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A warning where it is set."""
        value = scene.environ.get("NCCL_IGNORE_CPU_AFFINITY", "").strip()
        if value not in ("", "0"):
            yield self.finding(
                "warning",
                "NCCL's threads leave the CPUs that their worker is bound to",
                f"NCCL_IGNORE_CPU_AFFINITY = {value}",
                "unset NCCL_IGNORE_CPU_AFFINITY",
            )


class DeviceOrder(Check):
    """CUDA's order of unlike GPUs."""

    name = "device-order-unknown"
    about = (
        "CUDA numbers unlike GPUs fastest first by default, an order that nobody else knows: "
        "local rank 0's GPU can't be told, and numabind binds by no guess. Source: CUDA C++ "
        "programming guide, CUDA_DEVICE_ORDER."
    )

    def look(self, scene: Scene) -> Iterable[Finding]:
        """Serious with several kinds of NVIDIA GPUs and no order set."""
        gpus = [device for device in scene.gpus if device.vendor == "nvidia"]
        kinds = {device.device_id for device in gpus}
        order = scene.environ.get("CUDA_DEVICE_ORDER", "").strip()
        if len(kinds) > 1 and not visible(scene.machine, scene.environ).ordered:
            names = sorted({d.name or f"{d.vendor_id:04x}:{d.device_id:04x}" for d in gpus})
            yield self.finding(
                "serious",
                f"the GPUs are of {len(kinds)} kinds ({', '.join(names)}), and CUDA's order of "
                "them is not known",
                f"CUDA_DEVICE_ORDER = {order or '(not set)'}",
                "export CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID",
            )


class TurnedOff(Check):
    """NUMABIND=0."""

    name = "turned-off"
    about = "NUMABIND=0 is in the environment, so nothing here is bound by numabind."

    def look(self, scene: Scene) -> Iterable[Finding]:
        """A note."""
        value = scene.environ.get("NUMABIND", "").strip()
        if value.lower() in ("0", "off", "false", "no"):
            yield self.finding(
                "note", "numabind is turned off here", f"NUMABIND = {value}", "unset NUMABIND"
            )


CHECKS: tuple[Check, ...] = (
    OneThread(),
    OpenMPBinds(),
    FrameworkBinds(),
    NcclIgnoresAffinity(),
    DeviceOrder(),
    TurnedOff(),
)
