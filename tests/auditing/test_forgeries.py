"""Forgeries that agree with themselves: whoever makes one rewrites every file that follows from it,
as far as told.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from cli.command_line import Vaiom
from vaiom.auditing.audit import audit_path
from vaiom.auditing.proof import AuditConfig
from vaiom.codec import to_json
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.evaluation.evaluate import evaluate_run, judge
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import read_events
from vaiom.files import canonical_json, sha256_of, write_json
from vaiom.model.checkpoint import load_checkpoint, save_checkpoint
from vaiom.model.vaiom import Vaiom as Network
from vaiom.run import Run

SPLIT = "validation"


def restate(
    place: Path, change: Callable[[pl.DataFrame], pl.DataFrame], precision: str | None = None
) -> None:
    """Change the stored losses, and every figure of the evaluation that follows from them.

    The forecasts beside the losses go, as if the evaluation were an old one.
    """
    run, corpus = place / "seed17", open_corpus(place / "corpus")
    file, evaluation = Run(run).events(SPLIT), Run(run).evaluation(SPLIT)
    change(pl.read_parquet(file).drop(pl.selectors.starts_with("prob_"))).write_parquet(file)
    figures = to_json(judge(corpus, SPLIT, corpus.endpoints(SPLIT, 16), read_events(run, SPLIT)))
    evaluation.write_text(
        json.dumps({**json.loads(evaluation.read_text()), **figures, "precision": precision})
    )


def improve_most_losses(place: Path) -> None:
    """By 0.8 bits, but for the 64 events that everyone knows to be scored again."""

    def change(events: pl.DataFrame) -> pl.DataFrame:
        gain = np.full(len(events), 0.8)
        gain[np.unique(np.linspace(0, len(events) - 1, 64).astype(int))] = 0
        return events.with_columns(pl.col("bits_model") - gain)

    restate(place, change)


def improve_all_losses_a_little(place: Path) -> None:
    restate(place, lambda events: events.with_columns(pl.col("bits_model") - 0.09))


def improve_all_losses_by_less_than_half_precision(place: Path) -> None:
    """Each by what FP16 may do to one event, all of them in the same direction."""
    restate(
        place, lambda events: events.with_columns(pl.col("bits_model") - 2e-3), precision="float16"
    )


def move_losses_between_months(place: Path) -> None:
    """By what FP16 may do to one event, down where the model lost and up elsewhere: the
    mean stays.
    """

    def change(events: pl.DataFrame) -> pl.DataFrame:
        first = events["target_time"].dt.month() == events["target_time"].dt.month()[0]
        moved = np.where(first, -8e-3, 8e-3 * first.sum() / (~first).sum())
        return events.with_columns(pl.col("bits_model") + moved)

    restate(place, change, precision="float16")


def worsen_a_baseline(place: Path) -> None:
    restate(place, lambda events: events.with_columns(pl.col("bits_markov") + 0.2))


def forge_risk_figures(place: Path) -> None:
    file = Run(place / "seed17").evaluation(SPLIT)
    stored = json.loads(file.read_text())
    for test in stored["backtests"]:
        test["exceedance_rate"], test["kupiec_p"] = test["level"], 1.0
    file.write_text(json.dumps(stored))


def rewrite_log(run: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    lines = [change(json.loads(line)) for line in Run(run).metrics.read_text().splitlines()]
    Run(run).metrics.write_text("".join(json.dumps(line) + "\n" for line in lines if line))


def claim_bits(file: Path, bits: float) -> None:
    checkpoint = load_checkpoint(file)
    provenance = replace(checkpoint.provenance, validation_bits=bits)
    save_checkpoint(file, checkpoint.model, checkpoint.tokenizer, provenance)


def claim_a_better_validation(place: Path) -> None:
    run = place / "seed29"
    bits = Run(run).validation_bits()
    rewrite_log(
        run, lambda line: {k: v - 0.5 if k == "validation_bits" else v for k, v in line.items()}
    )
    for file in (Run(run).best, *map(Run(run).checkpoint, bits)):
        claim_bits(file, bits[load_checkpoint(file).provenance.step] - 0.5)


def worse_step(run: Path) -> int:
    bits = Run(run).validation_bits()
    return max(bits, key=lambda step: bits[step])


def select_on_test(place: Path) -> None:
    """The step that does better on Test, with its Test bits in the place of its Validation bits."""
    run = place / "seed29"
    step, bits = worse_step(run), min(Run(run).validation_bits().values()) - 0.01
    rewrite_log(
        run, lambda line: line | ({"validation_bits": bits} if line["step"] == step else {})
    )
    claim_bits(Run(run).checkpoint(step), bits)
    Run(run).best.write_bytes(Run(run).checkpoint(step).read_bytes())


def remove_what_was_better(place: Path) -> None:
    """Another step than the selected one, and the log without those that beat it."""
    run = place / "seed29"
    step = worse_step(run)
    Run(run).best.write_bytes(Run(run).checkpoint(step).read_bytes())
    for other in set(Run(run).validation_bits()) - {step}:
        Run(run).checkpoint(other).unlink()
        Run(run).state(other).unlink()
    rewrite_log(
        run, lambda line: line if line["step"] == step or "validation_bits" not in line else None
    )


def remove_an_evaluation(place: Path) -> None:
    Run(place / "seed17").evaluation("test-h2").unlink()
    Run(place / "seed17").events("test-h2").unlink()


def forget_a_rejected_seed(place: Path) -> None:
    """Both seeds were scored on a test, this one was kept, and the line of the other goes."""
    corpus = open_corpus(place / "corpus")
    evaluate_run(place / "seed29", corpus, "test-h1", device="cpu")
    evaluate_run(place / "seed17", corpus, "test-h2", device="cpu")
    ledger = place / "corpus/ledger.jsonl"
    ledger.write_text(
        "".join(line for line in ledger.read_text().splitlines(True) if '"seed29"' not in line)
    )


def forget_it_and_mend_the_chain(place: Path) -> None:
    forget_a_rejected_seed(place)
    ledger, mended = place / "corpus/ledger.jsonl", b""
    for line in ledger.read_bytes().splitlines():
        look = json.loads(line) | {"previous": hashlib.sha256(mended).hexdigest()}
        mended += json.dumps(look).encode() + b"\n"
    ledger.write_bytes(mended)


def take_another_model(place: Path) -> None:
    """A model that this configuration does not give."""
    Run(place / "seed17").best.write_bytes(Run(place / "seed29").best.read_bytes())


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def pass_validation_off_as_a_test(place: Path) -> None:
    edit(Run(place / "seed17").evaluation(SPLIT), split="test-h1")


def add_a_breakdown(place: Path) -> None:
    file = Run(place / "seed17").evaluation(SPLIT)
    by = json.loads(file.read_text())["by"]
    edit(file, by=by | {"weekday": by["asset"]})


def leave_out_all_tests_together(place: Path) -> None:
    for split in ("test-h1", "test-h2"):
        edit(Run(place / "seed17").evaluation(split), all_tests=None)


def name_a_precision_of_ones_own(place: Path) -> None:
    edit(Run(place / "seed17").evaluation(SPLIT), precision="float128, audited")


def rewrite_manifest(place: Path, **changes: Any) -> None:
    file = place / "corpus/manifest.json"
    manifest = json.loads(file.read_text()) | changes
    del manifest["manifest_sha256"]
    write_json(file, manifest | {"manifest_sha256": sha256_of(canonical_json(manifest))})


def claim_more_events(place: Path) -> None:
    events = json.loads((place / "corpus/manifest.json").read_text())["events"]
    rewrite_manifest(place, events=events | {"test-h1": 10**6})


def claim_more_bars(place: Path) -> None:
    first, *others = json.loads((place / "corpus/manifest.json").read_text())["inputs"]
    rewrite_manifest(place, inputs=[first | {"rows_taken": 10**6}, *others])


def blur_what_was_better(place: Path) -> None:
    """Not a number is not fewer bits, if it comes last."""
    run = place / "seed29"
    step = worse_step(run)
    Run(run).best.write_bytes(Run(run).checkpoint(step).read_bytes())
    for other in set(Run(run).validation_bits()) - {step}:
        Run(run).checkpoint(other).unlink()
        Run(run).state(other).unlink()
    lines = [json.loads(line) for line in Run(run).metrics.read_text().splitlines()]
    lines = [
        line if line["step"] == step else line | {"validation_bits": math.nan} for line in lines
    ]
    lines.sort(key=lambda line: line["step"] != step)
    Run(run).metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def swap_checkpoints(place: Path) -> None:
    one, two = (Run(place / "seed29").checkpoint(step) for step in (4, 8))
    contents = one.read_bytes(), two.read_bytes()
    two.write_bytes(contents[0])
    one.write_bytes(contents[1])


def start_from_a_model_that_saw_a_test(place: Path) -> None:
    run, later = Run(place / "seed17"), load_checkpoint(Run(place / "seed29").best)
    splits = later.provenance.splits | {
        "validation": [later.provenance.splits[name] for name in ("train_end", "seal")]
    }
    save_checkpoint(
        run.start,
        later.model,
        later.tokenizer,
        replace(later.provenance, splits=splits | {"tests": []}),
    )
    own = load_checkpoint(run.best)
    save_checkpoint(
        run.best, own.model, own.tokenizer, replace(own.provenance, start_sha256=later.sha256)
    )


def learn_from_a_teacher_elsewhere(place: Path) -> None:
    """A teacher that knows other bars."""
    run, own = Run(place / "seed17"), load_checkpoint(Run(place / "seed17").best)
    config = replace(own.model.config, attention_window=8, positions="rotary")
    taught = replace(
        own.provenance, train=own.provenance.train | {"teachers": 1, "teacher_share": 0.5}
    )
    torch.manual_seed(1)
    save_checkpoint(
        run.best, Network(config, own.tokenizer.vocabulary_sizes), own.tokenizer, taught
    )
    (run.teachers / "1").mkdir(parents=True)
    elsewhere = replace(own.provenance, corpus_sha256="0" * 64)
    save_checkpoint(Run(run.teachers / "1").best, own.model, own.tokenizer, elsewhere)


# What is audited, with which options, and what the audit says then.
FORGERIES: dict[Callable[[Path], None], tuple[str, list[Any], str]] = {
    improve_most_losses: ("seed17", [], "losses that are not the checkpoint's"),
    improve_all_losses_a_little: ("seed17", [], "losses that are not the checkpoint's"),
    improve_all_losses_by_less_than_half_precision: ("seed17", [], "-2.0e-03 in the mean"),
    move_losses_between_months: ("seed17", [], "losses that are not the checkpoint's"),
    worsen_a_baseline: ("seed17", [], "markov gives an event 2.0e-01 bits"),
    forge_risk_figures: ("seed17", ["--rescore", 10], "kupiec_p: the file says 1.0"),
    claim_a_better_validation: ("seed29", [], "its events cost"),
    select_on_test: ("seed29", [], "its events cost"),
    remove_what_was_better: ("seed29", [], "metrics.jsonl"),
    remove_an_evaluation: ("seed17", [], "its evaluation is gone"),
    forget_a_rejected_seed: (
        "corpus",
        [],
        "ledger, line 3: lines before it were changed or removed",
    ),
    take_another_model: (
        "seed17",
        ["--repeat", "--full"],
        "the run's own best.safetensors is another",
    ),
    forget_it_and_mend_the_chain: ("seed17", [], "evaluated on another ledger"),
    pass_validation_off_as_a_test: (
        "seed17",
        [],
        "validation: the file says that it is of test-h1",
    ),
    add_a_breakdown: ("seed17", [], "validation.by: the file has weekday"),
    leave_out_all_tests_together: (
        "seed17",
        [],
        "no evaluation has the figures of all of them together",
    ),
    name_a_precision_of_ones_own: ("seed17", [], "an unknown precision, float128, audited"),
    claim_more_events: ("corpus", [], "the manifest lists other events"),
    claim_more_bars: ("corpus", [], "the manifest lists inputs of other rows"),
    blur_what_was_better: ("seed29", [], "a Validation twice, out of order or without a number"),
    swap_checkpoints: ("seed29", [], "step-0000008.safetensors is the checkpoint of step 4"),
    start_from_a_model_that_saw_a_test: (
        "seed17",
        [],
        "start.safetensors: the weights have learned from",
    ),
    learn_from_a_teacher_elsewhere: ("seed17", [], "teacher 1 is of another corpus"),
}


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forgery_is_refused(forge: Callable[[Path], None], place: Path, vaiom: Vaiom) -> None:
    what, options, says = FORGERIES[forge]
    options = ["--context", 16] if what == "corpus" else [*options, "--corpus", place / "corpus"]
    forge(place)
    ran = vaiom("audit", place / what, *options, "--json")
    assert ran.code == 1
    assert any(
        says in finding for proof in json.loads(ran.out)["proofs"] for finding in proof["findings"]
    )


def compare_with_a_rival(place: Path) -> None:
    """Which nobody can run, under a name like those of runs."""

    def change(events: pl.DataFrame) -> pl.DataFrame:
        return events.with_columns((pl.col("bits_model") + 1).alias("bits_run rival"))

    restate(place, change)


def stop_where_a_test_was_best(place: Path) -> None:
    """The log ends there, and `config.toml` says that it should."""
    run = Run(place / "seed29")
    run.best.write_bytes(run.checkpoint(4).read_bytes())
    run.checkpoint(8).unlink()
    run.state(8).unlink()
    rewrite_log(run.path, lambda line: line if line["step"] <= 4 else None)
    run.config.write_text(run.config.read_text().replace("steps = 8", "steps = 4"))


def rename_and_remove_an_evaluation(place: Path) -> None:
    remove_an_evaluation(place)
    for split in (SPLIT, "test-h1"):
        edit(Run(place / "seed17").evaluation(split), run="other")
    (place / "seed17").rename(place / "other")


def count_the_first_look_again(place: Path) -> None:
    for run in ("seed29", "seed17"):
        evaluate_run(place / run, open_corpus(place / "corpus"), "test-h1", device="cpu")
    edit(Run(place / "seed17").evaluation("test-h1"), looks=1)


def lose_what_it_started_from(place: Path) -> None:
    start_from_a_model_that_saw_a_test(place)
    Run(place / "seed17").start.unlink()


# What cannot be told from honest work is named.
NOTED: dict[Callable[[Path], None], tuple[str, str]] = {
    compare_with_a_rival: ("seed17", "validation: run rival was not computed again"),
    stop_where_a_test_was_best: ("seed29", "config.toml says steps 4, best.safetensors 8"),
    rename_and_remove_an_evaluation: ("other", "test-h2: looked at with this checkpoint as seed17"),
    count_the_first_look_again: (
        "seed17",
        "test-h1: counts 1 looks, and look 3 by then was of the same checkpoint",
    ),
    lose_what_it_started_from: (
        "seed17",
        "start.safetensors, the weights that it started from, is gone",
    ),
}


@pytest.mark.parametrize("forge", NOTED, ids=lambda forge: forge.__name__)
def test_what_may_be_honest_is_named(forge: Callable[[Path], None], place: Path) -> None:
    run, says = NOTED[forge]
    forge(place)
    proofs = audit_path(place / run, corpus=place / "corpus", config=AuditConfig(seed=3))
    assert any(says in note for proof in proofs for note in proof.notes)


def test_a_patched_evaluation_that_drops_large_moves_is_found(
    place: Path, vaiom: Vaiom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for the events of a test, the audit included, gets those within two sigmas."""
    honest = Corpus.endpoints

    def without_large_moves(self: Corpus, split: str, *words: Any, **more: Any) -> Any:
        rows = honest(self, split, *words, **more)
        small = np.abs(self.log_ret_next[rows] / self.sigma20[rows]) <= 2
        return rows[small] if split.startswith("test-") else rows

    monkeypatch.setattr(Corpus, "endpoints", without_large_moves)
    evaluate_run(place / "seed29", open_corpus(place / "corpus"), "test-h1", device="cpu")
    ran = vaiom("audit", place / "seed29", "--corpus", place / "corpus", "--json")
    assert ran.code == 1
    found = {proof["name"]: proof["findings"] for proof in json.loads(ran.out)["proofs"]}
    assert "test-h1 lacks" in found["c. chronology"][0]
    assert "does not hold every valid target" in found["f. provenance"][0]


