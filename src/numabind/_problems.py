"""Everything that can limit a result: a stable name, what it means, and the remedy.

The texts are in `_catalogue`; docs/problems.md is made of them (`python -m numabind._problems`). A
name never changes its meaning; code that reads the JSON may compare it.
"""

from __future__ import annotations

from numabind._record import record


@record
class Problem:
    """One thing that stood in the way on this machine.

    `name` is a key of CATALOGUE, `cause` what was found here, `remedy` what to do about it.
    """

    name: str
    cause: str
    remedy: str

    @property
    def text(self) -> str:
        """One line for a person: name, cause and remedy."""
        return f"{self.name}: {self.cause}. {self.remedy}"

    def as_dict(self) -> dict[str, str]:
        """The JSON form: {"name": …, "cause": …, "remedy": …}."""
        return {"name": self.name, "cause": self.cause, "remedy": self.remedy}


def problem(name: str, cause: str, remedy: str | None = None) -> Problem:
    """A Problem of the catalogue; its remedy unless a sharper one is given."""
    if remedy is None:
        from numabind._catalogue import CATALOGUE

        remedy = CATALOGUE[name][1]
    return Problem(name, cause.rstrip("."), remedy)


# Found, worth saying, but the worker is where it should be: these don't fail `--strict`, and a
# `bind` that has only these is a success.
NOTES = frozenset(
    (
        *("cpus-lent", "cpus-reduced", "device-order-assumed", "inherited"),
        *("locality-contradiction", "memory-lent", "not-pinned", "nvml-unavailable", "one-node"),
        *("one-openmp-thread", "overlapping-nodes", "processes-unseen", "threads-kept"),
        *("threads-late", "turned-off"),
    )
)

# Said as a WARNING, but no reason for `--strict` to refuse: the worker's place does not suffer.
HARMLESS = frozenset(
    (
        *("bad-setting", "launcher-bound", "map-unmatched", "no-worker-bound", "node-memory-low"),
        *("openmp-binds", "snapshot-unfit", "spawned-elsewhere", "worker-did-not-bind"),
    )
)


def as_markdown() -> str:
    """The text of docs/problems.md."""
    from numabind._catalogue import CATALOGUE

    lines = [
        "# Problems",
        "",
        "numabind never fails silently and never kills a job: what limits a result is named. Each",
        "name below is stable. It stands in the WARNING line, in `problems` of every `--json`",
        "output, and in `binding.problems`, with the cause found on that machine. Names marked",
        "*note* are no WARNING: the worker is in its place. `--strict` passes with those, and with",
        "those marked *harmless*.",
        "",
        "<!-- Made by: python -m numabind._problems > docs/problems.md -->",
    ]
    for name in sorted(CATALOGUE):
        meaning, remedy = CATALOGUE[name]
        mark = " *(note)*" if name in NOTES else " *(harmless)*" if name in HARMLESS else ""
        lines += ["", f"## `{name}`{mark}", "", meaning, "", f"**Remedy.** {remedy}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
