"""The differences of a group in sentences: each cause once, and not what follows from it. Pure."""

from __future__ import annotations

from numabind._cpulist import format_list, parse_list
from numabind._fleet.differences import ABSENT, Difference
from numabind._fleet.topology import ALL, UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Values = Mapping[tuple[str, str], str]

_LAYOUT = ("packages", "cores", "L3 groups")


def sentences(
    found: Sequence[Difference], here: Values, there: Values, models: Mapping[str, str]
) -> tuple[str, ...]:
    """What differs, without full stops; () only where nothing does.

    `here` and `there` are the values of the outlier and the reference, `models` the names of GPU
    models by PCI numbers.
    """
    left = {(each.subject, each.aspect): each for each in found}
    said = _about_cpus(left, here, there)
    said += _about_nodes(left, here, there)
    said += _about_presence(left, here, there)
    said += _distances(left)
    return (*said, *_the_rest(left, here, there, models))


Left = dict[tuple[str, str], Difference]


def _drop(left: Left, unwanted: Callable[[Difference], bool]) -> None:
    for key in [key for key, each in left.items() if unwanted(each)]:
        del left[key]


def where(others: int, value: str) -> str:
    """ ", where 9,975 others have node 0"."""
    return f", where {others:,} {'other has' if others == 1 else 'others have'} {value}"


def _about_cpus(left: Left, here: Values, there: Values) -> list[str]:
    """SMT, CPUs that are not there, packages, caches."""
    said = []
    threads = [_threads(values["machine", "cores"]) for values in (here, there)]
    cores, cpus = left.get(("machine", "cores")), left.get(("machine", "CPUs"))
    if cores and None not in threads and threads[0] != threads[1]:
        many = "1 hardware thread" if threads[0] == 1 else f"{threads[0]} hardware threads"
        said.append(f"{many} per core{where(cores.others, str(threads[1]))}")
    elif cpus:
        said += _online(cpus, here["machine", "offline CPUs"])
    if said:
        _drop(left, lambda d: d.subject == "machine" and d.aspect in (*_LAYOUT, "CPUs"))
        _drop(left, lambda d: d.aspect in ("offline CPUs", "CPUs"))
    for aspect in _LAYOUT:
        other = left.pop(("machine", aspect), None)
        if other is None:
            continue
        counts = [len(text.split()) for text in (other.value, other.reference)]
        noun = aspect if counts[0] != 1 else aspect.removesuffix("s")
        if "?" in other.value + other.reference:
            said.append(
                f"{aspect}: {_known(other.value)}{where(other.others, _known(other.reference))}"
            )
        elif counts[0] != counts[1]:
            said.append(f"{counts[0]} {noun}{where(other.others, str(counts[1]))}")
        else:
            said.append(f"{aspect} of other CPUs than {other.others:,} others have")
    return said


def _known(groups: str) -> str:
    return "some not known" if "?" in groups else str(len(groups.split()))


def _threads(cores: str) -> int | None:
    if "?" in cores:
        return None
    return max((len(parse_list(core)) for core in cores.split()), default=None)


def _online(cpus: Difference, offline: str) -> list[str]:
    mine, theirs = parse_list(cpus.value), parse_list(cpus.reference)
    asleep = (theirs - mine) & parse_list(offline)
    gone = theirs - mine - asleep
    said = []
    if asleep:
        verb = "is" if len(asleep) == 1 else "are"
        said.append(f"{_cpus(asleep)} {verb} offline, but online on {cpus.others:,} others")
    if gone:
        verb = "is" if len(gone) == 1 else "are"
        said.append(f"{_cpus(gone)} {verb} missing, but there on {cpus.others:,} others")
    if mine - theirs:
        more = mine - theirs
        verb = "is" if len(more) == 1 else "are"
        said.append(f"{_cpus(more)} {verb} there, which {cpus.others:,} others lack")
    return said


def _cpus(numbers: frozenset[int]) -> str:
    return f"CPU{'' if len(numbers) == 1 else 's'} {format_list(numbers)}"


