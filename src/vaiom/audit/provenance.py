"""Proof (f): every file names the one before it, from the bars to the last figure; and what is made again is the same.

Bars -> manifest -> arrays and tokenizer -> checkpoint header -> evaluation -> events, all valid targets of the split.
A configuration trained twice gives the same bytes on a CPU; a GPU adds in an order of its own: there is a tolerance.
"""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vaiom.audit.pipeline import Bars, Fitted, Pipeline, Rows
from vaiom.audit.proof import Claim, Proof
from vaiom.errors import DataError
from vaiom.evaluation.events_file import read_events, require_same_events, score_events
from vaiom.evaluation.predictor import ModelPredictor, seen_by
from vaiom.events.corpus import Corpus
from vaiom.events.fields import ANY_MASK, MASK_BITS
from vaiom.events.scales import MAX_LOG_MOVE
from vaiom.events.splits import SEALED, VALIDATION
from vaiom.files import read_json, sha256_file
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.run import BEST_NAME, CONFIG_NAME, Run
from vaiom.training.devices import resolve_device
from vaiom.training.experiment import experiment_of_checkpoint, experiment_of_run
from vaiom.training.loop import train

if TYPE_CHECKING:
    from vaiom.events.build import CorpusConfig

REBUILD = Claim(
    "rebuild", "building the corpus again from these bars gives its hash, and the examined pipeline its columns"
)
FIRST_STEPS = 20
GPU_TOLERANCE = 1e-2
"""Largest difference of one parameter after the first steps on a GPU."""


@Claim(
    "f. provenance",
    "hashes from bars to manifest, arrays, tokenizer, checkpoint, evaluation; every valid target is an event",
)
def prove_provenance(
    proof: Proof, corpus: Corpus, bars: Path | None, model: ModelPredictor | None, run: Path | None, seen: Corpus
) -> None:
    """`seen` is the corpus under the run's own boundaries."""
    # Opening the corpus compared each of its files with the manifest.
    edges = corpus.tokenizer.to_json()["inner_edges"]
    proof.check(edges == corpus.manifest["edges"], "the manifest lists other edges", 1 + len(corpus.columns))
    if bars is not None:
        _input_links(proof, corpus, bars)
    else:
        proof.notes.append("the bars' own hashes need --bars")
    if model is not None and run is not None:
        _run_links(proof, seen, model.checkpoint, run)
        for split in Run(run).evaluated_splits():
            _evaluation_links(proof, seen, model.checkpoint, run, split)


def _input_links(proof: Proof, corpus: Corpus, bars: Path) -> None:
    from vaiom.market.folder import symbols_in

    recorded = {(entry["symbol"], entry["sha256"]) for entry in corpus.manifest["inputs"]}
    present = symbols_in(bars)
    for symbol in sorted({*present, *(each for each, _ in recorded)}):
        file = bars / f"{symbol}.parquet"
        same = symbol in present and (symbol, sha256_file(file)) in recorded
        proof.check(same, f"{file} is not a file that the corpus was built from")


def _run_links(proof: Proof, corpus: Corpus, best: Checkpoint, run: Path) -> None:
    origin, inputs = best.provenance, corpus.manifest["inputs"]
    proof.check(best.tokenizer.sha256 == corpus.tokenizer.sha256, "the checkpoint has another tokenizer")
    grown = origin.inputs == inputs[: len(origin.inputs)] and origin.splits == corpus.splits.to_json()
    other = "the checkpoint was trained on another corpus, not on this one nor on one that grew into it"
    proof.check(origin.corpus_sha256 == corpus.sha256 or grown, other)
    named = Run(run).read_config().get("corpus", {}).get("sha256")
    proof.check(named == origin.corpus_sha256, f"{CONFIG_NAME} names another corpus")
    # The hash leaves out what may change when a run is resumed.
    same = experiment_of_run(run).sha256 == experiment_of_checkpoint(best).sha256
    proof.check(same, f"{CONFIG_NAME} describes another experiment")


def _evaluation_links(proof: Proof, corpus: Corpus, best: Checkpoint, run: Path, split: str) -> None:
    stored = read_json(Run(run).evaluation(split))
    proof.check(stored.get("checkpoint_sha256") == best.sha256, f"{split}: evaluated with another checkpoint")
    facts = {name: getattr(best.provenance, name) for name in ("experiment", "seed", "step")}
    same = {name: stored.get(name) for name in facts} == facts
    proof.check(same, f"{split}: says another experiment, seed or step than the checkpoint", len(facts))
    origins = {corpus.sha256, best.provenance.corpus_sha256}
    proof.check(stored.get("corpus_sha256") in origins, f"{split}: evaluated on another corpus")
    rows = valid_targets(corpus, split, best.model.config.history)
    try:
        require_same_events(score_events(corpus, rows, {}), read_events(run, split), where=run)
    except DataError as error:
        proof.check(False, f"{split}: the events file does not hold every valid target of the split: {error.got}")
    proof.count += len(rows)


