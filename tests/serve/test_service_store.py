"""What a service has stored: a write is whole or absent, and what is damaged or gone is said."""

from __future__ import annotations

import shutil
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from serve_runs import TinyRun, config_of, live_assets, served
from test_service_refusals import refusal

from vaiom.errors import DataError
from vaiom.serve.bar_store import FILE_NAME, LOG_NAME, MARK_NAME, Store
from vaiom.serve.follow import BarRow
from vaiom.serve.refusals import RefusalError
from vaiom.serve.schemas import SettledForecast

BARS = [BarRow(datetime(2024, 1, 1, hour), 1.0, 1.5, None, 1.25, 7.0) for hour in range(3)]
SETTLED = [
    SettledForecast(
        as_of=bar.datetime,
        target_time=bar.datetime.replace(day=2),
        replayed=scored is None,
        quantiles={"0.5": 0.25},
        log_return=scored,
        bucket=3 if scored else 0,
        model_bits=scored,
        frequency_bits=scored,
        pit=scored,
    )
    for bar, scored in zip(BARS, (None, 0.5, 0.75), strict=True)
]


def changed(folder: Path, script: str) -> None:
    """The file after somebody's SQL."""
    database = sqlite3.connect(folder / FILE_NAME)
    database.executescript(script)
    database.close()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path, "ours")
    store.append([("EURUSD", bar) for bar in BARS], [("EURUSD", each) for each in SETTLED])
    store.set_fact("timeframe", "1h")
    store.close()
    store = Store(tmp_path, "ours")
    assert store.last_bars("EURUSD", 2) == BARS[1:]
    bars = store.bars("EURUSD")
    hours = np.arange(3) * 3_600 + 1_704_067_200
    for name, values in zip(bars._fields, (hours, 1.0, 1.5, np.nan, 1.25, 7.0), strict=True):
        np.testing.assert_array_equal(getattr(bars, name), np.broadcast_to(values, 3), name)
    assert store.last_settled("EURUSD", 2) == SETTLED[1:]
    assert store.bucket_counts() == {3: 2}
    assert (store.fact("timeframe"), store.fact("another")) == ("1h", None)
    [asset] = store.assets()
    assert asset == ("EURUSD", 3, BARS[0].datetime, BARS[-1].datetime, 3)
    store.close()
    other = Store(tmp_path, "another model")
    assert (other.last_settled("EURUSD", 9), other.bucket_counts()) == ([], {})
    assert other.cut(["EURUSD"], BARS[0].datetime) == 2
    assert other.last_bars("EURUSD", 9) == BARS[:1]
    other.close()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, "ours")
    bars = [("EURUSD", bar) for bar in BARS]
    store.append(bars[:1])
    with pytest.raises(RefusalError, match="none was taken"):
        store.append([bars[1], bars[0]])
    assert store.last_bars("EURUSD", 9) == BARS[:1]
    store.append(bars[1:])
    assert store.last_bars("EURUSD", 9) == BARS
    store.close()


def test_a_write_is_flushed(tmp_path: Path) -> None:
    store = Store(tmp_path, "ours")
    pragmas = [
        store._db.execute(f"PRAGMA {name}").fetchone() for name in ("synchronous", "journal_mode")
    ]
    assert pragmas == [(2,), ("wal",)]
    store.close()


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (3, "a newer")])
def test_a_state_of_another_version_is_left_to_it(tmp_path: Path, version: int, age: str) -> None:
    Store(tmp_path, "ours").close()
    changed(tmp_path, f"PRAGMA user_version = {version}")
    with pytest.raises(DataError, match=f"{age} vaiom wrote this state") as refused:
        Store(tmp_path, "ours")
    assert refused.value.where == tmp_path / FILE_NAME
    changed(tmp_path, "CREATE TABLE theirs (value)")  # it is not held


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE facts SET value = 'x'", "the fact"),
        ("UPDATE bars SET stamp = stamp + 99999999999999", "EURUSD.*after 2106"),
        ("UPDATE bars SET close = 'x' WHERE symbol = 'EURUSD'", "EURUSD.*'x'"),
        ("UPDATE bars SET volume = x'00' WHERE symbol = 'EURUSD'", "EURUSD"),
        ("UPDATE settled SET quantiles = '{'", "settled forecasts of EURUSD"),
        ("UPDATE settled SET pit = 'x'", "settled forecasts of EURUSD"),
        ("UPDATE settled SET target = 99999999999999", "settled forecasts of EURUSD"),
    ],
)
def test_a_state_that_cannot_be_understood_is_refused_with_the_way_out(
    tiny: TinyRun, tmp_path: Path, damage: str, says: str
) -> None:
    live = live_assets(tiny, tmp_path, folder=tiny.bars, backfill=2)
    live.settle_past("EURUSD", *live.past_forecasts("EURUSD"))
    live.store.close()
    changed(tmp_path, damage)
    with pytest.raises(DataError, match="(?s)stored state is damaged.*" + says) as refused:
        live_assets(tiny, tmp_path)
    assert "vaiom state DIR" in str(refused.value.fix)


