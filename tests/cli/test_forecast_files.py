"""`vaiom forecast`, `models` and `card`: a real forecast from a price file and a model inside the
package.
"""

from __future__ import annotations

import json
import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_line import Vaiom, require_refusal

from strategies import random_bars
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.corpus.splits import VALIDATION
from vaiom.errors import ConfigError
from vaiom.evaluation.horizon_scores import STORED
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.record import Evaluation
from vaiom.evaluation.scores import event_bits
from vaiom.files import read_json
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import read_bars
from vaiom.market.resample import resample
from vaiom.run import Run, packaged_models

DOCS = Path(__file__).parents[2] / "docs"
READ = {
    "dukascopy_EURUSD_2019_01_BID_candles_hour_1.bi5": "EURUSD",
    "dukascopy_EURUSD_2019_01_04_BID_candles_min_1.bi5": "EURUSD",
    "histdata_DAT_ASCII_EURUSD_M1_202306.csv": "EURUSD",
    "mt5_export_EURUSD_H1_head8000.csv": "EURUSD",
    "oanda-EUR_USD-2020-5.csv": "EURUSD",
    "ork-ad_USDCNH_1h.csv": "USDCNH",
}
REFUSED = {
    "dukascopy_EURUSD_2018_BID_candles_day_1.bi5": "another timeframe",
    "dukascopy_EURUSD_2019_01_04_12h_ticks.bi5": "too few bars",
    "dukascopy_USDHKD.bi5": "`vaiom data import --start`",
}


def write_minutes(file: Path, hours: int = 40) -> pl.DataFrame:
    stamps = [datetime(2024, 3, 4) + timedelta(minutes=minute) for minute in range(60 * hours)]
    close = 1.1 * np.exp(np.cumsum(np.random.default_rng(5).normal(0, 1e-4, len(stamps))))
    bars = pl.DataFrame(
        {"Datetime": stamps, "Open": close, "High": close, "Low": close, "Close": close}
    )
    bars.write_csv(file)
    return bars


@pytest.mark.parametrize("name", READ)
def test_each_real_file_is_forecast(name: str, shared_data: Path, vaiom: Vaiom) -> None:
    (forecast,) = vaiom("forecast", shared_data / "raw" / name, "--json").json()["forecasts"]
    assert forecast["symbol"] == READ[name]
    assert forecast["unknown_asset"] == (READ[name] == "USDCNH")
    assert forecast["stale"]  # by the clock
    assert sum(forecast["probs"]) == pytest.approx(1)
    assert forecast["sigma"] > 0


@pytest.mark.parametrize("name", REFUSED)
def test_each_file_that_cannot_be_forecast_says_why(
    name: str, shared_data: Path, vaiom: Vaiom
) -> None:
    require_refusal(vaiom("forecast", shared_data / "raw" / name), REFUSED[name])


def test_minutes_are_forecast_as_hours(tmp_path: Path, vaiom: Vaiom) -> None:
    bars = write_minutes(tmp_path / "EURUSD.csv")
    words = (
        "forecast",
        tmp_path / "EURUSD.csv",
        "--now",
        "2024-03-05T16:30",
        "--plot",
        tmp_path / "next.svg",
    )
    ran = vaiom(*words, "--json")
    (forecast,) = ran.json()["forecasts"]
    expected = Forecaster.pretrained().predict(resample(bars, "1h"), "EURUSD")
    assert forecast["probs"] == pytest.approx(expected.probs.tolist(), abs=TOLERANCE)
    assert not forecast["stale"]
    assert forecast["target_time"] == "2024-03-05T16:00:00"
    picture = (tmp_path / "next.svg").read_text()
    assert picture.startswith("<?xml")
    assert "<!-- EURUSD" in picture
    assert f"wrote {tmp_path / 'next.svg'}\n" in ran.err
    shutil.copy(tmp_path / "EURUSD.csv", tmp_path / "GBPUSD.csv")
    assert vaiom(*words[:2], tmp_path / "GBPUSD.csv", *words[2:-1], tmp_path / "two.svg").code == 0
    heights = [
        re.findall(r'height="([\d.]+)pt"', each)[0]
        for each in (picture, (tmp_path / "two.svg").read_text())
    ]
    assert [float(each) / 72 for each in heights] == pytest.approx(
        [3.4, 6.8]
    )  # one below the other
    shown = vaiom(*words)
    assert "2024-03-05 16:00" in shown.out
    assert "without other assets" in shown.err
    assert "unfinished" not in shown.err
    require_refusal(vaiom(*words[:-1], tmp_path / "next.nonsense"), "picture")
    assert vaiom(*words[:-1], tmp_path / "new" / "next.png").code == 0
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["next.png"]
    nameless = (tmp_path / "EURUSD.csv").rename(tmp_path / "prices.csv")
    by_name = vaiom("forecast", nameless)
    assert "prices: named by its file, prices.csv; --symbol gives it another name" in by_name.err
    [unknown] = vaiom("forecast", nameless, "--json").json()["forecasts"]
    assert unknown["symbol"] == "prices"
    assert "named by its file" in unknown["notes"][0]
    (named,) = vaiom("forecast", nameless, "--symbol", "EURUSD", "--json").json()["forecasts"]
    assert named["probs"] == forecast["probs"]


