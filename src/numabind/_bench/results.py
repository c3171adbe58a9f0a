"""What `bench` measures, as frozen records, and their JSON form. Pure.

Rates are GiB/s of bytes copied, latencies nanoseconds; every figure is a list of samples, one for
each round, in the order of the rounds. Samples of one round were taken close together, so two
figures are compared round by round, and a drift of the machine's speed hits both alike.
"""

from __future__ import annotations

from statistics import median

from numabind._fields import Fields
from numabind._problems import Problem
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
DIRECTIONS = {"h2d": "host to device", "d2h": "device to host"}
PLACES = ("local", "remote", "unbound", "unknown")


@record
class Samples:
    """One figure: a sample for each round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle sample."""
        return median(self.values)

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "samples": list(self.values),
        }


@record
class Pair:
    """CPUs of one node working on memory of another.

    `bandwidth` is GiB/s copied by `workers` processes within the node's memory (each byte is read
    and written there), `latency` nanoseconds of a load from memory beyond one from the first-level
    cache. Both are None where `problem` says why the figures were refused.
    """

    cpu_node: int
    memory_node: int
    workers: int = 0
    bandwidth: Samples | None = None
    latency: Samples | None = None
    problem: Problem | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "cpu_node": self.cpu_node,
            "memory_node": self.memory_node,
            "workers": self.workers,
            "bandwidth_gib_s": _or_none(self.bandwidth),
            "latency_ns": _or_none(self.latency),
            "problem": _or_none(self.problem),
        }


@record
class Copy:
    """Copies between one GPU and host memory.

    `gpu` is its PCI address; `direction` a key of DIRECTIONS; `place` one of PLACES; `node` where
    CPU and memory were, None for unbound as found (`found` then says where the pages were).
    `pinned` is False for pageable memory. `arrangement` is None for a GPU alone; when all copied
    at once it names the arrangement of all of them: "local", "remote+1" (each GPU with memory of
    the next node), "unbound". `rate` is None where `problem` says why.
    """

    gpu: str
    direction: str
    place: str
    node: int | None = None
    pinned: bool = True
    arrangement: str | None = None
    rate: Samples | None = None
    found: tuple[int, ...] = ()
    problem: Problem | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        data = {**self.__dict__, "found": list(self.found), "problem": _or_none(self.problem)}
        del data["rate"]
        return {**data, "rate_gib_s": _or_none(self.rate)}


@record
class Bench:
    """All that one run measured on one machine.

    `nodes` are the nodes with CPUs that this process may use; `copier` names the library that
    copied to GPUs, None if no GPU was measured; `problems` what kept parts from being measured.
    """

    host: str | None = None
    made: str = ""
    nodes: tuple[int, ...] = ()
    memory: tuple[Pair, ...] = ()
    copies: tuple[Copy, ...] = ()
    copier: str | None = None
    seconds: float = 0.0
    problems: tuple[Problem, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, with the verdict; `Bench.from_dict` is its inverse."""
        from numabind._bench.verdict import verdict

        return {
            "schema": SCHEMA,
            "host": self.host,
            "made": self.made,
            "nodes": list(self.nodes),
            "seconds": self.seconds,
            "memory": [pair.as_dict() for pair in self.memory],
            "copies": [copy.as_dict() for copy in self.copies],
            "copier": self.copier,
            "verdict": verdict(self).as_dict(),
            "problems": [said.as_dict() for said in self.problems],
        }

    @classmethod
    def from_dict(cls, data: object, source: str = "bench") -> Bench:
        """Rebuild from the JSON form; MachineError names `source` and the field at fault."""
        return _Reader(source).bench(data)


def load(path: str) -> Bench:
    """Read a file that `numabind bench --json` wrote. MachineError names what is wrong."""
    import json

    from numabind._errors import MachineError
    from numabind._files import read_text

    hint = "make one with numabind bench --json > FILE"
    try:
        data = json.loads(read_text(path))
    except OSError as error:
        raise MachineError(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise MachineError(path, f"not a bench: {error}", hint) from error
    return Bench.from_dict(data, path)


def _or_none(value: Samples | Problem | None) -> dict[str, Any] | None:
    return None if value is None else value.as_dict()


class _Reader(Fields):
    """Takes a bench's JSON apart."""

    def bench(self, data: object) -> Bench:
        data = self.table(data, "the bench")
        if data.get("schema") != SCHEMA or "memory" not in data or "copies" not in data:
            self.fail("schema", "is not one that numabind bench --json of this version writes")
        return Bench(
            host=self.text(data, "host", ""),
            made=self.text(data, "made", "") or "",
            nodes=self.numbers(data, "nodes", ""),
            memory=tuple(self.pair(*item) for item in self.items(data, "memory")),
            copies=tuple(self.copy(*item) for item in self.items(data, "copies")),
            copier=self.text(data, "copier", ""),
            seconds=self.positive(data.get("seconds", 0.0), "seconds"),
            problems=tuple(self.problem(*item) for item in self.items(data, "problems", ())),
        )

    def pair(self, data: dict[str, Any], where: str) -> Pair:
        return Pair(
            self.whole(data, "cpu_node", where),
            self.whole(data, "memory_node", where),
            self.whole(data, "workers", where),
            self.samples(data, "bandwidth_gib_s", where),
            self.samples(data, "latency_ns", where),
            self.maybe_problem(data, where),
        )

    def copy(self, data: dict[str, Any], where: str) -> Copy:
        direction, place = self.text(data, "direction", where), self.text(data, "place", where)
        if direction not in DIRECTIONS:
            self.fail(f"{where}direction", f"is none of {', '.join(DIRECTIONS)}")
        if place not in PLACES:
            self.fail(f"{where}place", f"is none of {', '.join(PLACES)}")
        return Copy(
            gpu=self.text(data, "gpu", where) or "",
            direction=direction,
            place=place,
            node=self.maybe_whole(data, "node", where),
            pinned=self.flag(data, "pinned", where),
            arrangement=self.text(data, "arrangement", where),
            rate=self.samples(data, "rate_gib_s", where),
            found=self.numbers(data, "found", where),
            problem=self.maybe_problem(data, where),
        )

    def samples(self, data: dict[str, Any], key: str, where: str) -> Samples | None:
        if data.get(key) is None:
            return None
        values = self.table(data[key], f"{where}{key}").get("samples")
        if not isinstance(values, list) or not values:
            self.fail(f"{where}{key}.samples", "is not a list of numbers")
        return Samples(tuple(self.positive(value, f"{where}{key}.samples") for value in values))

    def positive(self, value: object, field: str) -> float:
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not real or not 0 <= value < 1 << 63:  # type: ignore[operator]  # NaN fails, too
            self.fail(field, f"{value!r:.40} is not a number from 0 up")
        return float(value)  # type: ignore[arg-type]

    def numbers(self, data: dict[str, Any], key: str, where: str) -> tuple[int, ...]:
        value = data.get(key, [])
        if not isinstance(value, list):
            self.fail(f"{where}{key}", "is not a list of node numbers")
        return tuple(self.whole({key: item}, key, where) for item in value)

    def maybe_problem(self, data: dict[str, Any], where: str) -> Problem | None:
        if data.get("problem") is None:
            return None
        return self.problem(self.table(data["problem"], f"{where}problem"), f"{where}problem.")

    def problem(self, data: dict[str, Any], where: str) -> Problem:
        return Problem(*(self.text(data, key, where) or "" for key in ("name", "cause", "remedy")))
