"""The codec: what a dataclass is as JSON, and that nothing but it comes back."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from vaiom.codec import (
    Interval,
    Share,
    Stored,
    check_fields,
    decode,
    from_json,
    override,
    parse_value,
    to_json,
    to_toml,
)
from vaiom.errors import CheckpointError, ConfigError, DataError

INNER = Stored("inner_edges", lambda x: x[1:-1], lambda x: [-math.inf, *x, math.inf])


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Mean:
    level: float
    count: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Everything:
    text: str
    number: float
    count: int
    flag: bool
    maybe: float | None
    when: datetime
    pair: tuple[float, float]
    names: tuple[str, ...]
    mean: Mean
    by_step: dict[int, Mean]
    anything: list[dict[str, Any]]
    values: npt.NDArray[np.float64]
    halves: npt.NDArray[np.float32]
    edges: Annotated[list[float], INNER]
    hidden: Annotated[int, Stored(None)] = 7


WHOLE = Everything(
    text="a",
    number=0.1,
    count=3,
    flag=True,
    maybe=None,
    when=datetime(2024, 7, 1),
    pair=(1.0, 2.0),
    names=("x", "y"),
    mean=Mean(0.5, 2),
    by_step={500: Mean(1.5)},
    anything=[{"any": [1, None]}],
    values=np.array([[1.0, 2.0]]),
    halves=np.array([1.0, 0.5], np.float32),
    edges=[-math.inf, 0.0, math.inf],
)


def test_what_is_written_is_read_back() -> None:
    text = json.dumps(to_json(WHOLE), allow_nan=False)
    back = from_json(Everything, json.loads(text))
    assert json.dumps(to_json(back), allow_nan=False) == text
    plain = {
        name: getattr(back, name) for name in ("text", "when", "pair", "names", "mean", "by_step")
    }
    assert plain == {name: getattr(WHOLE, name) for name in plain}
    assert back.values.dtype == np.float64
    assert back.halves.dtype == np.float32
    assert (back.edges, back.hidden) == (WHOLE.edges, 7)
    assert to_json((Colour.RED, Path("runs/demo"))) == ["red", "runs/demo"]


def test_a_plain_dataclass_is_what_asdict_gives() -> None:
    @dataclass(frozen=True)
    class Plain:
        a: int
        b: tuple[float, ...]
        c: dict[str, float]

    value = Plain(1, (0.1, 2e-17), {"z": 1.0, "a": 2.0})
    assert json.dumps(to_json(value)) == json.dumps(asdict(value))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("text", 1, "text: expected a value of type str, got 1"),
        ("number", "1", "number: expected"),
        ("number", True, "number: expected"),
        ("count", 1.0, "count: expected"),
        ("count", True, "count: expected"),
        ("flag", 1, "flag: expected"),
        ("maybe", "x", "maybe: expected"),
        ("when", "yesterday", "when: "),
        ("when", 3, "when: expected"),
        ("pair", [1.0], "pair: expected 2 values"),
        ("pair", [1.0, "x"], r"pair\[1\]: expected"),
        ("names", "xy", "names: expected a list"),
        ("mean", [1.0], "mean: expected an object that describes a Mean"),
        ("by_step", {"x": {"level": 1.0}}, "by_step: "),
        ("by_step", {"1": {"level": None}}, "by_step.1.level: expected"),
        ("anything", [1], r"anything\[0\]: expected an object"),
        ("values", ["1.0"], "values: expected values of type float64"),
        ("values", [[1.0], [1.0, 2.0]], "values: "),
        ("values", [None], "values: expected"),
        ("number", None, "number: expected"),
        ("inner_edges", 3, "inner_edges: "),
        ("foreign", 1, "unknown key foreign, expected"),
        ("hidden", 1, "unknown key hidden"),
    ],
)
def test_what_does_not_fit_is_refused(key: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_json(Everything, {**to_json(WHOLE), key: value})


def test_a_missing_key_is_named_and_a_default_fills_in() -> None:
    value = to_json(WHOLE)
    del value["pair"]
    with pytest.raises(ValueError, match="pair is missing"):
        from_json(Everything, value)
    assert from_json(dict[str, Mean], {"a": {"level": 1.0, "count": 2}}) == {"a": Mean(1.0, 2)}
    with pytest.raises(ValueError, match="describes a Everything"):
        from_json(Everything, [1])


def test_users_are_told_what_is_wrong_where() -> None:
    with pytest.raises(DataError) as caught:
        decode(Mean, {"level": "1"}, "not a mean", where="a.json", fix="write it again")
    assert (caught.value.problem, caught.value.where, caught.value.fix) == (
        "not a mean",
        "a.json",
        "write it again",
    )
    with pytest.raises(CheckpointError):
        decode(Mean, {}, "not a mean", error=CheckpointError)


def test_arrays_whose_type_is_an_alias() -> None:
    """As NumPy's own `NDArray` is from version 2.5 on."""
    from typing_extensions import TypeAliasType, TypeVar

    scalar = TypeVar("scalar", bound=np.generic)
    alias = TypeAliasType("alias", npt.NDArray[scalar], type_params=(scalar,))
    found = from_json(dict[str, alias[np.float32]], {"a": [1.0, 2.5]})
    assert found["a"].dtype == np.float32
    np.testing.assert_array_equal(found["a"], [1.0, 2.5])


