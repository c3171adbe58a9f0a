"""`top` on a real terminal (tmux, 80 x 24), and where its output goes into a file."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from numabind._process import Pages, Process, Stray
from numabind._top import ORDERS, frame, lines_of

BIN = Path(sys.executable).with_name("numabind")


class Terminal:
    """A shell in tmux, 80 columns by 24 lines."""

    def __init__(self, folder: Path) -> None:
        self.tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self.run("new-session", "-d", "-x", "80", "-y", "24", "env PS1='$ ' sh")
        self.until(lambda: "$" in self.screen())

    def run(self, *words: str) -> str:
        return subprocess.run(
            [*self.tmux, *words], check=True, capture_output=True, text=True
        ).stdout

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def type(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not ready():
            assert time.monotonic() < deadline, self.screen()
            time.sleep(0.1)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    made = Terminal(tmp_path)
    yield made
    made.run("kill-server")


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


def test_a_screen_of_80_by_24(terminal: Terminal, sleeper: int) -> None:
    terminal.type(f"echo before; {BIN} top -d 0.2 {sleeper} {os.getpid()}", "Enter")
    terminal.until(lambda: "numabind top  " in terminal.screen())
    lines = terminal.screen().splitlines()
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert re.match(r"numabind top  \d\d:\d\d:\d\d  2 processes, 0 elsewhere", lines[0])
    assert lines[2].split() == ["PID", "NAME", "GPU", "NODE", "THREADS", "RESIDENT", "LOCAL",
                                "VERDICT"]  # fmt: skip
    assert any(line.split()[:2] == [str(sleeper), "sleep"] for line in lines[3:5])
    assert lines[-1].startswith("q:quit")
    assert lines[-1].endswith("(now gpu)")
    terminal.type("m")
    terminal.until(lambda: "(now memory)" in terminal.screen())
    assert terminal.screen().splitlines()[3].split()[0] == str(os.getpid()), "the larger one first"
    first = lines[0]
    terminal.until(lambda: terminal.screen().splitlines()[0] != first)
    terminal.type("q")
    terminal.until(lambda: "numabind top  " not in terminal.screen())
    assert "before" in terminal.screen(), "the screen from before is back"
    terminal.type("stty -a | grep -c ' icanon.* echo '; echo end $?", "Enter")
    terminal.until(lambda: "end 0" in terminal.screen())


@pytest.mark.parametrize("way", ["C-c", "SIGTERM"])
def test_it_gives_the_terminal_back(terminal: Terminal, sleeper: int, way: str) -> None:
    terminal.type(f"{BIN} top -d 30 {sleeper}; echo left", "Enter")
    terminal.until(lambda: "numabind top  " in terminal.screen())
    if way == "C-c":
        terminal.type(way)
    else:
        shell = int(terminal.run("display-message", "-p", "#{pane_pid}"))
        (child,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
    terminal.until(lambda: "\nleft" in terminal.screen())
    assert "numabind top  " not in terminal.screen()
    terminal.type("stty -a | grep -c ' icanon.* echo '; echo end $?", "Enter")
    terminal.until(lambda: "end 0" in terminal.screen())


def test_it_can_be_suspended(terminal: Terminal, sleeper: int) -> None:
    terminal.type(f"{BIN} top -d 0.2 {sleeper}", "Enter")
    terminal.until(lambda: "numabind top  " in terminal.screen())
    terminal.type("C-z")
    terminal.until(lambda: "Stopped" in terminal.screen())
    terminal.type("fg", "Enter")
    terminal.until(lambda: "numabind top  " in terminal.screen())
    terminal.type("q")
    terminal.until(lambda: "numabind top  " not in terminal.screen())


def test_lines_where_there_is_no_terminal(sleeper: int) -> None:
    words = [str(BIN), "top", "-n", "2", "-d", "0.1", str(sleeper)]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in out
    lines = out.splitlines()
    assert len(lines) == 4
    assert [line.split()[1] for line in lines] == ["PID", str(sleeper)] * 2


def test_lines_without_standard_input(sleeper: int) -> None:
    script = f"{BIN} top -n 1 {sleeper} <&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 2)


@pytest.mark.parametrize(
    "words", [("-n", "0"), ("-d", "0"), ("-d", "x"), ("--sort", "x"), ("4194305",)]
)
def test_bad_input(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [str(BIN), "top", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def a_process(pid: int, **more: object) -> Process:
    return Process(pid, f"train{pid}", **more)  # type: ignore[arg-type]


def test_orders() -> None:
    processes = [
        a_process(1, devices=("0000:b0:00.0",), strays=(Stray(3, "x", frozenset({1})),)),
        a_process(2, devices=("0000:a0:00.0",), pages=Pages("numa_maps", {0: {"huge": 9}}, 0.5)),
        a_process(3, devices=("0000:c0:00.0",), pages=Pages("numa_maps", {0: {"huge": 99}}, 0.9)),
    ]
    tops = {order: lines_of(processes, order)[1].split()[0] for order in ORDERS}
    assert tops == {"pid": "1", "gpu": "2", "memory": "3", "local": "2", "threads": "1"}


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (200, 60), (20, 6)])
def test_a_frame_fits_its_screen(size: tuple[int, int]) -> None:
    for number in (0, 1, 5, 300):
        drawn = frame([a_process(i) for i in range(number)], "pid", size, "12:00:00")
        lines = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", drawn).split("\r\n")
        assert len(lines) == size[1]
        assert max(map(len, lines)) < size[0]
    assert "... and" in frame([a_process(i) for i in range(300)], "pid", (80, 24), "")


def test_it_ends_with_the_last_of_the_named(sleeper: int) -> None:
    with subprocess.Popen(["sleep", "0.5"]) as short:
        words = [str(BIN), "top", "-d", "0.1", str(short.pid)]
        watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        short.wait()
        out, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (0, b"")
    assert out.count(b"PID") >= 1
