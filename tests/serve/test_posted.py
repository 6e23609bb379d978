"""Posted histories: each gives what it would give alone, however it shares its beginning with
others.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from serve_runs import CONTEXT, TinyRun, as_json, config_of, live_assets, served

from training.tiny_runs import TINY
from vaiom.errors import DataError
from vaiom.features.fields import CROSS_FIELDS
from vaiom.forecast.backend import TOLERANCE
from vaiom.forecast.forecaster import Forecaster
from vaiom.model.checkpoint import load_checkpoint, save_checkpoint
from vaiom.model.incremental import IncrementalDecoder
from vaiom.model.vaiom import Vaiom
from vaiom.serve.follow import BarRow
from vaiom.serve.posted import PostedHistories

ALONE, TOGETHER = ("ret_z", "hour_sin"), ("ret_z", *CROSS_FIELDS)


def windowed(tiny: TinyRun, folder: Path, fields: tuple[str, ...] = ALONE) -> Path:
    """A model of windowed attention with random weights, with the tokenizer of a trained one."""
    trained = load_checkpoint(tiny.run / "best.safetensors")
    config = TINY.with_changes(
        context=CONTEXT, fields=fields, positions="rotary", attention_window=8
    ).model
    torch.manual_seed(0)
    model = Vaiom(config, trained.tokenizer.vocabulary_sizes)
    save_checkpoint(folder / "model.safetensors", model, trained.tokenizer, trained.provenance)
    return folder / "model.safetensors"


def bars_of(frame: pl.DataFrame) -> list[BarRow]:
    return [*map(BarRow._make, frame.iter_rows())]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows went through the model one by one, a window's last among them, and how many
    windows at once.
    """
    counts, one, many = [0, 0], IncrementalDecoder.decode_batch, IncrementalDecoder.prefill

    def counted_step(self: IncrementalDecoder, *inputs: Any) -> Any:
        counts[0] += sum(len(events) for _, events, _ in inputs[0])
        return one(self, *inputs)

    def counted_window(self: IncrementalDecoder, *inputs: Any) -> Any:
        counts[1] += 1
        return many(self, *inputs)

    monkeypatch.setattr(IncrementalDecoder, "decode_batch", counted_step)
    monkeypatch.setattr(IncrementalDecoder, "prefill", counted_window)
    return counts


def require_same(histories: PostedHistories, frames: dict[str, pl.DataFrame], symbol: str) -> None:
    dist = histories.forecast({each: bars_of(frame) for each, frame in frames.items()}, symbol)
    expected = histories.forecaster.predict(frames, symbol, now=frames[symbol]["Datetime"][-1])
    np.testing.assert_allclose(dist.probs, expected.probs, atol=TOLERANCE)
    assert (dist.as_of, dist.sigma, dist.context) == (
        expected.as_of,
        expected.sigma,
        expected.context,
    )
    assert dist.notes == expected.notes


def test_a_history_that_grows_costs_its_new_bars(
    tiny: TinyRun, tmp_path: Path, steps: list[int]
) -> None:
    histories, bars = (
        PostedHistories(Forecaster.load(windowed(tiny, tmp_path))),
        tiny.history["EURUSD"],
    )
    for number, (stop, rows) in enumerate([(100, 2), (101, 1), (101, 0), (104, 3)]):
        for symbol in ("EURUSD", "XAUUSD"):
            before = list(steps)
            require_same(histories, {symbol: bars.head(stop)}, symbol)
            assert (steps[0] - before[0], steps[1] - before[1]) == (rows, number == 0)


def test_histories_that_part_do_not_meet_again(tiny: TinyRun, tmp_path: Path) -> None:
    """A revised bar, another asset under the same bars, an older history: each as if it were the
    only one.
    """
    histories, bars = (
        PostedHistories(Forecaster.load(windowed(tiny, tmp_path))),
        tiny.history["EURUSD"],
    )
    revised = (
        bars.head(99)
        .vstack(bars[99:100].with_columns(pl.col("Close") * 1.001))
        .vstack(bars[100:130])
    )
    for stop in (99, 100, 101, 100, 110, 105):
        require_same(histories, {"EURUSD": bars.head(stop)}, "EURUSD")
        require_same(histories, {"EURUSD": revised.head(stop)}, "EURUSD")
        require_same(histories, {"XAUUSD": bars.head(stop)}, "XAUUSD")


def test_assets_that_are_read_belong_to_the_history(tiny: TinyRun, tmp_path: Path) -> None:
    histories = PostedHistories(Forecaster.load(windowed(tiny, tmp_path, TOGETHER)))
    for ours, theirs in ((80, 80), (81, 80), (81, 81), (82, 90), (83, 85)):
        frames = {
            "EURUSD": tiny.history["EURUSD"].head(ours),
            "XAUUSD": tiny.history["XAUUSD"].head(theirs),
        }
        require_same(histories, frames, "EURUSD")
        require_same(histories, {"EURUSD": frames["EURUSD"]}, "EURUSD")


