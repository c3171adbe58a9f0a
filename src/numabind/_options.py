"""How to place workers and how to apply a placement: the options, checked."""

from __future__ import annotations

from numabind._errors import UsageError
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypedDict

    class OptionWords(TypedDict, total=False):
        """The fields of `Options` as keyword arguments, so that a type checker knows them."""

        mode: str
        memory: str
        smt: bool
        reserve: int
        share: str | None
        threads: str
        move_pages: bool
        strict: bool
        ignore_inherited: bool
        near: str | None

    class BindWords(OptionWords, total=False):
        """The keyword arguments of `bind`."""

        gpu: str | None
        local_rank: int | None


MODES = ("node", "socket", "exclusive", "core-complex")
MEMORY = ("prefer", "bind", "local", "interleave", "weighted-interleave", "none")
# How `status` counts pages.
METHODS = ("auto", "numa_maps", "sample")
SHARES = ("block", "cyclic")
THREADS = ("keep", "auto")
_SETTINGS = {"NUMABIND_MODE": "mode", "NUMABIND_MEMORY": "memory", "NUMABIND_STRICT": "strict"}


@record
class Options:
    """How to place workers, and how to apply a placement.

    mode: "node", all allowed CPUs of the GPU's node; "socket", of all nodes of its package;
    "exclusive", the node's cores dealt over its GPUs; "core-complex", one L3 group of the node.
    memory: "prefer" the node, spill when it is full; "bind", the process is killed when it is
    full; "local", "interleave", "weighted-interleave", or "none" to leave the policy alone.
    smt: False takes the first sibling of each core. reserve: cores of each node left to the system.
    share: "block" or "cyclic" when there are more workers than devices. threads: "keep" a user's
    OMP_NUM_THREADS, or "auto" to replace a launcher's blanket 1. move_pages: move what was touched
    before. strict: raise BindError instead of warning. ignore_inherited: where something else bound
    this process first, plan within its cgroup instead of the mask it was born with. near: a worker
    without a GPU goes next to this NIC or disk ("mlx5_0", "nvme0", "eth0", a PCI address).
    """

    mode: str = "node"
    memory: str = "prefer"
    smt: bool = True
    reserve: int = 0
    share: str | None = None
    threads: str = "keep"
    move_pages: bool = False
    strict: bool = False
    ignore_inherited: bool = False
    near: str | None = None

    def checked(self) -> Options:
        """Itself; UsageError, naming the option and its values, if one can't be used."""
        _choice("mode", self.mode, MODES)
        _choice("memory", self.memory, MEMORY)
        _choice("share", self.share, (None, *SHARES))
        _choice("threads", self.threads, THREADS)
        if not (type(self.reserve) is int and self.reserve >= 0):
            raise UsageError(f"reserve must be 0 or more cores, not {self.reserve!r:.60}")
        for name in ("smt", "move_pages", "strict", "ignore_inherited"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be True or False, not {getattr(self, name)!r:.60}")
        near: object = self.near
        if near is not None and not (isinstance(near, str) and near.split() == [near]):
            raise UsageError(
                f"near {self.near!r:.60} names no device: use mlx5_0, nvme0, eth0 or a PCI address"
            )
        return self


def _choice(name: str, value: str | None, known: tuple[str | None, ...]) -> None:
    if value not in known:
        names = ", ".join(str(k) for k in known if k is not None)
        raise UsageError(f"{name} {value!r} is not known: choose one of {names}")


def make_options(values: Mapping[str, Any]) -> Options:
    """Options from keyword arguments; UsageError for an unknown name or value."""
    unknown = [name for name in values if name not in Options().__dict__]
    if unknown:
        known = ", ".join(Options().__dict__)
        raise UsageError(f"no option is called {unknown[0]!r}: there are {known}")
    return Options(**values).checked()


def options_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """What NUMABIND_MODE, NUMABIND_MEMORY and NUMABIND_STRICT ask for.

    UsageError names the variable if its value can't be used.
    """
    found: dict[str, Any] = {}
    for variable, name in _SETTINGS.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        value: Any = text
        if name == "strict":
            if text not in ("0", "1"):
                raise UsageError(f"{variable}={text!r:.60}: use 1 or 0")
            value = text == "1"
        try:
            make_options({name: value})
        except UsageError as error:
            raise UsageError(f"{variable}: {error}") from None
        found[name] = value
    return found
