"""The verbs that measure: bench, calibrate."""

from __future__ import annotations

import os

from numabind._errors import NumabindError, UsageError
from numabind._progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from numabind._bench.calibrate import Place
    from numabind._bench.copies import Copier
    from numabind._machine import Machine
    from numabind._problems import Problem

_YES, _NO = 0, 1


def bench_verb(parsed: argparse.Namespace, machine: Machine) -> int:
    """Measure and print. 0 when something was measured, 1 when nothing was."""
    from numabind._bench import bench
    from numabind._bench.children import ChildError

    try:
        with Progress("bench") as progress:
            found = bench(machine, parsed.seconds, progress, gpus=parsed.gpus)
    except ChildError as error:
        raise NumabindError(f"bench: {error}") from error
    if getattr(parsed, "json", False):
        import json

        print(json.dumps(found.as_dict(), indent=1))
    else:
        from numabind._report.bench import bench_text
        from numabind._report.colour import show

        show(bench_text(found))
    measured = any(pair.bandwidth for pair in found.memory)
    return _YES if measured or any(copy.rate for copy in found.copies) else _NO


def calibrate_verb(
    parsed: argparse.Namespace,
    machine: Machine,
    find: Callable[[], Copier | Problem] | None = None,
) -> int:
    """Find the GPUs' nodes and write the map; 1 if a GPU's node can't be told."""
    from numabind._bench import copies_of
    from numabind._bench.calibrate import doubtful, places
    from numabind._terminal import tell

    output = parsed.output
    if output is not None and not parsed.force and os.path.lexists(output):
        raise UsageError(f"-o {output}: is there already; --force writes over it")
    gpus = [device for device in machine.devices if device.computes]
    if not gpus:
        return _nothing("no GPU on this machine, so nothing to calibrate", _NO)
    if len([node for node in machine.nodes if node.cpus]) < 2:
        return _nothing("one NUMA node, so every GPU is near it: nothing to calibrate", _YES)
    wanted = [device.pci for device in gpus] if parsed.all else list(doubtful(machine))
    if not wanted:
        return _nothing(
            "the firmware tells the node of each GPU: nothing to calibrate (--all measures all the "
            "same)",
            _YES,
        )
    with Progress("calibrate") as progress:
        copies, name, said = copies_of(machine, parsed.seconds, progress, find, pageable=False)
    if said:
        return _nothing(said[0].text, _NO)
    firmware = {device.pci: device.node for device in gpus if device.pci in wanted}
    found = places(copies, firmware)
    _write(parsed, machine, found, f"copies by {name}")
    for place in found:
        if not place.nodes or output is not None:
            tell(f"numabind: calibrate: {place.text}")
    for cause in dict.fromkeys(copy.problem.text for copy in copies if copy.problem):
        tell(f"numabind: calibrate: {cause}")
    return _YES if all(place.nodes for place in found) else _NO


def _nothing(cause: str, code: int) -> int:
    from numabind._terminal import tell

    tell(f"numabind: calibrate: {cause}")
    return code


def _write(
    parsed: argparse.Namespace, machine: Machine, found: tuple[Place, ...], how: str
) -> None:
    """The map to its file or to standard output; as JSON where that is wanted."""
    import json
    import time

    from numabind._bench.calibrate import map_text
    from numabind._files import write_text

    host = machine.host.name or "this machine"
    header = (
        f"NUMABIND_MAP of {host}, by numabind calibrate, {time.strftime('%Y-%m-%d %H:%M %Z')}",
        f"{how}; a GPU's place is its fastest node and what can't be told from it.",
    )
    text = map_text(found, header)
    as_json = getattr(parsed, "json", False)
    if as_json:
        print(json.dumps({"schema": 1, "places": [place.as_dict() for place in found]}, indent=1))
    if parsed.output is None:
        if not as_json:
            print(text, end="")
        return
    if not any(place.nodes for place in found):
        return  # a map without a line would only hide that nothing is known
    if not parsed.force and os.path.lexists(parsed.output):
        raise UsageError(f"-o {parsed.output}: appeared meanwhile; --force writes over it")
    try:
        write_text(parsed.output, text)
    except OSError as error:
        raise UsageError(f"-o {parsed.output}: {error.strerror}") from error
