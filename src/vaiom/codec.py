"""Dataclasses to and from JSON, to TOML, and with fields changed. Plain Python, for every room.

An annotation may say how its field is stored, `Annotated[Edges, Stored("inner_edges", encode=...,
decode=...)]`, and which values are allowed, by a `Literal` or an `Interval`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from vaiom.errors import ConfigError, DataError, UserError

T = TypeVar("T")

MAX_SHOWN = 80
"""Characters of a wrong value in an error."""


@dataclass(frozen=True)
class Stored:
    """How a field is stored: under another key than its name, or as another value."""

    key: str | None = ""
    """The key in JSON; empty for the field's name, None for a field that is not stored."""
    encode: Callable[[Any], Any] = lambda value: value
    decode: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Interval:
    """The interval in which a number must lie, as in `[0, 1)`."""

    ends: str

    def __contains__(self, value: float) -> bool:
        low, high = map(float, self.ends[1:-1].split(","))
        if value == low:
            return self.ends[0] == "["
        if value == high:
            return self.ends[-1] == "]"
        return low < value < high


Share = Annotated[float, Interval("[0, 1)")]


def check_fields(config: object) -> None:
    """Raise a `ValueError` for a field outside of its choices or its interval.

    Dataclasses call it in `__post_init__`.
    """
    for field in _fields(type(config)).values():  # type: ignore[arg-type]
        value = getattr(config, field.name)
        choices = get_args(field.hint)
        if get_origin(field.hint) is Literal and value not in choices:
            raise ValueError(f"{field.name} must be one of {', '.join(choices)}, got {value!r}")
        for interval in choices:
            if isinstance(interval, Interval) and value not in interval:
                raise ValueError(f"{field.name} must lie in {interval.ends}, got {value!r}")


class _Field(NamedTuple):
    """A field that is stored."""

    name: str
    hint: Any
    is_required: bool
    stored: Stored


@cache
def _fields(cls: type) -> dict[str, _Field]:
    """The stored fields of a dataclass by their keys in JSON, in order."""
    hints = get_type_hints(cls, include_extras=True)
    fields = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        stored = _how_stored(hint)
        if stored.key is not None and field.init:
            is_required = field.default is MISSING and field.default_factory is MISSING
            key = stored.key or field.name
            fields[key] = _Field(field.name, hint, is_required, stored)
    return fields


def _how_stored(hint: Any) -> Stored:
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, Stored):
            return note
    return Stored()


