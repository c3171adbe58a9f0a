"""Which worker an environment describes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numabind import UsageError
from numabind._worker import LAUNCHERS, detect, names_one_device

TORCHRUN = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
NOBODY = (None, None, None, [])
SLURM = {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4"}

# variables: local rank, local size, launcher, problems
ROWS = {
    "none": ({}, None, None, None, []),
    "torchrun": (TORCHRUN, 3, 8, "torchrun", []),
    "Open MPI": (
        {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
        *(2, 4, "Open MPI", []),
    ),
    "MVAPICH": (
        {"MV2_COMM_WORLD_LOCAL_RANK": "2", "MV2_COMM_WORLD_LOCAL_SIZE": "4"},
        *(2, 4, "MVAPICH", []),
    ),
    "MPICH": ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, 0, 2, "MPICH", []),
    "JSM": (
        {"JSM_NAMESPACE_LOCAL_RANK": "5", "JSM_NAMESPACE_LOCAL_SIZE": "6"},
        *(5, 6, "JSM", []),
    ),
    "PALS": ({"PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "4"}, 1, 4, "PALS", []),
    "Flux": ({"FLUX_TASK_LOCAL_ID": "1"}, 1, None, "Flux", []),
    "Slurm": (SLURM, 1, 4, "Slurm", []),
    "Slurm, nodes alike": (
        {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
        *(1, 4, "Slurm", []),
    ),
    "Slurm, nodes alike in two runs": (
        {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),4"},
        *(1, 4, "Slurm", []),
    ),
    "Slurm, nodes unlike": (
        {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"},
        *(1, None, "Slurm", []),
    ),
    "Slurm's other size": (
        {"SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2"},
        *(1, 2, "Slurm", []),
    ),
    "empty is not set": ({"LOCAL_RANK": "", **SLURM}, 1, 4, "Slurm", []),
    "-1 is not distributed": ({"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "-1"}, *NOBODY),
    "blank is not set": ({"LOCAL_RANK": " "}, *NOBODY),
    "spaces": ({"LOCAL_RANK": " 2 "}, 2, None, "torchrun", []),
    "torchrun in a batch script": (
        {**TORCHRUN, "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "8"},
        *(3, 8, "torchrun", []),
    ),
    "a batch script itself": ({"SLURM_LOCALID": "0"}, 0, None, "Slurm", []),
    "outer launcher of one task": (
        {**TORCHRUN, "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"},
        *(3, 8, "torchrun", []),
    ),
    "inner launcher of one task": (
        {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **SLURM},
        *(1, 4, "Slurm", []),
    ),
    "both of one task": (
        {
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "SLURM_LOCALID": "0",
            "SLURM_STEP_TASKS_PER_NODE": "1",
        },
        *(0, 1, "torchrun", []),
    ),
    "two that agree": (
        {**TORCHRUN, "SLURM_LOCALID": "3", "SLURM_STEP_TASKS_PER_NODE": "8"},
        *(3, 8, "torchrun", []),
    ),
    "two that disagree": (
        {**TORCHRUN, **SLURM},
        *(3, 8, "torchrun", ["launcher-variables-disagree"]),
    ),
    "rank past the size": (
        {"LOCAL_RANK": "8", "LOCAL_WORLD_SIZE": "8"},
        *(8, 8, "torchrun", ["launcher-variables-disagree"]),
    ),
}


@pytest.mark.parametrize(("environ", "rank", "size", "launcher", "said"), ROWS.values(), ids=ROWS)
def test_which_worker(environ, rank, size, launcher, said) -> None:
    found = detect(environ)
    assert (found.local_rank, found.local_size, found.launcher) == (rank, size, launcher)
    assert [p.name for p in found.problems] == said


ONE = ["3", " 3 ", "GPU-5d0c", "MIG-GPU-5d0c/1/0", "level_zero:1", "level_zero:1.0"]
NOT_ONE = ["", "-1", "all", "0,1", "0-3", "level_zero:*", "*:gpu", "level_zero:0;level_zero:1"]


@pytest.mark.parametrize("value", [*ONE, *NOT_ONE])
def test_whether_a_variable_names_one_device(value: str) -> None:
    assert names_one_device(value) == (value in ONE)


def test_every_launcher_has_a_row() -> None:
    assert {launcher for launcher, _, _ in LAUNCHERS} == {row[3] for row in ROWS.values()} - {None}


def test_a_disagreement_names_both_variables() -> None:
    (said,) = detect({**TORCHRUN, **SLURM}).problems
    assert "LOCAL_RANK=3 but SLURM_LOCALID=1" in said.cause


@pytest.mark.parametrize("variable", [variable for _, variable, _ in LAUNCHERS])
@pytest.mark.parametrize("value", ["first", "-2", "1.5", "²", "9" * 5000])
def test_a_rank_that_is_no_number_is_named(variable: str, value: str) -> None:
    with pytest.raises(UsageError, match=variable):
        detect({variable: value})


@pytest.mark.parametrize("variable", ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"])
def test_a_size_that_is_no_number_is_named(variable: str) -> None:
    rank = next(rank for _, rank, sizes in LAUNCHERS if variable in sizes)
    with pytest.raises(UsageError, match=variable):
        detect({rank: "0", variable: "all"})


NAMES = [name for _, rank, sizes in LAUNCHERS for name in (rank, *sizes)]


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=8) | st.sampled_from("0123")))
def test_any_environment_is_a_worker_or_a_usage_error(environ: dict[str, str]) -> None:
    try:
        found = detect(environ)
    except UsageError:
        return
    assert (found.launcher is None) == (found.local_rank is None)
    assert found.local_size is None or found.local_size > 0
