"""Errors for users: what they say, and how a library that is missing is told."""

from __future__ import annotations

import pytest

from vaiom.errors import EXTRAS, ConfigError, DataError, require_installed


def test_an_error_has_a_line_for_each_thing_that_is_known() -> None:
    error = DataError("no bars", expected="some", got=0, where="a.csv", fix="write some")
    assert (
        str(error)
        == "no bars\n  where:    a.csv\n  expected: some\n  got:      0\n  try:      write some"
    )
    assert (error.problem, error.expected, error.got, error.where, error.fix) == (
        *("no bars", "some", 0, "a.csv", "write some"),
    )
    assert str(ConfigError("no bars")) == "no bars"


def test_a_library_that_is_missing_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_installed("numpy", "polars")
    monkeypatch.setattr(
        "vaiom.errors.find_spec", lambda library: None if library != "numpy" else True
    )
    for extra, libraries in EXTRAS.items():
        for library in libraries:
            with pytest.raises(ConfigError, match=library) as told:
                require_installed("numpy", library)
            assert told.value.fix == f"pip install 'vaiom[{extra}]'"
