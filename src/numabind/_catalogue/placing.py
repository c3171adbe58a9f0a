"""What can stand in the way of a worker's place."""

from __future__ import annotations

# name: (what it means, remedy)
PLACING: dict[str, tuple[str, str]] = {
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
        "Nothing here tells how the runtime numbers the devices, so the order of their PCI "
        "addresses was taken.",
        "For CUDA set CUDA_DEVICE_ORDER=PCI_BUS_ID or install nvidia-ml-py; else name each "
        "worker's device by its PCI address (--gpu).",
    ),
    "device-order-unknown": (
        "An ordinal can't be traced to a device. CUDA numbers GPUs of unlike models fastest first, "
        "an order that only CUDA knows; Ascend and Neuron number by the place on the board.",
        "For CUDA set CUDA_DEVICE_ORDER=PCI_BUS_ID or name the GPU by UUID; else name each "
        "worker's device by its PCI address (--gpu; npu-smi info, neuron-ls), or for Ascend run as "
        "root, who may read the driver's numbers.",
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
    "near-not-found": (
        "The device that workers were to be near (--near, near=) is not on the PCI bus of this "
        "machine, or the kernel calls it otherwise.",
        "Name a NIC or disk of `numabind show`, an interface of `ip link`, or a PCI address.",
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
    "no-worker-bound": (
        "What numabind launch started had child processes, but none on this machine that began as "
        "a Python interpreter with a rank or a single GPU in its environment, so nothing was "
        "bound. A script that uses multiprocessing passes the rank as an argument, which can't be "
        "seen from outside.",
        "Use numabind.bound or numabind.spawning in the script; or set LOCAL_RANK, or a single "
        "CUDA_VISIBLE_DEVICES, for each child.",
    ),
    "node-memory-low": (
        "Memory policy bind was asked for, and hardly any memory is free on the worker's node: "
        "when it is full, the kernel kills the worker.",
        "Use --memory prefer, which spills to other nodes; or free memory (numabind doctor).",
    ),
    "not-linux": (
        "numabind binds on Linux only; here it does nothing.",
        "Nothing to do.",
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
    "one-openmp-thread": (
        "OMP_NUM_THREADS=1, which torchrun sets for every worker, was left as it is: a CPU "
        "optimizer then runs on one core of the many that the worker has.",
        'Use --threads auto (threads="auto"), or set OMP_NUM_THREADS before the launcher.',
    ),
    "openmp-binds": (
        "A variable has the OpenMP runtime bind this worker's threads itself, after numabind has: "
        "all workers of a node then run on the same few cores of it.",
        "Unset the variable, or give each worker cores of its own (--mode exclusive) and name no "
        "CPU numbers in it.",
    ),
    "out-of-descriptors": (
        "The process or the machine had no file descriptor left, so the files that describe the "
        "machine could not be opened. Nothing is bound.",
        "Bind before files are opened (numabind run, or bind() first thing in the program), or "
        "raise the limit (ulimit -n).",
    ),
    "overlapping-nodes": (
        "Some of a node's CPUs are also in an earlier node, which no working kernel shows; the "
        "later node was left out.",
        "Report the firmware (SRAT table) to the machine's maker.",
    ),
    "page-move-denied": (
        "The kernel refused move_pages, as Docker's default seccomp profile does; pages that were "
        "touched before the bind stay where they are.",
        "Bind before memory is touched (numabind run), or allow move_pages in the seccomp profile.",
    ),
    "pages-not-moved": (
        "Some pages that were touched before the bind could not be moved: they are shared with "
        "other processes, pinned, or the node is full.",
        "Bind before memory is touched: start the worker with numabind run.",
    ),
    "places-overlap": (
        "Some GPUs' places overlap without being the same (a narrow local_cpulist, a NUMABIND_MAP "
        "with cpus=), so exclusive can't keep their workers apart.",
        "Give these GPUs the same place, or places apart, in a NUMABIND_MAP file.",
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
    "reserve-too-large": (
        "--reserve would leave the worker no core, so it was not applied.",
        "Reserve fewer cores.",
    ),
    "run-around-launcher": (
        "numabind run stands before a launcher that sees several GPUs. All its workers would "
        "inherit the place of one of them, so nothing was bound.",
        "Use numabind launch, or put numabind run -- before the worker's own command.",
    ),
    "selector-not-understood": (
        "ONEAPI_DEVICE_SELECTOR has a form that numabind does not read, so ordinals say nothing.",
        "Write it as level_zero:0,1, or name the GPU by its PCI address (--gpu).",
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
    "too-few-cores": (
        "The node has fewer free cores than GPUs, so exclusive can't give each its own; the worker "
        "shares the node.",
        "Use --mode node, reserve fewer cores, or ask the scheduler for more CPUs.",
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
