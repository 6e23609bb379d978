"""Pipelines that leak, each the audit's `Pipeline` with one thing changed; the audit is never told which is which.

`PYTHONPATH=tests python -m audit.leaky [BARS_DIR]` prints which proof caught each, as docs/trust.md says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from audit.markets import Market, real_market, simulated_market
from vaiom.audit import leakage
from vaiom.audit.pipeline import Bars, Events, Fitted, Pipeline, widest_model
from vaiom.audit.proof import FAILED, AuditConfig, Proof
from vaiom.events.build import CorpusConfig
from vaiom.events.fields import EXTRA_FIELDS
from vaiom.events.splits import SplitConfig
from vaiom.files import sha256_of
from vaiom.market.folder import PRICE_COLUMNS

CONTEXT = 32
AUDIT = AuditConfig(cuts=2, rare_cuts=0, seed=5)
RARE = AuditConfig(cuts=0, seed=5)


class Honest(Pipeline):
    """The product's own, with windows and fits that are quick; the leaks below change one thing each."""

    def __init__(self, splits: SplitConfig) -> None:
        super().__init__(CorpusConfig(splits=splits), model=widest_model(CONTEXT), baselines=("frequency", "ewma_t"))


def with_known(events: Events, **fields: Any) -> Events:
    return replace(events, known={**events.known, **fields})


def next_of(events: Events, values: np.ndarray) -> np.ndarray:
    """The value of the row after each row of the same asset; the last row keeps its own."""
    out = values.copy()
    for rows in events.asset_slices.values():
        out[rows][:-1] = values[rows][1:]
    return out


class WindowWideNormalisation(Honest):
    """A window is normalised by its own mean and deviation, its target row included."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        cont = events.known["cont"].astype(np.float64)

        def windows(rows: np.ndarray) -> np.ndarray:
            seen = np.minimum(rows[:, None] + np.arange(1 - CONTEXT, 2), len(cont) - 1)
            x = cont[seen]
            return ((x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-9))[:, :-1]

        return replace(events, windows=windows)


class AssetWideNormalisation(Honest):
    """Features are normalised over an asset's whole history."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        cont = events.known["cont"].astype(np.float64)
        for rows in events.asset_slices.values():
            cont[rows] = (cont[rows] - cont[rows].mean(0)) / (cont[rows].std(0) + 1e-9)
        return with_known(events, cont=cont)


class EdgesOnAllData(Honest):
    """Bucket edges are fitted on every event there is."""

    def fit(self, bars: Bars) -> Fitted:
        far = [datetime(2100 + year, 1, 1) for year in range(4)]
        everything = SplitConfig(train_end=far[0], validation=(far[1], far[2]), tests=(), seal=far[3])
        fitted = Pipeline(CorpusConfig(splits=everything), model=self.model, baselines=()).fit(bars)
        return replace(fitted, hashes={"edges": fitted.hashes["tokenizer"]})


class SigmaWithTarget(Honest):
    """The scale that divides the next return has already seen it."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        return with_known(events, sigma20=next_of(events, events.known["sigma20"]))


class ShuffledSplit(Honest):
    """Events are dealt to Train and Validation at random."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        rows = np.concatenate([events.splits["train"], events.splits["validation"]])
        is_train = rows % 5 != 0
        train = rows[is_train]
        return replace(
            events,
            splits={**events.splits, "train": train, "validation": rows[~is_train]},
            draw=lambda step: np.random.default_rng(step).choice(train, 16),
        )


def daily_among_hours(bars: Bars) -> dict[str, pl.DataFrame]:
    """The first bar of every day carries the High, Low and volume of the whole day."""
    day = pl.col("Datetime").dt.date()
    first = pl.col("Datetime") == pl.col("Datetime").min().over(day)

    def whole(column: pl.Expr) -> pl.Expr:
        return pl.when(first).then(column.over(day)).otherwise(pl.col(column.meta.output_name()))

    columns = [whole(each) for each in (pl.col("High").max(), pl.col("Low").min(), pl.col("Volume").sum())]
    return {symbol: frame.with_columns(columns) for symbol, frame in bars.items()}