def test_a_long_file_of_several_symbols_is_forecast(tmp_path: Path, vaiom: Vaiom) -> None:
    bars = write_minutes(tmp_path / "EURUSD.csv")
    long = [bars.with_columns(symbol=pl.lit(symbol)) for symbol in ("GBPUSD", "EURUSD", "ABC")]
    pl.concat(long).write_parquet(tmp_path / "all.parquet")
    forecasts = vaiom("forecast", tmp_path / "all.parquet", "--json").json()["forecasts"]
    assert [each["symbol"] for each in forecasts] == ["ABC", "EURUSD", "GBPUSD"]
    alone = vaiom("forecast", tmp_path / "all.parquet", "--symbol", "eurusd", "--json").json()
    assert [each["symbol"] for each in alone["forecasts"]] == ["EURUSD"]


def test_several_bars_ahead_and_a_horizon_that_a_packaged_model_lacks(
    tmp_path: Path, vaiom: Vaiom
) -> None:
    bars = write_minutes(tmp_path / "EURUSD.csv")
    words = ("forecast", tmp_path / "EURUSD.csv", "--now", "2024-03-05T16:30", "--horizon")
    (forecast,) = vaiom(*words, "4", "--json").json()["forecasts"]
    expected = Forecaster.pretrained().predict(resample(bars, "1h"), "EURUSD", horizon=4)
    assert forecast["horizon"] == 4
    assert forecast["probs"] == pytest.approx(expected.probs.tolist(), abs=TOLERANCE)
    assert "The next 4 bars" in vaiom(*words, "4").out
    refused = vaiom(*words, "12")
    require_refusal(refused, "1, 4, 8, 24 bars", "vaiom train")
    assert "vaiom horizons" not in refused.err


def test_stamps_with_an_offset_are_forecast_in_utc(tmp_path: Path, vaiom: Vaiom) -> None:
    bars = write_minutes(tmp_path / "EURUSD.csv")
    offset = pl.col("Datetime").dt.strftime("%Y-%m-%dT%H:%M:%S+02:00")
    bars.with_columns(offset).write_csv(tmp_path / "EURUSD.csv")
    (forecast,) = vaiom("forecast", tmp_path / "EURUSD.csv", "--json").json()["forecasts"]
    assert forecast["target_time"] == "2024-03-05T14:00:00"


def test_a_last_hour_that_is_cut_off_is_noted(tmp_path: Path, vaiom: Vaiom) -> None:
    write_minutes(tmp_path / "whole.csv").head(-20).write_csv(tmp_path / "EURUSD.csv")
    ran = vaiom("forecast", tmp_path / "EURUSD.csv", "--now", "2024-03-05T16:30")
    assert "EURUSD: unfinished: the last bar has prices until 2024-03-05 15:40:00 only" in ran.err
    write_minutes(tmp_path / "EURUSD.csv")
    ran = vaiom("forecast", tmp_path / "EURUSD.csv", "--now", "2024-03-05T15:30")
    assert (
        "EURUSD: unfinished: the bar of 2024-03-05 15:00:00 ends after 2024-03-05 15:30" in ran.err
    )


def test_what_is_wrong_with_the_prices_is_one_line(tmp_path: Path, vaiom: Vaiom) -> None:
    bars = write_minutes(tmp_path / "ordered.csv")
    pl.concat([bars[1:], bars[:1]]).with_columns(High=pl.col("High") * 0.99).write_csv(
        tmp_path / "EURUSD.csv"
    )
    notes = vaiom("forecast", tmp_path / "EURUSD.csv").err.splitlines()
    (line,) = [note for note in notes if "quality" in note]
    assert "ohlc_sense" in line
    assert "rows reordered 1" in line


def write_hours(file: Path, **columns: pl.Expr) -> pl.DataFrame:
    """Sixty days of hours with ranges and volumes, changed by `columns`."""
    volume = pl.Series(np.random.default_rng(5).lognormal(5, 1, 1440))
    bars = random_bars(1440, seed=5).with_columns(Volume=volume).with_columns(**columns)
    bars.write_csv(file)
    return bars


