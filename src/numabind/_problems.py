"""Everything that can limit a result: a stable name, what it means, and the remedy.

`docs/problems.md` is made from CATALOGUE (`python -m numabind._problems`). A name never changes its
meaning; code that reads the JSON may compare it.
"""

from __future__ import annotations

from numabind._record import record


@record
class Problem:
    """One thing that stood in the way on this machine.

    `name` is a key of CATALOGUE, `cause` what was found here, `remedy` what to do about it.
    """

    name: str
    cause: str
    remedy: str

    @property
    def text(self) -> str:
        """One line for a person: name, cause and remedy."""
        return f"{self.name}: {self.cause}. {self.remedy}"

    def as_dict(self) -> dict[str, str]:
        """The JSON form: {"name": …, "cause": …, "remedy": …}."""
        return {"name": self.name, "cause": self.cause, "remedy": self.remedy}


def problem(name: str, cause: str, remedy: str | None = None) -> Problem:
    """A Problem of the catalogue; its remedy unless a sharper one is given. KeyError if unknown."""
    return Problem(name, cause.rstrip("."), CATALOGUE[name][1] if remedy is None else remedy)


# Found, worth saying, but the worker is where it should be: these don't fail `--strict`, and a
# `bind` that has only these is a success.
NOTES = frozenset(
    {
        "cpus-reduced",
        "device-order-assumed",
        "inherited",
        "memory-lent",
        "not-pinned",
        "cpus-lent",
        "nvml-unavailable",
        "one-node",
        "overlapping-nodes",
        "processes-unseen",
        "threads-kept",
        "threads-late",
        "turned-off",
        "locality-contradiction",
    }
)

# Said as a WARNING, but no reason for `--strict` to refuse: the worker's place does not suffer.
HARMLESS = frozenset(
    {
        "bad-setting",
        "launcher-bound",
        "map-unmatched",
        "no-worker-bound",
        "snapshot-unfit",
        "spawned-elsewhere",
        "worker-did-not-bind",
    }
)