def test_another_thread_count_is_no_forgery(
    place: Path, vaiom: Vaiom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test is scored again, and sums are added in another order."""

    class OnOtherThreads(ModelPredictor):
        def predict_proba(self, corpus: Any, rows: Any) -> Any:
            probs = super().predict_proba(corpus, rows)
            return probs * (
                1 + 1e-7 * torch.sin(torch.arange(probs.size)).numpy().reshape(probs.shape)
            )

    with monkeypatch.context() as patched:
        patched.setattr("vaiom.evaluation.evaluate.ModelPredictor", OnOtherThreads)
        evaluate_run(place / "seed17", open_corpus(place / "corpus"), "test-h1", device="cpu")
    ran = vaiom("audit", place / "seed17", "--corpus", place / "corpus", "--json")
    assert [proof["findings"] for proof in json.loads(ran.out)["proofs"] if proof["findings"]] == []
    assert ran.code == 0


def test_the_seed_is_drawn_and_printed_with_what_can_be_published(
    place: Path, vaiom: Vaiom
) -> None:
    words = ["audit", place / "seed17", "--corpus", place / "corpus", "--rescore", 10]
    first, second = (vaiom(*words, "--json").json() for _ in range(2))
    assert first["seed"] != second["seed"]
    ledger = place / "corpus/ledger.jsonl"
    assert first["hashes"]["ledger.jsonl"] == hashlib.sha256(ledger.read_bytes()).hexdigest()
    assert first["hashes"].keys() >= {
        "corpus",
        "checkpoint",
        "best.safetensors",
        "evaluation-test-h1.json",
    }
    shown = vaiom(*words, "--seed", 5).out
    assert "--seed 5" in shown
    assert first["hashes"]["checkpoint"] in shown
