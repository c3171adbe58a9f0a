"""Completion, as the shells themselves do it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
ENVIRON = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "xterm", "COLUMNS": "120"}


def output(*words: str) -> str:
    done = subprocess.run(words, env=ENVIRON, capture_output=True, text=True, check=True)
    return done.stdout


VERBS = re.findall(r"^    ([a-z]+)(?:  |$)", output("numabind", "--help"), re.MULTILINE)


def options(*verb: str) -> set[str]:
    """The long options that a verb's help lists, and those of its parts."""
    text = output("numabind", *verb, "--help")
    found = set(re.findall(r"^  (?:-\w[^,]*, )?--([a-z-]+)", text, re.MULTILINE))
    parts = re.findall(r"^    ([a-z]+)(?:  |$)", text, re.MULTILINE)
    return found.union(*(options(*verb, part) for part in parts))


# Words on the line, the last one being completed; what bash offers.
OFFERED = {
    "a verb": ("numabind s", "show status snapshot"),
    "after --json": ("numabind --json pl", "plan"),
    "an option": ("numabind run --mo", "--mode --move-pages"),
    "a mode": ("numabind plan --mode ", "node socket exclusive core-complex"),
    "a mode after =": ("numabind run --mode = ex", "exclusive"),
    "a policy": ("numabind launch --memory w", "weighted-interleave"),
    "an order after nothing": ("numabind top --sort =", "pid gpu memory local threads"),
    "a way to share": ("numabind plan --share ", "block cyclic"),
    "how to count": ("numabind top --pages n", "numa_maps"),
    "a process": (f"numabind status {os.getpid()}", str(os.getpid())),
    "a shell": ("numabind completion ", "bash zsh fish"),
    "a part of a verb": ("numabind fleet rep", "report"),
    "a number": ("numabind plan --workers ", ""),
    "a command": ("numabind run --mode node -- migratepag", "migratepages"),
    "a command without --": ("numabind run --mode = node -q migratepag", "migratepages"),
    "a verb's name as command": ("numabind run -- plan --mo", ""),
}


@pytest.mark.parametrize(("line", "offered"), OFFERED.values(), ids=OFFERED)
def test_bash_offers(line: str, offered: str) -> None:
    words = line.split(" ")
    code = f"""
        compopt() {{ :; }}  # works only while readline asks
        source <(numabind completion bash)
        COMP_WORDS=({" ".join(word or "''" for word in words)}) COMP_CWORD={len(words) - 1}
        _numabind; echo "${{COMPREPLY[@]}}"
    """
    assert set(output("bash", "--norc", "-c", code).split()) == set(offered.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_verb_and_option_of_the_help(shell: str) -> None:
    script = output("numabind", "completion", shell)
    assert "@" not in script.replace("[@]", "").replace('"$@"', "").replace("@(run|launch)", "")
    for verb in VERBS:
        assert "help" in options(verb)
        if shell == "fish":
            part = "\n".join(re.findall(rf"^.*'__numabind_verb {verb}'.*$", script, re.MULTILINE))
            assert set(re.findall(r" -l ([a-z-]+)", part)) == options(verb)
        else:
            part = re.search(rf"^ +{verb}\)(.*?);;$", script, re.MULTILINE | re.DOTALL)[1]
            assert {f for f in options(verb) if not re.search(rf"--{f}\b", part)} == set()


STARTS = {
    "bash": (["bash", "--norc", "-i"], "source <(numabind completion bash)\n"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit; compinit -u -D; source <(numabind completion zsh)\n",
    ),
    "fish": (["fish", "--no-config"], "numabind completion fish | source\n"),
}


@pytest.mark.parametrize("shell", STARTS)
@pytest.mark.parametrize("typed", ["numabind plan --mode excl\t", "numabind run --mode=excl\t"])
def test_a_person_presses_tab(shell: str, typed: str, tmp_path: Path) -> None:
    command, setup = STARTS[shell]
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, {**ENVIRON, "HOME": str(tmp_path)})
    seen = b""
    os.write(terminal, f"{setup}echo read''y\n".encode())
    while b"ready" not in seen and select.select([terminal], [], [], 60)[0]:
        seen += os.read(terminal, 4096)
    os.write(terminal, typed.encode())
    while b"exclusive" not in seen and select.select([terminal], [], [], 60)[0]:
        seen += os.read(terminal, 4096)
    os.close(terminal)
    os.waitpid(child, 0)
    assert b"exclusive" in seen


def test_another_shell_is_refused_in_one_line() -> None:
    done = subprocess.run(
        ["numabind", "completion", "tcsh"], env=ENVIRON, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "tcsh" in done.stderr