# name: (what it means, remedy)
CATALOGUE: dict[str, tuple[str, str]] = {
    "no-home-node": (
        "Memory was asked for on the worker's node, and there is no telling which that is: the "
        "thread is bound to CPUs of several nodes and no memory policy names one. The memory is "
        "wherever the thread that asked happens to run.",
        "Bind the worker first (numabind run, numabind.bind()), or name the node (node=N).",
    ),
    "not-pinned": (
        "Host memory is on its node, but CUDA could not register it, so it is not pinned: copies "
        "from and to it are slower and not asynchronous.",
        "Nothing to do on a machine without CUDA; else look at the memory limits of this container "
        "(ulimit -l, the memory cgroup).",
    ),
    "no-host-memory": (
        "Activations were to go to host memory and there was none left for them (of the machine, "
        "or of this process's limit). They stay where they are; gradients are the same.",
        "Free host memory, raise the limit (ulimit -v, the memory cgroup), or save less in "
        "offload_activations (min_bytes=N).",
    ),
    "slab-elsewhere": (
        "Part of the host memory that was asked for on a node came from another one, because the "
        "node had no more. Read back page by page after touching it.",
        "Free memory on the node (numabind status, numabind doctor), or offload less to it.",
    ),
    "tensors-left": (
        "rehome left host tensors where they are. Something else has their memory too (a "
        "state_dict or a graph that is still alive, a NumPy array, the flat buffers of FSDP1 or "
        "DeepSpeed) and would not see what is written to a copy; or another process has it; or "
        "they are sparse, nested, quantized or made of other tensors.",
        "Call rehome before that is made, or after it is gone; memory that is shared on purpose is "
        "best allocated by a worker that numabind bound first.",
    ),
    "placed-elsewhere": (
        "Tensors or other memory of this process were on another node before it was bound, and "
        "some of it can't be moved: pinned pages never move.",
        "Call setup_cpu_offload before CUDA and the model are set up, or start the program through "
        "numabind run or numabind launch, so that it is born in its place.",
    ),
    "affinity-denied": (
        "The kernel refused sched_setaffinity for some thread. The mask stays as it was.",
        "Allow sched_setaffinity in the seccomp profile or security module of this container.",
    ),
    "affinity-not-kept": (
        "After binding, a thread's mask read back from the kernel is not the planned one. A CPU "
        "went offline, a cpuset changed, or another program bound the process in the meantime.",
        "Look for a second binder (OMP_PROC_BIND, KMP_AFFINITY, the launcher), then bind again.",
    ),
    "bad-setting": (
        "A NUMABIND_… or launcher variable has a value that can't be used; it was not guessed at. "
        "bind() then binds nothing; numabind run exits with 2 before the command starts.",
        "Correct or unset the variable.",
    ),
    "bytes-differ": (
        "What was copied to a GPU and back is not what was sent. The figure was refused.",
        "Check the GPU, its link and its memory (dmesg for Xid and AER lines, nvidia-smi -q).",
    ),
    "copy-failed": (
        "The GPU library refused a copy or its preparation, so there is no figure.",
        "Read the library's message; for pinned memory look at ulimit -l and the container's "
        "limits, for memory of the GPU at who else uses it.",
    ),
    "cpus-lent": (
        "The GPU's node has no CPUs (CPUs offline, or a memory-only node); the nearest node that "
        "has some lends its own.",
        "Nothing to do if the node has no CPUs by design; else bring its CPUs online "
        "(/sys/devices/system/cpu/cpuN/online).",
    ),
    "cpus-not-allowed": (
        "None of the CPUs near the GPU may be used: the affinity this process was born with, or "
        "its cpuset, leaves them all out. The mask stays as it was; the memory policy is set to "
        "the GPU's node all the same, which is where copies want it.",
        "Ask the scheduler for CPUs on the GPU's node (Slurm: --cpus-per-gpu with --gpu-bind, or "
        "--exclusive; Kubernetes: Topology Manager single-numa-node; Docker: --cpuset-cpus).",
    ),
    "cpus-reduced": (
        "Only some of the CPUs near the GPU may be used; the worker is bound to those.",
        "Ask the scheduler for whole NUMA nodes if the rest is wanted.",
    ),
    "device-not-found": (
        "No device of this machine answers to the GPU that was named.",
        "See `numabind show` for the devices and their PCI addresses.",
    ),
    "device-order-assumed": (
        "The GPUs' models could not be read, so CUDA's order was taken to be the PCI order. It is, "
        "unless the models differ.",
        "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or install nvidia-ml-py.",
    ),
    "device-order-unknown": (
        "The GPUs are of unlike models, and CUDA then numbers them fastest first, an order that "
        "only CUDA knows. An ordinal can't be traced to a GPU.",
        "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by UUID or PCI address.",
    ),
    "devices-on-several-nodes": (
        "The worker was given several GPUs that hang off different nodes. It was bound to all of "
        "those nodes together, so some of its threads and memory are far from some of its GPUs.",
        "Give each worker GPUs of one node (numabind show), start a worker for each GPU, or name "
        "one with gpu=.",
    ),
    "inherited": (
        "The process that started this one was bound by numabind to the same GPU in the same way, "
        "so it is a helper of that worker (a DataLoader worker, say) and keeps what it inherited.",
        "Nothing to do.",
    ),
    "launcher-bound": (
        "Something else (srun --cpu-bind, mpirun, torchrun --numa-binding, taskset, OpenMP) bound "
        "this process before numabind did, to fewer CPUs than its cgroup allows, and the worker's "
        "place suffers. numabind planned within what was left.",
        "Tell the other binder not to, or pass --ignore-inherited (ignore_inherited=True).",
    ),
    "launcher-variables-disagree": (
        "Two launchers' variables give this worker different local ranks.",
        "Unset the stale one, or pass local_rank or --local-rank.",
    ),
    "locality-contradiction": (
        "The firmware's numa_node and local_cpulist of a device contradict each other; numa_node "
        "was believed.",
        "Check with a bandwidth test, correct it with NUMABIND_MAP, and report the firmware.",
    ),
    "machine-unreadable": (
        "The description of this machine in /sys or /proc can't be read or understood.",
        "Mount /sys and /proc in the container; report the named file if it is there.",
    ),
    "map-unmatched": (
        "A line of the NUMABIND_MAP file names a GPU that is not on this machine, or is overridden "
        "by a later line.",
        "Correct the line; `numabind show` lists PCI addresses and UUIDs.",
    ),
    "memory-lent": (
        "The node near the GPU has no memory for the host (none installed, or it is the GPU's "
        "own); the nearest CPU node with memory lends its own.",
        "Nothing to do, unless a memory module is missing: compare `numabind show` with the "
        "machine's manual.",
    ),
    "memory-not-allowed": (
        "This process may not allocate on the node near the GPU (Mems_allowed of its cpuset), so "
        "no memory policy was set.",
        "Ask for that node's memory (cpuset.mems; Docker: --cpuset-mems; Slurm: "
        "ConstrainRAMSpace with whole nodes).",
    ),
    "memory-policy-denied": (
        "The kernel answered EPERM to set_mempolicy, as Docker's default seccomp profile makes it. "
        "The CPU binding stays, and first touch by bound threads does most of the job.",
        "Give the container --cap-add SYS_NICE (Kubernetes: securityContext.capabilities.add: "
        "[SYS_NICE]); --privileged is not needed.",
    ),
    "memory-policy-not-kept": (
        "The memory policy read back from the kernel is not the one that was set.",
        "Look for another program that sets a policy (numactl, a runtime), then bind again.",
    ),
    "memory-policy-unsupported": (
        "This kernel does not know the memory policy that was asked for (weighted-interleave needs "
        "Linux 6.9; kernels without NUMA know none).",
        "Use --memory prefer, or a newer kernel.",
    ),
    "more-workers-than-devices": (
        "There are more workers than devices they can see, and sharing was not asked for.",
        "Start one worker per GPU, or say how to share: --share block or --share cyclic.",
    ),
    "no-copier": (
        "Nothing that can copy to a GPU is installed, or it finds none, so no copies were "
        "measured.",
        "Run numabind where PyTorch finds the GPUs, or pip install 'numabind[cuda]'.",
    ),
    "no-device": (
        "No GPU or accelerator was found that a worker could belong to.",
        "Nothing to do on a machine without GPUs; else check that the driver's devices are in /sys "
        "and that CUDA_VISIBLE_DEVICES does not hide them all, or name a PCI address with --gpu.",
    ),
    "no-l3-groups": (
        "The kernel shows no cache information for these CPUs (usual in VMs), so core-complex "
        "falls back to the whole node.",
        "Use --mode node or exclusive.",
    ),
    "no-local-rank": (
        "Several devices are visible and nothing says which one is this worker's.",
        "Start it through a launcher, set LOCAL_RANK, or pass --gpu or --local-rank.",
    ),
    "no-numa-node": (
        "Neither the firmware nor the driver says which NUMA node the device hangs off, and this "
        "machine has several. Nothing is bound: a guess would be wrong for half of the GPUs.",
        "In a VM, have the host expose the topology (PXB with numa_node); else name the place in "
        "a NUMABIND_MAP file, or let numabind calibrate find it.",
    ),
    "no-package": (
        "The kernel does not say which package (socket) these CPUs belong to, so socket falls back "
        "to the GPU's node.",
        "Use --mode node.",
    ),
    "node-silent": (
        "A node of the cluster did not answer the survey, so it is not in the result.",
        "Install numabind on that node (or through runtime_env), and see Ray's log there.",
    ),
    "pages-elsewhere": (
        "Much of a process's memory is on other nodes than its GPU. Page cache is not counted: it "
        "is where a file's first reader was.",
        "Start it under numabind run (or launch), so that it allocates in place; for what runs "
        "already, migratepages PID FROM TO moves all but pinned memory.",
    ),
    "pages-unverified": (
        "The kernel refuses to say where memory is (Docker's default profile refuses move_pages), "
        "so no figure that depends on the place was given.",
        "Allow move_pages in the seccomp profile, or measure on the host.",
    ),
    "pages-unreadable": (
        "Where a process's pages are could not be read: the kernel shows it only to the process's "
        "own user and to who has CAP_SYS_PTRACE.",
        "Run numabind status as that user or as root; in a container add --cap-add SYS_PTRACE.",
    ),
    "processes-unseen": (
        "Without NVML a process that holds a GPU is known by its open device files, and those of "
        "other users' processes are shown to CAP_SYS_PTRACE only: such processes are not listed.",
        "Run numabind status as root; in a container add --cap-add SYS_PTRACE; or install "
        "nvidia-ml-py, since NVML lists the processes of all users.",
    ),
    "no-worker-bound": (
        "What numabind launch started had child processes, but none on this machine that began as "
        "a Python interpreter with a rank or a single GPU in its environment, so nothing was "
        "bound. A script that uses multiprocessing passes the rank as an argument, which can't be "
        "seen from outside.",
        "Use numabind.bound or numabind.spawning in the script; or set LOCAL_RANK, or a single "
        "CUDA_VISIBLE_DEVICES, for each child.",
    ),
    "not-linux": (
        "numabind binds on Linux only; here it does nothing.",
        "Nothing to do.",
    ),
    "near-not-found": (
        "The device that workers were to be near (--near, near=) is not on the PCI bus of this "
        "machine, or the kernel calls it otherwise.",
        "Name a NIC or disk of `numabind show`, an interface of `ip link`, or a PCI address.",
    ),
    "nvml-unavailable": (
        "NVML did not answer, so UUIDs, indices and MIG instances come from /proc/driver/nvidia "
        "or stay unknown.",
        "Install nvidia-ml-py (pip install 'numabind[nvidia]') and check that the driver runs.",
    ),
    "one-node": (
        "This machine has one NUMA node, so there is nothing that binding could improve.",
        "Nothing to do.",
    ),
    "overlapping-nodes": (
        "Some of a node's CPUs are also in an earlier node, which no working kernel shows; the "
        "later node was left out.",
        "Report the firmware (SRAT table) to the machine's maker.",
    ),
    "out-of-time": (
        "The time for measuring was used up before this figure's turn came.",
        "Give it more: --seconds.",
    ),
    "page-move-denied": (
        "The kernel refused move_pages, as Docker's default seccomp profile does; pages that were "
        "touched before the bind stay where they are.",
        "Bind before memory is touched (numabind run), or allow move_pages in the seccomp profile.",
    ),
    "pages-misplaced": (
        "Memory that was to be measured on one node was found on another by reading back, so the "
        "figure was refused: the node is full, or something moves pages.",
        "Free memory on that node (numastat -m), and see numabind doctor for what moves pages.",
    ),
    "pages-not-moved": (
        "Some pages that were touched before the bind could not be moved: they are shared with "
        "other processes, pinned, or the node is full.",
        "Bind before memory is touched: start the worker with numabind run.",
    ),
    "rank-before-launch": (
        "The environment of numabind launch itself has a worker's rank. A worker below with the "
        "same rank can't be told from its launcher and is not bound.",
        "Unset the variable; or, if this command is a worker itself (srun numabind …), use "
        "numabind run instead of launch.",
    ),
    "rank-without-device": (
        "The worker's local rank is not among the visible devices.",
        "Start at most one worker per GPU, give this one a visible device, or use --share.",
    ),
    "places-overlap": (
        "Some GPUs' places overlap without being the same (a narrow local_cpulist, a NUMABIND_MAP "
        "with cpus=), so exclusive can't keep their workers apart.",
        "Give these GPUs the same place, or places apart, in a NUMABIND_MAP file.",
    ),
    "reserve-too-large": (
        "--reserve would leave the worker no core, so it was not applied.",
        "Reserve fewer cores.",
    ),
    "snapshot-unfit": (
        "The file in NUMABIND_SNAPSHOT describes another machine, or this one before a reboot or a "
        "change of its GPUs; it was ignored and the machine was read afresh.",
        "Make it anew: numabind snapshot -o FILE.",
    ),
    "spawned-elsewhere": (
        "A process that was started inside numabind.spawning was born of multiprocessing's "
        "forkserver, not of this thread: it inherited what the forkserver has, which is the place "
        "of the first worker if it was started inside spawning, too.",
        "Use the start method spawn or fork, or decorate the child's function with numabind.bound.",
    ),
    "threads-kept": (
        "Some threads had a narrower mask of their own before the bind and were left alone.",
        "Bind before they are started (numabind run), or unset OMP_PROC_BIND and the like.",
    ),
    "threads-late": (
        "Threads were running before the bind. Their CPUs were bound, but a memory policy is per "
        "thread and only the calling thread and its later children have it.",
        "Bind before threads start: numabind run, or bind() first thing in the program.",
    ),
    "threads-unseen": (
        "Without /proc the other threads of this process can't be found, so only the calling "
        "thread was bound.",
        "Mount /proc, or bind before threads start (numabind run).",
    ),
    "too-little-free": (
        "A node has too little free memory for buffers that are much larger than the caches, so "
        "what is copied would come from those.",
        "Measure on an idle machine (numastat -m shows what is used).",
    ),
    "too-few-cores": (
        "The node has fewer free cores than GPUs, so exclusive can't give each its own; the worker "
        "shares the node.",
        "Use --mode node, reserve fewer cores, or ask the scheduler for more CPUs.",
    ),
    "threads-elsewhere": (
        "Some threads of a process may run on CPUs that are not near its GPU: they were started "
        "before it was bound, or something else set their affinity.",
        "Start it under numabind run (or launch); numabind.bind() in it moves the threads that are "
        "there. Threads of libraries that bind themselves: unset OMP_PROC_BIND and the like.",
    ),
    "turned-off": (
        "NUMABIND=0 is set, so nothing is bound.",
        "Unset NUMABIND to bind.",
    ),
    "worker-did-not-bind": (
        "A process below numabind launch has a rank in its environment, but neither it nor a child "
        "of it bound itself: it is not Python, or a Python started with -E, -I or -S.",
        "Put numabind run -- before the worker's own command (torchrun --no-python numabind run "
        "-- CMD).",
    ),
}


def as_markdown() -> str:
    """The text of docs/problems.md."""
    lines = [
        "# Problems",
        "",
        "numabind never fails silently and never kills a job: what limits a result is named. Each",
        "name below is stable. It stands in the WARNING line, in `problems` of every `--json`",
        "output, and in `binding.problems`, with the cause found on that machine. Names marked",
        "*note* are no WARNING: the worker is in its place. `--strict` passes with those, and with",
        "those marked *harmless*.",
        "",
        "<!-- Made by: python -m numabind._problems > docs/problems.md -->",
    ]
    for name in sorted(CATALOGUE):
        meaning, remedy = CATALOGUE[name]
        mark = " *(note)*" if name in NOTES else " *(harmless)*" if name in HARMLESS else ""
        lines += ["", f"## `{name}`{mark}", "", meaning, "", f"**Remedy.** {remedy}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
