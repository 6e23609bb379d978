"""Proof (g): the model was selected on Validation, and every look at a test is on record.

A corpus with its ledger and a run enter, a proof leaves. The training log must be whole, kept
checkpoints must have the Validation bits that they claim, and looks and evaluations must match.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.auditing.audited_run import SAMPLED, AuditedRun
from vaiom.auditing.proof import Proof, claim
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.evaluation.access_ledger import (
    NO_CHECKPOINT,
    TestAccess,
    is_recorded,
    ledger_heads,
    model_accesses,
    read_ledger,
)
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import event_bits
from vaiom.model.checkpoint import USE, load_checkpoint
from vaiom.run import BEST_NAME, METRICS_NAME
from vaiom.training.experiment import experiment_of_run

STANDARD_ERRORS = 5
"""Of a mean over drawn events, within which it agrees with the mean over all."""
ENOUGH = 1_024
"""Drawn events that make their mean nearly normal."""


@claim(
    "g. selection",
    "Validation scored again, a training log without holes, an evaluation for each look; the "
    "ledger is a chain",
)
def prove_selection(proof: Proof, corpus: Corpus, run: AuditedRun | None = None) -> None:
    """The ledger is whole; a run is what its log and Validation chose, with every look told.

    Whoever selects on a test must either have Validation bits that its events do not cost, lack a
    step in the training log, or have looks in the ledger without evaluations. Looks that were cut
    off the end of the ledger show only against a hash that was published before.
    """
    _check_ledger(proof, corpus)
    if run is None:
        return
    proof.note("what a training has read is shown by training again (--repeat --full), not here")
    _check_log(proof, run)
    _check_validation(proof, run)
    _check_looks(proof, corpus, run)
    if run.checkpoint.provenance.purpose == USE:
        _check_refit(proof, corpus, run)


def _check_ledger(proof: Proof, corpus: Corpus) -> None:
    """Each line has the hash of those before it, but for old lines at the start.

    Notes say which models were scored on each test, and how often.
    """
    looks = read_ledger(corpus)
    heads = ledger_heads(corpus)
    chained = False
    for number, look in enumerate(looks, start=1):
        # Another process may have recorded at the same time: the hash of any earlier state will do.
        holds = not chained if look.previous is None else look.previous in heads[:number]
        proof.check(holds, f"ledger, line {number}: lines before it were changed or removed")
        chained = chained or look.previous is not None
    for split in corpus.splits.names:
        models = Counter(look.run for look in model_accesses(corpus, split))
        if models:
            names = []
            for name, times in models.items():
                names.append(f"{name} ({times})" if times > 1 else name)
            by = ", ".join(names)
            proof.note(f"{split}: scored {models.total()} times, by {by}")
    if not looks:
        proof.note("no look is recorded")
        return
    proof.note(f"{len(looks)} looks in the ledger, SHA-256 {heads[-1]}")
    unchained = sum(look.previous is None for look in looks)
    if unchained:
        proof.note(
            f"{unchained} looks are older than the chain: nothing shows whether there were more"
        )


def _check_log(proof: Proof, run: AuditedRun) -> None:
    """The selected step has the fewest Validation bits of a log in which none is missing.

    Each Validation of the log must have a finite number, be in order, and be there once; the last
    step must be the one at which the training was to end.
    """
    config = experiment_of_run(run.files.path).train
    origin = run.checkpoint.provenance
    bits = run.files.validation_bits()
    steps = [entry["step"] for entry in run.files.read_metrics() if "validation_bits" in entry]
    numbers = all(map(_is_number, bits.values()))
    problem = f"{METRICS_NAME} has a Validation twice, out of order or without a number"
    if not proof.check(steps == sorted(bits) and numbers, problem):
        return
    own = origin.validation_bits
    problem = f"{BEST_NAME} says step {origin.step} with {own} bits, the run otherwise"
    proof.check(own == bits.get(origin.step), problem)
    best = min(bits, key=bits.__getitem__, default=None)
    problem = f"{BEST_NAME} is of step {origin.step}, the fewest Validation bits came at {best}"
    proof.check(best == origin.step, problem, len(bits))
    last = max(bits, default=0)
    holes = set(range(config.validate_every, last, config.validate_every)) - set(bits)
    problem = f"{METRICS_NAME} lacks the Validation of step {min(holes, default=0)}"
    proof.check(not holes, problem, len(bits))
    problem = (
        f"{METRICS_NAME} ends at step {last} of {config.steps}: finish the training (vaiom "
        f"train --resume)"
    )
    proof.check(config.has_ended(bits), problem)
    kept = run.files.checkpoint(origin.step)
    if kept.is_file():
        same = load_checkpoint(kept).sha256 == run.checkpoint.sha256
        proof.check(same, f"{BEST_NAME} is not the checkpoint {kept.name}")


def _is_number(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _check_validation(proof: Proof, run: AuditedRun) -> None:
    """Every checkpoint that is still there has the Validation bits that it claims.

    Of many events that each need their own window some are drawn, for the selected model alone.
    """
    rows = run.corpus.endpoints(VALIDATION, run.history)
    files = [run.files.best]
    if run.scores_together or len(rows) <= SAMPLED:
        kept = [run.files.checkpoint(step) for step in run.files.saved_steps()]
        files += [file for file in kept if file.is_file()]
    for file in files:
        model = ModelPredictor.load(file, "cpu")
        copy_of_best = model.checkpoint.sha256 == run.checkpoint.sha256
        if file == run.files.best or not copy_of_best:
            _check_validation_of(proof, run, file, model)


def _check_validation_of(proof: Proof, run: AuditedRun, file: Path, model: ModelPredictor) -> None:
    """The events of Validation cost as much as a checkpoint and the training log say.

    Up to the rounding of another machine and, where only some events were drawn, so many standard
    errors of their mean.
    """
    origin = model.checkpoint.provenance
    rows = run.corpus.endpoints(VALIDATION, run.history)
    chosen = run.draw(rows, at_least=ENOUGH)
    probs = model.predict_proba(run.corpus, rows[chosen])
    losses = event_bits(probs, run.corpus.target_return[rows[chosen]])
    mean = float(losses.mean())
    margin = run.rounding(VALIDATION, None).mean_bits
    if len(chosen) < len(rows):
        standard_error = float(losses.std()) / math.sqrt(len(chosen))
        margin += STANDARD_ERRORS * standard_error
    named = file in (run.files.best, run.files.checkpoint(origin.step))
    proof.check(named, f"{file.name} is the checkpoint of step {origin.step}")
    logged = run.files.validation_bits().get(origin.step)
    claims = {file.name: origin.validation_bits, METRICS_NAME: logged}
    for where, claimed in claims.items():
        holds = isinstance(claimed, float) and abs(claimed - mean) <= margin
        problem = (
            f"{where} claims {claimed} Validation bits at step {origin.step}, its events cost "
            f"{mean:.6f}"
        )
        proof.check(holds, problem, len(chosen))
    found = f"{mean:.6f} Validation bits over {len(chosen):,} events"
    proof.note(f"step {origin.step}: {found}, claimed {origin.validation_bits}")


def _check_looks(proof: Proof, corpus: Corpus, run: AuditedRun) -> None:
    """Every look has its evaluation, and every evaluation of a test its look before it.

    A look under another name is only noted: runs are copied and renamed. A refit is never
    evaluated; what selects it, and its heads, are looks under its own name.
    """
    stored = run.evaluations()
    own = run.checkpoint.sha256
    looks = read_ledger(corpus)
    heads = ledger_heads(corpus)
    is_evidence = run.checkpoint.provenance.purpose != USE
    names = {Path(each["run"]).name for each in stored.values()}
    names.add(run.files.path.name)
    looked = {(look.split, look.run) for look in looks if look.checkpoint_sha256 == own}
    for split, name in sorted(looked):
        if name in names and is_evidence:
            problem = f"{split}: looked at, but its evaluation is gone (vaiom evaluate)"
            proof.check(split in stored, problem)
        elif split not in stored:
            proof.note(
                f"{split}: looked at with this checkpoint as {name}, and its evaluation is not here"
            )
    for split, each in stored.items():
        head = each["ledger_sha256"]
        known = head is None or head in heads
        problem = "evaluated on another ledger, or lines of this one were changed or removed"
        proof.check(known, f"{split}: {problem}")
        if is_recorded(corpus, split):
            num_before = heads.index(head) if head in heads else len(looks)
            before = [look for look in looks[:num_before] if look.split == split]
            _check_evaluation(proof, each, before, own)


def _check_evaluation(
    proof: Proof, stored: dict[str, Any], looks: Sequence[TestAccess], checkpoint_sha256: str
) -> None:
    """The evaluation of a test was a look of its checkpoint, and counts the looks by then.

    `looks` are those at its split in the ledger that it names.
    """
    split = stored["split"]
    count = stored["looks"]
    models = [look for look in looks if look.checkpoint_sha256 != NO_CHECKPOINT]
    own = []
    for number, look in enumerate(models, start=1):
        if look.checkpoint_sha256 == checkpoint_sha256:
            own.append(number)
    proof.check(bool(own), f"{split}: scored, but the look is not in the corpus's ledger")
    chained = bool(own) and models[own[0] - 1].previous is not None
    names_ledger = stored["ledger_sha256"] is not None or not chained
    proof.check(names_ledger, f"{split}: the evaluation names no ledger, as newer ones do")
    scored = set()
    for look in looks:
        same_events = look.num_events == stored["num_events"]
        if look.checkpoint_sha256 == NO_CHECKPOINT and same_events:
            scored.add(look.run)
    left_out = sorted(scored - stored["bits"].keys())
    if left_out:
        names = ", ".join(left_out)
        proof.note(f"{split}: baselines scored before, and not shown: {names}")
    # Other processes that scored at the same time may have been counted too.
    counted = bool(own) and own[0] <= (count or 0) <= len(models)
    problem = f"{split}: scored {count} times by then, the ledger says otherwise"
    proof.check(counted, problem)
    if counted and count < own[-1]:
        again = f"look {own[-1]} by then was of the same checkpoint"
        proof.note(f"{split}: counts {count} looks, and {again}")


def _check_refit(proof: Proof, corpus: Corpus, run: AuditedRun) -> None:
    """A refit is selected on the newest events: those that its corpus holds out were looked at.

    The ledger must have a look at as many events of each test as the refit's Validation holds.
    """
    selected_on = run.corpus.endpoints(VALIDATION, run.history)
    looks = read_ledger(corpus)
    for code, split in enumerate(corpus.splits.names):
        count = int(np.sum(corpus.split_codes[selected_on] == code))
        if count and is_recorded(corpus, split):
            looked = any((look.split, look.num_events) == (split, count) for look in looks)
            problem = f"{split}: selected on {count} of its events, but the look is not"
            proof.check(looked, f"{problem} in the ledger")
            proof.note(f"selected on {count:,} events that the corpus holds out as {split}")