def to_json(value: Any) -> Any:
    """A value made of dataclasses as plain JSON; keys are in the order of the fields."""
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {
            key: field.stored.encode(to_json(getattr(value, field.name)))
            for key, field in _fields(type(value)).items()
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def from_json(cls: type[T], value: Any) -> T:
    """The inverse of `to_json`: a dataclass, or any type that its fields may have.

    Raises a `ValueError` that says where the value does not fit.
    """
    return cast(T, _build(cls, value, ""))


def decode(
    cls: type[T], value: Any, problem: str, *, error: type[UserError] = DataError, **details: Any
) -> T:
    """`from_json` that raises an error for users.

    `problem` says what is wrong with the whole; `details` are parts such as where and fix.
    """
    try:
        return from_json(cls, value)
    except ValueError as reason:
        raise error(problem, got=str(reason).splitlines()[0], **details) from reason


def _build(hint: Any, value: Any, path: str) -> Any:
    if type(value) is hint and hint in (str, float, int, bool):  # nearly always, and the fastest
        return value
    origin = get_origin(hint)
    args = get_args(hint)
    if hasattr(origin, "__value__"):  # a `type` alias, as NumPy's NDArray is from 2.5 on
        return _build(origin.__value__[args], value, path)
    if origin is Annotated:
        decoded = _attempt(_how_stored(hint).decode, value, path)
        return _build(args[0], decoded, path)
    if hint is Any or hint is object or origin is Literal:  # `check_fields` knows the choices
        return value
    if origin in (Union, types.UnionType):  # of one type and None: others are not stored
        [choice] = (arg for arg in args if arg is not type(None))
        return None if value is None else _build(choice, value, path)
    if isinstance(hint, type) and is_dataclass(hint):
        return _build_dataclass(hint, value, path)
    if origin in (list, tuple):
        return origin(_build_items(origin, args, value, path))
    if origin is dict:
        if not isinstance(value, dict):
            _refuse(path, "an object", value)
        make_key = int if args[0] is int else str
        return {
            _attempt(make_key, key, path): _build(args[1], item, _join(path, key))
            for key, item in value.items()
        }
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return _attempt(float, value, path)
    if hint in (datetime, date):
        if not isinstance(value, str):
            _refuse(path, f"the text of a {hint.__name__}", value)
        return _attempt(hint.fromisoformat, value, path)
    if (origin or hint).__module__ == "numpy":
        return _build_array(args, value, path)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        _refuse(path, f"a value of type {hint.__name__}", value)
    return value


def _build_items(origin: type, args: tuple[Any, ...], value: Any, path: str) -> Iterator[Any]:
    """The items of a list, of a tuple of any length, or of a tuple with a type for each place."""
    if not isinstance(value, list | tuple):
        _refuse(path, "a list", value)
    hints = list(args)
    if origin is list or args[-1:] == (...,):
        hints = [args[0]] * len(value)
    if len(value) != len(hints):
        _refuse(path, f"{len(hints)} values", value)
    for place, (hint, item) in enumerate(zip(hints, value, strict=True)):
        yield _build(hint, item, f"{path}[{place}]")


def _build_dataclass(cls: type, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        _refuse(path, f"an object that describes a {cls.__name__}", value)
    fields = _fields(cls)
    for key in value:
        if key not in fields:
            expected = ", ".join(sorted(fields))
            raise ValueError(f"unknown key {_join(path, key)}, expected {expected}")
    parts = {}
    for key, field in fields.items():
        if key in value:
            parts[field.name] = _build(field.hint, value[key], _join(path, key))
        elif field.is_required:
            raise ValueError(f"{_join(path, key)} is missing")
    return _attempt(lambda given: cls(**given), parts, path)


def _build_array(args: tuple[Any, ...], value: Any, path: str) -> Any:
    import numpy as np

    dtype = np.dtype(get_args(args[1])[0])
    if not isinstance(value, list):
        _refuse(path, "a list of values", value)
    plain = _attempt(np.array, value, path)
    convertible = {"f": "fiu", "i": "iu", "u": "iu", "b": "b", "U": "U"}
    if plain.size and plain.dtype.kind not in convertible[dtype.kind]:
        _refuse(path, f"values of type {dtype}", value)
    return plain.astype(dtype)


def _attempt(make: Callable[[Any], Any], value: Any, path: str) -> Any:
    """Call a constructor or conversion; its failure is a `ValueError` that says where."""
    try:
        return make(value)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise ValueError(f"{path}: {error}" if path else str(error)) from error


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _refuse(path: str, expected: str, value: Any) -> None:
    got = repr(value)
    if len(got) > MAX_SHOWN:
        got = f"{got[:MAX_SHOWN]}..."
    where = f"{path}: " if path else ""
    raise ValueError(f"{where}expected {expected}, got {got}")


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML of plain tables, without the keys whose value is None.

    Strings, numbers, booleans and lists of them are spelt alike in JSON and TOML.
    """
    blocks = []
    for name, table in tables.items():
        lines = [f"[{name}]"]
        for key, value in table.items():
            if value is not None:
                lines.append(f"{key} = {json.dumps(value)}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def override(config: T, changes: Mapping[str, Any]) -> T:
    """A copy of a dataclass with some fields changed; its own checks run again.

    A change that they refuse is an error for users.
    """
    try:
        return dataclasses.replace(config, **changes)  # type: ignore[type-var]
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error), got=dict(changes)) from error


def parse_value(key: str, text: str, example: Any) -> Any:
    """A command-line value, parsed as the type of the field's present value."""
    try:
        if isinstance(example, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(example, tuple):
            return tuple(part for part in text.split(",") if part)
        return type(example)(text)
    except (KeyError, ValueError) as error:
        expected = f"something like {example!r}"
        raise ConfigError(f"not a value for {key}", expected=expected, got=repr(text)) from error