class DailyBarInsideTheHours(Honest):
    """The pipeline puts the day's range into its first hour."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        return super().transform(daily_among_hours(bars), fitted)


class CentredEwma(Honest):
    """The scale is smoothed from both sides."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        sigma = events.known["sigma20"].copy()
        for rows in events.asset_slices.values():
            backwards = pl.Series(sigma[rows][::-1]).ewm_mean(span=20, adjust=False).to_numpy()[::-1]
            sigma[rows] = (sigma[rows] + backwards) / 2
        return with_known(events, sigma20=sigma)


class ScalerOnValidation(Honest):
    """Mean and deviation of the features come from Validation."""

    def fit(self, bars: Bars) -> Fitted:
        fitted = super().fit(bars)
        corpus = self.corpus(bars, fitted.state)
        seen = corpus.cont[corpus.endpoints("validation", CONTEXT)].astype(np.float64)
        moments = np.stack([seen.sum(0), (seen**2).sum(0)])
        return replace(fitted, hashes={**fitted.hashes, "scaler": sha256_of(moments.tobytes())})


class NextVolume(Honest):
    """A feature is the volume of the bar that is to be predicted."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        volume = np.concatenate([bars[symbol]["Volume"].to_numpy() for symbol in events.asset_slices])
        return with_known(events, volume_next=next_of(events, volume))


class ForwardJoin(Honest):
    """Another asset's close is joined from the nearest bar that comes after the row."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        other = bars[max(bars)].select((pl.col("Datetime") - timedelta(minutes=1)).alias("Datetime"), "Close")
        joined = [
            bars[symbol].select("Datetime").join_asof(other, on="Datetime", strategy="forward")["Close"].to_numpy()
            for symbol in events.asset_slices
        ]
        return with_known(events, other_close=next_of(events, np.concatenate(joined)))


class OutliersOfTheWholeSample(Honest):
    """Rows beyond a quantile of all moves, the later ones included, are dropped before anything is computed."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        move = pl.col("Close").log().diff().abs().fill_null(0.0)
        kept = {symbol: frame.filter(move <= move.quantile(0.99)) for symbol, frame in bars.items()}
        return super().transform(kept, fitted)


class SplitByTheRow(Honest):
    """An event is put into a split by the time of its row instead of its target's."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        codes = self.config.splits.codes(events.timestamps)
        rows = np.flatnonzero(events.targets["valid_base"])
        names = {name: self.config.splits.code(name) for name in events.splits}
        return replace(events, splits={name: rows[codes[rows] == code] for name, code in names.items()})


class ValidationAgainInTrain(Honest):
    """Some Validation events are in Train too."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        train = np.concatenate([events.splits["train"], events.splits["validation"][::50]])
        return replace(events, splits={**events.splits, "train": train})


class SamplerPastTrain(Honest):
    """Splits are right, but windows are drawn from a few rows later."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        return replace(events, draw=lambda step: events.splits["train"][-16:] + step % 24)


class Restamped(Honest):
    """Bars are stamped an hour too early, as a right edge read as a left one would be."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        early = {s: f.with_columns(pl.col("Datetime") - timedelta(hours=1)) for s, f in bars.items()}
        return super().transform(early, fitted)


class BatchNormalisedModel(Honest):
    """The model's answer depends on what it is asked together with."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        ret_z = events.known["cont"][:, 0].astype(np.float64)

        def predict(rows: np.ndarray) -> np.ndarray:
            up = (1 + np.tanh(ret_z[rows] - ret_z[rows].mean())) / 2
            return np.stack([1 - up, up], axis=1)

        return replace(events, predict=predict)


class PeekingModel(Honest):
    """Inputs are right, but the model reads one row too many."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        up = (1 + np.tanh(next_of(events, events.known["cont"][:, 0]))) / 2
        return replace(events, predict=lambda rows: np.stack([1 - up[rows], up[rows]], axis=1))


class LongerTarget(Honest):
    """The target reaches over several bars, while its stamp is that of the first."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        target = events.targets["log_ret_next"]
        return replace(events, targets={**events.targets, "log_ret_next": target + next_of(events, target)})


