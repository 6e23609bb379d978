"""Pipelines that leak, each the audit's `Pipeline` with one thing changed; the audit is never told
which is which.

`python -m verification.leaks.leaky [BARS_DIR]` prints which proof caught each, as
docs/trust.md says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from vaiom.auditing.chronology import prove_chronology, prove_neighbours
from vaiom.auditing.copies import prove_duplicates, prove_lead_lag, returns_of_corpus, spans_of
from vaiom.auditing.leakage import prove_future, prove_prices, prove_refit
from vaiom.auditing.pipeline import Bars, Pipeline, widest_model
from vaiom.auditing.proof import FAILED, AuditConfig, Proof
from vaiom.baselines.base import Predictor
from vaiom.corpus.build import CorpusConfig
from vaiom.corpus.splits import TRAIN, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.corpus.tokenizer import Tokenizer
from vaiom.features.fields import EXTRA_FIELDS
from vaiom.files import sha256_of
from vaiom.market.folder import PRICE_COLUMNS
from vaiom.training.windows import Sampler
from verification.leaks.markets import Market, real_market, simulated_market

CONTEXT = 32
AUDIT = AuditConfig(cuts=2, rare_cuts=0, seed=5)
RARE = AuditConfig(cuts=0, seed=5)


def make_pipeline(
    splits: SplitConfig, kind: type[Pipeline] = Pipeline, predictor: Predictor | None = None
) -> Pipeline:
    """The product's own unless told, with windows and fits that are quick."""
    config, fits = CorpusConfig(splits=splits), ("frequency", "ewma_t")
    return kind(config, model=widest_model(CONTEXT), predictor=predictor, baselines=fits)


def changed(corpus: Corpus, **values: np.ndarray) -> Corpus:
    """A corpus with other values in place of those that it works out itself."""
    other = replace(corpus)
    # Attributes of a class of its own come before properties that are worked out.
    object.__setattr__(other, "__class__", type("Changed", (type(corpus),), values))
    return other


def next_of(corpus: Corpus, values: np.ndarray) -> np.ndarray:
    """The value of the row after each row of the same asset; the last row keeps its own."""
    out = values.copy()
    for rows in corpus.asset_slices.values():
        out[rows][:-1] = values[rows][1:]
    return out


