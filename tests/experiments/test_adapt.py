"""A model on bars that it was not trained on: a corpus with its buckets, its figures there, and going on from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import vaiom as package
from cli.command_line import Vaiom, require_refusal
from forecast.forecast_runs import TinyRun, tiny_run
from strategies import random_bars
from training.tiny_runs import SPLITS
from vaiom.audit.provenance import config_of, prove_repeat
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.horizons import events_name
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import read_events
from vaiom.events.build import CorpusConfig, append_bars, build_corpus
from vaiom.events.corpus import Corpus, open_corpus
from vaiom.events.fit import bucket_of
from vaiom.events.splits import TRAIN, VALIDATION
from vaiom.experiments.refit import AS_IT_WAS, SHORT, STEPS_A_PASS, Adapted, adapt, fit_horizons
from vaiom.forecast.bars import MIN_BARS
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import load_checkpoint
from vaiom.model.vaiom import ASSET_TABLE
from vaiom.run import Run
from vaiom.training.experiment import experiment_of_checkpoint
from vaiom.training.windows import predict_probabilities

SETTINGS = ("steps=6", "validate_every=2", "log_every=2", "learning_rate=1e-3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    bars = {symbol: random_bars(1_700, seed) for seed, symbol in enumerate(("EURUSD", "XAUUSD"))}
    return tiny_run(tmp_path_factory.mktemp("trained"), bars)


@pytest.fixture(scope="module")
def new_bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One asset that the model knows, and the same prices under a name that it does not know."""
    folder = tmp_path_factory.mktemp("new-bars")
    for symbol in ("EURUSD", "GBPJPY"):
        write_symbol(folder, symbol, random_bars(1_700, 0))
    return folder


