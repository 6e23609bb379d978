"""A service with a ledger: each forecast is on record before its bar, and a stranger can
check it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from serve_runs import (
    SYMBOLS,
    TinyRun,
    bar_row,
    config_of,
    live_assets,
    reading_others,
    served,
)

from vaiom.auditing.proof import FAILED, PASSED
from vaiom.auditing.service_ledger import prove_ledger
from vaiom.cli.main import main
from vaiom.files import sha256_file, sha256_of
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.ledger import Commitment, ForecastLedger, Settlement, read_ledger
from vaiom.market.folder import BAR_SCHEMA, read_bars, write_symbol
from vaiom.serve.answers import describe_assets
from vaiom.serve.follow import BarRow
from vaiom.serve.state import LiveAssets


@contextmanager
def on_record(tiny: TinyRun, file: Path, **options: Any) -> Iterator[LiveAssets]:
    """Live assets whose forecasts are recorded, as a service has them."""
    options = {"folder": tiny.bars, "run": tiny.run, **options}
    ledger = ForecastLedger(file, Forecaster.load(options["run"]).card.sha256)
    live = live_assets(tiny, file.parent / "state", ledger=ledger, **options)
    for symbol in SYMBOLS:
        live.newest(symbol)
    yield live
    live.store.close()
    ledger.close()


def push(live: LiveAssets, symbol: str, *bars: dict[str, Any]) -> None:
    for bar in bars:
        live.push(symbol, [bar_row(**bar)])


def wrong(bar: dict[str, Any]) -> dict[str, Any]:
    return bar | {name: 1.01 * bar[name] for name in ("open", "high", "low", "close")}


@pytest.fixture(scope="module")
def ledger(tiny: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 12 bars of each asset; the service was started again in between."""
    file = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    for start in (0, 6):
        with on_record(tiny, file) as live:
            for number in range(start, start + 6):
                for symbol in SYMBOLS:
                    push(live, symbol, tiny.later[symbol][number])
    return file


def test_the_evidence_is_shown(ledger: Path, tiny: TinyRun, tmp_path: Path) -> None:
    file = copy_of(ledger, tmp_path)
    with served(config_of(tiny, tmp_path / "state", ledger=file)) as (client, service):
        assert service.ledger
        found = client.read("/v1/assets")["e_value"]
        assert found == service.ledger.e_value
        assert (
            f'vaiom_ledger_e_value{{baseline="frequency"}} {found}' in client.get("/metrics").text
        )


def test_each_forecast_is_on_record_before_its_bar(ledger: Path, tiny: TinyRun) -> None:
    entries: list[Any] = [entry for _, entry in read_ledger(ledger)]
    assert len(entries) == 2 * (2 * 12 + 1)  # the restart forecast nothing anew
    for symbol in SYMBOLS:
        own = [entry for entry in entries if entry.symbol == symbol]
        assert [type(entry) for entry in own] == [Commitment, Settlement] * 12 + [Commitment]
        for before, after in zip(own[::2], own[1::2], strict=False):
            assert before.as_of == after.as_of < after.target_time
        assert [each.target_time.isoformat() for each in own[1::2]] == [
            bar["datetime"] for bar in tiny.later[symbol][:12]
        ]