@dataclass(frozen=True)
class Limited:
    share: Share = 0.5
    rate: Annotated[float, Interval("(0, inf)")] = 1.0
    layers: Annotated[int, Interval("[1, 1000]")] = 4
    scope: Literal["full", "last"] = "full"

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("share", [0, 0.999], [-1e-9, 1, math.nan, math.inf]),
        ("rate", [math.ulp(0.0), 1e300], [0, -1.0, math.inf, math.nan]),
        ("layers", [1, 1_000], [0, 1_001]),
        ("scope", ["full", "last"], ["", "fulllast", ["full"], None]),
    ],
)
def test_a_field_says_what_it_takes(name: str, taken: list[Any], refused: list[Any]) -> None:
    for value in taken:
        assert getattr(from_json(Limited, {name: value}), name) == value
    for value in refused:
        with pytest.raises(ValueError, match=f"^{name} must (lie in .*|be one of full, last), got"):
            Limited(**{name: value})


def test_what_is_no_field_of_the_constructor_is_not_stored() -> None:
    @dataclass
    class Counted:
        names: list[str] = field(default_factory=list)
        day: date = date(2024, 1, 2)
        count: int = field(init=False, default=3)

    assert to_json(Counted(["a"])) == {"names": ["a"], "day": "2024-01-02"}
    assert from_json(Counted, {"day": "2024-02-03"}) == Counted([], date(2024, 2, 3))


@pytest.mark.parametrize(
    ("hint", "value", "read"),
    [
        (float, 3, 3.0),
        (int | None, None, None),
        (int | None, 3, 3),
        (list[int], (1, 2), [1, 2]),
        (tuple[int, ...], [], ()),
        (tuple[int, str], [1, "a"], (1, "a")),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (dict[int, int], {"7": 1}, {7: 1}),
        (Any, {"x": [None]}, {"x": [None]}),
        (object, 1.5, 1.5),
        (bool, False, False),
    ],
)
def test_types_that_a_field_may_have(hint: Any, value: Any, read: Any) -> None:
    back = from_json(hint, value)
    assert (back, type(back)) == (read, type(read))


@pytest.mark.parametrize(
    ("dtype", "taken", "refused"),
    [
        (np.float64, [[1, 2.5], []], [[True], ["1"], "1", [None]]),
        (np.int64, [[1, 2]], [[1.0], [True]]),
        (np.uint8, [[0, 255]], [[0.5]]),
        (np.bool_, [[True, False]], [[1, 0]]),
        (np.str_, [["a", "bc"]], [[1]]),
    ],
)
def test_arrays_take_what_is_of_their_kind(
    dtype: Any, taken: list[Any], refused: list[Any]
) -> None:
    for values in taken:
        read = from_json(npt.NDArray[dtype], values)
        assert read.tolist() == values
        assert read.dtype.kind == np.dtype(dtype).kind
    for values in refused:
        with pytest.raises(ValueError, match="expected"):
            from_json(npt.NDArray[dtype], values)


def test_long_values_are_cut_where_they_are_refused() -> None:
    for length, shown in ((78, "a" * 78 + "'"), (79, "a" * 79 + "...")):
        with pytest.raises(ValueError, match="expected") as refused:
            from_json(int, "a" * length)
        assert str(refused.value) == f"expected a value of type int, got '{shown}"
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_json(object())


def test_tables_of_toml_read_back() -> None:
    tables = {"model": {"width": 16, "rate": 1e-3, "tied": True, "names": ["a", 'b"']}, "empty": {}}
    text = to_toml({"model": {**tables["model"], "start": None}, "empty": {}})
    assert tomllib.loads(text) == tables
    assert text.startswith("[model]\nwidth = 16\n")
    assert text.endswith("]\n\n[empty]\n")


def test_changed_fields_are_checked_again() -> None:
    assert override(Limited(), {"layers": 7}) == Limited(layers=7)
    for changes in ({"layers": 0}, {"depth": 1}):
        with pytest.raises(ConfigError) as refused:
            override(Limited(), changes)
        assert refused.value.got == changes


@pytest.mark.parametrize(
    ("text", "example", "value"),
    [
        ("True", False, True),
        ("false", True, False),
        ("3", 1, 3),
        ("1e-3", 1.0, 1e-3),
        ("a,,b,", ("x",), ("a", "b")),
        ("word", "x", "word"),
    ],
)
def test_words_of_the_command_line_have_the_type_of_the_present_value(
    text: str, example: Any, value: Any
) -> None:
    assert parse_value("key", text, example) == value
    assert type(parse_value("key", text, example)) is type(value)
    if isinstance(example, int | float):
        with pytest.raises(ConfigError, match="not a value for key"):
            parse_value("key", "yes", example)
