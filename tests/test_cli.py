"""The command as a person uses it: output, exit codes, and one line for each mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from machines.build import build
from machines.shapes import SHAPES
from numabind._commands import launcher_in
from numabind._cpulist import parse_list
from samples import CPUS, ENDS, pretend

SELF = "/proc/self/status"
IDS = {"vendor_id": "0x15b3", "device_id": "0x1021"}


def numabind(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("NUMABIND")}
    command = [str(Path(sys.executable).with_name("numabind")), *map(str, words)]
    return subprocess.run(
        command, env={**env, **environ}, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def two_socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SHAPES["two_socket"], tmp_path_factory.mktemp("two_socket"))


BAD_INPUT = {
    "unknown verb": (["frobnicate"], "frobnicate"),
    "unknown flag": (["show", "--colour"], "--colour"),
    "unknown mode": (["plan", "--mode", "nod"], "mode 'nod'"),
    "unknown memory": (["run", "--memory", "near", "--", "true"], "memory 'near'"),
    "unknown share": (["plan", "--share", "evenly"], "share 'evenly'"),
    "no workers": (["plan", "--workers", "0"], "workers must be 1 to"),
    "not a number": (["run", "--reserve", "x", "--", "true"], "--reserve"),
    "negative rank": (["run", "--local-rank", "-1", "--", "true"], "-1"),
    "no such root": (["show", "--root", "/nonexistent"], "--root /nonexistent"),
    "no such snapshot": (["plan", "--snapshot", "/nonexistent"], "/nonexistent"),
    "not a snapshot": (["plan", "--snapshot", "/proc/version"], "/proc/version"),
    "near nothing here": (["run", "--near", "mlx5_77", "--", "true"], "mlx5_77"),
    "near two words": (["plan", "--near", "a b"], "near 'a b'"),
    "near and GPU": (["run", "--near", "eth0", "--gpu", "0", "--", "true"], "name one of the two"),
    "device of no vendor": (["run", "--gpu", "xyz:0", "--", "true"], "GPU 'xyz:0'"),
    "absent XPU": (["run", "--gpu", "xpu:7", "--", "true"], "xpu:7"),
    "malformed GPU": (["run", "--gpu", "first", "--", "true"], "GPU 'first'"),
    "absent GPU": (["run", "--gpu", "0000:00:00.7", "--", "true"], "0000:00:00.7"),
    "no command": (["run"], "no command"),
    "unwritable output": (["snapshot", "-o", "/nonexistent/x"], "/nonexistent/x"),
}


@pytest.mark.parametrize(("words", "named"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_line_that_names_it_and_exit_2(words: list[str], named: str) -> None:
    done = numabind(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert named in done.stderr


BAD_VARIABLES = {
    "mode": {"NUMABIND_MODE": "nod"},
    "memory": {"NUMABIND_MEMORY": "near"},
    "strict": {"NUMABIND_STRICT": "perhaps"},
    "map": {"NUMABIND_MAP": "/nonexistent"},
    "snapshot": {"NUMABIND_SNAPSHOT": "/nonexistent"},
    "rank": {"LOCAL_RANK": "first"},
}


@pytest.mark.parametrize("environ", BAD_VARIABLES.values(), ids=BAD_VARIABLES)
def test_a_variable_that_cannot_be_used_is_named_and_nothing_runs(environ: dict[str, str]) -> None:
    done = numabind("run", "--", "echo", "ran", **environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert next(iter(environ)) in done.stderr


@pytest.mark.parametrize("environ", BAD_VARIABLES.values(), ids=BAD_VARIABLES)
def test_bind_survives_a_variable_that_cannot_be_used(environ: dict[str, str]) -> None:
    code = "import numabind; b = numabind.bind(); print(b.bound, [p.name for p in b.problems])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False ['bad-setting']\n"
    assert next(iter(environ)) in done.stderr


@pytest.mark.parametrize("verb", [[], ["show"], ["plan"], ["plan", "--workers", "1"], ["snapshot"]])
def test_every_verb_answers_on_this_machine(verb: list[str]) -> None:
    done = numabind(*verb)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_show_as_json_has_the_documented_fields(two_socket: Path) -> None:
    shown = json.loads(numabind("show", "--json", "--root", two_socket).stdout)
    first, gpu = shown["nodes"][0], shown["devices"][0]
    assert shown["schema"] == 1
    assert (first["id"], first["cpus"], first["kind"]) == (0, "0-63,128-191", "cpu")
    assert first["memory_bytes"] > 1 << 30
    assert len(first["distances"]) == 2
    assert (gpu["vendor"], gpu["node"], gpu["local_cpus"]) == ("nvidia", 0, "0-63,128-191")
    assert {"pci", "uuid", "index", "name", "node_source", "numa_node"} <= gpu.keys()
    assert {"cpus", "nodes", "cpu_quota"} == shown["allowed"].keys()


def test_plan_as_json_has_the_documented_fields(two_socket: Path) -> None:
    done = numabind("plan", "--mode", "exclusive", "--json", "--root", two_socket)
    placements = json.loads(done.stdout)["placements"]
    assert [p["local_rank"] for p in placements] == list(range(8))
    assert placements[4]["cpus"] == "64-79,192-207"
    assert placements[4] == {
        **placements[4],
        "node": 1,
        "memory_nodes": "1",
        "memory_policy": "prefer",
        "threads": 16,
        "problems": [],
    }
    assert placements[4]["reasons"]


def test_a_snapshot_plans_like_the_tree_it_was_made_from(two_socket: Path, tmp_path: Path) -> None:
    file = tmp_path / "there.json"
    assert numabind("snapshot", "-o", file, "--root", two_socket).returncode == 0
    there = numabind("plan", "--mode", "core-complex", "--snapshot", file)
    assert there.stdout == numabind("plan", "--mode", "core-complex", "--root", two_socket).stdout


def test_an_anonymized_snapshot_names_nobody(two_socket: Path) -> None:
    text = numabind("snapshot", "--anonymize", "--root", two_socket).stdout
    machine = json.loads(text)
    assert machine["host"]["name"] is None
    assert "GPU-" not in text
    assert machine["nodes"]


def test_more_workers_than_devices_needs_a_way_to_share(two_socket: Path) -> None:
    refused = numabind("plan", "--workers", "16", "--root", two_socket)
    assert refused.returncode == 2
    assert "--share" in refused.stderr
    dealt = numabind("plan", "--workers", "16", "--share", "block", "--json", "--root", two_socket)
    devices = [p["device"] for p in json.loads(dealt.stdout)["placements"]]
    assert devices[0] == devices[1] != devices[2]


def test_plan_strict_says_no_by_its_exit_code(tmp_path: Path) -> None:
    root = build(SHAPES["all_minus_one"], tmp_path)
    assert numabind("plan", "--root", root).returncode == 0
    assert numabind("plan", "--strict", "--root", root).returncode == 1


def test_run_becomes_the_command_and_ends_with_its_code() -> None:
    assert numabind("run", "-q", "--", "sh", "-c", "exit 7").returncode == 7
    killed = numabind("run", "-q", "--", "sh", "-c", "kill -TERM $$")
    assert killed.returncode == -signal.SIGTERM


COMMANDS_THAT_START_WORKERS = {
    "torchrun": "torchrun",
    "/opt/bin/mpirun -n 8 app": "mpirun",
    "python3.11 -u -m torch.distributed.run x.py": "torch.distributed.run",
    "python /usr/bin/deepspeed x.py": "deepspeed",
    "accelerate launch x.py": "accelerate",
    "accelerate config": None,
    "python -m torch.utils.collect_env": None,
    "python -m": None,
    "python train.py torchrun": None,
    "bash torchrun": None,
    "": None,
}


@pytest.mark.parametrize("command", COMMANDS_THAT_START_WORKERS)
def test_which_commands_start_workers(command: str) -> None:
    assert launcher_in(command.split()) == COMMANDS_THAT_START_WORKERS[command]


@pytest.mark.parametrize(
    ("environ", "words", "bound"),
    [
        pytest.param({}, [], False, id="two GPUs"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, [], True, id="one GPU"),
        pytest.param({}, ["--gpu", "1"], True, id="a GPU that was named"),
    ],
)
def test_run_gives_a_launcher_no_workers_place(
    environ: dict[str, str], words: list[str], bound: bool, tmp_path: Path
) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text("#!/bin/sh\nexec taskset -cp $$\n")
    launcher.chmod(0o755)
    outer = {"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}
    there = {**outer, "NUMABIND_SNAPSHOT": str(pretend(tmp_path)), **environ}
    done = numabind("run", *words, "--memory", "none", "--", str(launcher), **there)
    assert ("run-around-launcher" in done.stderr) != bound
    cpus = {ENDS[1]} if bound else set(CPUS)
    assert parse_list(done.stdout.rpartition(": ")[2].strip()) == cpus


def test_no_tool_is_needed() -> None:
    # deepspeedai/DeepSpeed#6565: no numactl, no taskset, nothing on PATH
    assert numabind("run", "--", "/bin/true", PATH="").returncode == 0


def test_run_keeps_the_pid() -> None:
    binary = str(Path(sys.executable).with_name("numabind"))
    command = [binary, "run", "-q", "--", "sh", "-c", "echo $$"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.read() == f"{child.pid}\n"


def test_run_leaves_default_signals_and_no_locale_behind() -> None:
    code = "grep SigIgn /proc/self/status; echo ${LC_CTYPE-unset}"
    # Both by path: Python 3.13 starts such with posix_spawn, where glibc leaves signals 32 and 33
    # ignored.
    plain = subprocess.run(
        ["/bin/sh", "-c", code], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True
    )
    binary = str(Path(sys.executable).with_name("numabind"))
    done = subprocess.run(
        [binary, "run", "-q", "--", "sh", "-c", code],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
    )
    assert done.stdout == plain.stdout


@pytest.mark.parametrize(
    ("command", "code"), [(["no-such-command"], 127), (["/proc/version"], 126)], ids=["127", "126"]
)
def test_run_of_what_cannot_run(command: list[str], code: int) -> None:
    done = numabind("run", "-q", "--", *command)
    assert done.returncode == code
    assert done.stderr.count("\n") == 1
    assert command[0] in done.stderr


def test_run_sets_the_thread_budget_only_where_nobody_chose() -> None:
    show = ["sh", "-c", "echo $OMP_NUM_THREADS"]
    budget = str(len({min(_siblings(cpu)) for cpu in os.sched_getaffinity(0)}))
    assert numabind("run", "-q", "--", *show, OMP_NUM_THREADS="").stdout.strip() == budget
    assert numabind("run", "-q", "--", *show, OMP_NUM_THREADS="1").stdout.strip() == "1"
    auto = numabind("run", "-q", "--threads", "auto", "--", *show, OMP_NUM_THREADS="1")
    assert auto.stdout.strip() == budget
    kept = numabind("run", "-q", "--threads", "auto", "--", *show, OMP_NUM_THREADS="3")
    assert kept.stdout.strip() == "3"


def _siblings(cpu: int) -> list[int]:
    text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    return [int(part.partition("-")[0]) for part in text.split(",")]


def test_turned_off_runs_the_command_and_says_so() -> None:
    done = numabind("run", "--", "echo", "ran", NUMABIND="0")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "turned-off" in done.stderr


def test_events_are_one_json_line_for_each_bind(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    for _ in range(2):
        assert numabind("run", "-q", "--", "true", NUMABIND_EVENTS=str(file)).returncode == 0
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(events) == 2
    assert events[0]["bound"] is True
    assert events[0]["cpus"]


def test_a_closed_pipe_is_no_traceback(two_socket: Path) -> None:
    binary = Path(sys.executable).with_name("numabind")
    done = subprocess.run(
        ["sh", "-c", f"{binary} show --json --root {two_socket} | head -1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


STREAMS = {
    "no stderr": "{numabind} run -- echo ran 2>&-",
    "full stderr": "{numabind} run -- echo ran 2>/dev/full",
    "no stdin": "{numabind} run -q -- echo ran <&-",
}


@pytest.mark.parametrize("command", STREAMS.values(), ids=STREAMS)
def test_a_worker_runs_whatever_its_streams_are(command: str) -> None:
    done = shell(command)
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_a_full_disk_is_said_in_one_line(two_socket: Path) -> None:
    done = shell(f"{{numabind}} show --json --root {two_socket} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "numabind: can't write the answer: No space left on device\n"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    binary = Path(sys.executable).with_name("numabind")
    return subprocess.run(
        ["sh", "-c", command.format(numabind=binary)], capture_output=True, text=True, check=False
    )


# An empty map is a map, an empty snapshot is none, and events only matter afterwards.
WAITING = {
    "NUMABIND_MAP": (0, "bound"),
    "NUMABIND_SNAPSHOT": (2, "NUMABIND_SNAPSHOT"),
    "NUMABIND_EVENTS": (0, "NUMABIND_EVENTS"),
}


@pytest.mark.parametrize("variable", WAITING)
def test_a_pipe_that_nobody_serves_keeps_no_worker_waiting(variable: str, tmp_path: Path) -> None:
    code, said = WAITING[variable]
    os.mkfifo(tmp_path / "pipe")
    done = numabind("run", "--", "echo", "ran", **{variable: str(tmp_path / "pipe")})
    assert done.returncode == code
    assert said in done.stderr


def test_a_file_without_end_is_refused() -> None:
    done = numabind("run", "--", "true", NUMABIND_SNAPSHOT="/dev/zero")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "longer than" in done.stderr


@pytest.mark.parametrize("value", ["0", "off", "False", "no"])
def test_words_that_turn_it_off(value: str) -> None:
    assert "turned-off" in numabind("run", "--", "true", NUMABIND=value).stderr


def test_a_worker_runs_unbound_where_there_is_no_sysfs() -> None:
    """As in a container without /sys: the readers look where nothing is."""
    code = "from numabind import _cli, _sysfs; _sysfs.CPU = 'nowhere'; "
    code += "_cli.main(['run', '--', 'echo', 'ran'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert "machine-unreadable" in done.stderr
    assert "worker not bound" in done.stderr


def test_a_hand_made_snapshot_places_workers_of_this_machine(tmp_path: Path) -> None:
    """The whole road on real hardware that lacks the GPUs: NUMABIND_SNAPSHOT describes them."""
    file = pretend(tmp_path)
    for rank, cpu in ((0, CPUS[0]), (1, CPUS[-1])):
        done = numabind(
            *("run", "--memory", "none", "--", "grep", "Cpus_allowed_list", SELF),
            NUMABIND_SNAPSHOT=str(file),
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE="2",
        )
        assert done.stdout.split() == ["Cpus_allowed_list:", str(cpu)]
        assert f"rank {rank} bound, gpu 0000:0{rank}:00.0, node {rank}" in done.stderr


def test_a_worker_without_a_gpu_is_bound_next_to_a_nic(tmp_path: Path) -> None:
    file = pretend(tmp_path)
    machine = json.loads(file.read_text())
    machine["nics"] = [{"pci": "0000:0a:00.0", "node": 1, "names": ["mlx5_0"]} | IDS]
    machine["disks"] = [{"pci": "0000:0b:00.0", "node": 0, "names": ["nvme0"]} | IDS]
    file.write_text(json.dumps(machine))
    for name, cpu in (("mlx5_0", CPUS[-1]), ("nvme0", CPUS[0]), ("0a:00.0", CPUS[-1])):
        done = numabind("run", "--near", name, "--", "cat", SELF, NUMABIND_SNAPSHOT=str(file))
        assert f"Cpus_allowed_list:\t{cpu}\n" in done.stdout
        assert f"cpus {cpu}" in done.stderr, done.stderr
    seen = numabind("plan", "--snapshot", file, "--near", "mlx5_0", "--workers", "2", "--json")
    assert [p["node"] for p in json.loads(seen.stdout)["placements"]] == [1, 1]


def test_launch_takes_its_workers_next_to_a_disk(tmp_path: Path) -> None:
    file = pretend(tmp_path)
    machine = json.loads(file.read_text())
    machine["disks"] = [{"pci": "0000:0b:00.0", "node": 1, "names": ["nvme0"]} | IDS]
    file.write_text(json.dumps(machine))
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    script = f"LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 {sys.executable} -c '{code}'"
    done = numabind(
        *("launch", "--near", "nvme0", "--", "sh", "-c", script), NUMABIND_SNAPSHOT=str(file)
    )
    assert done.stdout == f"[{CPUS[-1]}]\n", done.stderr


def test_a_snapshot_of_another_boot_is_ignored_and_named(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    numabind("snapshot", "-o", file)
    machine = json.loads(file.read_text())
    machine["host"]["boot_id"] = "00000000-0000-0000-0000-000000000000"
    file.write_text(json.dumps(machine))
    done = numabind("run", "--", "true", NUMABIND_SNAPSHOT=str(file))
    assert done.returncode == 0
    assert "snapshot-unfit" in done.stderr


def test_a_snapshot_with_gpus_that_are_not_here_is_ignored_and_named(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    numabind("snapshot", "-o", file)
    machine = json.loads(file.read_text())
    machine["devices"].append({"pci": "0000:fe:1f.7", "vendor": "nvidia"})
    file.write_text(json.dumps(machine))
    done = numabind("run", "--", "true", NUMABIND_SNAPSHOT=str(file))
    assert done.returncode == 0
    assert "snapshot-unfit" in done.stderr
    assert "0000:fe:1f.7" in done.stderr


def test_a_map_for_one_gpu_leaves_the_others_of_a_snapshot(tmp_path: Path) -> None:
    # The firmware puts both on node 0; the snapshot was corrected by hand.
    file = pretend(tmp_path, numa_node=0)
    (tmp_path / "map").write_text("0000:00:00.0 nodes=0\n")
    done = numabind(
        *("run", "--memory", "none", "--local-rank", "1", "--", "true"),
        NUMABIND_SNAPSHOT=str(file),
        NUMABIND_MAP=str(tmp_path / "map"),
    )
    assert "node 1" in done.stderr


def test_a_new_snapshot_heals_one_that_does_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    numabind("snapshot", "-o", file)
    old = json.loads(file.read_text())
    old["host"]["boot_id"] = "old-boot"
    file.write_text(json.dumps(old))
    numabind("snapshot", "-o", file, NUMABIND_SNAPSHOT=str(file))
    assert "old-boot" not in file.read_text()
    assert "snapshot-unfit" not in numabind("run", "--", "true", NUMABIND_SNAPSHOT=str(file)).stderr


def test_a_snapshot_may_come_through_a_pipe(two_socket: Path) -> None:
    command = f"{{numabind}} snapshot --root {two_socket} | {{numabind}} plan --snapshot /dev/stdin"
    done = shell(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rank 7" in done.stdout


def test_a_snapshot_replaces_no_pipe_and_follows_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert numabind("snapshot", "-o", tmp_path / "link").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real").read_text())["schema"] == 1
    done = shell("{numabind} snapshot -o /dev/stdout | cat")
    assert json.loads(done.stdout)["schema"] == 1


def test_the_command_gets_the_locale_it_was_given() -> None:
    binary = str(Path(sys.executable).with_name("numabind"))
    done = subprocess.run(
        [binary, "run", "-q", "--", "sh", "-c", "echo $LC_CTYPE"],
        env={"PATH": os.environ["PATH"], "LC_CTYPE": "POSIX"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "POSIX\n"


def test_a_process_named_in_any_bytes_is_read(tmp_path: Path) -> None:
    script = tmp_path / "entra\u00eene.py"
    script.write_text(f"#!{sys.executable}\nimport numabind\nprint(numabind.bind().bound)\n")
    script.chmod(0o755)
    done = subprocess.run([str(script)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_closed_stdout_is_said() -> None:
    done = shell("{numabind} show >&-")
    assert done.returncode == 2
    assert "standard output is closed" in done.stderr


def test_a_rank_by_hand_shares_by_the_size_of_the_launcher(tmp_path: Path) -> None:
    file = pretend(tmp_path)
    for size, share, rank, gpu in (
        ("4", "block", 2, 1),
        ("4", "block", 1, 0),
        ("", "cyclic", 2, 0),
    ):
        done = numabind(
            *("run", "--memory", "none", "--share", share, "--local-rank", rank, "--", "true"),
            NUMABIND_SNAPSHOT=str(file),
            LOCAL_WORLD_SIZE=size,
        )
        assert f"rank {rank} bound, gpu 0000:0{gpu}:00.0" in done.stderr


def test_report_of_this_machine_and_of_another(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert numabind("report", "-o", page, os.getpid()).returncode == 0
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert f"pid {os.getpid()}" in text
    example = Path(__file__).parent.parent / "examples/hgx-h100.json"
    done = numabind("report", "--snapshot", example, "--mode", "exclusive")
    assert "0000:1b:00.0" in done.stdout
    assert "mode exclusive" in done.stdout


def test_report_of_a_tree_has_its_findings(tmp_path: Path) -> None:
    build(SHAPES["all_minus_one"], tmp_path)
    done = numabind("report", "--root", tmp_path)
    assert done.returncode == 0
    assert "nobody knows which node is near" in done.stdout


def test_report_that_cannot_be_written(tmp_path: Path) -> None:
    for words in (("-o", tmp_path / "no/page.html"), ("--root", tmp_path / "no"),
                  ("--root", tmp_path, os.getpid())):  # fmt: skip
        done = numabind("report", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), words