def thinned(bars: Bars) -> dict[str, pl.DataFrame]:
    """Two bars of a hundred have no prices, and as many are not there at all."""
    out = {}
    for number, (symbol, frame) in enumerate(bars.items()):
        drawn = np.random.default_rng(number).random(len(frame))
        prices = pl.when(pl.Series(drawn > 0.02)).then(pl.col(PRICE_COLUMNS))
        out[symbol] = frame.with_columns(prices).filter(pl.Series(drawn < 0.98))
    return out


class BackFilledPrices(Honest):
    """A bar without prices gets those of the next one."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        filled = pl.col(PRICE_COLUMNS).fill_null(strategy="backward")
        return super().transform({s: f.with_columns(filled) for s, f in bars.items()}, fitted)


class BackFilledStamps(Honest):
    """A bar that is not there is made from the next one."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        out = {}
        for symbol, frame in bars.items():
            hourly = frame.upsample("Datetime", every="1h")
            near = hourly.with_columns(pl.all().exclude("Datetime").fill_null(strategy="backward", limit=1))
            out[symbol] = near.filter(pl.col("Volume").is_not_null())
        return super().transform(out, fitted)


class FridaysAtNoon(Honest):
    """What other assets did is known an hour early, once a week."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        extra, hours = events.known["extra"].copy(), events.timestamps.astype("datetime64[h]").astype(np.int64)
        friday_noon = (hours + 3 * 24) % 168 == 4 * 24 + 12  # the epoch was a Thursday
        cross = EXTRA_FIELDS.index("cross_abs")
        extra[friday_noon, cross] = next_of(events, extra)[friday_noon, cross]
        return with_known(events, extra=extra)


class LargeMovesDropped(Honest):
    """Test events beyond two sigmas are not scored."""

    def transform(self, bars: Bars, fitted: Fitted) -> Events:
        events = super().transform(bars, fitted)
        test = events.splits["test-h1"]
        move = np.abs(events.targets["log_ret_next"][test] / events.known["sigma20"][test])
        return replace(events, splits={**events.splits, "test-h1": test[move <= 2]})


def held_out_bars_a_year_before(bars: Bars) -> dict[str, pl.DataFrame]:
    """Later bars of an asset again, under another symbol, at the same hours 364 days before."""
    frame = bars[min(bars)]
    later = frame[int(0.7 * len(frame)) :].with_columns(pl.col("Datetime") - timedelta(days=364))
    noise = pl.Series(1 + 1e-5 * np.sin(np.arange(len(later))))
    return {**bars, "ZZZUSD": later.with_columns(pl.col(PRICE_COLUMNS) * noise * 3)}


def tied(bars: Bars) -> dict[str, pl.DataFrame]:
    """Two assets that move together, as real ones do."""
    one, two = min(bars), max(bars)
    other = bars[one].select("Datetime", (pl.col("Close") / pl.col("Close").first()).alias("factor"))
    joined = bars[two].join(other, on="Datetime", how="inner", maintain_order="left")
    return {one: bars[one], two: joined.with_columns(pl.col(PRICE_COLUMNS) * pl.col("factor")).drop("factor")}


def one_asset_early(bars: Bars) -> dict[str, pl.DataFrame]:
    """One of them is stamped an hour early, in the source's file."""
    out = tied(bars)
    return out | {max(out): out[max(out)].with_columns(pl.col("Datetime") - timedelta(hours=1))}


@dataclass(frozen=True, kw_only=True)
class Leak:
    name: str
    pipeline: Callable[[SplitConfig], Pipeline]
    caught_by: str
    spoil: Callable[[Bars], Bars] = lambda bars: bars
    """What was done to the bars before anyone saw them."""
    config: AuditConfig = AUDIT