def _about_nodes(left: Left, here: Values, there: Values) -> list[str]:
    """Other nodes with CPUs make everything that names a node differ."""
    numa, nodes = left.get(("machine", "NUMA")), left.get(("machine", "nodes with CPUs"))
    if numa is None and nodes is None:
        return []
    said = []
    if numa is not None:
        said.append(
            "the kernel was started without NUMA" + where(numa.others, "NUMA")
            if numa.value == "no"
            else "NUMA" + where(numa.others, "a kernel that was started without")
        )
    elif nodes is not None:
        counts = [len(parse_list(text)) for text in (nodes.value, nodes.reference)]
        if counts[0] == counts[1]:
            said.append(f"nodes with CPUs are {nodes.value}{where(nodes.others, nodes.reference)}")
        else:
            noun = "node" if counts[0] == 1 else "nodes"
            cause = (
                ": NPS or sub-NUMA clustering is set otherwise"
                if here["machine", "packages"] == there["machine", "packages"]
                else ""
            )
            said.append(f"{counts[0]} {noun} with CPUs{where(nodes.others, str(counts[1]))}{cause}")
    _drop(left, lambda d: d.subject == "machine" and d.aspect in ("NUMA", "nodes with CPUs"))
    _drop(left, lambda d: d.subject.startswith("node "))
    _drop(
        left, lambda d: d.aspect in ("node", "own memory") and ABSENT not in (d.value, d.reference)
    )
    return said


def _about_presence(left: Left, here: Values, there: Values) -> list[str]:
    """Nodes and GPUs that only one of the two has."""
    said = []
    for kind in ("node", "gpu"):
        found = [each for each in left.values() if each.subject.partition(" ")[0] == kind]
        gone = {each.subject: each.others for each in found if each.value == ABSENT}
        more = {each.subject: each.others for each in found if each.reference == ABSENT}
        if gone and kind == "gpu" and not subjects(here, kind):
            count = len(subjects(there, kind))
            said.append(f"no GPU{where(min(gone.values()), str(count))}")
        elif gone:
            verb = "is" if len(gone) == 1 else "are"
            it = "it" if len(gone) == 1 else "them"
            said.append(f"{names(list(gone), there)} {verb} missing{where(min(gone.values()), it)}")
        if more:
            verb = "is" if len(more) == 1 else "are"
            said.append(
                f"{names(list(more), here)} {verb} there, which {min(more.values()):,} others lack"
            )
        if kind == "node" and (gone or more):
            _drop(left, lambda d: d.aspect == "distances")
    _drop(left, lambda d: ABSENT in (d.value, d.reference))
    return said


def subjects(values: Values, kind: str) -> list[str]:
    """The nodes or GPUs of a machine, in order: its GPU 3 is the fourth."""
    found = {subject for subject, _ in values if subject.partition(" ")[0] == kind}
    return sorted(found, key=lambda subject: (len(subject), subject))


def names(wanted: Sequence[str], values: Values) -> str:
    """ "GPU 3 (0000:5d:00.0)", "GPUs 0-3", "all 8 GPUs"; "node 1", "nodes 0-1"."""
    kind = wanted[0].partition(" ")[0]
    rest = [subject.partition(" ")[2] for subject in wanted]
    if kind == "node":
        return f"node{'s' if len(rest) > 1 else ''} {format_list({int(word) for word in rest})}"
    every = subjects(values, kind)
    if len(every) == len(wanted) > 1:
        return f"all {len(every)} GPUs"
    numbers = {every.index(subject) for subject in wanted}
    if len(numbers) == 1:
        return f"GPU {min(numbers)} ({rest[0]})"
    return f"GPUs {format_list(numbers)}"


def _distances(left: Left) -> list[str]:
    """One sentence for all nodes: their rows say the same twice."""
    found = [each for each in left.values() if each.aspect == "distances"]
    _drop(left, lambda d: d.aspect == "distances")
    if not found:
        return []
    first = found[0]
    rest = where(first.others, first.reference)
    return [f"distances of {first.subject} are {first.value}{rest}"]