class WindowWideNormalisation(Pipeline):
    """A window is normalised by its own mean and deviation, its target row included."""

    def windows(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        cont = corpus.cont.astype(np.float64)
        x = cont[np.minimum(rows[:, None] + np.arange(1 - CONTEXT, 2), len(cont) - 1)]
        return ((x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-9))[:, :-1]


class AssetWideNormalisation(Pipeline):
    """Features are normalised over an asset's whole history."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        cont = corpus.cont.astype(np.float64)
        for rows in corpus.asset_slices.values():
            cont[rows] = (cont[rows] - cont[rows].mean(0)) / (cont[rows].std(0) + 1e-9)
        return changed(corpus, cont=cont)


class EdgesOnAllData(Pipeline):
    """Bucket edges are fitted on every event there is."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        far = [datetime(2100 + year, 1, 1) for year in range(4)]
        everything = SplitConfig(
            train_end=far[0], validation=(far[1], far[2]), tests=(), seal=far[3]
        )
        return super().corpus(bars, tokenizer or make_pipeline(everything).corpus(bars).tokenizer)


class SigmaWithTarget(Pipeline):
    """The scale that divides the next return has already seen it."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        return replace(
            corpus, columns={**corpus.columns, "sigma20": next_of(corpus, corpus.sigma20)}
        )


class ShuffledSplit(Pipeline):
    """Events are dealt to Train and Validation at random."""

    def splits(self, corpus: Corpus) -> dict[str, np.ndarray]:
        splits = super().splits(corpus)
        rows = np.concatenate([splits[TRAIN], splits[VALIDATION]])
        is_train = rows % 5 != 0
        return {**splits, TRAIN: rows[is_train], VALIDATION: rows[~is_train]}

    def sampler(self, corpus: Corpus) -> Sampler:
        return Sampler(self.splits(corpus)[TRAIN], 0, 16)


def daily_among_hours(bars: Bars) -> dict[str, pl.DataFrame]:
    """The first bar of every day carries the High, Low and volume of the whole day."""
    day = pl.col("Datetime").dt.date()
    first = pl.col("Datetime") == pl.col("Datetime").min().over(day)

    def whole(column: pl.Expr) -> pl.Expr:
        return pl.when(first).then(column.over(day)).otherwise(pl.col(column.meta.output_name()))

    columns = [
        whole(each) for each in (pl.col("High").max(), pl.col("Low").min(), pl.col("Volume").sum())
    ]
    return {symbol: frame.with_columns(columns) for symbol, frame in bars.items()}


class DailyBarInsideTheHours(Pipeline):
    """The pipeline puts the day's range into its first hour."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        return super().corpus(daily_among_hours(bars), tokenizer)


class CentredEwma(Pipeline):
    """The scale is smoothed from both sides."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        sigma = corpus.sigma20.copy()
        for rows in corpus.asset_slices.values():
            backwards = (
                pl.Series(sigma[rows][::-1]).ewm_mean(span=20, adjust=False).to_numpy()[::-1]
            )
            sigma[rows] = (sigma[rows] + backwards) / 2
        return replace(corpus, columns={**corpus.columns, "sigma20": sigma})


class ScalerOnValidation(Pipeline):
    """Mean and deviation of the features come from Validation."""

    def hashes(self, corpus: Corpus) -> dict[str, str]:
        seen = corpus.cont[corpus.endpoints("validation", CONTEXT)].astype(np.float64)
        moments = np.stack([seen.sum(0), (seen**2).sum(0)])
        return {**super().hashes(corpus), "scaler": sha256_of(moments.tobytes())}


class NextVolume(Pipeline):
    """A feature is the volume of the bar that is to be predicted."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        volume = np.concatenate(
            [bars[symbol]["Volume"].to_numpy() for symbol in corpus.asset_slices]
        )
        return changed(corpus, cont=np.column_stack([corpus.cont, next_of(corpus, volume)]))


class ForwardJoin(Pipeline):
    """Another asset's close is joined from the nearest bar that comes after the row."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        other = bars[max(bars)].select(
            (pl.col("Datetime") - timedelta(minutes=1)).alias("Datetime"), "Close"
        )
        joined = [
            bars[symbol]
            .select("Datetime")
            .join_asof(other, on="Datetime", strategy="forward")["Close"]
            .to_numpy()
            for symbol in corpus.asset_slices
        ]
        return changed(
            corpus, cont=np.column_stack([corpus.cont, next_of(corpus, np.concatenate(joined))])
        )


class OutliersOfTheWholeSample(Pipeline):
    """Rows beyond a quantile of all moves, the later ones included, are dropped before anything is
    computed.
    """

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        move = pl.col("Close").log().diff().abs().fill_null(0.0)
        kept = {symbol: frame.filter(move <= move.quantile(0.99)) for symbol, frame in bars.items()}
        return super().corpus(kept, tokenizer)


class SplitByTheRow(Pipeline):
    """An event is put into a split by the time of its row instead of its target's."""

    def splits(self, corpus: Corpus) -> dict[str, np.ndarray]:
        codes, rows = corpus.splits.codes(corpus.timestamps), np.flatnonzero(corpus.valid_base)
        return {
            name: rows[codes[rows] == corpus.splits.code(name)] for name in super().splits(corpus)
        }


class ValidationAgainInTrain(Pipeline):
    """Some Validation events are in Train too."""

    def splits(self, corpus: Corpus) -> dict[str, np.ndarray]:
        splits = super().splits(corpus)
        return {**splits, TRAIN: np.concatenate([splits[TRAIN], splits[VALIDATION][::50]])}


class SamplerPastTrain(Pipeline):
    """Splits are right, but windows are drawn from a few rows later."""

    def sampler(self, corpus: Corpus) -> Sampler:
        return Sampler(self.splits(corpus)[TRAIN][-24:] + 24, 0, 16)


