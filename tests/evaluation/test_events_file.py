"""Losses of events survive either file form, and foreign or damaged ones are refused."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vaiom.errors import DataError
from vaiom.evaluation.scores import (
    ScoredEvents,
    difference_of,
    read_events,
    require_same_events,
    write_events,
)

EVENTS = ScoredEvents(
    symbols=np.array(["EURUSD", "EURUSD", "XAUUSD"]),
    target_times=np.array(["2025-01-02T10", "2025-01-02T11", "2025-01-02T10"], "datetime64[s]"),
    buckets=np.array([1, 16, 8], np.uint8),
    bits={"model": np.array([3.0, 4.5, 0.1]), "markov": np.array([1 / 3, 2.0, 7.0])},
)


@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_events_come_back_as_they_were(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"parquet": "npz", "npz": "parquet"}[form]
    (tmp_path / f"events-test-h1.{other}").write_bytes(b"an earlier one")
    if form == "npz":
        monkeypatch.setitem(sys.modules, "polars", None)
    assert write_events(tmp_path, "test-h1", EVENTS) == tmp_path / f"events-test-h1.{form}"
    assert [path.name for path in tmp_path.iterdir()] == [f"events-test-h1.{form}"]
    got = read_events(tmp_path, "test-h1")
    require_same_events(EVENTS, got, where=tmp_path)
    assert list(got.bits) == ["model", "markov"]
    for name, losses in EVENTS.bits.items():
        np.testing.assert_array_equal(got.bits[name], losses)
    assert got.target_times.dtype == np.dtype("datetime64[s]")


def test_a_parquet_file_has_the_columns_that_users_rely_on(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(write_events(tmp_path, "validation", EVENTS))
    assert frame.columns == ["symbol", "target_time", "bucket", "bits_model", "bits_markov"]
    assert frame["target_time"][1].isoformat() == "2025-01-02T11:00:00"


@pytest.mark.parametrize(
    "change",
    [
        {"symbols": np.array(["EURUSD", "EURUSD", "XAGUSD"])},
        {"target_times": EVENTS.target_times + np.timedelta64(1, "h")},
        {"buckets": np.array([1, 16, 9], np.uint8)},
    ],
)
def test_other_events_are_not_compared(change: dict[str, np.ndarray]) -> None:
    with pytest.raises(DataError, match="event sets differ"):
        require_same_events(EVENTS, replace(EVENTS, **change), where="there")


def test_fewer_events_are_not_compared_and_losses_must_be_of_all() -> None:
    first = ScoredEvents(
        symbols=EVENTS.symbols[:2],
        target_times=EVENTS.target_times[:2],
        buckets=EVENTS.buckets[:2],
        bits={"model": EVENTS.bits["model"][:2]},
    )
    with pytest.raises(DataError, match="2 events"):
        require_same_events(EVENTS, first, where="there")
    with pytest.raises(ValueError, match="other events"):
        replace(EVENTS, bits={"model": np.ones(3), "markov": np.ones(2)})


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_missing_damaged_and_foreign_files_are_refused(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no scored events"):
        read_events(tmp_path, "validation")
    (tmp_path / f"events-validation.{suffix}").write_bytes(b"PK not at all")
    with pytest.raises(DataError, match="not readable"):
        read_events(tmp_path, "validation")
    if suffix == "npz":
        np.savez(tmp_path / "events-validation.npz", symbol=np.array(["a"]))
        with pytest.raises(DataError, match="bits_model"):
            read_events(tmp_path, "validation")


@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_probabilities_come_back_and_what_is_none_is_refused(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "npz":
        monkeypatch.setitem(sys.modules, "polars", None)
    probs = np.random.default_rng(0).dirichlet(np.ones(16), 3)
    write_events(tmp_path, "validation", replace(EVENTS, probs=probs))
    np.testing.assert_array_equal(read_events(tmp_path, "validation", same_as=EVENTS).probs, probs)
    with pytest.raises(DataError, match="event sets differ"):
        read_events(tmp_path, "validation", same_as=replace(EVENTS, buckets=EVENTS.buckets[::-1]))
    for wrong in (probs * 1.01, probs.astype(np.float32)):
        write_events(tmp_path, "validation", replace(EVENTS, probs=wrong))
        with pytest.raises(DataError, match="not readable as scored events") as caught:
            read_events(tmp_path, "validation")
        assert caught.value.got == "probabilities that do not sum to one"
    write_events(tmp_path, "validation", replace(EVENTS, buckets=EVENTS.buckets.astype(np.int64)))
    with pytest.raises(DataError, match="no small whole numbers"):
        read_events(tmp_path, "validation")


def test_the_first_event_that_differs_is_named() -> None:
    with pytest.raises(DataError) as caught:
        require_same_events(
            EVENTS, replace(EVENTS, buckets=np.array([1, 15, 9], np.uint8)), where="there"
        )
    assert (caught.value.got, caught.value.expected) == (
        "event 1 differs",
        "the same 3 events in the same order",
    )
    assert difference_of(EVENTS, EVENTS) is None


def test_an_archive_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    """The standard library raises an error without a message for it."""
    file = tmp_path / "events-validation.npz"
    np.savez(file, symbol=np.array(["a"]))
    damaged = bytearray(file.read_bytes())
    entry = damaged.rfind(b"PK\x01\x02")
    struct.pack_into(
        "<II", damaged, entry + 20, 1_000_000, 1_000_000
    )  # sizes in the archive and unpacked
    file.write_bytes(damaged)
    with pytest.raises(DataError, match="not readable as scored events"):
        read_events(tmp_path, "validation")