def _the_rest(left: Left, here: Values, there: Values, models: Mapping[str, str]) -> list[str]:
    """One sentence for each difference that is left, or for all GPUs or nodes that share it."""
    alike: dict[tuple[str, str, str, str], list[Difference]] = {}
    for each in left.values():
        mine = _value(each.aspect, each.value, models, here)
        theirs = _value(each.aspect, each.reference, models, there)
        if mine == theirs:  # two sizes, or two models of one name
            mine, theirs = each.value, each.reference
        kind = each.subject.partition(" ")[0]
        alike.setdefault((kind, each.aspect, mine, theirs), []).append(each)
    said = []
    for (kind, aspect, mine, theirs), differences in alike.items():
        # Another machine may lack one of these GPUs, and so not be like the reference in it.
        others = min(each.others for each in differences)
        verb, noun = _PHRASES[kind, aspect]
        if kind != "machine":
            plural = {"is": "are", "has": "have"}
            verb = verb if len(differences) == 1 else plural[verb]
            verb = f"{names([each.subject for each in differences], here)} {verb}"
        said.append(f"{verb} {noun}{mine}{where(others, theirs)}")
    return said


# What is said before the value.
_PHRASES = {
    ("machine", "allowed CPUs"): ("allowed", "CPUs are "),
    ("machine", "allowed nodes"): ("allowed", "memory is "),
    ("machine", "CPU quota"): ("the cgroup", "has "),
    ("machine", "numa_balancing"): ("numa_balancing", "is "),
    ("node", "kind"): ("is", ""),
    ("node", "CPUs"): ("has", "CPUs "),
    ("node", "memory"): ("has", ""),
    ("gpu", "model"): ("is", ""),
    ("gpu", "node"): ("is", "on "),
    ("gpu", "driver"): ("has", "driver "),
    ("gpu", "link"): ("has", "a link of "),
    ("gpu", "own memory"): ("has", "its own memory on "),
    ("gpu", "partitions"): ("has", "partitions "),
    ("gpu", "partitioning"): ("has", "the partitioning "),
    ("gpu", "module"): ("has", "the module number "),
}


def _value(aspect: str, text: str, models: Mapping[str, str], values: Values) -> str:
    """A value as a person says it."""
    if aspect == "memory":
        size = amount(None if text == UNKNOWN else int(text))
        return {UNKNOWN: "memory of unknown size", "none": "no memory"}.get(size, size)
    if aspect == "model":
        return models.get(text, text)
    if aspect == "node":
        return "no known node" if text == UNKNOWN else f"node{_plural(text)} {text}"
    if aspect == "kind":
        return {"cpu": "a node with CPUs", "gpu": "a GPU's memory"}.get(text, "memory only")
    if aspect == "numa_balancing":
        return f"{text} (on)" if text.isdigit() and text != "0" else text
    if aspect == "CPU quota":
        return "no limit of CPU time" if text == "none" else f"{text} CPUs' worth of time"
    if aspect == "allowed CPUs" and text != ALL:
        total = len(parse_list(values["machine", "CPUs"]))
        return f"{text or 'none'} ({len(parse_list(text))} of {total})"
    if aspect == "allowed nodes" and text != ALL:
        return f"on node{_plural(text)} {text}" if text else "on no node"
    return text or "none"


def _plural(ids: str) -> str:
    return "s" if "," in ids or "-" in ids else ""


def amount(size: int | None) -> str:
    """Bytes of a node for a person: "448 GiB", "7.5 GiB", "none"."""
    if size is None:
        return UNKNOWN
    if size == 0:
        return "none"
    unit, name = (1 << 30, "GiB") if size >= 1 << 30 else (1 << 20, "MiB")
    digits = 0 if size >= 10 * unit else 1
    return f"{size / unit:.{digits}f}".removesuffix(".0") + f" {name}"
