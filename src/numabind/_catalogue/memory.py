"""What can be wrong with pages, host buffers, and what is measured of them."""

from __future__ import annotations

# name: (what it means, remedy)
MEMORY: dict[str, tuple[str, str]] = {
    "bytes-differ": (
        "What was copied to a GPU and back is not what was sent. The figure was refused.",
        "Check the GPU, its link and its memory (dmesg for Xid and AER lines, nvidia-smi -q).",
    ),
    "copy-failed": (
        "The GPU library refused a copy or its preparation, so there is no figure.",
        "Read the library's message; for pinned memory look at ulimit -l and the container's "
        "limits, for memory of the GPU at who else uses it.",
    ),
    "no-copier": (
        "Nothing that can copy to a GPU is installed, or it finds none, so no copies were "
        "measured.",
        "Run numabind where PyTorch finds the GPUs, or pip install 'numabind[cuda]'.",
    ),
    "no-home-node": (
        "Memory was asked for on the worker's node, and there is no telling which that is: the "
        "thread is bound to CPUs of several nodes and no memory policy names one. The memory is "
        "wherever the thread that asked happens to run.",
        "Bind the worker first (numabind run, numabind.bind()), or name the node (node=N).",
    ),
    "no-host-memory": (
        "Activations were to go to host memory and there was none left for them (of the machine, "
        "or of this process's limit). They stay where they are; gradients are the same.",
        "Free host memory, raise the limit (ulimit -v, the memory cgroup), or save less in "
        "offload_activations (min_bytes=N).",
    ),
    "node-silent": (
        "A node of the cluster did not answer the survey, so it is not in the result.",
        "Install numabind on that node (or through runtime_env), and see Ray's log there.",
    ),
    "not-pinned": (
        "Host memory is on its node, but CUDA could not register it, so it is not pinned: copies "
        "from and to it are slower and not asynchronous.",
        "Nothing to do on a machine without CUDA; else look at the memory limits of this container "
        "(ulimit -l, the memory cgroup).",
    ),
    "out-of-time": (
        "The time for measuring was used up before this figure's turn came.",
        "Give it more: --seconds.",
    ),
    "pages-elsewhere": (
        "Much of a process's memory is on other nodes than its GPU. Page cache is not counted: it "
        "is where a file's first reader was.",
        "Start it under numabind run (or launch), so that it allocates in place; for what runs "
        "already, migratepages PID FROM TO moves all but pinned memory.",
    ),
    "pages-misplaced": (
        "Memory that was to be measured on one node was found on another by reading back, so the "
        "figure was refused: the node is full, or something moves pages.",
        "Free memory on that node (numastat -m), and see numabind doctor for what moves pages.",
    ),
    "pages-unreadable": (
        "Where a process's pages are could not be read: the kernel shows it only to the process's "
        "own user and to who has CAP_SYS_PTRACE.",
        "Run numabind status as that user or as root; in a container add --cap-add SYS_PTRACE.",
    ),
    "pages-unverified": (
        "The kernel refuses to say where memory is (Docker's default profile refuses move_pages), "
        "so no figure that depends on the place was given.",
        "Allow move_pages in the seccomp profile, or measure on the host.",
    ),
    "placed-elsewhere": (
        "Tensors or other memory of this process were on another node before it was bound, and "
        "some of it can't be moved: pinned pages never move.",
        "Call setup_cpu_offload before CUDA and the model are set up, or start the program through "
        "numabind run or numabind launch, so that it is born in its place.",
    ),
    "processes-unseen": (
        "Without NVML a process that holds a GPU is known by its open device files, and those of "
        "other users' processes are shown to CAP_SYS_PTRACE only: such processes are not listed. "
        "Nor are any where /proc is not mounted, or hides them (hidepid).",
        "Mount /proc; run numabind status as root; in a container add --cap-add SYS_PTRACE; or "
        "install nvidia-ml-py, since NVML lists the processes of all users.",
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
    "threads-elsewhere": (
        "Some threads of a process may run on CPUs that are not near its GPU: they were started "
        "before it was bound, or something else set their affinity.",
        "Start it under numabind run (or launch); numabind.bind() in it moves the threads that are "
        "there. Threads of libraries that bind themselves: unset OMP_PROC_BIND and the like.",
    ),
    "too-little-free": (
        "A node has too little free memory for buffers that are much larger than the caches, so "
        "what is copied would come from those.",
        "Measure on an idle machine (numastat -m shows what is used).",
    ),
}