def valid_targets(corpus: Corpus, split: str, history: int) -> Rows:
    """Row numbers of the events that a split must hold, from the stored columns and not by the code that evaluates."""
    columns, start = corpus.columns, {VALIDATION: corpus.splits.validation, SEALED: (corpus.splits.seal, datetime.max)}
    begin, end = start.get(split) or corpus.splits.tests[corpus.splits.test_names.index(split)]
    found = []
    for rows in corpus.asset_slices.values():
        row = np.arange(rows.start + history - 1, rows.stop - 1)
        ret, stamps = columns["log_ret"][row + 1], corpus.timestamps[row + 1]
        with np.errstate(invalid="ignore"):
            moved = np.isfinite(ret) & (ret != 0) & (np.abs(ret) <= MAX_LOG_MOVE)
        known = (columns["flags"][row] & ANY_MASK == 0) & (columns["flags"][row + 1] & MASK_BITS["missing"] == 0)
        inside = (stamps >= np.datetime64(begin)) & (stamps < np.datetime64(end))
        found.append(row[moved & known & inside])
    return np.concatenate(found)


def config_of(corpus: Corpus) -> CorpusConfig:
    """What a corpus says that it was built with."""
    from vaiom.events.build import CorpusConfig

    tokenizer = corpus.tokenizer
    classes = dict(zip(tokenizer.symbols, tokenizer.classes, strict=True))
    return CorpusConfig(timeframe=tokenizer.timeframe, splits=corpus.splits, classes=classes, like=corpus.like)


@REBUILD
def prove_rebuild(
    proof: Proof, corpus: Corpus, seen: Corpus, folder: Path, bars: Bars, pipeline: Pipeline, fitted: Fitted
) -> None:
    from vaiom.events.build import build_corpus

    with tempfile.TemporaryDirectory() as name:
        again = build_corpus(folder, Path(name) / "corpus", config_of(corpus))
        proof.check(again.sha256 == corpus.sha256, f"the bars of {folder} give another corpus")
    columns = pipeline.corpus(bars, fitted.state).columns
    for name, ours in seen.columns.items():
        same = name in columns and np.array_equal(columns[name], ours, equal_nan=True)
        proof.check(same, f"the examined pipeline gives another {name}", len(ours))


@Claim("repeat", "the run's configuration trained twice with one seed: the same parameters")
def prove_repeat(proof: Proof, run: Path, corpus: Corpus, *, full: bool = False, device: str = "cpu") -> None:
    experiment, own = experiment_of_run(run), load_checkpoint(Run(run).best)
    seen = seen_by(own, corpus)
    if not full:
        steps = min(FIRST_STEPS, experiment.train.steps)
        experiment = experiment.with_changes(steps=steps, validate_every=steps)
    on_cpu = resolve_device(device).type == "cpu"
    made, start = [], Run(run).start if own.provenance.start_sha256 else None
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            result = train(seen, experiment, Path(name) / "run", device=device, start=start)
            made.append((load_checkpoint(Run(result.run).best), result.best_bits))
    (first, first_bits), (second, second_bits) = made
    pairs = list(zip(*(each.model.state_dict().values() for each, _ in made), strict=True))
    largest = max(float((ours.double() - theirs.double()).abs().max()) for ours, theirs in pairs)
    said = f"{first.sha256[:16]} and {second.sha256[:16]}, largest difference of a parameter {largest:.1e}"
    holds = first.sha256 == second.sha256 if on_cpu else largest <= GPU_TOLERANCE
    proof.check(holds, f"two trainings of {experiment.train.steps} steps differ: {said}", len(pairs))
    validated = f"Validation {first_bits!r} and {second_bits!r} bits"
    proof.notes.append(f"{experiment.train.steps} steps: {said}; {validated}")
    if full and on_cpu:
        otherwise = f"the run's own {BEST_NAME} is another: it was not trained so, or not with these threads"
        if proof.check(own.sha256 == first.sha256, otherwise):
            proof.notes.append(f"the run's own {BEST_NAME} is the same")
