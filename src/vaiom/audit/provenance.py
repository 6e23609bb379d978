"""Proof (f): every file names the one before it, from the bars to the last figure; and what is made again is the same.

Enters: an open corpus (its own files were checked when it was opened), the bars it was built from if they are there, a
run, and the corpus under the run's own boundaries where they are others. Leaves: a `Proof` each. Bars -> manifest ->
arrays and tokenizer -> checkpoint header -> selected step -> evaluation -> events, whose buckets are the corpus's and
whose bits a fresh scoring of some of them gives again. Bars give the corpus again; a run's configuration trained twice
gives the same bytes on a CPU, while a GPU adds in an order of its own and is held to a tolerance.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from vaiom.audit.pipeline import Bars, Fitted, ProductPipeline, seen_by
from vaiom.audit.proof import Claim, Proof, proving
from vaiom.errors import DataError
from vaiom.evaluation.events_file import MODEL, read_events, require_same_events, score_events
from vaiom.evaluation.ledger import is_recorded, model_looks, read_ledger
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import event_bits
from vaiom.events.build import CorpusConfig, build_corpus
from vaiom.events.corpus import STATE_NAME, Corpus
from vaiom.events.splits import SEALED, VALIDATION
from vaiom.files import read_json, sha256_file
from vaiom.market.folder import symbols_in
from vaiom.model.checkpoint import USE, Checkpoint, load_checkpoint
from vaiom.run import BEST_NAME, CONFIG_NAME, Run
from vaiom.training.devices import resolve_device
from vaiom.training.experiment import Experiment, experiment_of_checkpoint, experiment_of_run
from vaiom.training.loop import train

REBUILD = Claim(
    "rebuild", "building the corpus again from these bars gives its hash, and the examined pipeline its columns"
)
PROVENANCE = Claim(
    "f. provenance", "hashes from bars to manifest, arrays, tokenizer, checkpoint, selected step, evaluation and events"
)
REPEAT = Claim("repeat", "the run's configuration trained twice with one seed: the same parameters")
FIRST_STEPS = 20
GPU_TOLERANCE = 1e-2
"""Largest difference of one parameter after the first steps on a GPU."""

RESCORED = 64
"""Events of an evaluation that are scored again."""
BITS_TOLERANCE = 0.1
"""Of one event scored again: a GPU may have scored it in half precision, we score in FP32."""


def prove_provenance(
    corpus: Corpus, bars: Path | None, model: ModelPredictor | None, run: Path | None, seen: Corpus | None = None
) -> Proof:
    seen = seen or corpus
    with proving(PROVENANCE) as proof:
        _corpus_links(proof, corpus)
        if bars is not None:
            _input_links(proof, corpus, bars)
        else:
            proof.notes.append("the bars' own hashes need --bars")
        if model is not None and run is not None:
            _run_links(proof, seen, model.checkpoint, run)
            if model.checkpoint.provenance.purpose == USE:
                _selecting_looks(proof, corpus, seen, model.checkpoint)
            for split in Run(run).evaluated_splits():
                _evaluation_links(proof, seen, model, run, split)
    return proof


def _corpus_links(proof: Proof, corpus: Corpus) -> None:
    manifest = corpus.manifest
    assert corpus.path is not None
    folder = corpus.path / manifest["folder"]
    for name, entry in manifest["arrays"].items():
        same = sha256_file(folder / f"{name}.npy") == entry["sha256"]
        proof.check(same, f"the manifest names another {name}.npy")
    same = sha256_file(folder / STATE_NAME) == manifest["state_sha256"]
    proof.check(same, f"the manifest names another {STATE_NAME}")
    proof.check(corpus.tokenizer.sha256 == manifest["tokenizer_sha256"], "the manifest names another tokenizer")
    proof.check(corpus.tokenizer.to_json()["inner_edges"] == manifest["edges"], "the manifest lists other edges")


def _input_links(proof: Proof, corpus: Corpus, bars: Path) -> None:
    recorded: dict[str, set[str]] = {}
    for entry in corpus.manifest["inputs"]:
        recorded.setdefault(entry["symbol"], set()).add(entry["sha256"])
    present = set(symbols_in(bars))
    for symbol in sorted(present | set(recorded)):
        known = symbol in present and symbol in recorded
        same = known and sha256_file(bars / f"{symbol}.parquet") in recorded[symbol]
        proof.check(same, f"{bars / f'{symbol}.parquet'} is not a file that the corpus was built from")


def _run_links(proof: Proof, corpus: Corpus, best: Checkpoint, run: Path) -> None:
    origin = best.provenance
    proof.check(best.tokenizer.sha256 == corpus.tokenizer.sha256, "the checkpoint has another tokenizer")
    inputs = corpus.manifest["inputs"]
    grown = origin.inputs == inputs[: len(origin.inputs)] and origin.splits == corpus.splits.to_json()
    other = "the checkpoint was trained on another corpus, not on this one nor on one that grew into it"
    proof.check(origin.corpus_sha256 == corpus.sha256 or grown, other)
    named = Run(run).read_config().get("corpus", {}).get("sha256")
    proof.check(named == origin.corpus_sha256, f"{CONFIG_NAME} names another corpus")
    # The hash leaves out what may change when a run is resumed.
    same = experiment_of_run(run).sha256 == experiment_of_checkpoint(best).sha256
    proof.check(same, f"{CONFIG_NAME} describes another experiment")
    # The selected model is a recorded step, and none has fewer Validation bits.
    try:
        bits = Run(run).validation_bits()
    except DataError:
        bits = {}  # no checkpoint agrees with a log that cannot be read
    step, own = origin.step, origin.validation_bits
    proof.check(own == bits.get(step), f"{BEST_NAME} says step {step} with {own} bits, the run otherwise")
    fewest = min(bits, key=lambda key: bits[key], default=None)
    better = f"{BEST_NAME} is of step {step}, the fewest Validation bits came at {fewest}"
    proof.check(fewest == step, better, len(bits))
    kept = Run(run).checkpoint(step)
    if kept.is_file():
        proof.check(load_checkpoint(kept).sha256 == best.sha256, f"{BEST_NAME} is not the checkpoint {kept.name}")


def _selecting_looks(proof: Proof, corpus: Corpus, seen: Corpus, best: Checkpoint) -> None:
    """A refit is selected on the newest events: those that its corpus holds out were looked at."""
    selected_on = seen.endpoints(VALIDATION, best.model.config.history)
    for code, split in enumerate(corpus.splits.names):
        count = int((corpus.split_codes[selected_on] == code).sum())
        if count and is_recorded(corpus, split):
            looked = any(look.split == split and look.num_events == count for look in read_ledger(corpus))
            proof.check(looked, f"{split}: selected on {count} of its events, but the look is not in the ledger")
            proof.notes.append(f"selected on {count:,} events that the corpus holds out as {split}")


def _evaluation_links(proof: Proof, corpus: Corpus, model: ModelPredictor, run: Path, split: str) -> None:
    stored = read_json(Run(run).evaluation(split))
    best = model.checkpoint
    proof.check(stored.get("checkpoint_sha256") == best.sha256, f"{split}: evaluated with another checkpoint")
    facts = {name: getattr(best.provenance, name) for name in ("experiment", "seed", "step")}
    same = {name: stored.get(name) for name in facts} == facts
    proof.check(same, f"{split}: says another experiment, seed or step than the checkpoint", len(facts))
    origins = {corpus.sha256, best.provenance.corpus_sha256}
    proof.check(stored.get("corpus_sha256") in origins, f"{split}: evaluated on another corpus")
    rows = corpus.endpoints(split, best.model.config.history, unseal=split == SEALED)
    events = read_events(run, split)
    try:
        require_same_events(score_events(corpus, rows, {}), events, where=run)
    except DataError:
        same = False
    else:
        same = True
    proof.check(same, f"{split}: the events file holds other events than the corpus", len(events))
    if is_recorded(corpus, split):
        models = model_looks(corpus, split)
        own = [number for number, look in enumerate(models, start=1) if look.checkpoint_sha256 == best.sha256]
        proof.check(bool(own), f"{split}: scored, but the look is not in the corpus's ledger")
        # Whoever scores at the same time may have been counted too.
        counted = bool(own) and own[0] <= (stored.get("looks") or 0) <= len(models)
        proof.check(counted, f"{split}: scored {stored.get('looks')} times by then, the ledger says otherwise")
    if same and len(events):
        # Some of the stored bits once more; what was looked at before is no new look.
        chosen = np.unique(np.linspace(0, len(rows) - 1, RESCORED).astype(np.int64))
        bits = event_bits(model.predict_proba(corpus, rows[chosen]), events.buckets[chosen])
        largest = float(np.abs(bits - events.bits[MODEL][chosen]).max())
        otherwise = f"{split}: the checkpoint gives an event {largest:.3f} bits more or fewer"
        proof.check(largest <= BITS_TOLERANCE, otherwise, len(chosen))
        proof.notes.append(f"{split}: {len(chosen)} events scored again, largest difference {largest:.1e} bits")


def config_of(corpus: Corpus) -> CorpusConfig:
    """What a corpus says that it was built with."""
    tokenizer = corpus.tokenizer
    classes = dict(zip(tokenizer.symbols, tokenizer.classes, strict=True))
    return CorpusConfig(timeframe=tokenizer.timeframe, splits=corpus.splits, classes=classes)


def prove_rebuild(
    corpus: Corpus, seen: Corpus, folder: Path, bars: Bars, pipeline: ProductPipeline, fitted: Fitted
) -> Proof:
    with proving(REBUILD) as proof:
        with tempfile.TemporaryDirectory() as name:
            again = build_corpus(folder, Path(name) / "corpus", config_of(corpus))
            proof.check(again.sha256 == corpus.sha256, f"the bars of {folder} give another corpus")
        columns = pipeline.corpus(bars, fitted.state).columns
        for name, ours in seen.columns.items():
            same = name in columns and np.array_equal(columns[name], ours, equal_nan=True)
            proof.check(same, f"the examined pipeline gives another {name}", len(ours))
    return proof


def prove_repeat(run: Path, corpus: Corpus, *, full: bool = False, device: str = "cpu") -> Proof:
    experiment = experiment_of_run(run)
    own = load_checkpoint(Run(run).best)
    seen = seen_by(own, corpus)
    if not full:
        steps = min(FIRST_STEPS, experiment.train.steps)
        experiment = experiment.with_changes(steps=steps, validate_every=steps)
    on_cpu = resolve_device(device).type == "cpu"
    with proving(REPEAT) as proof:
        (first, first_bits), (second, second_bits) = (_train(seen, experiment, device) for _ in range(2))
        pairs = list(zip(*(each.model.state_dict().values() for each in (first, second)), strict=True))
        largest = max(float((ours.double() - theirs.double()).abs().max()) for ours, theirs in pairs)
        said = f"{first.sha256[:16]} and {second.sha256[:16]}, largest difference of a parameter {largest:.1e}"
        holds = first.sha256 == second.sha256 if on_cpu else largest <= GPU_TOLERANCE
        proof.check(holds, f"two trainings of {experiment.train.steps} steps differ: {said}", len(pairs))
        proof.notes.append(
            f"{experiment.train.steps} steps: {said}; Validation {first_bits!r} and {second_bits!r} bits"
        )
        if full and on_cpu:
            same = own.sha256 == first.sha256
            proof.notes.append(f"the run's own {BEST_NAME} {'is the same' if same else 'is another'}")
    return proof


def _train(corpus: Corpus, experiment: Experiment, device: str) -> tuple[Checkpoint, float]:
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        result = train(corpus, experiment, run, device=device)
        return load_checkpoint(Run(run).best), result.best_bits
