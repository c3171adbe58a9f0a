"""The fuzz targets for a few seconds, always with the same inputs; `make fuzz` runs them at random.

Also what they found: each with the input that it found.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from fuzz.targets import TARGETS, fuzz
from numabind._residency import parse_numa_maps
from numabind._terminal import tell

EXAMPLES = {"environments": 20, "binds": 15}


@pytest.mark.parametrize("name", TARGETS)
def test_no_traceback_and_no_wrong_bind(name: str) -> None:
    how = settings(
        max_examples=EXAMPLES.get(name, 50),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    fuzz(name, how)


@pytest.mark.parametrize("word", ["N0=-1", "anon=-1", "kernelpagesize_kB=-4", "N0=+1", "N0=1_0"])
def test_no_line_of_numa_maps_counts_less_than_nothing(word: str) -> None:
    with pytest.raises(ValueError, match="not a line of numa_maps"):
        parse_numa_maps(f"7f00 default {word}")


def test_an_argument_with_a_line_feed_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell("numabind: unknown: a\nb\x1b[2J\udcff")
    assert capsys.readouterr().err == "numabind: unknown: a\\nb\\x1b[2J\\udcff\n"
