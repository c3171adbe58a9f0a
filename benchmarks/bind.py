"""What `numabind.bind()` costs against torch.numa.binding and accelerate, on the same machine.

    python benchmarks/bind.py [--rounds N] [--json]          (as root: it mounts)

All three bind a real process with real system calls, by what they read below /sys. So that there is
something to bind to, each runs in a mount namespace of its own in which /sys is a made-up tree:
the CPUs of this machine as two nodes with a GPU each. What needs a GPU's driver is stubbed: torch
gets the PCI address in place of torch.cuda.get_device_properties, accelerate the mask of
local_cpulist in place of NVML's (both at once, so a driver's own time is in no figure). numabind
gets the PCI address by its argument. All must come to the same CPUs. Memory policy is left alone:
the peers have none.

Processes run in turn (A B C A B C …). Two figures for each: the call in a process where everything
is imported, and from the first import to being bound. Whoever imports torch anyway pays its import
with each of the three; the second figure is for those who bind before that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

NUMABIND = """
import numabind
def bind():
    return numabind.bind(gpu=ADDRESS, memory="none")
"""
TORCH = """
from types import SimpleNamespace
import torch
from torch.numa.binding import AffinityMode, NumaOptions
from torch.numa.binding import _maybe_apply_numa_binding_to_current_process as apply
domain, bus, rest = ADDRESS.split(":")
found = SimpleNamespace(pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16),
                        pci_device_id=int(rest.split(".")[0], 16))
torch.cuda.get_device_properties = lambda index: found
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
options = NumaOptions(affinity_mode=AffinityMode.NODE)
def bind():
    apply(gpu_index=1, numa_options=options)
"""
ACCELERATE = """
import sys
from types import SimpleNamespace
import torch, accelerate.utils
from accelerate.utils.environment import override_numa_affinity
def masks(handle, count):
    mask = open(f"/sys/bus/pci/devices/{ADDRESS}/local_cpus").read().strip().replace(",", "")
    return [int(mask, 16) >> 64 * i & (1 << 64) - 1 for i in range(count)]
sys.modules["pynvml"] = SimpleNamespace(
    nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetCpuAffinity=masks)
accelerate.utils.is_pynvml_available = lambda: True
torch.cuda.is_available = lambda: True
def bind():
    override_numa_affinity(1)
"""
FRAME = """
import json, os, sys, time
ADDRESS = sys.argv[1]
BORN = os.sched_getaffinity(0)
begun = time.perf_counter()
{peer}
bind()
first = time.perf_counter() - begun
cpus = sorted(os.sched_getaffinity(0))
calls = []
for _ in range(50):
    os.sched_setaffinity(0, BORN)
    start = time.perf_counter()
    bind()
    calls.append(time.perf_counter() - start)
calls.sort()
print(json.dumps([first * 1e3, calls[len(calls) // 2] * 1e3, cpus]))
"""
PEERS = {
    "numabind.bind": NUMABIND,
    "torch.numa.binding": TORCH,
    "accelerate override_numa_affinity": ACCELERATE,
}


def once(tree: Path, address: str, peer: str) -> tuple[float, float, list[int]]:
    """Run one peer in a fresh process that sees the tree as /sys."""
    inside = 'mount --bind "$0/sys" /sys && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", inside, str(tree), sys.executable, "-c"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NUMABIND")}
    done = subprocess.run(
        [*command, FRAME.format(peer=peer), address],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )
    if done.returncode != 0:
        sys.exit(f"benchmarks/bind.py (needs root to mount): {done.stderr.strip()[-2000:]}")
    first, call, cpus = json.loads(done.stdout.splitlines()[-1])
    return first, call, cpus


def main() -> int:
    """Measure and print; fails if the three disagree about the CPUs."""
    from machines.build import build
    from machines.shapes import H100, even_nodes, gpus
    from machines.spec import Shape

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cores = (os.cpu_count() or 1) // 2
    if not cores or not shutil.which("unshare"):
        print("benchmarks/bind.py needs two CPUs and util-linux: left out")
        return 0
    shape = Shape(even_nodes(2, cores), gpus=gpus(H100, "17 ab", (0, 1)))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PEERS}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as tmp:
        tree = build(shape, Path(tmp) / "tree")
        begun = time.monotonic()
        for number in range(options.rounds + 1):
            answers = set()
            for name, peer in PEERS.items():
                first, call, cpus = once(tree, "0000:ab:00.0", peer)
                answers.add(tuple(cpus))
                if number:  # the first round warms the files' cache
                    found[name].append((first, call))
            if len(answers) != 1:
                sys.exit(f"the peers bound to different CPUs: {sorted(answers)}")
    table = {
        name: {
            "from_import_ms": statistics.median(first for first, _ in pairs),
            "call_ms": statistics.median(call for _, call in pairs),
        }
        for name, pairs in found.items()
    }
    if options.json:
        print(json.dumps(table, indent=1))
        return 0
    print(f"bind() to {cpus}, {options.rounds} rounds in turn, {time.monotonic() - begun:.0f} s")
    ours = found["numabind.bind"]
    for name, pairs in found.items():
        ratios = [
            statistics.median(mine[i] / theirs[i] for mine, theirs in zip(ours, pairs, strict=True))
            for i in (0, 1)
        ]
        print(
            f"{name:36} {table[name]['call_ms']:8.2f} ms a call (numabind {ratios[1]:.2f} x), "
            f"{table[name]['from_import_ms']:8.1f} ms from import on (numabind {ratios[0]:.3f} x)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