LEAKS = (
    Leak(name="window-wide normalisation", pipeline=WindowWideNormalisation, caught_by="a. future"),
    Leak(name="edges fitted on all data", pipeline=EdgesOnAllData, caught_by="b. refit"),
    Leak(name="sigma with the target inside", pipeline=SigmaWithTarget, caught_by="a. future"),
    Leak(name="a shuffled split", pipeline=ShuffledSplit, caught_by="c. chronology"),
    Leak(name="a daily bar inside the hours", pipeline=DailyBarInsideTheHours, caught_by="a. future"),
    Leak(name="the same, in the source's file", pipeline=Honest, caught_by="prices", spoil=daily_among_hours),
    Leak(name="a centred EWMA", pipeline=CentredEwma, caught_by="a. future"),
    Leak(name="a scaler fitted on Validation", pipeline=ScalerOnValidation, caught_by="b. refit"),
    Leak(name="asset-wide normalisation", pipeline=AssetWideNormalisation, caught_by="a. future"),
    Leak(name="the target bar's volume", pipeline=NextVolume, caught_by="a. future"),
    Leak(name="a forward join of another asset", pipeline=ForwardJoin, caught_by="a. future"),
    Leak(name="outliers of the whole sample dropped", pipeline=OutliersOfTheWholeSample, caught_by="a. future"),
    Leak(name="bars stamped an hour early", pipeline=Restamped, caught_by="a. future"),
    Leak(name="a split by the row's time", pipeline=SplitByTheRow, caught_by="c. chronology"),
    Leak(name="Validation events again in Train", pipeline=ValidationAgainInTrain, caught_by="c. chronology"),
    Leak(name="a sampler that runs past Train", pipeline=SamplerPastTrain, caught_by="c. chronology"),
    Leak(name="a target longer than its stamp says", pipeline=LongerTarget, caught_by="a. future"),
    Leak(name="a model that reads one row too many", pipeline=PeekingModel, caught_by="a. future"),
    Leak(name="a model that normalises over its batch", pipeline=BatchNormalisedModel, caught_by="d. neighbours"),
    Leak(name="prices back-filled", pipeline=BackFilledPrices, caught_by="a. future", spoil=thinned, config=RARE),
    Leak(name="bars back-filled", pipeline=BackFilledStamps, caught_by="a. future", spoil=thinned, config=RARE),
    Leak(name="a look ahead on Fridays at noon", pipeline=FridaysAtNoon, caught_by="a. future", config=RARE),
    Leak(name="large test moves dropped", pipeline=LargeMovesDropped, caught_by="c. chronology"),
    Leak(name="test bars a year before", pipeline=Honest, caught_by="duplicates", spoil=held_out_bars_a_year_before),
    Leak(name="one asset stamped early", pipeline=Honest, caught_by="lead-lag", spoil=one_asset_early),
)


def audit_pipeline(pipeline: Pipeline, bars: Bars, config: AuditConfig) -> list[Proof]:
    """Everything that bars and a pipeline can prove."""
    fitted = pipeline.fit(bars)
    events, moves = pipeline.transform(bars, fitted), leakage.returns_of_corpus(pipeline.corpus(bars, fitted.state))
    proofs = [
        leakage.prove_prices(bars),
        leakage.prove_lead_lag(moves),
        leakage.prove_duplicates(moves, leakage.spans_of(events)),
        leakage.prove_future(pipeline, bars, fitted, config),
        leakage.prove_refit(pipeline, bars, fitted, config.seed),
        leakage.prove_chronology(events, pipeline.train_end),
    ]
    if events.predict is not None:
        proofs.append(leakage.prove_neighbours(events, config.seed))
    return proofs


def failed_proofs(market: Market, leak: Leak) -> list[str]:
    proofs = audit_pipeline(leak.pipeline(market.splits), leak.spoil(market.bars), leak.config)
    return [proof.name for proof in proofs if proof.verdict == FAILED]


def print_table(markets: dict[str, Market]) -> None:
    print(f"| pipeline | {' | '.join(f'caught on {name} bars by' for name in markets)} |")
    print(f"|---|{'---|' * len(markets)}")
    honest = Leak(name="(the product's own)", pipeline=Honest, caught_by="")
    for leak in (*LEAKS, honest):
        caught = [", ".join(failed_proofs(market, leak)) or "nothing" for market in markets.values()]
        print(f"| {leak.name} | {' | '.join(caught)} |", flush=True)


if __name__ == "__main__":
    chosen = {"simulated": simulated_market()}
    if len(sys.argv) > 1:
        chosen["real"] = real_market(Path(sys.argv[1]))
    print_table(chosen)