@pytest.fixture(scope="module")
def corpus(trained: TinyRun, new_bars: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return package.build_corpus(new_bars, tmp_path_factory.mktemp("like") / "corpus", like=trained.run)


@pytest.fixture(scope="module")
def adapted(trained: TinyRun, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    out = tmp_path_factory.mktemp("adapted") / "run"
    return adapt(corpus, trained.run, out, settings=SETTINGS, against=[trained.run], device="cpu")


def test_a_corpus_like_a_model_has_its_buckets_and_its_own_assets(
    trained: TinyRun, new_bars: Path, corpus: Corpus, tmp_path: Path
) -> None:
    own, theirs = corpus.tokenizer, trained.corpus.tokenizer
    assert own.symbols == ("EURUSD", "GBPJPY")
    assert own.has_buckets_of(theirs)
    assert own.sha256 != theirs.sha256
    assert corpus.splits == trained.corpus.splits == SPLITS
    assert not build_corpus(new_bars, tmp_path / "own", CorpusConfig(splits=SPLITS)).tokenizer.has_buckets_of(theirs)
    # The folder says so itself: audits, appends and moved boundaries keep these buckets.
    assert build_corpus(new_bars, tmp_path / "again", config_of(open_corpus(corpus.path))).sha256 == corpus.sha256


@pytest.fixture(scope="module")
def with_horizons(trained: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("horizons") / "run"
    shutil.copytree(trained.run, run)
    fit_horizons(run, trained.corpus, (4, 8), device="cpu")
    return run


def test_horizons_of_other_assets_are_judged_as_they_are_served(with_horizons: Path, tmp_path: Path) -> None:
    """An asset of a class that the model never saw, and one that has another number in its corpus."""
    for seed, symbol in enumerate(("BTCUSD", "XAUUSD")):
        write_symbol(tmp_path / "bars", symbol, random_bars(1_700, seed))
    corpus = package.build_corpus(tmp_path / "bars", tmp_path / "corpus", like=with_horizons)
    evaluate_run(with_horizons, corpus, VALIDATION, out=tmp_path / "out", device="cpu")
    forecaster = package.Forecaster.load(with_horizons)
    bars = package.read_bars(tmp_path / "bars")
    for horizon in (1, 4, 8):
        name = VALIDATION if horizon == 1 else events_name(VALIDATION, horizon)
        events = read_events(tmp_path / "out", name)
        assert set(events.symbols) == {*bars}
        for symbol, served in forecaster.predict_all(dict(bars), horizon=horizon).items():
            own = events.symbols == symbol
            at = np.searchsorted(served.as_of, events.target_times[own]) - horizon
            np.testing.assert_allclose(events.probs[own], served.probs[at], atol=1e-6)
            close, last = np.log(bars[symbol]["Close"].to_numpy()), MIN_BARS - 1 + at
            z = (close[last + horizon] - close[last]) / served.sigma[at]
            np.testing.assert_array_equal(events.buckets[own], bucket_of(forecaster.at(horizon).edges, z))


def test_heads_of_other_assets_than_the_models_are_refused(with_horizons: Path, corpus: Corpus) -> None:
    """They would have other assets' scales; the heads that are there stay."""
    before = Run(with_horizons).horizons.read_bytes()
    with pytest.raises(DataError, match="own assets") as refused:
        fit_horizons(with_horizons, corpus, (4,), device="cpu")
    assert "got:      EURUSD FX, GBPJPY FX" in str(refused.value)
    assert Run(with_horizons).horizons.read_bytes() == before


def test_appended_bars_keep_the_buckets(trained: TinyRun, new_bars: Path, tmp_path: Path) -> None:
    grown = package.build_corpus(new_bars, tmp_path / "corpus", like=trained.run)
    last = grown.timestamps.max().item() + timedelta(hours=1)
    write_symbol(tmp_path / "more", "GBPJPY", random_bars(30, 7, start=last))
    again = append_bars(tmp_path / "corpus", tmp_path / "more")
    assert len(again) == len(grown) + 30
    assert again.like is not None
    assert again.manifest["like"] == trained.corpus.tokenizer.sha256


def test_assets_that_the_model_does_not_know_are_read_as_unknown(trained: TinyRun, corpus: Corpus) -> None:
    model = ModelPredictor.load(Run(trained.run).best, "cpu")
    rows = corpus.endpoints(VALIDATION, model.checkpoint.config.history)
    known = rows < corpus.asset_slices["GBPJPY"].start
    probs = model.predict_proba(corpus, rows)
    own_rows = trained.corpus.endpoints(VALIDATION, model.checkpoint.config.history)
    own_rows = own_rows[own_rows < trained.corpus.asset_slices["EURUSD"].stop]
    np.testing.assert_allclose(probs[known], model.predict_proba(trained.corpus, own_rows), atol=1e-7)
    nameless = replace(trained.corpus.tokenizer, symbols=("AAA", "BBB"))
    unknown = predict_probabilities(
        model.checkpoint.model, replace(trained.corpus, tokenizer=nameless), own_rows, torch.device("cpu")
    )
    np.testing.assert_allclose(probs[~known], unknown, atol=1e-7)
    assert np.abs(probs[known] - probs[~known]).max() > 1e-4


def test_a_model_is_evaluated_on_such_a_corpus_beside_baselines_of_that_corpus(
    vaiom: Vaiom, trained: TinyRun, corpus: Corpus, tmp_path: Path
) -> None:
    before = sorted(path.name for path in trained.run.iterdir())
    words = ("evaluate", trained.run, "--corpus", corpus.path, "--device", "cpu", "--out", tmp_path / "out", "--json")
    figures = vaiom(*words).json()
    assert list(figures["bits"]) == ["model", "frequency", "markov", "hour_of_week"]
    assert [each["group"] for each in figures["by"]["asset"]] == ["EURUSD", "GBPJPY"]
    assert figures["against"][0]["gain"]["asset_months"]["interval"]
    assert sorted(path.name for path in trained.run.iterdir()) == before
    assert vaiom("report", tmp_path / "out", "--corpus", corpus.path).code == 0


def test_a_packaged_model_is_not_written_into(vaiom: Vaiom, corpus: Corpus) -> None:
    require_refusal(vaiom("evaluate", "fx-1h-evidence", "--corpus", corpus.path), "--out")


def test_going_on_begins_with_the_weights_and_new_assets_as_unknown(trained: TinyRun, adapted: Adapted) -> None:
    start, made = load_checkpoint(Run(trained.run).best), load_checkpoint(Run(adapted.run).best)
    first = load_checkpoint(Run(adapted.run).checkpoint(2))
    assert first.provenance.start_sha256 == start.sha256 == load_checkpoint(Run(adapted.run).start).sha256
    assert made.tokenizer.symbols == ("EURUSD", "GBPJPY")
    table, before = first.model.state_dict()[ASSET_TABLE], start.model.state_dict()[ASSET_TABLE]
    # Two small steps away: nearer to where each began than to the other's beginning.
    assert (table[1] - before[1]).abs().max() < (table[1] - before[0]).abs().max()
    assert (table[2] - before[0]).abs().max() < (table[2] - before[1]).abs().max()


def test_it_says_whether_it_helped(trained: TinyRun, adapted: Adapted) -> None:
    assert list(adapted.gains) == [AS_IT_WAS, str(trained.run)]
    as_it_was, named = adapted.gains.values()
    assert as_it_was.gain_bits == named.gain_bits >= 0  # the run that it went on from, by its own name
    assert adapted.best_bits == pytest.approx(min(adapted.best_bits, adapted.last_bits))
    assert adapted.verdict[0].endswith(("over the weights as they were.", "stay the best on Validation."))
    for interval, said in (
        ((0.005, 0.02), "It helped: +0.0100 bits/event [+0.0050, +0.0200] over x."),
        ((-0.005, 0.02), "Whether it helped is open: +0.0100 bits/event [-0.0050, +0.0200] over x."),
        ((-0.02, -0.005), "It hurt: +0.0100 bits/event [-0.0200, -0.0050] over x."),
        (None, "Whether it helped is open: +0.0100 bits/event, without an interval: one asset in one month over x."),
    ):
        gain = replace(named, gain_bits=0.01, asset_months=replace(named.asset_months, interval=interval))
        assert replace(adapted, gains={"x": gain}).verdict == [said]


def test_where_no_step_is_better_the_weights_as_they_were_are_selected(
    vaiom: Vaiom, trained: TinyRun, corpus: Corpus, tmp_path: Path
) -> None:
    words = ("train", corpus.path, "--from", trained.run, "--out", tmp_path / "run", "--device", "cpu")
    ruinous = [word for setting in (*SETTINGS, "learning_rate=3.0", "patience=2") for word in ("--set", setting)]
    found = vaiom(*words, *ruinous)
    assert found.code == 0, found.err
    assert "It did not help" in found.err
    made, start = load_checkpoint(Run(tmp_path / "run").best), load_checkpoint(Run(trained.run).best)
    assert made.provenance.step == 0
    before = start.model.state_dict()
    changed = [name for name, each in made.model.state_dict().items() if not torch.equal(each, before[name])]
    assert changed == [ASSET_TABLE]
    assert Run(tmp_path / "run").saved_steps()[-1] == 4  # patience ended it


def test_a_broken_run_goes_on_to_the_same_end_and_is_repeatable(
    trained: TinyRun, corpus: Corpus, adapted: Adapted, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = [*SETTINGS, "schedule=constant", "steps=2"]
    adapt(corpus, trained.run, out, settings=first, device="cpu", resume=True)  # of nothing yet
    with pytest.raises(ConfigError):
        adapt(corpus, trained.run, out, settings=SETTINGS, device="cpu")
    whole = adapt(corpus, trained.run, tmp_path / "whole", settings=[*SETTINGS, "schedule=constant"], device="cpu")
    again = adapt(corpus, trained.run, out, settings=[*SETTINGS, "schedule=constant"], device="cpu", resume=True)
    assert (again.best_bits, again.last_bits) == (whole.best_bits, whole.last_bits)
    assert prove_repeat(out, corpus, full=True).verdict == "passed"


def test_weights_that_do_not_fit_are_refused(
    vaiom: Vaiom, trained: TinyRun, new_bars: Path, corpus: Corpus, tmp_path: Path
) -> None:
    other = build_corpus(new_bars, tmp_path / "own", CorpusConfig(splits=SPLITS))
    with pytest.raises(CheckpointError, match="--like"):
        adapt(other, trained.run, tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="another network"):
        adapt(corpus, trained.run, tmp_path / "run", settings=["width=32"], device="cpu")
    early = replace(SPLITS, train_end=SPLITS.train_end - timedelta(days=9))
    sooner = package.build_corpus(new_bars, tmp_path / "early", like=trained.run, splits=early)
    with pytest.raises(DataError, match="holds out"):
        adapt(sooner, trained.run, tmp_path / "run", device="cpu")
    require_refusal(vaiom("train", corpus.path, "--out", tmp_path / "run"), "--from")
    assert not (tmp_path / "run").exists()


def test_it_needs_no_dataframe_library(trained: TinyRun, corpus: Corpus, tmp_path: Path) -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(("polars", "pyarrow", "pandas", "lightgbm", "arch", "fastapi", "pydantic")))
import vaiom
corpus, start, out = sys.argv[1:]
found = vaiom.train(corpus, out + "/run", start=start, device="cpu", steps=2, validate_every=2, warmup_steps=0)
print(found.verdict[0])
vaiom.evaluate(start, corpus=corpus, out=out + "/as-it-was", device="cpu")
"""
    words = [sys.executable, "-c", code, str(corpus.path), str(trained.run), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert AS_IT_WAS in done.stdout


def test_a_short_history_is_learned_in_small_steps(trained: TinyRun, adapted: Adapted, tmp_path: Path) -> None:
    write_symbol(tmp_path / "bars", "GBPJPY", random_bars(900, 0, start=SPLITS.train_end - timedelta(days=8)))
    brief = package.build_corpus(tmp_path / "bars", tmp_path / "corpus", like=trained.run)
    short = adapt(brief, trained.run, tmp_path / "run", settings=SETTINGS[:-1], device="cpu")
    before, long, few = (
        experiment_of_checkpoint(load_checkpoint(Run(run).best)) for run in (trained.run, adapted.run, short.run)
    )
    events = len(brief.endpoints(TRAIN, before.model.history))
    assert before.train.patience == 0 < long.train.patience == few.train.patience
    assert long.train.micro_batch == before.train.micro_batch
    assert few.train.micro_batch == max(1, events // (STEPS_A_PASS * before.model.context)) < before.train.micro_batch
    assert STEPS_A_PASS == 4
    # Steps of a fifth of the size, unless another is asked for; the rest is what `SHORT` says.
    assert few.train.learning_rate == pytest.approx(before.train.learning_rate / 5)
    assert long.train.learning_rate == 1e-3
    chosen = {setting.partition("=")[0] for setting in SETTINGS}
    assert {name: getattr(few.train, name) for name in SHORT.keys() - chosen} == {
        **{"patience": 4, "warmup_steps": 20, "schedule": "cosine", "ema_decay": 0.98},
        **{"teachers": 0, "teacher_share": 0.0},
    }
    assert (SHORT["steps"], SHORT["validate_every"], SHORT["log_every"]) == (400, 25, 25)