@pytest.mark.parametrize("part", ["header", "middle"])
def test_a_file_with_damaged_pages_is_refused_with_the_way_out(
    tiny: TinyRun, tmp_path: Path, part: str
) -> None:
    live_assets(tiny, tmp_path, folder=tiny.bars).store.close()
    file = tmp_path / FILE_NAME
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.seek(0 if part == "header" else size // 2)
        stream.write(b"\xff" * (100 if part == "header" else size // 4))
    with pytest.raises(DataError, match="the stored state is damaged"):
        live_assets(tiny, tmp_path)
    with pytest.raises(DataError, match="the stored state is damaged"):
        Store(tmp_path, "", accept_loss=True).rebuild()


def test_a_rebuilt_file_has_all_bars_and_no_room_for_more(tiny: TinyRun, tmp_path: Path) -> None:
    live_assets(tiny, tmp_path, folder=tiny.bars).store.close()
    size = (tmp_path / FILE_NAME).stat().st_size
    store = Store(tmp_path, "")
    store.cut(["EURUSD"], datetime(1970, 1, 1))
    left = store.assets()
    store.rebuild()
    assert store.assets() == left
    store.close()
    assert (tmp_path / FILE_NAME).stat().st_size < 0.7 * size


@pytest.mark.parametrize("damage", ["removed", "replaced", "log removed", "log cut short"])
def test_no_bar_is_acknowledged_that_nobody_would_find_again(
    tiny: TinyRun, tmp_path: Path, damage: str
) -> None:
    """Where somebody touches the files under a running service; what was stored is not lost."""
    file = tmp_path / "state" / (LOG_NAME if damage.startswith("log") else FILE_NAME)
    first, second = tiny.later["EURUSD"][:2]

    config = config_of(tiny, tmp_path / "state", bars=tiny.bars, backfill=0)
    with served(config) as (client, service):
        answer = client.send("EURUSD", first)
        assert answer.status_code == 200
        whole = shutil.copytree(tmp_path / "state", tmp_path / "copy")
        file.rename(tmp_path / "aside")
        if damage == "replaced":
            shutil.copy(whole / file.name, file)
        if damage == "log cut short":
            (tmp_path / "aside").rename(file)
            with file.open("r+b") as stream:
                stream.truncate(4_096)
        answer = client.send("EURUSD", second)
        error = refusal(answer, 503)
        assert file.name in error["got"]
        assert "stop the service" in error["fix"]
        assert service.live.online.streams["EURUSD"].last.isoformat() == first["datetime"]
    again = live_assets(tiny, tmp_path / "copy")
    assert again.online.streams["EURUSD"].last.isoformat() == first["datetime"]
    again.store.close()


def test_a_log_that_is_gone_after_a_kill_is_missed(tmp_path: Path) -> None:
    """Its bars had been acknowledged; whoever accepts the loss goes on with the others."""
    state = tmp_path / "state"
    store = Store(state, "ours")
    store.append([("EURUSD", bar) for bar in BARS])
    killed = shutil.copytree(state, tmp_path / "killed")
    store.close()
    again = Store(shutil.copytree(killed, tmp_path / "whole"), "ours")
    assert again.last_bars("EURUSD", 9) == BARS
    again.close()
    (killed / LOG_NAME).unlink()
    for _ in range(2):
        with pytest.raises(DataError, match="acknowledged bars may be missing") as refused:
            Store(killed, "ours")
        assert LOG_NAME in str(refused.value.expected)
        assert refused.value.got == f"no {LOG_NAME}"
    Store(killed, "", accept_loss=True).close()
    Store(killed, "ours").close()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_file_that_is_gone_is_missed_at_the_next_start(tmp_path: Path, end: str) -> None:
    """Also where the service that lost it ended in order; the way out that is told works."""
    state = tmp_path / "state"
    store = Store(state, "ours")
    store.append([("EURUSD", bar) for bar in BARS])
    if end == "kill":
        state = shutil.copytree(state, tmp_path / "killed")
    (state / FILE_NAME).unlink()
    store.close()
    for _ in range(2):
        with pytest.raises(DataError, match="acknowledged bars may be missing") as refused:
            Store(state, "ours")
        assert f"no {FILE_NAME}" in str(refused.value.got)
    assert str(state / MARK_NAME) in str(refused.value.fix)
    (state / MARK_NAME).unlink()
    Store(state, "ours").close()
    Store(state, "ours").close()


def test_a_rebuilt_file_is_not_missed(tmp_path: Path) -> None:
    """It is shorter than it was."""
    store = Store(tmp_path, "ours")
    hours = [BARS[0].datetime + timedelta(hours=hour) for hour in range(50_000)]
    store.append([("EURUSD", BARS[0]._replace(datetime=stamp)) for stamp in hours])
    store.cut(["EURUSD"], hours[0])
    store.rebuild()
    store.close()
    again = Store(tmp_path, "ours")
    assert again.last_bars("EURUSD", 9) == BARS[:1]
    again.close()


def test_a_disk_that_cannot_be_read_is_told_in_words(tmp_path: Path) -> None:
    store = Store(tmp_path, "ours")
    store.close()
    with pytest.raises(RefusalError, match=r"could not be read"):
        store.last_bars("EURUSD", 1)