class Restamped(Pipeline):
    """Bars are stamped an hour too early, as a right edge read as a left one would be."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        early = {
            s: f.with_columns(pl.col("Datetime") - timedelta(hours=1)) for s, f in bars.items()
        }
        return super().corpus(early, tokenizer)


class BatchNormalisedModel:
    """The model's answer depends on what it is asked together with."""

    name = "batch_normalised"

    def predict_proba(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        ret_z = corpus.cont[rows, 0].astype(np.float64)
        up = (1 + np.tanh(ret_z - ret_z.mean())) / 2
        return np.stack([1 - up, up], axis=1)


class PeekingModel:
    """Inputs are right, but the model reads one row too many."""

    name = "peeking"

    def predict_proba(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        up = (1 + np.tanh(next_of(corpus, corpus.cont[:, 0])[rows])) / 2
        return np.stack([1 - up, up], axis=1)


class LongerTarget(Pipeline):
    """The target reaches over several bars, while its stamp is that of the first."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        return changed(
            corpus, log_ret_next=corpus.log_ret_next + next_of(corpus, corpus.log_ret_next)
        )


def thinned(bars: Bars) -> dict[str, pl.DataFrame]:
    """Two bars of a hundred have no prices, and as many are not there at all."""
    out = {}
    for number, (symbol, frame) in enumerate(bars.items()):
        drawn = np.random.default_rng(number).random(len(frame))
        prices = pl.when(pl.Series(drawn > 0.02)).then(pl.col(PRICE_COLUMNS))
        out[symbol] = frame.with_columns(prices).filter(pl.Series(drawn < 0.98))
    return out


class BackFilledPrices(Pipeline):
    """A bar without prices gets those of the next one."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        filled = pl.col(PRICE_COLUMNS).fill_null(strategy="backward")
        return super().corpus({s: f.with_columns(filled) for s, f in bars.items()}, tokenizer)


class BackFilledStamps(Pipeline):
    """A bar that is not there is made from the next one."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        out = {}
        for symbol, frame in bars.items():
            hourly = frame.upsample("Datetime", every="1h")
            near = hourly.with_columns(
                pl.all().exclude("Datetime").fill_null(strategy="backward", limit=1)
            )
            out[symbol] = near.filter(pl.col("Volume").is_not_null())
        return super().corpus(out, tokenizer)


class FridaysAtNoon(Pipeline):
    """What other assets did is known an hour early, once a week."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        extra, hours = (
            corpus.extra.copy(),
            corpus.timestamps.astype("datetime64[h]").astype(np.int64),
        )
        friday_noon = (hours + 3 * 24) % 168 == 4 * 24 + 12  # the epoch was a Thursday
        cross = EXTRA_FIELDS.index("cross_abs")
        extra[friday_noon, cross] = next_of(corpus, extra)[friday_noon, cross]
        return changed(corpus, extra=extra)


def next_sign_at(corpus: Corpus, moments: np.ndarray) -> Corpus:
    """The direction of the next move in a field of the rows at some moments."""
    extra = corpus.extra.copy()
    cross = EXTRA_FIELDS.index("cross_abs")
    later = next_of(corpus, np.nan_to_num(corpus.columns["log_ret"]))
    extra[moments, cross] = np.sign(later[moments])
    return changed(corpus, extra=extra)


def is_weekday_of_month(corpus: Corpus, weekday: int, week: int, hour: int) -> np.ndarray:
    """Rows at an hour of one weekday (Monday is 0) of one week of each month (the first is 1)."""
    stamps = pl.Series(corpus.timestamps.astype("datetime64[us]"))
    own = stamps.dt.weekday() - 1 == weekday
    own &= (stamps.dt.day() - 1) // 7 + 1 == week
    return (own & (stamps.dt.hour() == hour)).to_numpy()


class FirstFridayOfTheMonth(Pipeline):
    """The hour of the payrolls holds the direction of the next bar, once a month."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        return next_sign_at(corpus, is_weekday_of_month(corpus, weekday=4, week=1, hour=13))


class ThirdWednesdayOfTheMonth(Pipeline):
    """So does the hour of a central bank's decisions."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        return next_sign_at(corpus, is_weekday_of_month(corpus, weekday=2, week=3, hour=18))


class OneDayOfTheYear(Pipeline):
    """All hours of one date hold the direction of the next bar."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        corpus = super().corpus(bars, tokenizer)
        stamps = pl.Series(corpus.timestamps.astype("datetime64[us]"))
        own = (stamps.dt.month() == 4) & (stamps.dt.day() == 22)
        return next_sign_at(corpus, own.to_numpy())


class LargeMovesDropped(Pipeline):
    """Test events beyond two sigmas are not scored."""

    def splits(self, corpus: Corpus) -> dict[str, np.ndarray]:
        splits = super().splits(corpus)
        test = splits["test-h1"]
        move = np.abs(corpus.log_ret_next[test] / corpus.sigma20[test])
        return {**splits, "test-h1": test[move <= 2]}


def held_out_bars_a_year_before(bars: Bars) -> dict[str, pl.DataFrame]:
    """Later bars of an asset again, under another symbol, at the same hours 364 days before."""
    frame = bars[min(bars)]
    later = frame[int(0.7 * len(frame)) :].with_columns(pl.col("Datetime") - timedelta(days=364))
    noise = pl.Series(1 + 1e-5 * np.sin(np.arange(len(later))))
    return {**bars, "ZZZUSD": later.with_columns(pl.col(PRICE_COLUMNS) * noise * 3)}


def tied(bars: Bars) -> dict[str, pl.DataFrame]:
    """Two assets that move together, as real ones do."""
    one, two = min(bars), max(bars)
    other = bars[one].select(
        "Datetime", (pl.col("Close") / pl.col("Close").first()).alias("factor")
    )
    joined = bars[two].join(other, on="Datetime", how="inner", maintain_order="left")
    return {
        one: bars[one],
        two: joined.with_columns(pl.col(PRICE_COLUMNS) * pl.col("factor")).drop("factor"),
    }


def one_asset_early(bars: Bars) -> dict[str, pl.DataFrame]:
    """One of them is stamped an hour early, in the source's file."""
    out = tied(bars)
    return out | {max(out): out[max(out)].with_columns(pl.col("Datetime") - timedelta(hours=1))}


def one_asset_early_on_fridays(bars: Bars) -> dict[str, pl.DataFrame]:
    """One of them is stamped an hour early on Fridays alone."""
    out = tied(bars)
    stamp = pl.col("Datetime")
    stamps = pl.when(stamp.dt.weekday() == 5).then(stamp - timedelta(hours=1)).otherwise(stamp)
    early = out[max(out)].with_columns(Datetime=stamps)
    return out | {max(out): early.unique("Datetime", keep="last", maintain_order=True)}


@dataclass(frozen=True, kw_only=True)
class Leak:
    name: str
    pipeline: type[Pipeline] = Pipeline
    predictor: Predictor | None = None
    caught_by: str
    spoil: Callable[[Bars], Bars] = lambda bars: bars
    """What was done to the bars before anyone saw them."""
    config: AuditConfig = AUDIT


LEAKS = (
    Leak(name="window-wide normalisation", pipeline=WindowWideNormalisation, caught_by="a. future"),
    Leak(name="edges fitted on all data", pipeline=EdgesOnAllData, caught_by="b. refit"),
    Leak(name="sigma with the target inside", pipeline=SigmaWithTarget, caught_by="a. future"),
    Leak(name="a shuffled split", pipeline=ShuffledSplit, caught_by="c. chronology"),
    Leak(
        name="a daily bar inside the hours", pipeline=DailyBarInsideTheHours, caught_by="a. future"
    ),
    Leak(name="the same, in the source's file", caught_by="prices", spoil=daily_among_hours),
    Leak(name="a centred EWMA", pipeline=CentredEwma, caught_by="a. future"),
    Leak(name="a scaler fitted on Validation", pipeline=ScalerOnValidation, caught_by="b. refit"),
    Leak(name="asset-wide normalisation", pipeline=AssetWideNormalisation, caught_by="a. future"),
    Leak(name="the target bar's volume", pipeline=NextVolume, caught_by="a. future"),
    Leak(name="a forward join of another asset", pipeline=ForwardJoin, caught_by="a. future"),
    Leak(
        name="outliers of the whole sample dropped",
        pipeline=OutliersOfTheWholeSample,
        caught_by="a. future",
    ),
    Leak(name="bars stamped an hour early", pipeline=Restamped, caught_by="a. future"),
    Leak(name="a split by the row's time", pipeline=SplitByTheRow, caught_by="c. chronology"),
    Leak(
        name="Validation events again in Train",
        pipeline=ValidationAgainInTrain,
        caught_by="c. chronology",
    ),
    Leak(
        name="a sampler that runs past Train", pipeline=SamplerPastTrain, caught_by="c. chronology"
    ),
    Leak(name="a target longer than its stamp says", pipeline=LongerTarget, caught_by="a. future"),
    Leak(
        name="a model that reads one row too many", predictor=PeekingModel(), caught_by="a. future"
    ),
    Leak(
        name="a model that normalises over its batch",
        predictor=BatchNormalisedModel(),
        caught_by="d. neighbours",
    ),
    Leak(
        name="prices back-filled",
        pipeline=BackFilledPrices,
        caught_by="a. future",
        spoil=thinned,
        config=RARE,
    ),
    Leak(
        name="bars back-filled",
        pipeline=BackFilledStamps,
        caught_by="a. future",
        spoil=thinned,
        config=RARE,
    ),
    Leak(
        name="a look ahead on Fridays at noon",
        pipeline=FridaysAtNoon,
        caught_by="a. future",
        config=RARE,
    ),
    Leak(
        name="a look ahead on first Fridays",
        pipeline=FirstFridayOfTheMonth,
        caught_by="a. future",
        config=RARE,
    ),
    Leak(
        name="a look ahead on third Wednesdays",
        pipeline=ThirdWednesdayOfTheMonth,
        caught_by="a. future",
        config=RARE,
    ),
    Leak(
        name="a look ahead on one day of the year",
        pipeline=OneDayOfTheYear,
        caught_by="a. future",
        config=RARE,
    ),
    Leak(name="large test moves dropped", pipeline=LargeMovesDropped, caught_by="c. chronology"),
    Leak(name="test bars a year before", caught_by="duplicates", spoil=held_out_bars_a_year_before),
    Leak(name="one asset stamped early", caught_by="lead-lag", spoil=one_asset_early),
    Leak(name="one asset early on Fridays", caught_by="lead-lag", spoil=one_asset_early_on_fridays),
)


def audit_pipeline(pipeline: Pipeline, bars: Bars, config: AuditConfig) -> list[Proof]:
    """Everything that bars and a pipeline can prove."""
    corpus = pipeline.corpus(bars)
    moves = returns_of_corpus(corpus)
    proofs = [
        prove_prices(bars),
        prove_lead_lag(moves),
        prove_duplicates(moves, spans_of(corpus, pipeline.splits(corpus))),
        prove_future(pipeline, bars, corpus, config),
        prove_refit(pipeline, bars, corpus, config.seed),
        prove_chronology(pipeline, corpus),
    ]
    if pipeline.predictor is not None:
        proofs.append(prove_neighbours(pipeline, corpus, config.seed))
    return proofs


def failed_proofs(market: Market, leak: Leak) -> list[str]:
    pipeline = make_pipeline(market.splits, leak.pipeline, leak.predictor)
    proofs = audit_pipeline(pipeline, leak.spoil(market.bars), leak.config)
    return [proof.name for proof in proofs if proof.verdict == FAILED]


def print_table(markets: dict[str, Market]) -> None:
    print(f"| pipeline | {' | '.join(f'caught on {name} bars by' for name in markets)} |")
    print(f"|---|{'---|' * len(markets)}")
    honest = Leak(name="(the product's own)", caught_by="")
    for leak in (*LEAKS, honest):
        caught = [
            ", ".join(failed_proofs(market, leak)) or "nothing" for market in markets.values()
        ]
        print(f"| {leak.name} | {' | '.join(caught)} |", flush=True)


if __name__ == "__main__":
    chosen = {"simulated": simulated_market()}
    if len(sys.argv) > 1:
        chosen["real"] = real_market(Path(sys.argv[1]))
    print_table(chosen)
