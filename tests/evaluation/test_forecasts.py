"""`vaiom score`: other people's forecasts on our events, what they become, and everything that is
refused.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import norm
from simulated_market import TINY_SPLITS, TinyRuns

import vaiom as package
from cli.command_line import Vaiom, require_refusal
from strategies import random_bars
from vaiom.baselines.counts import Frequency
from vaiom.codec import to_json
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.distribution.shape import ReturnShape, Tail
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.access_ledger import read_ledger
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.quantiles import quantile_buckets
from vaiom.evaluation.record import ForecastScore
from vaiom.evaluation.scores import event_bits, losses_of, read_events
from vaiom.market.folder import write_symbol
from vaiom.run import Run

CONTEXT = 16
HOUR = np.timedelta64(1, "h")
LEVELS = norm.cdf(np.linspace(-5, 5, 101)).tolist()


@pytest.fixture(scope="module", autouse=True)
def few_replicates() -> Iterator[None]:
    """Every scoring draws a confidence set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaiom.evaluation.inference.CONFIDENCE_SET_REPLICATES", 50)
        yield


@pytest.fixture(scope="module")
def place(tiny: TinyRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a run evaluated on its Validation, and stored baselines."""
    folder = tmp_path_factory.mktemp("scored")
    shutil.copytree(tiny.corpus, folder / "corpus")
    shutil.copytree(tiny.runs[0], folder / "run")
    corpus = open_corpus(folder / "corpus")
    package.fit_baselines(
        corpus, folder / "baselines", only=["frequency", "ewma_t"], context=CONTEXT
    )
    evaluate_run(folder / "run", corpus, "validation", device="cpu")
    return folder


@pytest.fixture(scope="module")
def corpus(place: Path) -> Corpus:
    return open_corpus(place / "corpus")


@pytest.fixture(scope="module")
def rows(corpus: Corpus) -> np.ndarray:
    return corpus.endpoints("validation", CONTEXT)


def keys(corpus: Corpus, rows: np.ndarray) -> dict[str, Any]:
    names = np.array(["", *corpus.tokenizer.symbols])
    return {
        "symbol": names[corpus.meta[rows, 0]],
        "time": corpus.timestamps[rows].astype("datetime64[ms]"),
    }


def uniform(corpus: Corpus, rows: np.ndarray) -> pl.DataFrame:
    """Sixteen equal probabilities after each row."""
    return pl.DataFrame(
        {
            **keys(corpus, rows),
            **{f"p{bucket}": np.full(len(rows), 1 / 16) for bucket in range(1, 17)},
        }
    )


def score(table: Any, corpus: Corpus, **options: Any) -> Any:
    return package.score(table, corpus, context=CONTEXT, **options)


def test_our_own_forecasts_have_the_very_bits_of_evaluate(place: Path, corpus: Corpus) -> None:
    evaluated = json.loads(Run(place / "run").evaluation("validation").read_text())
    events = pl.read_parquet(place / "run" / "events-validation.parquet")
    probs = {f"p{bucket}": events[f"prob_{bucket}"] for bucket in range(1, 17)}
    exported = pl.DataFrame(
        {"symbol": events["symbol"], "target_time": events["target_time"], **probs}
    )
    exported.sample(fraction=1, shuffle=True, seed=1).write_csv(place / "ours.csv")
    files = (place / "ours.csv", str(place / "run" / "events-validation.parquet"))
    for table in (*files, exported.to_pandas(), exported.lazy()):
        found = to_json(score(table, corpus))
        assert found["num_missing"] == 0
        assert found["bits"] == pytest.approx(evaluated["bits"], abs=1e-9)
        for part in ("against", "confidence_set", "by", "calibration", "backtests", "sample"):
            assert numbers_of(found[part]) == pytest.approx(numbers_of(evaluated[part]), abs=1e-9)


def numbers_of(figures: Any) -> list[float]:
    """Every number of a tree of figures, in order."""
    parts = figures.values() if isinstance(figures, dict) else figures
    if isinstance(figures, dict | list):
        return [number for part in parts for number in numbers_of(part)]
    return [figures] if isinstance(figures, float) else []


def test_a_run_and_stored_baselines_are_scored_on_exactly_the_common_events(
    place: Path, corpus: Corpus, rows: np.ndarray, vaiom: Vaiom
) -> None:
    common = rows[::2]
    (place / "half.csv.gz").write_bytes(gzip.compress(uniform(corpus, common).write_csv().encode()))
    words = f"score {place}/half.csv.gz --corpus {place}/corpus --context {CONTEXT} --name flat"
    words = [*words.split(), "--against", place / "run", "--baselines", place / "baselines"]
    found = vaiom(*words, "--json").json()
    assert [*found["bits"]] == ["model", "run run", "markov", "hour_of_week", "frequency", "ewma_t"]
    assert found["bits"]["model"] == 4.0
    assert (found["seed"], found["step"], found["baselines"]) == (0, 0, str(place / "baselines"))
    assert (found["corpus"], found["corpus_sha256"]) == (str(corpus.path), corpus.sha256)
    assert found["run_sha256"] == evaluated_sha256(place)
    [frequency] = losses_of([Frequency()], corpus, common, CONTEXT).values()
    assert found["bits"]["frequency"] == frequency.mean()
    events = pl.read_parquet(place / "run" / "events-validation.parquet")
    assert found["bits"]["run run"] == pytest.approx(
        events["bits_model"].to_numpy()[::2].mean(), abs=1e-12
    )
    assert (found["experiment"], found["form"], found["num_missing"]) == (
        "flat",
        "probabilities",
        len(rows) - len(common),
    )
    assert "Kept in" not in vaiom(*words).err
    said = vaiom(*words, "--all", "--save")
    assert said.code == 0
    assert str(place / "run/forecasts/flat") in said.err.replace("\n", "")
    assert to_json(ForecastScore.read(place / "run/forecasts/flat", "validation")) == found
    kept = read_events(place / "run/forecasts/flat", "validation")
    assert kept.mean_bits == found["bits"]
    assert (kept.probs == 1 / 16).all()
    require_refusal(
        vaiom(*words, "--save", "--name", "../flat"), "a name that no folder should have"
    )
    words[words.index("--against") + 1] = "fx-1h-evidence"
    require_refusal(vaiom(*words, "--save"), "a packaged model is not written into")
    del words[words.index("--against") :]
    require_refusal(vaiom(*words, "--save"), "forecasts are saved in a run")
    assert f"{len(common):,} events) flat needs 4.0000 bits" in said.out.replace("\n", " ")
    assert f"{len(rows) - len(common):,} of the {len(rows):,} events" in said.err.replace("\n", " ")
    assert "bits per event by asset" in said.out


def test_risk_is_told_to_be_of_the_buckets_and_not_of_the_quantiles(
    place: Path, corpus: Corpus, rows: np.ndarray, tmp_path: Path, vaiom: Vaiom
) -> None:
    """The limits that a table names itself may be exceeded at another rate than those of its
    buckets.
    """
    levels = {f"q{level}": norm.ppf(level) * corpus.sigma20[rows] for level in (0.05, 0.5, 0.95)}
    pl.DataFrame({**keys(corpus, rows), **levels}).write_csv(tmp_path / "wide.csv")
    uniform(corpus, rows).write_csv(tmp_path / "flat.csv")
    told = "made from these quantiles"
    for name, expected in (("wide", True), ("flat", False)):
        words = f"score {tmp_path}/{name}.csv --corpus {place}/corpus --context {CONTEXT}"
        assert (told in vaiom(*words.split()).out.replace("\n", " ")) is expected


def evaluated_sha256(place: Path) -> str:
    return str(
        json.loads(Run(place / "run").evaluation("validation").read_text())["checkpoint_sha256"]
    )


def test_quantiles_and_samples_of_a_normal_distribution_have_its_bits(
    corpus: Corpus, rows: np.ndarray
) -> None:
    sigma = corpus.sigma20[rows].astype(np.float64)
    mean, scale = 0.2 * sigma, 1.1 * sigma
    bounds = corpus.edges["return"] * sigma[:, None]
    exact, came = (
        np.diff(norm.cdf(bounds, mean[:, None], scale[:, None]), axis=1),
        corpus.target_return[rows],
    )
    quantiles = {
        f"q{level}": norm.ppf(level, mean, scale) for level in reversed(LEVELS)
    }  # in any order
    found = score({**keys(corpus, rows), **quantiles}, corpus)
    assert (found.form, found.bits["model"]) == (
        "quantiles",
        pytest.approx(event_bits(exact, came).mean(), abs=1e-3),
    )

    draws = norm.ppf((np.arange(500) + 0.5) / 500)
    wide = {f"s{number}": mean + scale * draw for number, draw in enumerate(draws, start=1)}
    found = score({**keys(corpus, rows), **wide, "s501": np.zeros(len(rows))}, corpus)
    train = Frequency().fit(corpus, corpus.endpoints("train", CONTEXT)).predict_proba(corpus, rows)
    exact = (500 * exact + 8 * train) / 508
    assert (found.form, found.bits["model"]) == (
        "samples",
        pytest.approx(event_bits(exact, came).mean(), abs=4e-3),
    )
    some = pl.DataFrame({**keys(corpus, rows), **wide})[::20]
    long = some.unpivot(index=["symbol", "time"], value_name="sample")
    assert score(long, corpus).bits["model"] == pytest.approx(
        score(some, corpus).bits["model"], abs=1e-12
    )


def test_between_quantiles_probability_is_even_and_beyond_them_it_falls_as_the_tails_of_train_do() -> (
    None
):
    shape = ReturnShape(
        knots=np.arange(17.0), lower=Tail(scale=3.0, shape=0.2), upper=Tail(scale=5.0, shape=0.4)
    )
    levels, quantiles = [0.1, 0.4, 0.9], np.array([[-1.0, 0.0, 2.0], [0.0, 1.0, 4.0]])
    bounds = np.array([[-3.0, -1.5, -0.5, 1.0, 2.5, 4.0], [-1.0, -0.5, 0.5, 2.5, 5.0, 6.0]])

    def below(place: float, own: np.ndarray) -> float:
        if place < own[0]:
            density = 0.3 / (own[1] - own[0])
            return 0.1 * (1 + 0.2 * (own[0] - place) * density / 0.1) ** (-1 / 0.2)
        if place > own[2]:
            density = 0.5 / (own[2] - own[1])
            return 1 - 0.1 * (1 + 0.4 * (place - own[2]) * density / 0.1) ** (-1 / 0.4)
        left = 0 if place < own[1] else 1
        return levels[left] + (levels[left + 1] - levels[left]) * (place - own[left]) / (
            own[left + 1] - own[left]
        )

    expected = [
        np.diff([0, *(below(place, own) for place in places), 1])
        for places, own in zip(bounds, quantiles, strict=True)
    ]
    np.testing.assert_allclose(
        quantile_buckets(levels, quantiles, bounds, shape), expected, rtol=1e-9
    )


def test_three_quantiles_leave_no_bucket_without_probability(
    corpus: Corpus, rows: np.ndarray
) -> None:
    sigma = corpus.sigma20[rows]
    few = {str(level): norm.ppf(level) * sigma for level in (0.1, 0.5, 0.9)}
    assert score({**keys(corpus, rows), **few}, corpus).bits["model"] < 5
    assert score({**keys(corpus, rows), "sample": np.zeros(len(rows))}, corpus).bits[
        "model"
    ] == pytest.approx(
        losses_of([Frequency()], corpus, rows, CONTEXT)["frequency"].mean(), abs=1e-12
    )


def test_a_source_is_one_method(corpus: Corpus, rows: np.ndarray) -> None:
    class Uniform:
        def forecast(self, corpus: Corpus, rows: np.ndarray) -> dict[str, Any]:
            return {**uniform(corpus, rows).to_dict(), "time": corpus.timestamps[rows]}

    found = score(Uniform(), corpus, name="flat")
    assert found.bits["model"] == 4.0
    assert repr(found).startswith(
        f"<ForecastScore of flat on validation, {len(rows):,} events, bits: model 4.0000,"
    )
    assert len(repr(found)) < 200
    assert asdict(found)["num_missing"] == 0


def broken(frame: pl.DataFrame, **columns: Any) -> pl.DataFrame:
    """The table with another value in the third line of some columns."""
    third = pl.int_range(pl.len()) == 2
    return frame.with_columns(
        pl.when(third).then(value).otherwise(pl.col(name)).alias(name)
        for name, value in columns.items()
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: broken(t, symbol=pl.lit("DOGE")), "does not have this symbol"),
        (lambda t: pl.concat([t, t[5:6]]), "more than once"),
        (lambda t: broken(t, p4=pl.lit(0.0635)), "do not sum to one"),
        (lambda t: broken(t, p4=pl.lit(-0.1), p5=pl.lit(1 / 8 + 0.1)), "negative"),
        (lambda t: broken(t, p4=pl.lit(float("nan"))), "not a finite number"),
        (lambda t: broken(t, p4=pl.lit(None)), "not a finite number"),
        (lambda t: broken(t, time=pl.lit(None)), "stamp cannot be read"),
        (lambda t: t.drop("p7"), "not a table of forecasts"),
        (lambda t: t.drop("time"), "not a table of forecasts"),
        (lambda t: t.with_columns(target_time=pl.col("time")), "after its target began"),
        (
            lambda t: t.with_columns(target_time=pl.col("time") + HOUR * 2),
            "another bar than the next",
        ),
        (lambda t: t.with_columns(pl.col("time") + HOUR), "they fit 1 bar(s) earlier"),
        (lambda t: t.with_columns(pl.col("time") - HOUR), "they fit 1 bar(s) later"),
        (lambda t: t.with_columns(pl.col("time") + 2 * HOUR), "they fit 2 bar(s) earlier"),
        (
            lambda t: t.with_columns(pl.col("time") + np.timedelta64(30, "m")),
            "no forecast belongs to an event",
        ),
        (lambda t: t.rename({"time": "target_time"}), "they fit 1 bar(s) later"),
        (lambda t: t.with_columns(horizon=pl.lit(4)), "of several bars"),
    ],
)
def test_refused(corpus: Corpus, rows: np.ndarray, change: Any, says: str) -> None:
    with pytest.raises(DataError, match=says.replace("(", r"\(").replace(")", r"\)")):
        score(change(uniform(corpus, rows)), corpus)


def test_a_refusal_shows_the_first_line_and_counts_all(corpus: Corpus, rows: np.ndarray) -> None:
    table = uniform(corpus, rows)
    wrong = pl.int_range(pl.len()).is_in([2, 5])
    with pytest.raises(DataError) as caught:
        score(table.with_columns(p4=pl.when(wrong).then(0.5).otherwise(pl.col("p4"))), corpus)
    shown = ", ".join(["0.0625"] * 3 + ["0.5"] + ["0.0625"] * 12)
    assert caught.value.where == "forecast 3"
    assert caught.value.got == f"2 of {len(rows):,} lines, the first: {shown}"
    assert caught.value.expected == "16 of them from 0 on, with a sum within 0.0001 of 1"
    late = table.with_columns(pl.col("time") + np.timedelta64(30, "m"))
    with pytest.raises(DataError) as caught:
        score(late, corpus)
    assert caught.value.got == f"{len(rows):,} lines, 0 of them after a bar of the corpus"
    assert caught.value.expected == (
        f"some of {len(rows):,} events, the first after the bar of {corpus.timestamps[rows[0]]}"
    )


def test_a_small_level_may_be_written_as_python_writes_it(corpus: Corpus, rows: np.ndarray) -> None:
    values = [corpus.sigma20[rows] * norm.ppf(level) for level in (1e-5, 0.05, 0.5, 0.95)]
    plain, short = (
        score(pl.DataFrame({**keys(corpus, rows), **dict(zip(names, values, strict=True))}), corpus)
        for names in (("q0.00001", "q0.05", "q0.5", "q0.95"), ("1e-05", "0.05", "0.5", "0.95"))
    )
    assert plain.checkpoint_sha256 == short.checkpoint_sha256


def test_quantiles_that_cross_are_refused(corpus: Corpus, rows: np.ndarray) -> None:
    levels = {f"q{level}": np.full(len(rows), level) for level in (0.1, 0.5, 0.9)}
    with pytest.raises(DataError, match="cross or coincide"):
        score(
            broken(pl.DataFrame({**keys(corpus, rows), **levels}), **{"q0.5": pl.lit(0.9)}), corpus
        )


def test_a_table_of_every_bar_is_taken_and_what_is_no_event_is_told(corpus: Corpus) -> None:
    inside = np.concatenate(
        [np.arange(each.start, each.stop - 1) for each in corpus.asset_slices.values()]
    )
    found = score(uniform(corpus, inside).with_columns(horizon=pl.lit(1)), corpus)
    assert found.num_missing == 0
    assert f"{len(inside) - found.num_events:,} lines of the table" in found.caveats[0]
    evening = inside[corpus.timestamps[inside].astype("datetime64[h]").astype(int) % 24 > 18]
    assert score(uniform(corpus, evening), corpus).num_missing > 0


def test_a_shifted_table_of_every_bar_shows_where_the_market_is_closed(tmp_path: Path) -> None:
    bars = random_bars(3_400, 8)
    write_symbol(tmp_path / "bars", "EURUSD", bars.filter(pl.col("Datetime").dt.weekday() < 6))
    corpus = build_corpus(tmp_path / "bars", tmp_path / "corpus", CorpusConfig(splits=TINY_SPLITS))
    every = uniform(corpus, np.arange(len(corpus) - 1))
    assert score(every, corpus).num_missing == 0
    next_bar = pl.Series(corpus.timestamps[1:].astype("datetime64[ms]"))
    for shifted, says in (
        (pl.col("time") + HOUR, "1 bar.s. earlier"),
        (pl.col("time") - 3 * HOUR, "3 bar.s. later"),
    ):
        with pytest.raises(DataError, match=says):
            score(every.with_columns(shifted), corpus)
    events = corpus.endpoints("validation", CONTEXT)
    with pytest.raises(DataError, match=r"1 bar.s. earlier"):
        score(every.with_columns(time=next_bar)[events], corpus)


@pytest.mark.parametrize("stamp", ["time", "target_time"])
def test_forecasts_of_what_is_not_known_yet_are_not_taken_for_shifted_ones(
    tiny: TinyRuns, tmp_path: Path, stamp: str
) -> None:
    """The last bars of a corpus whose test reaches its end: what a model says now."""
    until = TINY_SPLITS.tests[0][1]
    for number in range(4):  # each ends an hour before the one before it
        bars = random_bars(3_400, number).filter(
            pl.col("Datetime") < until - timedelta(hours=number)
        )
        write_symbol(tmp_path / "bars", f"AB{number}USD", bars)
    corpus = build_corpus(tmp_path / "bars", tmp_path / "corpus", CorpusConfig(splits=TINY_SPLITS))
    last = np.array([inside.stop - 1 for inside in corpus.asset_slices.values()])
    late = HOUR if stamp == "target_time" else 0 * HOUR
    now = uniform(corpus, last).with_columns((pl.col("time") + late).alias(stamp))
    now = now if stamp == "time" else now.drop("time")
    events = corpus.endpoints("test-h1", CONTEXT)
    assert {*corpus.asset_slices} == {*keys(corpus, events[np.isin(events, last - 1)])["symbol"]}
    with pytest.raises(DataError, match="no forecast belongs to an event"):
        score(now, corpus, split="test-h1")
    known = (
        uniform(corpus, events)
        .with_columns((pl.col("time") + late).alias(stamp))
        .select(now.columns)
    )
    assert score(pl.concat([known, now]), corpus, split="test-h1").num_unused == len(now)


def test_each_look_at_a_test_counts_and_train_is_refused(corpus: Corpus) -> None:
    table, before = uniform(corpus, corpus.endpoints("test-h1", CONTEXT)), len(read_ledger(corpus))
    assert score(table, corpus, split="test-h1", name="flat").looks == 1
    assert score(table, corpus, split="test-h1").looks == 2
    looks = read_ledger(corpus)[before:]
    assert [(look.run, look.split, look.num_events) for look in looks] == [
        (name, "test-h1", len(table)) for name in ("flat", "forecasts")
    ]
    with pytest.raises(DataError, match="sum to one"):
        score(broken(table, p1=pl.lit(0.5)), corpus, split="test-h1")
    assert len(read_ledger(corpus)) == before + 2
    with pytest.raises(ConfigError, match="not held out"):
        score(table, corpus, split="train")


def test_files_that_are_none_and_runs_of_other_events_are_refused(
    place: Path, corpus: Corpus, rows: np.ndarray, vaiom: Vaiom, tmp_path: Path
) -> None:
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "noise.csv").write_bytes(bytes(range(256)))
    for name in ("empty.csv", "noise.csv", "absent.csv", "absent.parquet", "."):
        require_refusal(vaiom("score", tmp_path / name, "--corpus", place / "corpus"))
    shutil.copytree(place / "run", tmp_path / "run")
    file = Run(tmp_path / "run").events("validation")
    events = pl.read_parquet(file)
    events.with_columns(bucket=17 - pl.col("bucket")).write_parquet(file)
    with pytest.raises(DataError, match="other events than the corpus has"):
        score(uniform(corpus, rows), corpus, against=tmp_path / "run")
    events.head(100).write_parquet(file)
    found = score(uniform(corpus, rows), corpus, against=str(tmp_path / "run"))
    assert (found.num_events, found.num_missing) == (100, len(rows) - 100)
