"""Configurations for people: plain tables as TOML, and `key=value` changes of frozen dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from vaiom.errors import ConfigError

T = TypeVar("T")


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML of plain tables: strings, numbers, booleans and lists of them, whose JSON spelling is TOML's too."""
    blocks = []
    for name, table in tables.items():
        lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
        blocks.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def override(config: T, changes: Mapping[str, Any]) -> T:
    """A copy of a dataclass with some fields changed; its own checks run again."""
    try:
        return replace(config, **changes)  # type: ignore[type-var]
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error), got=dict(changes)) from error


def parse_value(key: str, text: str, example: Any) -> Any:
    """A command-line value read as the type of the field's present value."""
    try:
        if isinstance(example, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(example, tuple):
            return tuple(part for part in text.split(",") if part)
        return type(example)(text)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"not a value for {key}", expected=f"something like {example!r}", got=repr(text)) from error


def field_names(config: object) -> list[str]:
    return [field.name for field in fields(config)]  # type: ignore[arg-type]