LACKS = {
    "no ranges": {name: pl.col("Close") for name in ("Open", "High", "Low")},
    "no volume": {"Volume": pl.lit(0.0)},
}


@pytest.mark.parametrize("kind", LACKS)
def test_what_a_series_lacks_is_said_everywhere(kind: str, tmp_path: Path, vaiom: Vaiom) -> None:
    file = tmp_path / "EURUSD.csv"
    bars = write_hours(file, **LACKS[kind])
    (forecast,) = vaiom("forecast", file, "--json").json()["forecasts"]
    (note,) = [each for each in forecast["notes"] if each.startswith(kind)]
    assert note in vaiom("forecast", file).err
    forecaster = Forecaster.pretrained()
    assert note in forecaster.predict(bars, "EURUSD").notes
    assert note in forecaster.predict_all(bars[-300:], "EURUSD")[-1].notes
    live = forecaster.online()
    live.extend("EURUSD", bars[:-1])
    dist = live.push("EURUSD", bars.row(-1, named=True))
    assert dist
    assert note in dist.notes
    vaiom("data", "import", file, "--out", tmp_path / "bars")
    findings = vaiom("data", "check", tmp_path / "bars", "--json").json()["findings"]
    assert kind.replace(" ", "_") in [each["kind"] for each in findings]
    others = LACKS.keys() - {kind}
    assert not [each for each in forecast["notes"] if each.startswith(tuple(others))]


def test_a_fifth_of_the_bars_missing_is_said(tmp_path: Path, vaiom: Vaiom) -> None:
    whole = write_hours(tmp_path / "EURUSD.csv")
    (forecast,) = vaiom("forecast", tmp_path / "EURUSD.csv", "--json").json()["forecasts"]
    assert not [note for note in forecast["notes"] if note.startswith("missing bars")]
    is_kept = np.random.default_rng(5).random(len(whole)) < 0.8
    whole.filter(pl.Series(is_kept)).write_csv(tmp_path / "EURUSD.csv")
    ran = vaiom("forecast", tmp_path / "EURUSD.csv")
    assert re.search(r"EURUSD: missing bars: (19|20|21)% of those expected", ran.err)
    vaiom("data", "import", tmp_path / "EURUSD.csv", "--out", tmp_path / "bars")
    findings = vaiom("data", "check", tmp_path / "bars", "--json").json()["findings"]
    (found,) = [each for each in findings if each["kind"] == "missing_bars"]
    assert found["count"] == pytest.approx(len(whole) - is_kept.sum(), rel=0.15)


def test_a_file_of_dates_and_closes_is_imported_and_forecast(tmp_path: Path, vaiom: Vaiom) -> None:
    bars = random_bars(400, seed=5)
    file = tmp_path / "EURUSD.csv"
    bars.select(Date="Datetime", Last="Close").write_csv(file)
    out = tmp_path / "bars"
    ran = vaiom("data", "import", file, "--column", "Close=Last", "--out", out)
    assert "filled from close" in ran.out
    assert read_json(out / "manifest.json")["symbols"]["EURUSD"]["filled_from_close"] == 400
    stored = read_bars(out)["EURUSD"]
    for name in ("Open", "High", "Low", "Close"):
        assert stored[name].equals(bars["Close"].alias(name))
    bars.select(Date="Datetime", Close="Close").write_csv(file)
    (forecast,) = vaiom("forecast", file, "--json").json()["forecasts"]
    assert any(note.startswith("no ranges") for note in forecast["notes"])
    frame = bars.select("Datetime", "Close")
    dist = Forecaster.pretrained().predict(frame, "EURUSD")
    assert dist.probs.tolist() == pytest.approx(forecast["probs"], abs=1e-6)


def test_packaged_models_are_named_where_runs_are(tmp_path: Path, vaiom: Vaiom) -> None:
    listed = {each["name"]: each for each in vaiom("models", "--json").json()["models"]}
    assert listed.keys() == packaged_models().keys() == {"fx-1h", "fx-1h-evidence"}
    assert [each["purpose"] for each in listed.values()] == ["use", "evidence"]
    shown = vaiom("models").out
    assert "3.1" in shown
    assert all(each["splits"]["train_end"][:10] in shown.split() for each in listed.values())
    frame = resample(write_minutes(tmp_path / "EURUSD.csv"), "1h")
    frame.write_parquet(tmp_path / "bars.parquet")
    words = ("--bars", tmp_path / "bars.parquet", "--symbol", "EURUSD", "--json")
    named = vaiom("predict", "fx-1h-evidence", *words).json()
    held = Forecaster.pretrained("fx-1h-evidence")
    assert named["model"]["sha256"] == held.card.sha256 == listed["fx-1h-evidence"]["sha256"]
    assert named["forecasts"][0]["probs"] == pytest.approx(
        held.predict(frame, "EURUSD").probs.tolist(), abs=TOLERANCE
    )
    with pytest.raises(ConfigError, match="fx-1h, fx-1h-evidence"):
        Forecaster.pretrained("fx-2h")
    require_refusal(vaiom("predict", "fx-2h", *words), "vaiom models")