def test_bars_that_came_together_are_seen_together(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks while what became of the first forecast is put on record sees all bars, and
    their scores.
    """
    bars = {symbol: tiny.later[symbol][0] for symbol in SYMBOLS}
    with on_record(tiny, tmp_path / "ledger.jsonl") as live:
        seen: list[Any] = []
        settle = lambda *outcomes: seen.append((len(outcomes), describe_assets(live)))  # noqa: E731
        monkeypatch.setattr(live.ledger, "settle", settle)
        live.push_all([(symbol, [bar_row(**bar)]) for symbol, bar in bars.items()])
    [(number, answer)] = seen
    assert number == len(SYMBOLS)
    for asset in answer.assets:
        bar = bars[asset.symbol]
        told = asset.as_of.isoformat(), asset.close, asset.drift.scored
        assert told == (bar["datetime"], bar["close"], 1)


def test_a_ledger_that_cannot_be_written_costs_no_bar(
    tiny: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    config = config_of(
        tiny, tmp_path / "state", bars=tiny.bars, ledger=tmp_path / "ledger.jsonl", backfill=0
    )
    with served(config) as (client, service):
        first, second = tiny.later["EURUSD"][:2]
        with monkeypatch.context() as patch:
            patch.setattr(ForecastLedger, "_append", full)
            answer = client.send("EURUSD", first)
            assert (answer.status_code, answer.json()["forecast"]) == (200, None)
            [said] = [each.message for each in caplog.records]
            assert said == (
                "the outcome of a forecast of EURUSD could not be recorded: No space left on device"
            )
            # No bar is taken that a forecast should have been on record for.
            answer = client.send("EURUSD", second)
            error = answer.json()["error"]
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
            assert (error["problem"], error["got"]) == (
                *("the forecast could not be put on record", "No space left on device"),
            )
        client.push("EURUSD", second)
        assert service.live.online.streams["EURUSD"].num_bars == len(tiny.history["EURUSD"]) + 2


def grown_by(tiny: TinyRun, folder: Path) -> Path:
    """A bar folder with the later bars that a service was given."""
    for symbol, frame in read_bars(folder).items():
        later = rows_frame([bar_row(**bar) for bar in tiny.later[symbol][:12]])
        write_symbol(folder, symbol, frame.vstack(later))
    return folder


def rows_frame(rows: list[BarRow]) -> pl.DataFrame:
    return pl.DataFrame(rows, BAR_SCHEMA, orient="row")


@pytest.fixture
def grown(tiny: TinyRun, tmp_path: Path) -> Path:
    """All bars that the service had."""
    return grown_by(tiny, Path(shutil.copytree(tiny.bars, tmp_path / "bars")))


def test_a_stranger_checks_the_ledger(ledger: Path, grown: Path, tiny: TinyRun) -> None:
    proof = prove_ledger(ledger, tiny.run, grown)
    assert (proof.verdict, proof.findings) == (PASSED, [])
    assert "26 of 26 forecasts made again" in proof.notes[0]
    assert [note.split(":")[0] for note in proof.notes[1:3]] == [
        "against frequency",
        "against hour_of_week",
    ]
    assert sha256_file(ledger) in proof.notes[-1]
    # The service's own figure, where its Frequency is that of the folder.
    service = ForecastLedger(ledger, "")
    assert f"e = {service.e_value:.3g}" in proof.notes[1]
    service.close()


def test_a_ledger_of_a_service_whose_bars_begin_after_train(tiny: TinyRun, tmp_path: Path) -> None:
    """Its forecasts are made again; what nothing can be fitted for is left out, and said."""
    for symbol, frame in tiny.history.items():
        write_symbol(tmp_path / "bars", symbol, frame.tail(400))

    file = tmp_path / "ledger.jsonl"
    with on_record(tiny, file, folder=tmp_path / "bars") as live:
        for symbol in SYMBOLS:
            push(live, symbol, tiny.later[symbol][0])
    proof = prove_ledger(file, tiny.run, grown_by(tiny, tmp_path / "bars"))
    assert (proof.verdict, proof.findings) == (PASSED, [])
    assert "4 of 4 forecasts made again" in proof.notes[0]
    assert proof.notes[1] == "no Train events in these bars: without baselines there is no e-value"


@pytest.mark.parametrize("number", [1, 3])
def test_wrong_bars_that_were_removed_are_no_evidence(
    ledger: Path, grown: Path, tiny: TinyRun, tmp_path: Path, number: int
) -> None:
    """Bars that come in their place settle the forecast before them, once, in the service as in the
    audit.

    Forecasts that had followed the wrong bars are not judged, unless they are made again before
    their own bar is known.
    """
    file = tmp_path / "ledger.jsonl"
    with on_record(tiny, file) as live:
        for at in range(12):
            for symbol in SYMBOLS:
                bars = tiny.later[symbol]
                if at == 7:
                    push(live, symbol, *map(wrong, bars[at : at + number]))
                    live.cut(symbol, datetime.fromisoformat(bars[at - 1]["datetime"]))
                push(live, symbol, bars[at])
    service, undisturbed = ForecastLedger(file, ""), ForecastLedger(ledger, "")
    assert (service.e_value == pytest.approx(undisturbed.e_value)) is (number == 1)
    proof = prove_ledger(file, tiny.run, grown)
    assert (proof.verdict, proof.findings) == (PASSED, [])
    hindsight = 2 * (number - 1)
    assert f"{26 - hindsight} of 26 forecasts made again" in proof.notes[0]
    unjudged = [note for note in proof.notes if "followed bars that the service removed" in note]
    assert unjudged == (
        [f"{hindsight} forecasts followed bars that the service removed: they are not judged"]
        * (number > 1)
    )
    against = next(note for note in proof.notes if note.startswith("against frequency"))
    assert f"e = {service.e_value:.3g}" in against
    service.close()
    undisturbed.close()


def test_a_wrong_bar_was_seen_by_the_forecasts_of_other_assets(
    tiny: TinyRun, grown: Path, tmp_path: Path
) -> None:
    """Of a model that reads other assets: theirs are not judged either, and nobody is accused."""
    file, model = tmp_path / "ledger.jsonl", reading_others(tiny, tmp_path, {})
    bars = tiny.later["EURUSD"]
    with on_record(tiny, file, run=model) as live:
        for at in range(12):
            push(live, "EURUSD", wrong(bars[at]) if 5 <= at < 8 else bars[at])
            push(live, "XAUUSD", tiny.later["XAUUSD"][at])
            if at == 7:
                live.cut("EURUSD", datetime.fromisoformat(bars[4]["datetime"]))
                push(live, "EURUSD", *bars[5:8])
    proof = prove_ledger(file, model, grown)
    assert (proof.verdict, proof.findings) == (PASSED, [])
    assert any("followed bars that the service removed" in note for note in proof.notes)


def test_bars_that_come_again_in_another_order_are_no_forgery(
    tiny: TinyRun, grown: Path, tmp_path: Path
) -> None:
    """Of a model that reads other assets: their forecasts lack the bars that come later now, and
    settle otherwise.
    """
    file, model = tmp_path / "ledger.jsonl", reading_others(tiny, tmp_path, {})
    with on_record(tiny, file, run=model) as live:
        for at in range(8):
            for symbol in SYMBOLS:
                push(live, symbol, tiny.later[symbol][at])
        for symbol in SYMBOLS:
            live.cut(symbol, datetime.fromisoformat(tiny.later[symbol][4]["datetime"]))
        for symbol in SYMBOLS:
            push(live, symbol, *tiny.later[symbol][5:12])
    proof = prove_ledger(file, model, grown)
    assert (proof.verdict, proof.findings) == (PASSED, [])


def test_a_sound_forecast_cannot_be_withdrawn(
    ledger: Path, grown: Path, tiny: TinyRun, tmp_path: Path
) -> None:
    """Bars that are said to have been removed, and are there: what followed them is judged all the
    same.
    """
    removed = {
        "time": "2025-01-01T00:00:00",
        "kind": "removed",
        "symbol": "EURUSD",
        "after": "1970-01-01T00:00:00",
    }
    (tmp_path / "cut.jsonl").write_bytes(ledger.read_bytes())
    with (tmp_path / "cut.jsonl").open("ab") as stream:
        stream.write(json.dumps({**removed, "previous": sha256_file(ledger)}).encode() + b"\n")
    honest, cut = (prove_ledger(each, tiny.run, grown) for each in (ledger, tmp_path / "cut.jsonl"))
    assert (cut.verdict, cut.findings) == (PASSED, [])
    assert cut.notes[:3] == honest.notes[:3]


def test_forecasts_of_removed_bars_that_never_came_again_are_said(
    ledger: Path, grown: Path, tiny: TinyRun, tmp_path: Path
) -> None:
    last = tiny.later["EURUSD"][10]["datetime"]
    for file in grown.iterdir():
        write_symbol(
            grown,
            file.stem,
            pl.read_parquet(file).filter(pl.col("Datetime") <= pl.lit(last).str.to_datetime()),
        )
    proof = prove_ledger(ledger, tiny.run, grown)
    assert (proof.verdict, proof.findings[0]) == (
        FAILED,
        "2 forecasts are of bars that the folder does not have",
    )
    ours = ForecastLedger(copy_of(ledger, tmp_path), "")
    for symbol in SYMBOLS:
        ours.remove(symbol, datetime.fromisoformat(last))
    ours.close()
    proof = prove_ledger(ours.file, tiny.run, grown)
    assert (proof.verdict, proof.findings) == (PASSED, [])
    assert "2 forecasts followed bars that the service removed: they are not judged" in proof.notes


def copy_of(file: Path, folder: Path) -> Path:
    return Path(shutil.copy(file, folder / "copy.jsonl"))


def rewritten(
    ledger: Path, out: Path, change: Callable[[int, dict[str, Any]], dict[str, Any] | None]
) -> Path:
    """By somebody who makes the hashes anew, so that only model and bars contradict."""
    written = b""
    for number, line in enumerate(ledger.read_bytes().splitlines()):
        value = change(number, json.loads(line))
        if value is not None:
            written += json.dumps(value | {"previous": sha256_of(written)}).encode() + b"\n"
    out.write_bytes(written)
    return out


def better(number: int, value: dict[str, Any]) -> dict[str, Any]:
    if value["kind"] == "forecast":
        probs = np.array(value["probs"]) + 0.01 * (np.arange(16) == 7)
        return {**value, "probs": (probs / probs.sum()).tolist()}
    return value


FORGERIES: dict[str, tuple[Callable[[int, dict[str, Any]], Any], str]] = {
    "better forecasts": (better, "forecasts otherwise"),
    "no distribution": (
        lambda _, value: {**value, "probs": [0.5, 0.25]} if value["kind"] == "forecast" else value,
        "no distribution",
    ),
    "better bits": (
        lambda _, value: {**value, "model_bits": 0.5} if value.get("model_bits") else value,
        "other bits than the bar",
    ),
    "another model": (
        lambda _, value: {**value, "model": "0" * 64} if value["kind"] == "forecast" else value,
        "no forecast of this model",
    ),
    "a bar before its forecast": (
        lambda number, value: None if number == 0 else value,
        "a bar without a forecast",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_was_changed_is_found(
    ledger: Path, grown: Path, tiny: TinyRun, tmp_path: Path, forgery: str
) -> None:
    change, words = FORGERIES[forgery]
    proof = prove_ledger(rewritten(ledger, tmp_path / "forged.jsonl", change), tiny.run, grown)
    assert proof.verdict == FAILED
    assert words in proof.findings[0]


def test_forecasts_of_another_model_are_left_to_its_own_audit(
    ledger: Path, grown: Path, tiny: TinyRun, tmp_path: Path
) -> None:
    def change(number: int, value: dict[str, Any]) -> dict[str, Any]:
        return (
            {**value, "model": "0" * 64} if number < 10 and value["kind"] == "forecast" else value
        )

    proof = prove_ledger(rewritten(ledger, tmp_path / "both.jsonl", change), tiny.run, grown)
    assert proof.verdict == PASSED
    assert proof.notes[0] == "6 forecasts of other models are not judged"
    assert "20 of 20" in proof.notes[1]


def test_a_line_that_was_changed_breaks_the_chain(
    ledger: Path,
    grown: Path,
    tiny: TinyRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ledger.read_bytes().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[:4] + lines[6:]))
    command = [
        "vaiom",
        "audit",
        str(tiny.run),
        "--ledger",
        str(tmp_path / "cut.jsonl"),
        "--bars",
        str(grown),
        "--json",
    ]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    (proof,) = json.loads(capsys.readouterr().out)["proofs"]
    assert (ended.value.code, proof["verdict"]) == (1, "failed")
    assert "line 5 is none of those" in proof["findings"][0]


def test_what_cannot_be_made_again_is_no_evidence(
    ledger: Path, grown: Path, tiny: TinyRun, tmp_path: Path
) -> None:
    """Better forecasts, said to have been made before another asset's bars came; the clock says
    that they came late.
    """

    def change(number: int, value: dict[str, Any]) -> dict[str, Any]:
        early = {**value, "time": "2020-01-01T00:00:00"}
        return (
            {**better(number, early), "missing_assets": ["GBPUSD"]}
            if number < 26 and "probs" in value
            else early
        )

    assert any(
        "recorded after their bar" in note for note in prove_ledger(ledger, tiny.run, grown).notes
    )
    proof = prove_ledger(rewritten(ledger, tmp_path / "absent.jsonl", change), tiny.run, grown)
    assert "12 of 26 forecasts made again" in proof.notes[0]
    assert "over 10 bars" in proof.notes[1]
    assert not any("recorded after their bar" in note for note in proof.notes)
