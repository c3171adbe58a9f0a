"""The command that `numabind run` becomes: says what it was given, and exits with 7."""

import os
import sys

import kernel

kernel.say(
    pid=os.getpid(),
    cpus=kernel.affinity(),
    policy=kernel.mempolicy(),
    omp=os.environ.get("OMP_NUM_THREADS"),
    pages=kernel.Buffer(16).touch().nodes(),
)
sys.exit(7)