def test_what_is_remembered_is_bounded(tiny: TinyRun, tmp_path: Path, steps: list[int]) -> None:
    """What was not asked for the longest is forgotten."""
    forecaster = Forecaster.load(windowed(tiny, tmp_path))
    histories = PostedHistories(forecaster, max_assets=3)
    bars = tiny.history["EURUSD"]
    for start, known in ((0, 0), (1, 0), (2, 0), (0, 1), (3, 0), (1, 0), (0, 1), (3, 1), (2, 0)):
        before = steps[1]
        require_same(histories, {"EURUSD": bars.slice(start, 40)}, "EURUSD")
        assert (steps[1] == before) == known
        assert len(histories) <= 3


def test_a_refused_history_leaves_nothing(tiny: TinyRun, tmp_path: Path) -> None:
    histories, bars = (
        PostedHistories(Forecaster.load(windowed(tiny, tmp_path))),
        tiny.history["EURUSD"],
    )
    require_same(histories, {"EURUSD": bars.head(60)}, "EURUSD")
    backwards = bars_of(bars.head(62))
    backwards[60:] = backwards[60:][::-1]
    for wrong, problem in (
        (bars_of(bars.head(5)), "too few bars"),
        (backwards, "goes back in time|order"),
    ):
        with pytest.raises(DataError, match=problem):
            histories.forecast({"EURUSD": wrong}, "EURUSD")
    assert len(histories) == 1
    require_same(histories, {"EURUSD": bars.head(61)}, "EURUSD")


def test_no_answer_depends_on_what_was_posted_before(tiny: TinyRun, tmp_path: Path) -> None:
    """Bars at the end, of half hours or of four, look like another timeframe by themselves, or only
    with the others.
    """
    forecaster, bars = Forecaster.load(windowed(tiny, tmp_path)), tiny.history["EURUSD"].head(260)
    last = bars["Datetime"][59]
    refused: DataError | None = None
    for step, number in (
        (timedelta(minutes=30), 2),
        (timedelta(hours=4), 30),
        (timedelta(hours=4), 200),
    ):
        stamps = [last + step * each for each in range(1, number + 1)]
        tail = bars[60 : 60 + number].with_columns(
            Datetime=pl.Series(stamps, dtype=bars["Datetime"].dtype)
        )
        whole, histories = bars.head(60).vstack(tail), PostedHistories(forecaster)
        for stop in range(60, len(whole) + 1, 10 if number == 200 else number):
            part = {"EURUSD": whole.head(stop)}
            try:
                forecaster.predict(part)
            except DataError as error:
                refused = error
                with pytest.raises(DataError, match=error.problem):
                    histories.forecast({"EURUSD": bars_of(part["EURUSD"])}, "EURUSD")
            else:
                require_same(histories, part, "EURUSD")
    assert refused


def test_the_service_answers_live_and_posted_alike(tiny: TinyRun, tmp_path: Path) -> None:
    run = windowed(tiny, tmp_path)

    config = config_of(tiny, tmp_path / "state", run=run, bars=tiny.bars)
    with served(config) as (client, service):
        history = as_json(tiny.history["EURUSD"])
        for bar in tiny.later["EURUSD"][:6]:
            history.append(bar)
            pushed = client.send("EURUSD", bar).json()
            asked = (client.post("/v1/forecast", json={"symbol": "EURUSD", "bars": history})).json()
            assert pushed["scored"]["as_of"] == history[-2]["datetime"]
            np.testing.assert_allclose(pushed["forecast"]["probs"], asked["probs"], atol=TOLERANCE)
            current = client.read("/v1/assets/EURUSD/forecast")
            assert current["probs"] == pushed["forecast"]["probs"]
        assert len(service.live.settled["EURUSD"]) >= 6


def test_past_bars_are_forecast_as_they_would_have_been(tiny: TinyRun, tmp_path: Path) -> None:
    run = windowed(tiny, tmp_path, TOGETHER)
    live = live_assets(tiny, tmp_path / "state", run=run, folder=tiny.bars, backfill=20)
    for symbol, frame in tiny.history.items():
        live.settle_past(symbol, *live.past_forecasts(symbol))
        settled = live.settled[symbol]
        assert [each.as_of for each in settled] == frame["Datetime"].to_list()[-21:-1]
        for back in (1, 20):
            before = {name: bars.head(-back) for name, bars in tiny.history.items()}
            dist = live.forecaster.predict(before, symbol)
            assert settled[-back].quantiles["0.5"] == pytest.approx(dist.quantile(0.5), rel=1e-4)
    live.store.close()
