"""What would make a held-out figure a lie is refused at the command line, with the reason; nothing
is left behind.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from cli.command_line import Vaiom, listing, require_refusal
from evaluation.simulated_market import TINY_SPLITS
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.splits import SplitConfig
from vaiom.model.checkpoint import load_checkpoint, save_checkpoint
from vaiom.run import Run


def claim_splits(run: Path, splits: SplitConfig) -> None:
    """The same model, but one that was trained with other boundaries."""
    checkpoint = load_checkpoint(Run(run).best)
    provenance = replace(checkpoint.provenance, splits=splits.to_json())
    save_checkpoint(Run(run).best, checkpoint.model, checkpoint.tokenizer, provenance)


@pytest.mark.parametrize("late", [timedelta(hours=1), timedelta(days=10)])
def test_targets_that_were_trained_on_are_not_held_out(
    place: Path, vaiom: Vaiom, late: timedelta
) -> None:
    start = TINY_SPLITS.validation[0]
    trained = replace(
        TINY_SPLITS, train_end=start + late, validation=(start + late, TINY_SPLITS.validation[1])
    )
    claim_splits(place / "seed17", trained)
    before = listing(place)
    for split, used in (
        ("validation", "trained"),
        ("train", "not held out"),
        ("buffer", "not held out"),
    ):
        words = ["--corpus", place / "corpus", "--split", split, "--device", "cpu"]
        require_refusal(vaiom("evaluate", place / "seed17", *words), used)
    assert listing(place) == before


def test_the_first_moment_after_train_is_held_out(place: Path, vaiom: Vaiom) -> None:
    start = TINY_SPLITS.validation[0]
    claim_splits(place / "seed17", replace(TINY_SPLITS, train_end=start))
    words = ["--corpus", place / "corpus", "--split", "validation", "--device", "cpu"]
    assert vaiom("evaluate", place / "seed17", *words).code == 0


def test_targets_that_were_selected_on_are_no_test(place: Path, vaiom: Vaiom) -> None:
    first = TINY_SPLITS.tests[0][0]
    longer = (TINY_SPLITS.validation[0], first + timedelta(hours=1))
    claim_splits(place / "seed17", replace(TINY_SPLITS, validation=longer, tests=()))
    before = listing(place)
    words = ["--corpus", place / "corpus", "--split", "test-h1", "--device", "cpu"]
    require_refusal(
        vaiom("evaluate", place / "seed17", *words), "selected on targets of this split"
    )
    assert listing(place) == before


def test_the_sealed_interval_opens_for_its_own_name_alone(place: Path, vaiom: Vaiom) -> None:
    before = listing(place)
    score = [
        "evaluate",
        place / "seed17",
        "--corpus",
        place / "corpus",
        "--device",
        "cpu",
        "--split",
    ]
    require_refusal(vaiom(*score, "sealed"), "--unseal sealed")
    require_refusal(vaiom(*score, "sealed", "--unseal", "validation"), "must name the split")
    require_refusal(vaiom(*score, "test-h1", "--unseal", "sealed"), "must name the split")
    fit = [
        "baselines",
        place / "corpus",
        "--only",
        "frequency",
        "--context",
        16,
        "--out",
        place / "stored",
    ]
    require_refusal(vaiom(*fit, "--split", "sealed"), "--unseal sealed")
    assert listing(place) == before
    assert vaiom(*score, "sealed", "--unseal", "sealed").code == 0


def test_losses_of_other_events_are_not_compared(place: Path, vaiom: Vaiom) -> None:
    score = ["--corpus", place / "corpus", "--split", "validation", "--device", "cpu"]
    other = ["--baselines", place / "stored", *score]
    for context, split in ((15, "validation"), (16, "test-h1")):
        fit = [
            "baselines",
            place / "corpus",
            "--only",
            "frequency",
            "--context",
            context,
            "--out",
            place / "stored",
        ]
        assert vaiom(*fit, "--split", split).code == 0
        require_refusal(vaiom("evaluate", place / "seed17", *other), "stored losses")
    later = replace(TINY_SPLITS, seal=TINY_SPLITS.seal + timedelta(days=1))
    build_corpus(place / "bars", place / "later", CorpusConfig(splits=later))
    fit = [
        "baselines",
        place / "later",
        "--only",
        "frequency",
        "--context",
        16,
        "--out",
        place / "others",
    ]
    assert vaiom(*fit).code == 0
    require_refusal(
        vaiom("evaluate", place / "seed17", *score, "--baselines", place / "others"),
        "not of this corpus",
    )

    assert vaiom("evaluate", place / "seed29", *score).code == 0
    file = place / "seed29" / "events-validation.parquet"
    events = pl.read_parquet(file)
    for changed in (
        events.head(-1),
        events.reverse(),
        events.with_columns(bucket=17 - pl.col("bucket")),
    ):
        changed.write_parquet(file)
        ran = vaiom("evaluate", place / "seed17", *score, "--seed-run", place / "seed29")
        require_refusal(ran, "losses of different events are not compared")
