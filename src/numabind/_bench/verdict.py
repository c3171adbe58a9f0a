"""Whether binding is worth something, from what was measured. Pure.

The rule. Two figures are compared round by round: each round gives one ratio. A difference counts
only if there were at least FEWEST rounds, all of them point the same way, and the middle one
differs from 1 by more than LEAST. If there is no difference, a round is as likely above 1 as below,
so all of 9 rounds agree by chance in one of 256 comparisons, of 5 in one of 16.
"""

from __future__ import annotations

from math import exp, log
from statistics import median

from numabind._bench.results import DIRECTIONS, Bench, Copy, Samples
from numabind._record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

FEWEST = 5
LEAST = 0.02


@record
class Ratio:
    """How many times one figure another is: a value for each round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    @property
    def noise(self) -> float:
        """How far the rounds are from the middle one at most, as a share of it."""
        middle = self.median
        return max(abs(value / middle - 1) for value in self.values)

    @property
    def clear(self) -> bool:
        """Whether there is a difference, by this module's rule."""
        same_way = min(self.values) > 1 or max(self.values) < 1
        return len(self.values) >= FEWEST and same_way and abs(self.median - 1) > LEAST

    @property
    def text(self) -> str:
        """ "1.42x (1.38 to 1.47)"."""
        return f"{self.median:.2f}x ({min(self.values):.2f} to {max(self.values):.2f})"


def ratio(over: Samples, under: Samples) -> Ratio | None:
    """`over` by `under`, round by round; None if they share no round."""
    pairs = list(zip(over.values, under.values, strict=False))
    return Ratio(tuple(a / b for a, b in pairs)) if pairs and all(b > 0 for _, b in pairs) else None


def mean(figures: Iterable[Samples]) -> Samples | None:
    """The geometric mean of several figures, round by round; None of none."""
    rounds = list(zip(*(figure.values for figure in figures), strict=False))
    if not rounds or any(value <= 0 for values in rounds for value in values):
        return None
    return Samples(tuple(exp(sum(map(log, values)) / len(values)) for values in rounds))


@record
class Comparison:
    """Local against something else: `what` was measured, `against` what."""

    what: str
    against: str
    ratio: Ratio

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "what": self.what,
            "against": self.against,
            "ratio": self.ratio.median,
            "ratios": list(self.ratio.values),
            "clear": self.ratio.clear,
        }


@record
class Verdict:
    """The answer in one line, and what it rests on.

    `worth` is how many times as fast binding makes the best of what was measured; 1.0 if there is
    no difference, None if nothing could be compared.
    """

    text: str
    worth: float | None = None
    noise: float | None = None
    comparisons: tuple[Comparison, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "text": self.text,
            "worth": self.worth,
            "noise": self.noise,
            "comparisons": [one.as_dict() for one in self.comparisons],
        }


def verdict(bench: Bench) -> Verdict:
    """What binding is worth here: by the copies if GPUs were measured, else by CPU memory."""
    found = tuple(comparisons(bench))
    if len(bench.nodes) == 1:
        only = "this machine has one NUMA node, or lends one: there is nothing to bind to"
        return Verdict(only, 1.0, None, found)
    against = [one for one in found if one.against != "unbound"]
    deciding = [one for one in against if one.what in _OF_COPIES] or against
    if not deciding:
        return Verdict("can't tell: nothing local was measured beside something remote")
    best = max(deciding, key=lambda one: one.ratio.median if one.ratio.clear else 0.0)
    clear = [one for one in deciding if one.ratio.clear]
    if best.ratio.clear and best.ratio.median > 1:
        said = f"binding is worth {best.ratio.median:.2f}x here ({_how(best)})"
        return Verdict(said, best.ratio.median, best.ratio.noise, found)
    noise = max(one.ratio.noise for one in deciding)
    if clear:
        said = (
            f"memory of other nodes is faster here, {1 / best.ratio.median:.2f}x ({_how(best)}): "
            "what the firmware says of places is doubtful, see numabind calibrate"
        )
        return Verdict(said, best.ratio.median, best.ratio.noise, found)
    if min(len(one.ratio.values) for one in deciding) < FEWEST:
        return Verdict(f"can't tell: fewer than {FEWEST} rounds were measured", None, noise, found)
    said = f"no difference on this machine (within the noise of {noise:.0%})"
    return Verdict(said, 1.0, noise, found)


_OF_COPIES = tuple(
    f"{way}, {how}" for way in DIRECTIONS.values() for how in ("each GPU alone", "all at once")
)


def _how(one: Comparison) -> str:
    low, high = min(one.ratio.values), max(one.ratio.values)
    return f"{one.what}, local against {one.against}; {low:.2f} to {high:.2f}"


def comparisons(bench: Bench) -> Iterable[Comparison]:
    """Local against remote, and against unbound as found, for each kind of figure."""
    local = {pair.cpu_node: pair for pair in bench.memory if pair.cpu_node == pair.memory_node}
    for what, field, better in (
        ("CPU memory bandwidth", "bandwidth", 1),
        ("CPU memory latency", "latency", -1),
    ):
        found = []
        for node, own in local.items():
            far = mean(
                figure
                for pair in bench.memory
                if pair.cpu_node == node != pair.memory_node and pair.memory_node in local
                if (figure := getattr(pair, field)) is not None
            )
            near = getattr(own, field)
            if far is not None and near is not None:
                found.append((near, far) if better > 0 else (far, near))
        yield from _compared(what, "other nodes", found)
    for pinned in (True, False):
        for key, way in DIRECTIONS.items():
            some = [c for c in bench.copies if c.direction == key and c.pinned == pinned and c.rate]
            memory = "" if pinned else "pageable, "
            for against, place in (("other nodes", "remote"), ("unbound", "unbound")):
                alone = [c for c in some if c.arrangement is None]
                what = f"{way}, {memory}each GPU alone"
                yield from _compared(what, against, _by_gpu(alone, place))
                together = [c for c in some if c.arrangement is not None]
                what = f"{way}, {memory}all at once"
                yield from _compared(what, against, _by_gpu(together, place))


def _by_gpu(copies: Sequence[Copy], place: str) -> list[tuple[Samples, Samples]]:
    """Each GPU's local rate, and the mean of its rates at another place."""
    found = []
    for gpu in dict.fromkeys(copy.gpu for copy in copies):
        own = [c.rate for c in copies if c.gpu == gpu and c.place == "local" and c.rate]
        other = mean(c.rate for c in copies if c.gpu == gpu and c.place == place and c.rate)
        if own and other is not None:
            found.append((own[0], other))
    return found


def _compared(
    what: str, against: str, pairs: Sequence[tuple[Samples, Samples]]
) -> Iterable[Comparison]:
    """The mean over all pairs of the first by the second."""
    over, under = mean(a for a, _ in pairs), mean(b for _, b in pairs)
    found = ratio(over, under) if over is not None and under is not None else None
    if found is not None:
        yield Comparison(what, against, found)