@pytest.mark.parametrize("name", ["fx-1h", "fx-1h-evidence"])
def test_packaged_weights_score_as_their_runs_did(name: str, shared_data: Path) -> None:
    """On the bars of the run, its Validation to what training recorded on a GPU, and the evidence
    asset by asset.
    """
    run = packaged_models()[name]
    model = ModelPredictor.load(Run(run).best, "cpu")
    checkpoint, bars = model.checkpoint, read_bars(shared_data / "bars_1h")
    options = CorpusConfig(**checkpoint.corpus_options())
    corpus = corpus_in_memory(bars, options, tokenizer=checkpoint.tokenizer)
    rows = corpus.endpoints(VALIDATION, checkpoint.config.history)
    bits = event_bits(model.predict_proba(corpus, rows), corpus.target_return[rows])
    assert bits.mean() == pytest.approx(checkpoint.provenance.validation_bits, abs=1e-5)
    for each in Evaluation.read(run, VALIDATION).by["asset"] if name.endswith("evidence") else ():
        inside = corpus.asset_slices[each.group]
        own = bits[(rows >= inside.start) & (rows < inside.stop)]
        assert (len(own), own.mean()) == (
            each.num_events,
            pytest.approx(each.bits["model"], abs=1e-6),
        )


def test_packaged_weights_are_the_tensors_that_their_runs_recorded() -> None:
    """The ledger of looks names the checkpoint that each run had, and so do the heads that were
    fitted to it.
    """
    looks = [json.loads(line) for line in (DOCS / "results/ledger.jsonl").read_text().splitlines()]
    for name, run in {"fx-1h": "use", "fx-1h-evidence": "1h-best-s17-22c31621"}.items():
        forecaster = Forecaster.pretrained(name)
        known = {look["checkpoint_sha256"] for look in looks if look["run"] == run}
        assert forecaster.card.sha256 in known
        assert forecaster.backend.horizons
        assert forecaster.backend.horizons.fitted.checkpoint_sha256 == forecaster.card.sha256


def test_the_package_holds_no_bars_and_fits_a_wheel_of_20_mb() -> None:
    files = [file for model in packaged_models().values() for file in model.iterdir()]
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    package = packaged_models()["fx-1h"].parents[1]
    shipped = [file for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    assert sum(file.stat().st_size for file in shipped) < 20_000_000


def test_the_card_says_what_the_model_and_its_evidence_say(tmp_path: Path, vaiom: Vaiom) -> None:
    page = vaiom("card", "fx-1h").out
    assert page == (DOCS / "models" / "fx-1h.md").read_text()
    assert Forecaster.pretrained().card.sha256 in page
    assert "figures are those of `fx-1h-evidence`" in page
    made = read_json(DOCS / "results" / "records" / "1h-best-s17-c202e66f.json")
    cost = f"{made['seconds']:.0f} s on one {made['device']}"
    for words in (
        "Without the bars of other assets",
        "1h, UTC",
        "2003-07-25 08:00 to",
        cost,
        "looked at",
    ):
        assert words in page
    assert str(tmp_path) not in page
    alone = packaged_models()["fx-1h"] / "best.safetensors"
    assert "No evaluation lies beside the model" in vaiom("card", alone).out
    vaiom("card", "fx-1h-evidence", "--out", tmp_path / "card.md")
    assert "3.1083 bits on Validation" in (tmp_path / "card.md").read_text()


@pytest.mark.parametrize("split", ["validation", "test-h1"])
def test_every_baseline_stands_beside_the_packaged_model_at_every_horizon(split: str) -> None:
    scores = Evaluation.read(packaged_models()["fx-1h-evidence"], split).horizons or []
    assert [(each.bars, each.not_fitted) for each in scores] == [(4, []), (8, []), (24, [])]
    for each in scores:
        assert set(STORED) < set(each.bits) == {"model", *each.gains}
        for name, gain in each.gains.items():
            assert gain.gain_bits == pytest.approx(each.bits[name] - each.bits["model"], abs=1e-8)
            assert gain.num_events == each.num_events
