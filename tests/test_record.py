"""`record` against the frozen dataclass that it stands for."""

from __future__ import annotations

import copy
import pickle

import pytest

from numabind._record import record, replace


@record
class Point:
    """Two numbers, the second by default 0."""

    x: int
    y: int = 0

    def flipped(self) -> Point:
        return Point(self.y, self.x)


@record
class Other:
    """The same fields in another class."""

    x: int
    y: int = 0


@pytest.mark.parametrize(
    "point",
    [Point(1, 2), Point(x=1, y=2), Point(y=2, x=1), Point(1, y=2), replace(Point(1), y=2)],
    ids=["positional", "keywords", "any order", "mixed", "replaced"],
)
def test_every_way_to_make_one_gives_the_same(point: Point) -> None:
    assert (point.x, point.y) == (1, 2)
    assert point == Point(1, 2)
    assert hash(point) == hash(Point(1, 2))
    assert repr(point) == "Point(x=1, y=2)"
    assert list(point.__dict__) == ["x", "y"]


def test_defaults_methods_and_matching() -> None:
    assert Point(3) == Point(3, 0)
    assert Point(3).flipped() == Point(0, 3)
    match Point(4, 5):
        case Point(x, y):
            assert (x, y) == (4, 5)


def test_records_of_different_classes_or_values_differ() -> None:
    assert Point(1) != Point(2)
    assert Point(1) != Other(1)
    assert Point(1) != (1, 0)


@pytest.mark.parametrize(
    ("args", "values", "said"),
    [
        pytest.param((), {}, "x", id="missing"),
        pytest.param((1,), {"z": 1}, "z", id="unknown"),
        pytest.param((1,), {"x": 1}, "twice", id="given twice"),
        pytest.param((1, 2, 3), {}, "Point", id="too many"),
    ],
)
def test_wrong_arguments_are_a_type_error_that_names_them(args, values, said) -> None:
    with pytest.raises(TypeError, match=said):
        Point(*args, **values)
    with pytest.raises(TypeError):
        replace(Point(1), z=1)


def test_a_record_is_frozen() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 2
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    with pytest.raises(AttributeError, match="frozen"):
        point.new = 2
    assert point == Point(1)


def test_a_record_is_copied_and_pickled() -> None:
    assert copy.deepcopy(Point(1, 2)) == Point(1, 2)
    assert pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)
