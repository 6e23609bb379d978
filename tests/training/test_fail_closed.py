"""Where a selection would be a lie there is none: each way a run can go wrong ends in an error and
no best model.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import TINY

from strategies import random_bars
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError, DataError
from vaiom.market.folder import write_symbol
from vaiom.training.loop import TrainingError, train
from vaiom.training.windows import train_sampler


def test_an_empty_validation_split_selects_nothing(bars: Path, tmp_path: Path) -> None:
    late = SplitConfig().shifted_to(datetime(2024, 1, 1))
    corpus = build_corpus(bars, tmp_path / "corpus", CorpusConfig(splits=late))
    with pytest.raises(DataError, match="Validation has no event"):
        train(corpus, TINY, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("validate_every", [1, 12])
def test_a_loss_that_explodes_offers_no_model(
    corpus: Corpus, tmp_path: Path, validate_every: int
) -> None:
    wild = TINY.with_changes(learning_rate=1e30, validate_every=validate_every)
    with pytest.raises(TrainingError, match="not finite") as caught:
        train(corpus, wild, tmp_path / "run", device="cpu")
    assert "learning_rate" in str(caught.value.fix)
    assert not (tmp_path / "run" / "best.safetensors").exists()


def poisoned(corpus: Corpus, at: int) -> Corpus:
    """The corpus with one row that is not a number, which no window shows before step `at`."""
    context = TINY.model.context
    sampler = train_sampler(corpus, context, TINY.train.seed, TINY.train.windows_per_step)
    seen = {
        row - back for step in range(1, at) for row in sampler.draw(step) for back in range(context)
    }
    row = next(int(row) for row in sampler.draw(at) if row not in seen)
    return spoil_return(corpus, row)


def spoil_return(corpus: Corpus, row: int) -> Corpus:
    """The same corpus but for one input that is not a number."""
    ret_z = corpus.columns["ret_z"].copy()
    ret_z[row] = np.nan
    return replace(corpus, columns={**corpus.columns, "ret_z": ret_z})


def test_a_run_that_breaks_late_takes_its_best_model_back(corpus: Corpus, tmp_path: Path) -> None:
    bad = poisoned(corpus, at=6)
    run = tmp_path / "run"
    seen_best = []

    def watch(entry: dict[str, object]) -> None:
        seen_best.append((run / "best.safetensors").exists())

    with pytest.raises(TrainingError, match="step 6"):
        train(bad, TINY.with_changes(log_every=1), run, device="cpu", report=watch)
    assert seen_best == [False, False, False, False, True]
    assert not (run / "best.safetensors").exists()
    with pytest.raises(TrainingError, match="no best model to go on from"):
        train(bad, TINY.with_changes(log_every=1), run, device="cpu", resume=True)


def test_a_nan_that_validation_alone_sees_stops_the_run(corpus: Corpus, tmp_path: Path) -> None:
    bad = spoil_return(corpus, int(corpus.endpoints("validation", TINY.model.context)[3]))
    with pytest.raises(TrainingError, match="not finite"):
        train(bad, TINY, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "best.safetensors").exists()


@pytest.fixture(scope="module")
def started(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(corpus, TINY.with_changes(steps=4), folder, device="cpu")
    return folder


def test_another_corpus_does_not_resume(
    started: Path, bars: Path, corpus: Corpus, tmp_path: Path
) -> None:
    """The same Train, so the same tokenizer, but other data behind it."""
    for symbol in ("EURUSD", "XAUUSD"):
        (tmp_path / "bars").mkdir(exist_ok=True)
        (tmp_path / "bars" / f"{symbol}.parquet").write_bytes(
            (bars / f"{symbol}.parquet").read_bytes()
        )
    longer = random_bars(1_700, 0)
    write_symbol(tmp_path / "bars", "EURUSD", longer.head(1_699))
    other = build_corpus(tmp_path / "bars", tmp_path / "corpus", CorpusConfig(splits=corpus.splits))
    assert other.tokenizer.sha256 == corpus.tokenizer.sha256
    with pytest.raises(ConfigError, match="another corpus"):
        train(other, TINY, started, device="cpu", resume=True)


def test_another_tokenizer_does_not_resume(started: Path, corpus: Corpus, tmp_path: Path) -> None:
    for seed, symbol in enumerate(("EURUSD", "XAUUSD")):
        write_symbol(tmp_path / "bars", symbol, random_bars(1_700, seed + 5))
    other = build_corpus(tmp_path / "bars", tmp_path / "corpus", CorpusConfig(splits=corpus.splits))
    with pytest.raises(ConfigError, match="another tokenizer"):
        train(other, TINY, started, device="cpu", resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"gap_weight": float("nan")}, "gap_weight"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"steps": 0}, "steps"),
        ({"seed": 2**63}, "seed"),
        ({"scope": "middle"}, "full, last"),
        ({"precision": "fp8"}, "auto, fp16, bf16, fp32"),
        ({"input": "tokens"}, "disc, cont, hybrid"),
        ({"warm_up": 100}, "learning_rate"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TINY.with_changes(**change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate", "KEY=VALUE"),
        ("learning_rate=fast", "not a value for learning_rate"),
        ("steps=1.5", "not a value for steps"),
        ("warm_up=1", "auxiliaries, .*weight_decay"),
        ("auxiliaries=gap,volume", "gap, vol_regime, ordinal"),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TINY.with_settings([text])


def test_settings_are_read_as_the_type_they_replace() -> None:
    changed = TINY.with_settings(
        ["learning_rate=1e-4", "steps=7", "auxiliaries=gap,ordinal", "input=disc"]
    )
    assert (changed.train.learning_rate, changed.train.steps) == (1e-4, 7)
    assert (changed.model.auxiliaries, changed.model.input) == (("gap", "ordinal"), "disc")
    assert TINY.with_settings(["auxiliaries="]).model.auxiliaries == ()
