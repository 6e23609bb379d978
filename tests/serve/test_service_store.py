"""What a service has stored: files of version 0.1 open, and a write is whole or absent."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path

import pytest
from serve_runs import TinyRun, config_of

from vaiom.errors import DataError
from vaiom.forecast.forecaster import Forecaster
from vaiom.serve.app import Service
from vaiom.serve.follow import BarRow
from vaiom.serve.schemas import RefusalError
from vaiom.serve.state import LiveAssets
from vaiom.serve.store import FILE_NAME, Store

# As version 0.1 made and filled it.
VERSION_0_1 = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE bars (
    arrival INTEGER PRIMARY KEY, symbol TEXT, stamp INTEGER, open REAL, high REAL, low REAL, close REAL, volume REAL,
    UNIQUE (symbol, stamp)
);
CREATE TABLE snapshots (symbol TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE scored (
    symbol TEXT, as_of INTEGER, target INTEGER, model TEXT, replayed INTEGER, quantiles TEXT, log_ret REAL,
    bucket INTEGER, model_bits REAL, frequency_bits REAL, pit REAL, PRIMARY KEY (symbol, as_of)
) WITHOUT ROWID;
INSERT INTO facts VALUES ('snapshot', '1'), ('train_counts', '[3, 4]');
INSERT INTO snapshots VALUES ('EURUSD', '{"num_bars":1}');
INSERT INTO bars VALUES (1, 'EURUSD', 3600, 1.0, 1.5, 0.5, 1.25, 7.0), (2, 'EURUSD', 7200, 1.25, 1.5, 1.0, NULL, NULL);
INSERT INTO scored VALUES
    ('EURUSD', 3600, 7200, 'ours', 1, '{"0.5": 0.25}', -0.5, 3, 1.5, 2.5, 0.125),
    ('EURUSD', 7200, 10800, 'another', 0, '{}', NULL, 0, NULL, NULL, NULL);
"""


def test_a_file_of_version_0_1_opens(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.executescript(VERSION_0_1)
    database.close()
    store = Store(tmp_path, "ours")
    assert store.fact("train_counts") == [3, 4]
    assert store.snapshot() == {"EURUSD": {"num_bars": 1}}
    first, second = store.last_bars("EURUSD", 9)
    assert first == (datetime(1970, 1, 1, 1), 1.0, 1.5, 0.5, 1.25, 7.0)
    assert store.bars_since_snapshot() == [("EURUSD", second)]
    assert second == (datetime(1970, 1, 1, 2), 1.25, 1.5, 1.0, None, None)
    (settled,) = store.last_settled("EURUSD", 9)
    assert settled.model_dump() == {
        "as_of": "1970-01-01T01:00:00",
        "target_time": "1970-01-01T02:00:00",
        "replayed": True,
        "quantiles": {"0.5": 0.25},
        "log_return": -0.5,
        "bucket": 3,
        "model_bits": 1.5,
        "frequency_bits": 2.5,
        "pit": 0.125,
    }
    # What is written now is read back alike, and lies where version 0.1 looks for it.
    store.append([], [("XAUUSD", settled)])
    assert store.last_settled("XAUUSD", 9) == [settled]
    store.put_snapshot({"EURUSD": {"num_bars": 2}})
    assert store.fact("snapshot") == 2
    # What the asset goes on from if bars are removed is still what it was.
    assert store.fact("seed") == 1
    store.rewind()
    assert store.snapshot() == {"EURUSD": {"num_bars": 1}}
    assert store._rows("SELECT * FROM scored WHERE symbol = 'XAUUSD'") == [
        ("XAUUSD", 3600, 7200, "ours", 1, '{"0.5": 0.25}', -0.5, 3, 1.5, 2.5, 0.125)
    ]
    store.close()


def test_a_state_of_a_newer_version_is_left_to_it(tmp_path: Path) -> None:
    Store(tmp_path, "ours").close()
    newer = sqlite3.connect(tmp_path / FILE_NAME)
    newer.execute("PRAGMA user_version = 2")
    newer.close()
    with pytest.raises(DataError, match="newer vaiom") as refused:
        Store(tmp_path, "ours")
    assert refused.value.where == tmp_path / FILE_NAME
    newer = sqlite3.connect(tmp_path / FILE_NAME, timeout=0)
    newer.execute("CREATE TABLE theirs (value)")
    newer.close()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, "ours")
    bars = [
        ("EURUSD", BarRow(datetime(2024, 1, 1, hour), 1.0, 1.0, 1.0, 1.0, None)) for hour in (1, 2)
    ]
    store.append(bars[:1])
    with pytest.raises(RefusalError, match="none was taken"):
        store.append([bars[1], bars[0]])
    assert store.last_bars("EURUSD", 9) == [bars[0][1]]
    store.append(bars[1:])
    assert store.num_since_snapshot == len(store.bars_since_snapshot()) == 2
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_a_start_replays_a_thousand_bars_at_most(tiny: TinyRun, tmp_path: Path) -> None:
    forecaster = Forecaster.load(tiny.run)
    assets = LiveAssets(forecaster, Store(tmp_path, forecaster.card.sha256), 0.0)
    bars = [BarRow(*each) for each in tiny.history["EURUSD"].head(1_001).iter_rows()]
    for stop, left in ((999, 999), (1_000, 0), (1_001, 1)):
        assets.push(
            "EURUSD",
            bars[assets.online.streams["EURUSD"].num_bars if assets.online.streams else 0 : stop],
        )
        assert assets.store.num_since_snapshot == left
    assets.store.close()


DAMAGES = {
    "PRAGMA user_version = 2": "a newer vaiom wrote this state",
    "UPDATE snapshots SET state = '{}'": "the stored state is damaged",
    "UPDATE snapshots SET state = 'x'": "the stored state is damaged",
    "UPDATE facts SET value = 'x'": "the stored state is damaged",
    "UPDATE bars SET stamp = stamp + 99999999999999": "the stored state is damaged",
    "UPDATE bars SET close = 'x' WHERE symbol = 'EURUSD'": "(?s)EURUSD.*a number.*'x'.*vaiom state",
    "UPDATE bars SET volume = x'00' WHERE symbol = 'EURUSD'": "(?s)EURUSD.*a number.*vaiom state",
}


def test_a_state_that_cannot_be_read_is_refused_with_the_way_out(
    tiny: TinyRun, tmp_path: Path
) -> None:
    service = Service(config_of(tiny, tmp_path, bars=tiny.bars))
    service.live.try_snapshot()
    service.store.close()
    whole = (tmp_path / FILE_NAME).read_bytes()
    for damage, says in DAMAGES.items():
        (tmp_path / FILE_NAME).write_bytes(whole)
        database = sqlite3.connect(tmp_path / FILE_NAME)
        database.executescript(damage)
        database.commit()
        database.close()
        with pytest.raises(DataError, match=says):
            Service(config_of(tiny, tmp_path))
        for file in tmp_path.iterdir():
            file.unlink()
