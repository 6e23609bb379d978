"""A model on bars that it was not trained on: a corpus with its buckets, its figures there, and
going on from it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import vaiom as package
from cli.command_line import Vaiom, require_refusal
from forecast.forecast_runs import TinyRun, tiny_run
from strategies import random_bars
from training.tiny_runs import SPLITS
from vaiom.auditing.audit import audit_path
from vaiom.auditing.proof import FAILED, AuditConfig
from vaiom.auditing.provenance import config_of
from vaiom.auditing.repeat import prove_repeat
from vaiom.corpus.append import append_bars
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.distribution.copula import pit_of
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.evaluation.access_ledger import read_ledger
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.horizon_scores import events_name
from vaiom.evaluation.panel import make_panel
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import event_bits, read_events
from vaiom.experiments.adapt import AS_IT_WAS, STEPS_PER_PASS, Adapted, adapt
from vaiom.experiments.refit import fit_horizons, refit
from vaiom.features.fields import bucket_of
from vaiom.forecast.bars import MIN_BARS
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import load_checkpoint
from vaiom.model.horizon_heads import load_horizons
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
    return package.build_corpus(
        new_bars, tmp_path_factory.mktemp("like") / "corpus", like=trained.run
    )


@pytest.fixture(scope="module")
def adapted(trained: TinyRun, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    out = tmp_path_factory.mktemp("adapted") / "run"
    return adapt(corpus, trained.run, out, settings=SETTINGS, against=[trained.run], device="cpu")


def test_a_corpus_like_a_model_has_its_buckets_and_its_own_assets(
    trained: TinyRun, new_bars: Path, corpus: Corpus, tmp_path: Path
) -> None:
    own = corpus.tokenizer
    theirs = trained.corpus.tokenizer
    assert own.symbols == ("EURUSD", "GBPJPY")
    assert own.has_buckets_of(theirs)
    assert own.sha256 != theirs.sha256
    assert corpus.splits == trained.corpus.splits == SPLITS
    assert not build_corpus(
        new_bars, tmp_path / "own", CorpusConfig(splits=SPLITS)
    ).tokenizer.has_buckets_of(theirs)
    # The folder says so itself: audits, appends and moved boundaries keep these buckets.
    assert (
        build_corpus(new_bars, tmp_path / "again", config_of(open_corpus(corpus.path))).sha256
        == corpus.sha256
    )


@pytest.fixture(scope="module")
def with_horizons(trained: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("horizons") / "run"
    shutil.copytree(trained.run, run)
    fit_horizons(run, trained.corpus, (4, 8), device="cpu")
    return run


def test_horizons_of_other_assets_are_judged_as_they_are_served(
    with_horizons: Path, tmp_path: Path
) -> None:
    """An asset of a class that the model never saw, and one that has another number in its
    corpus.
    """
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
            close = np.log(bars[symbol]["Close"].to_numpy())
            last = MIN_BARS - 1 + at
            z = (close[last + horizon] - close[last]) / served.sigma[at]
            np.testing.assert_array_equal(
                events.buckets[own], bucket_of(forecaster.at(horizon).edges, z)
            )


def test_the_dependence_is_judged_with_the_zero_shares_that_are_served(
    trained: TinyRun, tmp_path: Path
) -> None:
    """Of an asset whose price now often stays, and of one that the model never saw."""
    for seed, symbol in enumerate(("EURUSD", "GBPJPY")):
        bars = random_bars(1_700, seed)
        stays = pl.int_range(pl.len()) % 5 == 4
        write_symbol(
            tmp_path / "bars",
            symbol,
            bars.with_columns(pl.when(~stays).then("Close").forward_fill()),
        )
    corpus = package.build_corpus(tmp_path / "bars", tmp_path / "corpus", like=trained.run)
    model = ModelPredictor.load(Run(trained.run).best, "cpu")
    panel = make_panel(model, corpus, *corpus.target_timestamps[[0, -2]], 0)
    served = package.Forecaster.load(trained.run).predict(
        dict(package.read_bars(tmp_path / "bars"))
    )
    assert panel.prob_zero == {symbol: dist.prob_zero for symbol, dist in served.items()}
    for asset, dist in enumerate(served.values()):
        has = panel.numbers[:, asset] >= 0
        numbers = panel.numbers[has, asset]
        log_ret = panel.log_ret[has, asset]
        own = replace(
            panel.dists, probs=panel.dists.probs[numbers], sigma=panel.dists.sigma[numbers]
        )
        assert (log_ret == 0).sum() > 100
        np.testing.assert_array_equal(panel.pit[has, asset], pit_of(own, dist.prob_zero, log_ret))


def test_heads_of_other_assets_than_the_models_are_refused(
    with_horizons: Path, corpus: Corpus
) -> None:
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


def test_assets_that_the_model_does_not_know_are_read_as_unknown(
    trained: TinyRun, corpus: Corpus
) -> None:
    model = ModelPredictor.load(Run(trained.run).best, "cpu")
    rows = corpus.endpoints(VALIDATION, model.checkpoint.config.history)
    known = rows < corpus.asset_slices["GBPJPY"].start
    probs = model.predict_proba(corpus, rows)
    own_rows = trained.corpus.endpoints(VALIDATION, model.checkpoint.config.history)
    own_rows = own_rows[own_rows < trained.corpus.asset_slices["EURUSD"].stop]
    np.testing.assert_allclose(
        probs[known], model.predict_proba(trained.corpus, own_rows), atol=1e-7
    )
    nameless = replace(trained.corpus.tokenizer, symbols=("AAA", "BBB"))
    unknown = predict_probabilities(
        model.checkpoint.model,
        replace(trained.corpus, tokenizer=nameless),
        own_rows,
        torch.device("cpu"),
    )
    np.testing.assert_allclose(probs[~known], unknown, atol=1e-7)
    assert np.abs(probs[known] - probs[~known]).max() > 1e-4


def test_a_model_is_evaluated_on_such_a_corpus_beside_baselines_of_that_corpus(
    vaiom: Vaiom, trained: TinyRun, corpus: Corpus, tmp_path: Path
) -> None:
    before = sorted(path.name for path in trained.run.iterdir())
    words = (
        "evaluate",
        trained.run,
        "--corpus",
        corpus.path,
        "--device",
        "cpu",
        "--out",
        tmp_path / "out",
        "--json",
    )
    figures = vaiom(*words).json()
    assert list(figures["bits"]) == ["model", "frequency", "markov", "hour_of_week"]
    assert [each["group"] for each in figures["by"]["asset"]] == ["EURUSD", "GBPJPY"]
    assert figures["against"][0]["gain"]["asset_months"]["interval"]
    assert sorted(path.name for path in trained.run.iterdir()) == before
    assert vaiom("report", tmp_path / "out", "--corpus", corpus.path).code == 0


def test_a_packaged_model_is_not_written_into(vaiom: Vaiom, corpus: Corpus) -> None:
    require_refusal(vaiom("evaluate", "fx-1h-evidence", "--corpus", corpus.path), "--out")


def test_going_on_begins_with_the_weights_and_new_assets_as_unknown(
    trained: TinyRun, adapted: Adapted
) -> None:
    start = load_checkpoint(Run(trained.run).best)
    made = load_checkpoint(Run(adapted.run).best)
    first = load_checkpoint(Run(adapted.run).checkpoint(2))
    assert (
        first.provenance.start_sha256
        == start.sha256
        == load_checkpoint(Run(adapted.run).start).sha256
    )
    assert made.tokenizer.symbols == ("EURUSD", "GBPJPY")
    table = first.model.state_dict()[ASSET_TABLE]
    before = start.model.state_dict()[ASSET_TABLE]
    # Two small steps away: nearer to where each began than to the other's beginning.
    assert (table[1] - before[1]).abs().max() < (table[1] - before[0]).abs().max()
    assert (table[2] - before[0]).abs().max() < (table[2] - before[1]).abs().max()


def test_it_says_whether_it_helped(trained: TinyRun, adapted: Adapted) -> None:
    assert list(adapted.gains) == [AS_IT_WAS, str(trained.run)]
    as_it_was, named = adapted.gains.values()
    assert (
        as_it_was.gain_bits == named.gain_bits >= 0
    )  # the run that it went on from, by its own name
    assert adapted.best_bits == pytest.approx(min(adapted.best_bits, adapted.last_bits))
    assert adapted.verdict[0].endswith(
        ("over the weights as they were.", "stay the best on Validation.")
    )
    gain = replace(named, gain_bits=0.01)
    for interval, said in (
        ((0.005, 0.02), "It helped: +0.0100 bits/event [+0.0050, +0.0200] over x."),
        (
            (-0.005, 0.02),
            "Whether it helped is open: +0.0100 bits/event [-0.0050, +0.0200] over x.",
        ),
        ((-0.02, -0.005), "It hurt: +0.0100 bits/event [-0.0200, -0.0050] over x."),
        (None, "Whether it helped is open: +0.0100 bits/event, without an interval"),
    ):
        blocks = replace(named.asset_months, interval=interval)
        [sentence] = replace(adapted, gains={"x": replace(gain, asset_months=blocks)}).verdict
        assert sentence.startswith(said)


def test_where_no_step_is_better_the_weights_as_they_were_are_selected(
    vaiom: Vaiom, trained: TinyRun, corpus: Corpus, tmp_path: Path
) -> None:
    words = (
        "train",
        corpus.path,
        "--from",
        trained.run,
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
    )
    ruinous = [
        word
        for setting in (*SETTINGS, "learning_rate=3.0", "patience=2")
        for word in ("--set", setting)
    ]
    found = vaiom(*words, *ruinous)
    assert found.code == 0, found.err
    assert "It did not help" in found.err
    made = load_checkpoint(Run(tmp_path / "run").best)
    start = load_checkpoint(Run(trained.run).best)
    assert made.provenance.step == 0
    before = start.model.state_dict()
    changed = [
        name
        for name, each in made.model.state_dict().items()
        if not torch.equal(each, before[name])
    ]
    assert changed == [ASSET_TABLE]
    assert Run(tmp_path / "run").saved_steps()[-1] == 4  # patience ended it
    # The log has a line of them, also after resuming, and the audit takes the selection for what it
    # is.
    assert vaiom(*words, *ruinous, "--resume").code == 0
    assert list(Run(tmp_path / "run").validation_bits()) == [0, 2, 4]
    assert Run(tmp_path / "run").read_metrics()[0].keys() == {"step", "validation_bits", "seconds"}
    assert vaiom("evaluate", tmp_path / "run", "--device", "cpu").code == 0
    assert vaiom("report", tmp_path / "run").code == 0
    proofs = vaiom("audit", tmp_path / "run", "--json").json()["proofs"]
    assert [proof["findings"] for proof in proofs if proof["verdict"] == FAILED] == []
    # Stopped before its first step, it begins again with one such line.
    shutil.rmtree(Run(tmp_path / "run").checkpoints)
    assert vaiom(*words, *ruinous, "--resume").code == 0
    assert list(Run(tmp_path / "run").validation_bits()) == [0, 2, 4]
    assert len(Run(tmp_path / "run").read_metrics()) == 3


def test_runs_to_compare_with_are_refused_before_training(
    trained: TinyRun, corpus: Corpus, tmp_path: Path
) -> None:
    for against in (tmp_path / "none", corpus.path):
        with pytest.raises(CheckpointError, match="no such checkpoint"):
            adapt(
                corpus,
                trained.run,
                tmp_path / "run",
                settings=SETTINGS,
                against=[against],
                device="cpu",
            )
    train_end = SPLITS.validation[0] + timedelta(days=1)
    later = replace(
        SPLITS, train_end=train_end, validation=SPLITS.tests[0], tests=(), seal=SPLITS.tests[0][1]
    )
    ahead = package.build_corpus(trained.bars, tmp_path / "later", like=trained.run, splits=later)
    adapt(ahead, trained.run, tmp_path / "ahead", settings=SETTINGS, device="cpu")
    with pytest.raises(DataError, match="was trained on targets of this split"):
        adapt(
            corpus,
            trained.run,
            tmp_path / "run",
            settings=SETTINGS,
            against=[tmp_path / "ahead"],
            device="cpu",
        )
    assert not (tmp_path / "run").exists()


def test_what_was_seen_is_refused_with_a_way_out_that_works(
    trained: TinyRun, corpus: Corpus, tmp_path: Path
) -> None:
    train_end = SPLITS.validation[0] + timedelta(days=1)
    for name, validation in (("mid", SPLITS.validation), ("last", SPLITS.tests[0])):
        start = max(train_end, validation[0])
        splits = replace(SPLITS, train_end=train_end, validation=(start, validation[1]), tests=())
        own = package.build_corpus(
            trained.bars, tmp_path / name / "corpus", like=trained.run, splits=splits
        )
        adapt(own, trained.run, tmp_path / name / "run", settings=SETTINGS, device="cpu")

    def refused(name: str) -> str:
        run = tmp_path / name / "run"
        with pytest.raises(DataError, match="was trained on targets of this split") as seen:
            package.evaluate(run, corpus=corpus, out=tmp_path / "out", device="cpu")
        return str(seen.value.fix)

    assert refused("mid") == "score a later split: --split test-h1"
    package.evaluate(
        tmp_path / "mid" / "run",
        corpus=corpus,
        split="test-h1",
        out=tmp_path / "later",
        device="cpu",
    )
    advice = refused("last")
    assert f"no split of this corpus is later: bring in bars after {train_end:%Y-%m-%d}" in advice
    assert f"(vaiom train {corpus.path} --experiment demo --out RUN)" in advice
    alone = package.train(
        corpus, tmp_path / "alone", experiment="demo", steps=2, context=8, device="cpu"
    )
    assert package.evaluate(alone, device="cpu").num_events


def test_a_run_with_a_longer_context_is_compared_where_it_has_its_history(
    trained: TinyRun, tmp_path: Path
) -> None:
    """An asset that begins in Validation: its first events lie within the longer context."""
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(1_700, 0))
    write_symbol(tmp_path / "bars", "GBPJPY", random_bars(300, 1, start=SPLITS.validation[0]))
    corpus = package.build_corpus(tmp_path / "bars", tmp_path / "corpus", like=trained.run)
    wide = experiment_of_checkpoint(load_checkpoint(Run(trained.run).best)).with_changes(
        context=100
    )
    package.train(corpus, tmp_path / "wide", experiment=wide, device="cpu")
    names = {"settings": SETTINGS, "against": [tmp_path / "wide"], "device": "cpu"}
    found = adapt(corpus, trained.run, tmp_path / "run", **names)
    rows = corpus.endpoints(VALIDATION, 100)
    assert len(rows) < len(
        corpus.endpoints(VALIDATION, load_checkpoint(Run(found.run).best).config.history)
    )
    models = (
        ModelPredictor.load(Run(run).best, "cpu") for run in (tmp_path / "run", tmp_path / "wide")
    )
    own, theirs = (
        event_bits(each.predict_proba(corpus, rows), corpus.target_return[rows]).mean()
        for each in models
    )
    assert found.gains[str(tmp_path / "wide")].gain_bits == pytest.approx(theirs - own)


def test_weights_that_a_killed_run_left_are_replaced(
    trained: TinyRun, corpus: Corpus, adapted: Adapted, tmp_path: Path
) -> None:
    """It was killed after it had copied its own, before it began."""
    (tmp_path / "run").mkdir()
    shutil.copy(Run(trained.run).best, Run(tmp_path / "run").start)
    adapt(corpus, adapted.run, tmp_path / "run", settings=SETTINGS, device="cpu")
    made = load_checkpoint(Run(tmp_path / "run").best).provenance
    assert load_checkpoint(Run(tmp_path / "run").start).sha256 == made.start_sha256
    assert made.start_sha256 == load_checkpoint(Run(adapted.run).best).sha256


def test_heads_are_fitted_under_the_boundaries_of_their_model(
    trained: TinyRun, with_horizons: Path, tmp_path: Path
) -> None:
    """Under later ones they would learn from what the model holds out."""
    later = replace(
        SPLITS, train_end=SPLITS.tests[0][0], validation=SPLITS.tests[0], tests=(), seal=SPLITS.seal
    )
    corpus = package.build_corpus(trained.bars, tmp_path / "corpus", like=trained.run, splits=later)
    run = Path(shutil.copytree(with_horizons, tmp_path / "run"))
    fitted = fit_horizons(run, corpus, (4, 8), device="cpu")
    expected = load_horizons(Run(with_horizons).horizons, load_checkpoint(Run(run).best)).fitted
    assert fitted.validation_bits == pytest.approx(expected.validation_bits)
    assert [each.edges.tolist() for each in fitted.fits] == [
        each.edges.tolist() for each in expected.fits
    ]


def test_a_refit_goes_on_from_the_same_weights(trained: TinyRun, tmp_path: Path) -> None:
    for seed, symbol in enumerate(("EURUSD", "XAUUSD")):
        write_symbol(tmp_path / "bars", symbol, random_bars(6_500, seed))
    corpus = package.build_corpus(tmp_path / "bars", tmp_path / "corpus", like=trained.run)
    adapt(corpus, trained.run, tmp_path / "run", settings=SETTINGS, device="cpu")
    made = load_checkpoint(
        Run(refit(tmp_path / "run", corpus, tmp_path / "refit", device="cpu").run).best
    )
    start = load_checkpoint(Run(trained.run).best)
    assert (
        made.provenance.start_sha256
        == load_checkpoint(Run(tmp_path / "refit").start).sha256
        == start.sha256
    )
    before, after = (each.model.state_dict()["heads.projection.weight"] for each in (start, made))
    assert (after - before).abs().max() < 0.01 < before.abs().max()
    config = AuditConfig(cuts=1, rare_cuts=0, baselines=("frequency",))
    proofs = audit_path(
        tmp_path / "refit", corpus=tmp_path / "corpus", bars=tmp_path / "bars", config=config
    )
    assert [proof.findings for proof in proofs if proof.verdict == FAILED] == []
    assert prove_repeat(tmp_path / "refit", corpus, full=True).verdict == "passed"
    # Buckets that are fitted anew are not those of the weights: refused before it counts as a look.
    adapt(trained.corpus, trained.run, tmp_path / "other", settings=SETTINGS, device="cpu")
    own = build_corpus(tmp_path / "bars", tmp_path / "own", CorpusConfig(splits=SPLITS))
    with pytest.raises(CheckpointError, match="--like"):
        refit(tmp_path / "other", own, tmp_path / "none", device="cpu")
    assert not (tmp_path / "none").exists()
    assert read_ledger(own) == []


def test_a_broken_run_goes_on_to_the_same_end_and_is_repeatable(
    trained: TinyRun, corpus: Corpus, adapted: Adapted, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = [*SETTINGS, "schedule=constant", "steps=2"]
    adapt(corpus, trained.run, out, settings=first, device="cpu", resume=True)  # of nothing yet
    with pytest.raises(ConfigError):
        adapt(corpus, trained.run, out, settings=SETTINGS, device="cpu")
    whole = adapt(
        corpus,
        trained.run,
        tmp_path / "whole",
        settings=[*SETTINGS, "schedule=constant"],
        device="cpu",
    )
    again = adapt(
        corpus,
        trained.run,
        out,
        settings=[*SETTINGS, "schedule=constant"],
        device="cpu",
        resume=True,
    )
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


def test_a_short_history_is_learned_in_small_steps(
    trained: TinyRun, adapted: Adapted, tmp_path: Path
) -> None:
    write_symbol(
        tmp_path / "bars", "GBPJPY", random_bars(900, 0, start=SPLITS.train_end - timedelta(days=8))
    )
    brief = package.build_corpus(tmp_path / "bars", tmp_path / "corpus", like=trained.run)
    short = adapt(brief, trained.run, tmp_path / "run", settings=SETTINGS[:-1], device="cpu")
    before, long, few = (
        experiment_of_checkpoint(load_checkpoint(Run(run).best))
        for run in (trained.run, adapted.run, short.run)
    )
    events = len(brief.endpoints(TRAIN, before.model.history))
    assert before.train.patience == 0 < long.train.patience == few.train.patience
    assert long.train.micro_batch == before.train.micro_batch
    assert (
        few.train.micro_batch
        == max(1, events // (STEPS_PER_PASS * before.model.context))
        < before.train.micro_batch
    )
    # Steps of a fifth of the size, unless another is asked for.
    assert few.train.learning_rate == pytest.approx(before.train.learning_rate / 5)
    assert long.train.learning_rate == 1e-3
