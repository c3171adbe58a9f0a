"""Asks the nodes of a Slurm cluster, through srun: one task on each."""

from __future__ import annotations

import os
import subprocess  # noqa: TID251 (starts srun)
import sys

from numabind._errors import NumabindError, UsageError
from numabind._fleet.wire import unpacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# How long srun may take to end the tasks after the time is up.
_GRACE = 15.0
_COUNTING = ("-N", "--nodes", "-w", "--nodelist", "-F", "--nodefile")
_PARTITION = ("-p", "--partition")


def ask(
    options: Sequence[str], timeout: float, environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The snapshots (JSON) by node name, and of the other nodes why there is none.

    In an allocation all its nodes are asked, else those of `options` (srun's own), else all nodes
    of the default partition that respond. After `timeout` seconds srun is ended. UsageError without
    srun; NumabindError if no node answered.
    """
    command = [
        *("srun", "--ntasks-per-node=1", *_nodes(options, environ), "--cpu-bind=none"),
        *("--input=none", "--kill-on-bad-exit=0", *options),
        *(sys.executable, "-m", "numabind._fleet.answer"),
    ]
    answers = unpacked(_output(command, timeout, environ).splitlines())
    if not answers:
        raise NumabindError(f"srun: no node answered in {timeout:g} s: {' '.join(command)}")
    lists = {str(answer.get("nodes", "")) for answer in answers.values()} - {""}
    expected = [name for text in sorted(lists) for name in _expanded(text, environ)]
    machines = {node: answer["machine"] for node, answer in answers.items() if "machine" in answer}
    silent = {node: f"no answer in {timeout:g} s" for node in expected if node not in answers}
    silent |= {
        node: str(answer.get("cause", "an answer without a machine"))
        for node, answer in answers.items()
        if node not in machines
    }
    return machines, silent


def _nodes(options: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """How many nodes to ask for, if the options don't say."""
    if _given(options, _COUNTING):
        return []
    count = environ.get("SLURM_JOB_NUM_NODES")
    if count is None:
        if _given(options, _PARTITION):
            raise UsageError("fleet survey --srun: say also how many nodes: -- -p PARTITION -N N")
        count = str(len(_responding(environ)))
    # An allocation's own number of tasks would come before --ntasks-per-node.
    return [f"--nodes={count}", f"--ntasks={count}"]


def _given(options: Sequence[str], names: Sequence[str]) -> bool:
    return any(
        word.partition("=")[0] in names or (word[:1] == "-" != word[1:2] and word[:2] in names)
        for word in options
    )


def _responding(environ: Mapping[str, str]) -> set[str]:
    """The nodes of the default partition, which sinfo marks with a star, that respond."""
    shown = _run(["sinfo", "--noheader", "--responding", "--Node", "--format=%N %P"], environ)
    pairs = [line.split() for line in shown.splitlines()]
    found = {pair[0] for pair in pairs if len(pair) == 2 and pair[1].endswith("*")}
    if not found:
        raise UsageError("fleet survey --srun: no node of a default partition responds; name some")
    return found


def _expanded(nodes: str, environ: Mapping[str, str]) -> list[str]:
    """The names of "gpu[1-3]"."""
    return _run(["scontrol", "show", "hostnames", nodes], environ).split()


def _run(command: list[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603
            command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=60
        )
    except FileNotFoundError as error:
        raise UsageError(f"fleet survey --srun: {command[0]}: command not found") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise NumabindError(f"{command[0]}: {error}") from error
    return done.stdout


def _output(command: list[str], timeout: float, environ: Mapping[str, str]) -> str:
    """What the command prints until it ends or the time is up."""
    try:
        process = subprocess.Popen(  # noqa: S603
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise UsageError(f"fleet survey --srun: srun: {error.strerror}") from error
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        process.terminate()  # srun cancels the step, or the job that it made
    except BaseException:
        process.terminate()
        raise
    try:
        return process.communicate(timeout=_GRACE)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]
