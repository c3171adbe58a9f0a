"""Lists and masks of CPUs, in the kernel's spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numabind._cpulist import format_list, format_mask, parse_list, parse_mask

SETS = st.frozensets(st.integers(0, 5000), max_size=60)
# Letters of the grammar, so that random texts often come close to it.
NEAR_LISTS = st.text("0123456789-, \n", max_size=20) | st.text(max_size=20)
NEAR_MASKS = st.text("0123456789abcdefxX, \n", max_size=20) | st.text(max_size=20)

LISTS = {
    "empty": ("", set()),
    "newline only": ("\n", set()),
    "one": ("7\n", {7}),
    "range and one": ("0-3,8", {0, 1, 2, 3, 8}),
    "range of one": ("5-5", {5}),
    "overlap": ("0-2,1-3", {0, 1, 2, 3}),
    "as PyTorch's test": ("0-2,4,6-7", {0, 1, 2, 4, 6, 7}),
}
BAD_LISTS = {
    "word": "all",
    "backwards": "3-0",
    "open range": "0-",
    "negative": "-1",
    "double comma": "0,,1",
    "trailing comma": "0,",
    "stride": "0-7:2/4",
    "superscript two": "²",
    "another script's digit": "٣",
    "underscore": "1_0",
    "would take all memory": "0-4000000000",
    "five thousand digits": "9" * 5000,
}
MASKS = {
    "empty": ("", set()),
    "zeros": ("00000000,00000000", set()),
    "low word": ("f\n", {0, 1, 2, 3}),
    "second word": ("ff,00000000", set(range(32, 40))),
    "prefix": ("0x5", {0, 2}),
    "capitals": ("A", {1, 3}),
}
BAD_MASKS = {
    "word": "mask",
    "word of nine digits": "123456789",
    "empty word": "f,,f",
    "negative": "-1",
    "underscore": "f_f",
    "longer than any machine": ",".join(["0"] * 5000),
}


@pytest.mark.parametrize(("text", "ids"), LISTS.values(), ids=LISTS)
def test_a_list_is_read(text: str, ids: set[int]) -> None:
    assert parse_list(text) == ids


@pytest.mark.parametrize("text", BAD_LISTS.values(), ids=BAD_LISTS)
def test_a_list_that_no_kernel_writes_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_list(text)


@pytest.mark.parametrize(("text", "ids"), MASKS.values(), ids=MASKS)
def test_a_mask_is_read(text: str, ids: set[int]) -> None:
    assert parse_mask(text) == ids


@pytest.mark.parametrize("text", BAD_MASKS.values(), ids=BAD_MASKS)
def test_a_mask_that_no_kernel_writes_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_mask(text)


@pytest.mark.parametrize(
    ("ids", "as_list", "as_mask"),
    [
        pytest.param(set(), "", "0", id="empty"),
        pytest.param({0, 1, 2, 3, 8}, "0-3,8", "10f", id="range and one"),
        pytest.param({0, 32}, "0,32", "1,00000001", id="two words"),
    ],
)
def test_a_set_is_written_as_the_kernel_does(ids: set[int], as_list: str, as_mask: str) -> None:
    assert (format_list(ids), format_mask(ids)) == (as_list, as_mask)


@given(SETS)
def test_what_is_written_is_read_back(ids: frozenset[int]) -> None:
    assert parse_list(format_list(ids)) == ids
    assert parse_mask(format_mask(ids)) == ids


@given(NEAR_LISTS)
def test_any_text_is_a_list_or_a_value_error(text: str) -> None:
    try:
        ids = parse_list(text)
    except ValueError:
        return
    assert parse_list(format_list(ids)) == ids


@given(NEAR_MASKS)
def test_any_text_is_a_mask_or_a_value_error(text: str) -> None:
    try:
        ids = parse_mask(text)
    except ValueError:
        return
    assert parse_mask(format_mask(ids)) == ids
