"""Dataclasses to and from JSON, to TOML, and with fields changed. Plain Python, used by every room.

An annotation may say how its field is stored, `Annotated[Edges, Stored("inner_edges", encode=...,
decode=...)]`, and which values are allowed, by a `Literal` or an `Interval`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from vaiom.errors import ConfigError, DataError, UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """How a field is stored: under another key than its name, not at all (None), or as another
    value.
    """

    key: str | None = ""
    encode: Callable[[Any], Any] = lambda value: value
    decode: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Interval:
    """The interval in which a number must lie, as in `[0, 1)`."""

    ends: str

    def __contains__(self, value: float) -> bool:
        low, high = map(float, self.ends[1:-1].split(","))
        above = value > low or (value == low and self.ends[0] == "[")
        return above and (value < high or (value == high and self.ends[-1] == "]"))


Share = Annotated[float, Interval("[0, 1)")]


def check_fields(config: object) -> None:
    """Raise a `ValueError` for a field outside of its choices or its interval; for
    `__post_init__`.
    """
    for name, hint, _ in _fields(type(config)).values():  # type: ignore[arg-type]
        value, args = getattr(config, name), get_args(hint)
        if get_origin(hint) is Literal and value not in args:
            raise ValueError(f"{name} must be one of {', '.join(args)}, got {value!r}")
        for interval in args:
            if isinstance(interval, Interval) and value not in interval:
                raise ValueError(f"{name} must lie in {interval.ends}, got {value!r}")


@cache
def _fields(cls: type) -> dict[str, tuple[str, Any, bool]]:
    """For each key of the JSON object, the field's name, its annotation, and whether it is
    required.
    """
    hints, fields = get_type_hints(cls, include_extras=True), {}
    for field in dataclasses.fields(cls):
        key = _how_stored(hints[field.name]).key
        if key is not None and field.init:
            required = field.default is MISSING and field.default_factory is MISSING
            fields[key or field.name] = (field.name, hints[field.name], required)
    return fields


def _how_stored(hint: Any) -> Stored:
    return next(
        (note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Stored)), Stored()
    )


def to_json(value: Any) -> Any:
    """A value made of dataclasses as an argument of `json.dumps`; keys in the order of the
    fields.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {
            key: _how_stored(hint).encode(to_json(getattr(value, name)))
            for key, (name, hint, _) in _fields(type(value)).items()
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
    """A dataclass, or any type that its fields may have, from its JSON value; raises
    `ValueError`.
    """
    return cast(T, _build(cls, value, ""))


def decode(
    cls: type[T], value: Any, problem: str, *, error: type[UserError] = DataError, **details: Any
) -> T:
    """`from_json` that raises an error for users; `details` are its other parts, such as where and
    fix.
    """
    try:
        return from_json(cls, value)
    except ValueError as reason:
        raise error(problem, got=str(reason).splitlines()[0], **details) from reason


def _build(hint: Any, value: Any, path: str) -> Any:
    if type(value) is hint and hint in (str, float, int, bool):  # nearly always, and the fastest
        return value
    origin, args = get_origin(hint), get_args(hint)
    if hasattr(origin, "__value__"):  # a `type` alias, as NumPy's NDArray is from 2.5 on
        return _build(origin.__value__[args], value, path)
    if origin is Annotated:
        return _build(args[0], _attempt(_how_stored(hint).decode, value, path), path)
    if hint is Any or hint is object or origin is Literal:  # `check_fields` knows the choices
        return value
    if origin in (Union, types.UnionType):  # of one type and None: others are not stored
        [choice] = (arg for arg in args if arg is not type(None))
        return None if value is None else _build(choice, value, path)
    if isinstance(hint, type) and is_dataclass(hint):
        return _build_dataclass(hint, value, path)
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            _refuse(path, "a list", value)
        fixed = origin is tuple and args[-1:] != (...,)
        if fixed and len(value) != len(args):
            _refuse(path, f"{len(args)} values", value)
        return origin(
            _build(args[n if fixed else 0], item, f"{path}[{n}]") for n, item in enumerate(value)
        )
    if origin is dict:
        if not isinstance(value, dict):
            _refuse(path, "an object", value)
        make_key = int if args[0] is int else str
        return {
            _attempt(make_key, k, path): _build(args[1], item, _join(path, k))
            for k, item in value.items()
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


def _build_dataclass(cls: type, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        _refuse(path, f"an object that describes a {cls.__name__}", value)
    fields, parts = _fields(cls), {}
    unknown = [key for key in value if key not in fields]
    if unknown:
        raise ValueError(
            f"unknown key {_join(path, unknown[0])}, expected {', '.join(sorted(fields))}"
        )
    for key, (name, hint, required) in fields.items():
        if key in value:
            parts[name] = _build(hint, value[key], _join(path, key))
        elif required:
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
    text = repr(value)
    raise ValueError(
        f"{path + ': ' if path else ''}expected {expected}, got "
        f"{text[:80]}{'...' * (len(text) > 80)}"
    )


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML of plain tables: strings, numbers, booleans and lists of them, which JSON and TOML spell
    alike.
    """
    blocks = []
    for name, table in tables.items():
        lines = [
            f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None
        ]
        blocks.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def override(config: T, changes: Mapping[str, Any]) -> T:
    """A copy of a dataclass with some fields changed; its own checks run again."""
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
        raise ConfigError(
            f"not a value for {key}", expected=f"something like {example!r}", got=repr(text)
        ) from error
