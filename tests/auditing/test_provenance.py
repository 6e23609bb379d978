"""Proofs (f), "rebuild" and "repeat", claim by claim: what they say of each file that does not
follow from another.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from vaiom.auditing import provenance, repeat
from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.proof import AuditConfig
from vaiom.corpus.append import append_bars
from vaiom.corpus.build import corpus_in_memory
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.market.folder import read_bars, write_symbol
from vaiom.model.checkpoint import USE, load_checkpoint, save_checkpoint
from vaiom.model.vaiom import Vaiom as Network
from vaiom.run import Run
from vaiom.training.experiment import experiment_of_checkpoint
from vaiom.training.loop import train
from vaiom.training.teachers import teachers_of
from verification.forgeries.catalogue import edit

NO_BARS = "the bars' own hashes need --bars"
OTHER = "0" * 64


def audited(place: Path) -> AuditedRun:
    return AuditedRun(place / "seed17", open_corpus(place / "corpus"), AuditConfig(seed=3))


def with_origin(run: AuditedRun, **changes: Any) -> AuditedRun:
    run.checkpoint = replace(
        run.checkpoint, provenance=replace(run.checkpoint.provenance, **changes)
    )
    return run


def with_manifest(corpus: Corpus, **changes: Any) -> Corpus:
    return replace(corpus, manifest=corpus.manifest | changes)


def test_an_honest_chain_is_counted_in_full_and_leaves_nothing_to_say(finished: Path) -> None:
    corpus, run = open_corpus(finished / "corpus"), audited(finished)
    proof = provenance.prove_provenance(run.corpus, finished / "bars", run)
    assert (proof.findings, proof.notes) == ([], [])
    events = 464 + 635 + 982
    of_corpus, of_bars, of_run, of_evaluations = (
        len(corpus.columns) + 2 + 1,
        2,
        4,
        3 * 2 + events,
    )
    assert proof.count == of_corpus + of_bars + of_run + of_evaluations
    alone = provenance.prove_provenance(corpus)
    assert (alone.findings, alone.notes, alone.count) == ([], [NO_BARS], of_corpus)


@pytest.mark.parametrize("what", ["edges", "events"])
def test_a_manifest_lists_what_the_corpus_holds(finished: Path, what: str) -> None:
    corpus = open_corpus(finished / "corpus")
    changed = with_manifest(corpus, **{what: corpus.manifest[what] | {"train": 0}})
    assert provenance.prove_provenance(changed).findings == [f"the manifest lists other {what}"]


def test_a_manifest_lists_the_rows_that_each_file_gave(finished: Path) -> None:
    """An asset that has grown has several entries."""
    corpus = open_corpus(finished / "corpus")
    first, *others = corpus.manifest["inputs"]
    for taken, more, says in (
        (first["rows_taken"] - 9, [first | {"rows_taken": 9}], []),
        (first["rows_taken"] + 1, [], ["the manifest lists inputs of other rows"]),
    ):
        inputs = [first | {"rows_taken": taken}, *others, *more]
        assert provenance.prove_provenance(with_manifest(corpus, inputs=inputs)).findings == says


def test_buckets_of_a_model_are_not_shown(finished: Path) -> None:
    corpus = with_manifest(open_corpus(finished / "corpus"), like="ab" * 32)
    note = (
        "its buckets are of a model, abababababababab: what they were fitted on is not shown here"
    )
    assert provenance.prove_provenance(corpus).notes == [note, NO_BARS]


def test_each_file_of_bars_is_one_that_the_corpus_was_built_from(place: Path) -> None:
    bars, corpus = place / "bars", open_corpus(place / "corpus")
    extra, gone, other = (bars / f"{symbol}.parquet" for symbol in ("AUDUSD", "EURUSD", "XAUUSD"))
    extra.write_bytes(gone.read_bytes())
    gone.unlink()
    pl.read_parquet(other).head(-1).write_parquet(other)
    found = provenance.prove_provenance(corpus, bars).findings
    assert found == [
        f"{file} is not a file that the corpus was built from" for file in (extra, gone, other)
    ]


def test_bars_that_came_in_several_files_may_lie_in_one(place: Path) -> None:
    """The rebuild compares them; the file of an asset that came once is still that file."""
    bars, more = place / "bars", place / "more"
    old = pl.read_parquet(bars / "EURUSD.parquet")
    later = old.tail(50).with_columns(
        pl.col("Datetime") + (old["Datetime"][-1] - old["Datetime"][-51])
    )
    write_symbol(more, "EURUSD", later)
    corpus = append_bars(place / "corpus", more)
    write_symbol(bars, "EURUSD", pl.concat([old, later]))
    assert provenance.prove_provenance(corpus, bars).findings == []
    built = corpus_in_memory(read_bars(bars), provenance.config_of(corpus))
    assert provenance.prove_rebuild(corpus, corpus, bars, built).findings == []
    write_symbol(bars, "EURUSD", old)
    [found, *_] = provenance.prove_rebuild(corpus, corpus, bars, built).findings
    assert found == f"the bars of {bars} give another corpus"


@pytest.mark.parametrize("same_splits", [True, False])
@pytest.mark.parametrize("same_inputs", [True, False])
def test_a_corpus_that_grew_has_the_first_inputs_and_the_splits_of_the_run(
    finished: Path, same_splits: bool, same_inputs: bool
) -> None:
    corpus, run = open_corpus(finished / "corpus"), audited(finished)
    splits = SplitConfig.from_json(run.checkpoint.provenance.splits)
    sealed = replace(splits, seal=splits.seal + timedelta(days=1)).to_json()
    inputs = corpus.manifest["inputs"][:1] if same_inputs else corpus.manifest["inputs"][1:]
    with_origin(
        run, corpus_sha256=OTHER, inputs=inputs, splits=splits.to_json() if same_splits else sealed
    )
    found = provenance.prove_provenance(run.corpus, None, run).findings
    says = (
        "the checkpoint was trained on another corpus, not on this one nor on one that grew into it"
    )
    own = [] if same_splits and same_inputs else [says]
    assert found == [*own, "config.toml names another corpus"]


def test_a_checkpoint_of_another_tokenizer_is_named(finished: Path) -> None:
    run = audited(finished)
    tokenizer = replace(run.checkpoint.tokenizer, timeframe="4h")
    run.checkpoint = replace(run.checkpoint, tokenizer=tokenizer)
    assert provenance.prove_provenance(run.corpus, None, run).findings == [
        "the checkpoint has another tokenizer"
    ]


def test_other_boundaries_are_said_unless_it_is_a_refit(finished: Path) -> None:
    run = audited(finished)
    boundaries = "the run has other split boundaries than its corpus was built with"
    stored = replace(run.corpus)
    assert provenance.prove_provenance(stored, None, run).notes == [NO_BARS, boundaries]
    assert provenance.prove_provenance(stored, None, with_origin(run, purpose=USE)).notes == [
        NO_BARS
    ]


def test_settings_that_resuming_may_change_are_said(place: Path) -> None:
    config = Run(place / "seed17").config
    config.write_text(config.read_text().replace("steps = 8", "steps = 4"))
    run = audited(place)
    said = "config.toml says steps 4, best.safetensors 8: as after resuming with other settings"
    assert provenance.prove_provenance(run.corpus, None, run).notes == [NO_BARS, said]


def test_initial_weights_are_those_that_it_names_and_saw_nothing_held_out(place: Path) -> None:
    run, other = audited(place), load_checkpoint(Run(place / "seed29").best)

    def findings(start_sha256: str | None) -> tuple[list[str], list[str]]:
        with_origin(run, start_sha256=start_sha256)
        proof = provenance.prove_provenance(run.corpus, None, run)
        return proof.findings, [note for note in proof.notes if note != NO_BARS]

    gone = "start.safetensors, the weights that it started from, is gone"
    assert findings(None) == ([], [])
    assert findings(other.sha256) == ([], [gone])
    run.files.start.write_bytes(Run(place / "seed29").best.read_bytes())
    assert findings(other.sha256) == ([], [])
    assert findings(None) == ([], [])
    assert findings(OTHER) == (["start.safetensors is not what it started from"], [])
    splits = SplitConfig.from_json(other.provenance.splits)
    later = replace(splits, validation=(splits.validation[0], splits.seal), tests=())
    saw_tests = replace(other.provenance, splits=later.to_json())
    save_checkpoint(run.files.start, other.model, other.tokenizer, saw_tests)
    held_out = "the weights have learned from, or were selected on, what this corpus holds out"
    assert findings(other.sha256) == ([f"start.safetensors: {held_out}"], [])


def test_each_teacher_is_of_the_same_data_and_settings(place: Path) -> None:
    run = audited(place)
    model = replace(run.checkpoint.config, attention_window=8, positions="rotary")
    torch.manual_seed(1)
    network = Network(model, run.checkpoint.tokenizer.vocabulary_sizes)
    taught = run.checkpoint.provenance.train | {"teachers": 2, "teacher_share": 0.5}
    run.checkpoint = replace(run.checkpoint, model=network, config=model)
    with_origin(run, train=taught)
    origin, tokenizer = run.checkpoint.provenance, run.checkpoint.tokenizer
    first, second = teachers_of(experiment_of_checkpoint(run.checkpoint))

    def save(number: int, **changes: Any) -> None:
        experiment = (first, second)[number - 1]
        train = {name: getattr(experiment.train, name) for name in taught}
        own = replace(origin, experiment=experiment.name, seed=experiment.train.seed, train=train)
        (run.files.teachers / str(number)).mkdir(parents=True, exist_ok=True)
        save_checkpoint(
            Run(run.files.teachers / str(number)).best, network, tokenizer, replace(own, **changes)
        )

    def found() -> tuple[list[str], list[str]]:
        proof = provenance.prove_provenance(run.corpus, None, run)
        return (
            [each for each in proof.findings if each.startswith("teacher")],
            [each for each in proof.notes if each.startswith("teacher")],
        )

    gone = "teacher {} is gone: what it has learned from is not shown"
    assert found() == ([], [gone.format(1), gone.format(2)])
    save(1)
    assert found() == ([], [gone.format(2)])
    save(2)
    assert found() == ([], [])
    splits = SplitConfig.from_json(origin.splits)
    for change in (
        {"corpus_sha256": OTHER},
        {"splits": replace(splits, seal=splits.seal + timedelta(days=1)).to_json()},
        {"experiment": "another"},
    ):
        save(2, **change)
        assert found() == (
            ["teacher 2 is of another corpus, other boundaries or another experiment"],
            [],
        )


EVALUATIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "as it was": ({}, []),
    "half precision": ({"precision": "float16"}, []),
    "brain floats": ({"precision": "bfloat16"}, []),
    "no precision, as once": ({"precision": None}, []),
    "an unknown precision": ({"precision": "float8"}, ["scored in an unknown precision, float8"]),
    "another corpus": ({"corpus_sha256": OTHER}, ["evaluated on another corpus"]),
    "the corpus of the training": ({"corpus_sha256": "1" * 64}, []),
}


@pytest.mark.parametrize("which", EVALUATIONS)
def test_an_evaluation_is_of_its_corpus(place: Path, which: str) -> None:
    changes, says = EVALUATIONS[which]
    run = with_origin(audited(place), corpus_sha256="1" * 64)
    edit(run.files.evaluation("validation"), **changes)
    found = provenance.prove_provenance(run.corpus, None, run).findings
    own = [each for each in found if each.startswith("validation: ")]
    assert own == [f"validation: {each}" for each in says]


def test_an_evaluation_holds_every_valid_target(place: Path) -> None:
    events = Run(place / "seed17").events("validation")
    whole = pl.read_parquet(events)
    at = (pl.int_range(pl.len()) == 7).cast(whole["bucket"].dtype)
    moved = whole.with_columns(bucket=pl.col("bucket") % 16 * at + pl.col("bucket") * (1 - at) + at)
    for spoiled, how in ((whole.head(-1), "981 events"), (moved, "event 7 differs")):
        spoiled.write_parquet(events)
        found = provenance.prove_provenance(
            open_corpus(place / "corpus"), None, audited(place)
        ).findings
        assert found == [
            f"validation: the events file does not hold every valid target of the split: {how}"
        ]


def test_a_rebuilt_corpus_is_compared_column_by_column(place: Path) -> None:
    corpus = open_corpus(place / "corpus")
    proof = provenance.prove_rebuild(corpus, corpus, place / "bars", corpus)
    assert (proof.findings, proof.count) == ([], 1 + sum(map(len, corpus.columns.values())))
    names = sorted(corpus.columns)
    columns = dict(corpus.columns)
    del columns[names[0]]
    columns["log_ret"] = np.where(np.arange(len(corpus)) == 99, 1.0, columns["log_ret"])
    found = provenance.prove_rebuild(
        corpus, corpus, place / "bars", replace(corpus, columns=columns)
    ).findings
    assert sorted(found) == sorted(
        f"the examined pipeline gives another {name}" for name in (names[0], "log_ret")
    )
    other = place / "bars/XAUUSD.parquet"
    pl.read_parquet(other).head(-1).write_parquet(other)
    found = provenance.prove_rebuild(corpus, corpus, place / "bars", corpus).findings
    assert found == [f"the bars of {place / 'bars'} give another corpus"]


def test_the_first_twenty_steps_are_repeated(place: Path) -> None:
    config = Run(place / "seed17").config
    config.write_text(config.read_text().replace("steps = 8", "steps = 30"))
    proof = repeat.prove_repeat(place / "seed17", open_corpus(place / "corpus"))
    assert proof.findings == []
    assert proof.count == len(load_checkpoint(Run(place / "seed17").best).model.state_dict())
    [note] = proof.notes
    assert note.startswith("20 steps: ")
    one, two = note.partition("; Validation ")[2].removesuffix(" bits").split(" and ")
    assert float(one) == float(two)


@pytest.mark.parametrize(("times", "device"), [(0.5, "cuda"), (2.0, "cuda"), (1e-4, "cpu")])
def test_trainings_are_the_same_to_the_bit_on_a_cpu_and_nearly_on_a_gpu(
    place: Path, monkeypatch: pytest.MonkeyPatch, times: float, device: str
) -> None:
    """A hundredth of a parameter is allowed there; the second training moves one by more
    or less.
    """
    moves, hashes = iter((0.0, times * 1e-2)), []

    def moved(corpus: Corpus, experiment: Any, run: Path, **words: Any) -> Any:
        result = train(corpus, experiment, run, **words)
        best = load_checkpoint(Run(run).best)
        with torch.no_grad():
            next(best.model.parameters()).view(-1)[0] += next(moves)
        hashes.append(save_checkpoint(Run(run).best, best.model, best.tokenizer, best.provenance))
        return result

    monkeypatch.setattr(repeat, "train", moved)
    monkeypatch.setattr(repeat, "resolve_device", lambda name: SimpleNamespace(type=device))
    proof = repeat.prove_repeat(place / "seed17", open_corpus(place / "corpus"), full=True)
    both = (
        f"{hashes[0][:16]} and {hashes[1][:16]}, largest difference of a parameter "
        f"{times * 1e-2:.1e}"
    )
    holds = times < 1 and device == "cuda"
    assert proof.findings == ([] if holds else [f"two trainings of 8 steps differ: {both}"])
    assert proof.notes[0].startswith(f"8 steps: {both}; Validation ")
    same = "the run's own best.safetensors is the same"
    assert proof.notes[1:] == ([same] if device == "cpu" else [])
