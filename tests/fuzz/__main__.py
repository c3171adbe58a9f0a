"""`make fuzz`: every target in turn, at random, for FUZZ_SECONDS in all (default 600).

What fails is shown as hypothesis shows it, the smallest input last, and ends the run with 1.
usage: python -m fuzz [TARGET ...]
"""

from __future__ import annotations

import os
import sys
import time
import traceback

from hypothesis import HealthCheck, settings

from fuzz.targets import TARGETS, fuzz

ROUND = 200  # examples of a target before the next has its turn


def main(names: list[str]) -> int:
    """Run until the time is over or something fails."""
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        print(f"no target is called {unknown[0]}: there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    until = time.monotonic() + float(os.environ.get("FUZZ_SECONDS") or 600)
    free = settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    done = dict.fromkeys(names or TARGETS, 0)
    failed = []
    while done.keys() - set(failed) and time.monotonic() < until:
        for name in done:
            if name in failed or time.monotonic() >= until:
                continue
            try:
                fuzz(name, free)
            except Exception:
                traceback.print_exc()
                print(f"fuzz: {name} failed", flush=True)
                failed.append(name)
            done[name] += ROUND
            if sys.stderr.isatty():
                left = max(0, until - time.monotonic())
                print(f"\r\033[K{left:5.0f} s left, {name}: {done[name]}", end="", file=sys.stderr)
    print("fuzz: " + ", ".join(f"{name} {count}" for name, count in done.items()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
