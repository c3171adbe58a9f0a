"""A libnvidia-ml.so.1 of our own, so that NVML is read through the real nvidia-ml-py without a GPU.

`build` compiles nvml_stub.c; a process with that directory in LD_LIBRARY_PATH and a description of
GPUs in NVML_STUB_GPUS then sees those GPUs. The format is in the C file's head.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stub.c")


def build(directory: Path) -> Path:
    """Compile the stub into `directory`; returns the library's path."""
    library = directory / "libnvidia-ml.so.1"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", str(library), str(SOURCE)], check=True)
    return library
