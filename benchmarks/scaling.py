"""What a job loses when some of its ranks are remote: the formula of docs/scaling.md, checked.

    python benchmarks/scaling.py [--plot docs/scaling.svg]

Simulates a job step by step: every rank draws whether it is remote, each step takes as long as its
slowest rank, and the mean over many jobs is compared with the formula. Prints the table of
docs/scaling.md; `--plot` writes its picture.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

NODES = (1, 2, 4, 8, 16, 64, 256, 1024)
CHANCES = (0.001, 0.01, 0.1, 0.5)
# The copies' share of a step and how many times slower they are from afar.
CASES = ((0.05, 2.0), (0.2, 2.0), (0.2, 3.0), (0.5, 3.0))


def any_remote(ranks: int, chance: float) -> float:
    """The probability that at least one of the ranks is remote."""
    return 1 - (1 - chance) ** ranks


def slowdown(ranks: int, chance: float, copies: float, slower: float) -> float:
    """How many times as long the job takes, on average over jobs.

    Ranks meet in every step, so one remote rank costs all as much as if all were: a step takes
    1 + copies · (slower − 1) with the probability that any rank is remote, else 1.
    """
    return 1 + any_remote(ranks, chance) * copies * (slower - 1)


def simulated(
    ranks: int, chance: float, copies: float, slower: float, jobs: int, dice: random.Random
) -> float:
    """The same by playing it: mean time of a job's steps over that of one where all are local.

    Each job draws each rank's place once (a process stays where it was started) and then runs
    steps; a step is compute, then copies, then a barrier at which all wait for the last.
    """
    steps = 3
    total = 0.0
    for _ in range(jobs):
        remote = [dice.random() < chance for _ in range(ranks)]
        for _ in range(steps):
            arrivals = []
            for far in remote:
                compute = 1 - copies
                copying = copies * (slower if far else 1)
                arrivals.append(compute + copying)
            total += max(arrivals)
    return total / (jobs * steps)


def check(jobs: int = 4000, seed: int = 1) -> list[tuple[str, float, float, float]]:
    """Formula and simulation for some cases: name, both figures, and five standard errors."""
    dice = random.Random(seed)
    found = []
    for ranks, chance in ((1, 0.5), (8, 0.01), (8, 0.1), (32, 0.01), (64, 0.001), (128, 0.02)):
        for copies, slower in ((0.2, 3.0), (0.5, 2.0)):
            exact = slowdown(ranks, chance, copies, slower)
            played = simulated(ranks, chance, copies, slower, jobs, dice)
            hit = any_remote(ranks, chance)
            error = 5 * copies * (slower - 1) * (hit * (1 - hit) / jobs) ** 0.5
            name = f"{ranks} ranks, p {chance}, c {copies}, r {slower:g}"
            found.append((name, exact, played, error))
    return found


def table(gpus: int = 8) -> str:
    """The table of docs/scaling.md, in Markdown."""
    lines = ["| nodes | ranks | " + " | ".join(f"p = {p:g}" for p in CHANCES) + " |"]
    lines.append("|" + "---|" * (len(CHANCES) + 2))
    for nodes in NODES:
        ranks = nodes * gpus
        cells = (f"{any_remote(ranks, chance):.1%}" for chance in CHANCES)
        lines.append(f"| {nodes} | {ranks} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(gpus: int = 8, copies: float = 0.2, slower: float = 3.0) -> str:
    """The picture of docs/scaling.md: slowdown over nodes, a line for each chance, as SVG."""
    wide, high, left, bottom, top, right = 720, 380, 60, 50, 20, 120
    most = 1 + copies * (slower - 1)
    powers = [i / 8 for i in range(8 * 10 + 1)]  # 2^0 to 2^10 nodes

    def x(power: float) -> float:
        return left + power / 10 * (wide - left - right)

    def y(value: float) -> float:
        return high - bottom - (value - 1) / (most - 1) * (high - bottom - top)

    def text(at: float, down: float, said: str, anchor: str = "middle") -> str:
        return f'<text x="{at:.1f}" y="{down:.1f}" text-anchor="{anchor}">{said}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
        'font-family="sans-serif" font-size="13">',
        f"<title>Slowdown of a job with {gpus} ranks a node, copies {copies:.0%} of a step and "
        f"{slower:g} times slower from afar</title>",
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
    ]
    for power in range(0, 11, 2):
        parts.append(f'<path d="M{x(power):.1f} {top}V{high - bottom}" stroke="#e0e4ea"/>')
        parts.append(text(x(power), high - bottom + 20, str(2**power)))
    for step in range(5):
        value = 1 + (most - 1) * step / 4
        parts.append(f'<path d="M{left} {y(value):.1f}H{wide - right}" stroke="#e0e4ea"/>')
        parts.append(text(left - 8, y(value) + 4, f"{value:.1f}x", "end"))
    parts.append(text((left + wide - right) / 2, high - 10, f"nodes, {gpus} ranks each"))
    colours = ("#1f62c9", "#0b756d", "#b3500b", "#b32a73")
    for number, (chance, colour) in enumerate(zip(CHANCES, colours, strict=True)):
        line = _line((x(p), y(slowdown(gpus * 2**p, chance, copies, slower))) for p in powers)
        parts.append(f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        down = top + 14 + 22 * number
        parts.append(
            f'<path d="M{wide - right + 12} {down - 4}h22" stroke="{colour}" stroke-width="2.5"/>'
        )
        parts.append(text(wide - right + 40, down, f"p = {chance:g}", "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def main(show: Callable[[str], None] = print) -> int:
    """Print the check and the table; 1 if formula and simulation disagree."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plot", metavar="FILE")
    options = parser.parse_args()
    good = True
    for name, exact, played, error in check():
        fits = abs(exact - played) <= error
        good &= fits
        show(f"{name:32} formula {exact:.4f}  simulation {played:.4f}  {'' if fits else 'WRONG'}")
    show("\n" + table())
    if options.plot:
        Path(options.plot).write_text(plot(), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
