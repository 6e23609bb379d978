"""Proof (g): the model was chosen on Validation, and every look at a test is told of."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np

from vaiom.audit.pipeline import SAMPLED, Rescorer
from vaiom.audit.proof import Claim, Proof
from vaiom.errors import DataError
from vaiom.evaluation.ledger import NO_CHECKPOINT, Look, is_recorded, ledger_heads, model_looks, read_ledger
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import event_bits
from vaiom.events.corpus import Corpus
from vaiom.events.splits import VALIDATION
from vaiom.files import read_json
from vaiom.model.checkpoint import USE, load_checkpoint
from vaiom.run import BEST_NAME, METRICS_NAME, Run
from vaiom.training.experiment import experiment_of_run

STANDARD_ERRORS, ENOUGH = 5, 1_024
"""Of a mean over events that were drawn, which so many make nearly normal."""


@Claim(
    "g. selection",
    "Validation scored again, a training log without holes, an evaluation for each look; the ledger is a chain",
)
def prove_selection(proof: Proof, corpus: Corpus, rescorer: Rescorer | None = None, run: Path | None = None) -> None:
    looks, heads = read_ledger(corpus), ledger_heads(corpus)
    chained = False  # each line names what stood before it; lines from before there was a chain are its first link
    for number, look in enumerate(looks, start=1):
        # Whoever records at the same time may have come in between: any earlier state will do.
        holds = look.previous in heads[:number] if look.previous is not None else not chained
        proof.check(holds, f"ledger, line {number}: lines before it were changed or removed")
        chained |= look.previous is not None
    for split in corpus.splits.names:
        models = Counter(look.run for look in model_looks(corpus, split))
        if models:
            names = ", ".join(f"{name} ({times})" if times > 1 else name for name, times in models.items())
            proof.notes.append(f"{split}: scored {models.total()} times, by {names}")
    proof.notes.append(f"{len(looks)} looks in the ledger, SHA-256 {heads[-1]}" if looks else "no look is recorded")
    if rescorer is not None and run is not None:
        _check_log(proof, run, rescorer.model)
        _check_validation(proof, run, rescorer)
        _check_looks(proof, corpus, run, rescorer.model, looks, heads)
        if rescorer.model.checkpoint.provenance.purpose == USE:
            _check_selecting_looks(proof, corpus, rescorer, looks)


def _check_log(proof: Proof, run: Path, model: ModelPredictor) -> None:
    """The selected model is a recorded step, none has fewer Validation bits, and no Validation is missing."""
    origin, config = model.checkpoint.provenance, experiment_of_run(run).train
    try:
        bits = Run(run).validation_bits()
    except DataError:
        bits = {}  # no checkpoint agrees with a log that cannot be read
    step, own = origin.step, origin.validation_bits
    proof.check(own == bits.get(step), f"{BEST_NAME} says step {step} with {own} bits, the run otherwise")
    fewest = min(bits, key=lambda key: bits[key], default=None)
    proof.check(
        fewest == step, f"{BEST_NAME} is of step {step}, the fewest Validation bits came at {fewest}", len(bits)
    )
    last = max(bits, default=0)
    holes = set(range(config.validate_every, last + 1, config.validate_every)) - set(bits)
    proof.check(not holes, f"{METRICS_NAME} lacks the Validation of step {min(holes, default=0)}", len(bits))
    otherwise = f"{METRICS_NAME} ends at step {last} of {config.steps}: finish the training (vaiom train --resume)"
    proof.check(config.has_ended(bits), otherwise)
    if (kept := Run(run).checkpoint(step)).is_file():
        same = load_checkpoint(kept).sha256 == model.checkpoint.sha256
        proof.check(same, f"{BEST_NAME} is not the checkpoint {kept.name}")


def _check_validation(proof: Proof, run: Path, rescorer: Rescorer) -> None:
    """Every checkpoint that is still there has the Validation bits that it claims."""
    corpus, best = rescorer.corpus, rescorer.model.checkpoint
    rows = corpus.endpoints(VALIDATION, best.model.config.history)
    chosen = rescorer.draw(rows, at_least=ENOUGH)
    files = [Run(run).best]
    if rescorer.in_stretches or len(rows) <= SAMPLED:
        files += [file for step in Run(run).saved_steps() if (file := Run(run).checkpoint(step)).is_file()]
    allowed = rescorer.rounding(VALIDATION, None).mean_bits
    for file in files:
        checkpoint = load_checkpoint(file)
        step, claimed = checkpoint.provenance.step, checkpoint.provenance.validation_bits
        if file != Run(run).best and checkpoint.sha256 == best.sha256:
            continue
        probs = ModelPredictor(checkpoint, "cpu").predict_proba(corpus, rows[chosen])
        losses = event_bits(probs, corpus.target_return[rows[chosen]])
        mean, margin = float(losses.mean()), allowed
        if len(chosen) < len(rows):
            margin += STANDARD_ERRORS * float(losses.std()) / math.sqrt(len(chosen))
        logged = Run(run).validation_bits().get(step)
        for where, said in ((file.name, claimed), (METRICS_NAME, logged)):
            holds = said is not None and abs(said - mean) <= margin
            otherwise = f"{where} claims {said} Validation bits at step {step}, its events cost {mean:.6f}"
            proof.check(bool(holds), otherwise, len(chosen))
        proof.notes.append(f"step {step}: {mean:.6f} Validation bits over {len(chosen):,} events, claimed {claimed}")


def _check_looks(
    proof: Proof, corpus: Corpus, run: Path, model: ModelPredictor, looks: list[Look], heads: list[str]
) -> None:
    """What was looked at was evaluated, and what was evaluated was looked at before."""
    stored = {split: read_json(Run(run).evaluation(split)) for split in Run(run).evaluated_splits()}
    # A refit looks in the name of the model that it was refitted from, under its own.
    names = {run.name, *(Path(str(each.get("run"))).name for each in stored.values())}
    own = model.checkpoint.sha256
    for split in {look.split for look in looks if look.checkpoint_sha256 == own and look.run in names}:
        proof.check(split in stored, f"{split}: looked at, but its evaluation is gone (vaiom evaluate)")
    for split, each in stored.items():
        head = each.get("ledger_sha256")
        known = head is None or head in heads
        proof.check(known, f"{split}: evaluated on another ledger, or lines of this one were changed or removed")
        if is_recorded(corpus, split):
            before = looks[: heads.index(head)] if head in heads else looks
            models = [look for look in before if look.split == split and look.checkpoint_sha256 != NO_CHECKPOINT]
            numbers = [number for number, look in enumerate(models, start=1) if look.checkpoint_sha256 == own]
            proof.check(bool(numbers), f"{split}: scored, but the look is not in the corpus's ledger")
            chained = bool(numbers) and models[numbers[0] - 1].previous is not None
            proof.check(head is not None or not chained, f"{split}: the evaluation names no ledger, as newer ones do")
            # Whoever scores at the same time may have been counted too.
            counted = bool(numbers) and numbers[0] <= (each.get("looks") or 0) <= len(models)
            proof.check(counted, f"{split}: scored {each.get('looks')} times by then, the ledger says otherwise")


def _check_selecting_looks(proof: Proof, corpus: Corpus, rescorer: Rescorer, looks: list[Look]) -> None:
    """A refit is selected on the newest events: those that its corpus holds out were looked at."""
    selected_on = rescorer.corpus.endpoints(VALIDATION, rescorer.model.checkpoint.model.config.history)
    for code, split in enumerate(corpus.splits.names):
        count = int(np.sum(corpus.split_codes[selected_on] == code))
        if count and is_recorded(corpus, split):
            looked = any(look.split == split and look.num_events == count for look in looks)
            proof.check(looked, f"{split}: selected on {count} of its events, but the look is not in the ledger")
            proof.notes.append(f"selected on {count:,} events that the corpus holds out as {split}")
