"""Proofs (f) and (g): every file names the one before it, from bars to figures, and can be made
again; the model was selected on Validation, and every look at a test is on record.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaiom.auditing.leakage import valid_targets
from vaiom.auditing.pipeline import SAMPLED, AuditedRun
from vaiom.auditing.proof import Proof, claim
from vaiom.corpus.split_quality import count_events
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.errors import UserError
from vaiom.evaluation.ledger import (
    NO_CHECKPOINT,
    TestAccess,
    is_recorded,
    ledger_heads,
    model_accesses,
    read_ledger,
)
from vaiom.evaluation.predictor import ModelPredictor, seen_by
from vaiom.evaluation.scores import difference_of, event_bits, read_events, score_events
from vaiom.files import sha256_file
from vaiom.model.checkpoint import USE, load_checkpoint
from vaiom.run import BEST_NAME, CONFIG_NAME, METRICS_NAME, Run
from vaiom.training.devices import resolve_device
from vaiom.training.experiment import changed, experiment_of_checkpoint, experiment_of_run
from vaiom.training.loop import train
from vaiom.training.start import require_start
from vaiom.training.teachers import teachers_of

if TYPE_CHECKING:
    from vaiom.corpus.build import CorpusConfig

FIRST_STEPS = 20
GPU_TOLERANCE = 1e-2  # largest difference of one parameter after the first steps on a GPU
STANDARD_ERRORS, ENOUGH = (
    5,
    1_024,
)  # of a mean over drawn events, and how many make it nearly normal


@claim(
    "f. provenance",
    "hashes from bars to manifest, arrays, tokenizer, checkpoint, evaluation; every valid target "
    "is an event",
)
def prove_provenance(
    proof: Proof, corpus: Corpus, bars: Path | None = None, run: AuditedRun | None = None
) -> None:
    # Opening the corpus compared each of its files with the manifest.
    proof.count += len(corpus.columns)
    tokenizer, taken = corpus.tokenizer, Counter[str]()
    for entry in corpus.manifest["inputs"]:
        taken[entry["symbol"]] += entry["rows_taken"]
    told = {
        "edges": tokenizer.to_json()["inner_edges"],
        "events": {name: sum(counts.values()) for name, counts in count_events(corpus).items()},
    }
    for name, value in told.items():
        proof.check(corpus.manifest[name] == value, f"the manifest lists other {name}")
    sizes = {symbol: rows.stop - rows.start for symbol, rows in corpus.asset_slices.items()}
    proof.check(taken == sizes, "the manifest lists inputs of other rows")
    if like := corpus.manifest.get("like"):
        proof.notes.append(
            f"its buckets are of a model, {like[:16]}: what they were fitted on is not shown here"
        )
    if bars is None:
        proof.notes.append("the bars' own hashes need --bars")
    else:
        from vaiom.market.folder import symbols_in

        recorded = {(entry["symbol"], entry["sha256"]) for entry in corpus.manifest["inputs"]}
        present, files = (
            symbols_in(bars),
            Counter(name for name, _ in recorded),
        )  # the rebuild compares joined ones
        for symbol in sorted({*present, *files}):
            file = bars / f"{symbol}.parquet"
            same = symbol in present and (
                files[symbol] > 1 or (symbol, sha256_file(file)) in recorded
            )
            proof.check(same, f"{file} is not a file that the corpus was built from")
    if run is None:
        return
    seen, best, origin = run.corpus, run.checkpoint, run.checkpoint.provenance
    proof.check(
        best.tokenizer.sha256 == seen.tokenizer.sha256, "the checkpoint has another tokenizer"
    )
    same_inputs = origin.inputs == seen.manifest["inputs"][: len(origin.inputs)]
    grown = same_inputs and origin.splits == seen.splits.to_json()
    problem = (
        "the checkpoint was trained on another corpus, not on this one nor on one that grew into it"
    )
    proof.check(origin.corpus_sha256 == seen.sha256 or grown, problem)
    in_config = run.files.read_config().get("corpus", {}).get("sha256")
    proof.check(in_config == origin.corpus_sha256, f"{CONFIG_NAME} names another corpus")
    # The hash leaves out what may change when a run is resumed.
    same = experiment_of_run(run.files.path).sha256 == experiment_of_checkpoint(best).sha256
    proof.check(same, f"{CONFIG_NAME} describes another experiment")
    for name, (new, old) in changed(
        experiment_of_checkpoint(best), experiment_of_run(run.files.path)
    ).items():
        proof.notes.append(
            f"{CONFIG_NAME} says {name} {new}, {BEST_NAME} {old}: as after resuming with other "
            f"settings"
        )
    if seen is not corpus and origin.purpose != USE:
        proof.notes.append("the run has other split boundaries than its corpus was built with")
    _check_ancestors(proof, run)
    for split, stored in run.evaluations().items():
        _check_evaluation(proof, run, split, stored)


def _check_ancestors(proof: Proof, run: AuditedRun) -> None:
    """What it started from, and its teachers, have seen nothing that it holds out."""
    origin, experiment = run.checkpoint.provenance, experiment_of_checkpoint(run.checkpoint)
    if origin.start_sha256 and not run.files.start.is_file():
        proof.notes.append(f"{run.files.start.name}, the weights that it started from, is gone")
    elif origin.start_sha256:
        start = load_checkpoint(run.files.start)
        proof.check(
            start.sha256 == origin.start_sha256,
            f"{run.files.start.name} is not what it started from",
        )
        try:
            require_start(start, run.corpus, experiment)
        except UserError as error:
            proof.check(False, f"{run.files.start.name}: {error.problem}")
    for number, expected in enumerate(teachers_of(experiment), start=1):
        best = Run(run.files.teachers / str(number)).best
        if not best.is_file():
            proof.notes.append(f"teacher {number} is gone: what it has learned from is not shown")
            continue
        teacher = load_checkpoint(best)
        same = (
            teacher.provenance.splits == origin.splits
            and teacher.provenance.corpus_sha256 == origin.corpus_sha256
        )
        same &= experiment_of_checkpoint(teacher).sha256 == expected.sha256
        proof.check(
            same, f"teacher {number} is of another corpus, other boundaries or another experiment"
        )


def _check_evaluation(proof: Proof, run: AuditedRun, split: str, stored: dict[str, Any]) -> None:
    """It is of this checkpoint and corpus, and its events are all valid targets of the split."""
    corpus, origin = run.corpus, run.checkpoint.provenance
    proof.check(
        stored.get("checkpoint_sha256") == run.checkpoint.sha256,
        f"{split}: evaluated with another checkpoint",
    )
    names = ("experiment", "seed", "step")
    same = all(stored.get(name) == getattr(origin, name) for name in names)
    proof.check(
        same, f"{split}: says another experiment, seed or step than the checkpoint", len(names)
    )
    proof.check(
        stored.get("split") == split, f"{split}: the file says that it is of {stored.get('split')}"
    )
    known = stored.get("precision") in (None, "float32", "float16", "bfloat16")
    proof.check(known, f"{split}: scored in an unknown precision, {stored.get('precision')}")
    same = stored.get("corpus_sha256") in (corpus.sha256, origin.corpus_sha256)
    proof.check(same, f"{split}: evaluated on another corpus")
    rows = valid_targets(corpus, split, run.history)
    difference = difference_of(score_events(corpus, rows, {}), read_events(run.files.path, split))
    problem = (
        f"{split}: the events file does not hold every valid target of the split: {difference}"
    )
    proof.check(difference is None, problem, len(rows))


def config_of(corpus: Corpus) -> CorpusConfig:
    """The options that a corpus was built with."""
    from vaiom.corpus.build import CorpusConfig

    tokenizer = corpus.tokenizer
    classes = dict(zip(tokenizer.symbols, tokenizer.classes, strict=True))
    return CorpusConfig(
        timeframe=tokenizer.timeframe, splits=corpus.splits, classes=classes, like=corpus.like
    )


@claim(
    "rebuild",
    "building the corpus again from these bars gives its hash, and the examined pipeline its "
    "columns",
)
def prove_rebuild(proof: Proof, corpus: Corpus, seen: Corpus, folder: Path, built: Corpus) -> None:
    from vaiom.corpus.build import build_corpus

    with tempfile.TemporaryDirectory() as name:
        again = build_corpus(folder, Path(name) / "corpus", config_of(corpus))
        # An older corpus may lack columns that this version adds.
        arrays = {name: again.manifest["arrays"][name] for name in corpus.manifest["arrays"]}
        again = replace(again, manifest={**again.manifest, "arrays": arrays})
        proof.check(again.sha256 == corpus.sha256, f"the bars of {folder} give another corpus")
    for name, ours in seen.columns.items():
        same = name in built.columns and np.array_equal(built.columns[name], ours, equal_nan=True)
        proof.check(same, f"the examined pipeline gives another {name}", len(ours))


@claim("repeat", "the run's configuration trained twice with one seed: the same parameters")
def prove_repeat(
    proof: Proof, run: Path, corpus: Corpus, *, full: bool = False, device: str = "cpu"
) -> None:
    experiment, own = experiment_of_run(run), load_checkpoint(Run(run).best)
    seen = seen_by(own, corpus)
    if not full:
        steps = min(FIRST_STEPS, experiment.train.steps)
        experiment = experiment.with_changes(steps=steps, validate_every=steps)
    on_cpu, start = (
        resolve_device(device).type == "cpu",
        Run(run).start if own.provenance.start_sha256 else None,
    )
    checkpoints, bits = [], []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            result = train(seen, experiment, Path(name) / "run", device=device, start=start)
            checkpoints.append(load_checkpoint(Run(result.run).best))
            bits.append(repr(result.best_bits))
    first, second = (checkpoint.sha256 for checkpoint in checkpoints)
    pairs = list(
        zip(*(checkpoint.model.state_dict().values() for checkpoint in checkpoints), strict=True)
    )
    largest = max(float((one.double() - other.double()).abs().max()) for one, other in pairs)
    hashes = f"{first[:16]} and {second[:16]}, largest difference of a parameter {largest:.1e}"
    holds = first == second if on_cpu else largest <= GPU_TOLERANCE
    proof.check(
        holds, f"two trainings of {experiment.train.steps} steps differ: {hashes}", len(pairs)
    )
    proof.notes.append(
        f"{experiment.train.steps} steps: {hashes}; Validation {' and '.join(bits)} bits"
    )
    if full and on_cpu:
        problem = (
            f"the run's own {BEST_NAME} is another: it was not trained so, or not with "
            f"these threads"
        )
        if proof.check(own.sha256 == first, problem):
            proof.notes.append(f"the run's own {BEST_NAME} is the same")


@claim(
    "g. selection",
    "Validation scored again, a training log without holes, an evaluation for each look; the "
    "ledger is a chain",
)
def prove_selection(proof: Proof, corpus: Corpus, run: AuditedRun | None = None) -> None:
    looks, heads = read_ledger(corpus), ledger_heads(corpus)
    chained = False  # each line has the hash of those before it, but for old lines at the start
    for number, look in enumerate(looks, start=1):
        # Another process may have recorded at the same time: the hash of any earlier state will do.
        holds = look.previous in heads[:number] if look.previous is not None else not chained
        proof.check(holds, f"ledger, line {number}: lines before it were changed or removed")
        chained |= look.previous is not None
    for split in corpus.splits.names:
        models = Counter(look.run for look in model_accesses(corpus, split))
        if models:
            names = ", ".join(
                f"{name} ({times})" if times > 1 else name for name, times in models.items()
            )
            proof.notes.append(f"{split}: scored {models.total()} times, by {names}")
    proof.notes.append(
        f"{len(looks)} looks in the ledger, SHA-256 {heads[-1]}" if looks else "no look is recorded"
    )
    if unchained := sum(look.previous is None for look in looks):
        proof.notes.append(
            f"{unchained} looks are older than the chain: nothing shows whether there were more"
        )
    if run is not None:
        proof.notes.append(
            "what a training has read is shown by training again (--repeat --full), not here"
        )
        _check_log(proof, run)
        _check_validation(proof, run)
        _check_looks(proof, corpus, run, looks, heads)
        if run.checkpoint.provenance.purpose == USE:
            # A refit is selected on the newest events: those that its corpus holds out were looked
            # at.
            selected_on = run.corpus.endpoints(VALIDATION, run.history)
            for code, split in enumerate(corpus.splits.names):
                count = int(np.sum(corpus.split_codes[selected_on] == code))
                if count and is_recorded(corpus, split):
                    looked = any(look.split == split and look.num_events == count for look in looks)
                    problem = (
                        f"{split}: selected on {count} of its events, but the look is not "
                        f"in the ledger"
                    )
                    proof.check(looked, problem)
                    proof.notes.append(
                        f"selected on {count:,} events that the corpus holds out as {split}"
                    )


def _check_log(proof: Proof, run: AuditedRun) -> None:
    """The selected model is a recorded step, none has fewer Validation bits, and no Validation is
    missing.
    """
    config = experiment_of_run(run.files.path).train
    step, own = run.checkpoint.provenance.step, run.checkpoint.provenance.validation_bits
    bits, log = run.files.validation_bits(), run.files.read_metrics()
    steps = [entry["step"] for entry in log if "validation_bits" in entry]
    in_order = steps == sorted(bits) and all(
        isinstance(each, float) and math.isfinite(each) for each in bits.values()
    )
    if not proof.check(
        in_order, f"{METRICS_NAME} has a Validation twice, out of order or without a number"
    ):
        return
    proof.check(
        own == bits.get(step), f"{BEST_NAME} says step {step} with {own} bits, the run otherwise"
    )
    fewest, last = min(bits, key=lambda key: bits[key], default=None), max(bits, default=0)
    problem = f"{BEST_NAME} is of step {step}, the fewest Validation bits came at {fewest}"
    proof.check(fewest == step, problem, len(bits))
    holes = set(range(config.validate_every, last, config.validate_every)) - set(bits)
    proof.check(
        not holes, f"{METRICS_NAME} lacks the Validation of step {min(holes, default=0)}", len(bits)
    )
    problem = (
        f"{METRICS_NAME} ends at step {last} of {config.steps}: finish the training (vaiom "
        f"train --resume)"
    )
    proof.check(config.has_ended(bits), problem)
    if (kept := run.files.checkpoint(step)).is_file():
        same = load_checkpoint(kept).sha256 == run.checkpoint.sha256
        proof.check(same, f"{BEST_NAME} is not the checkpoint {kept.name}")


def _check_validation(proof: Proof, run: AuditedRun) -> None:
    """Every checkpoint that is still there has the Validation bits that it claims."""
    rows, files = run.corpus.endpoints(VALIDATION, run.history), [run.files.best]
    chosen = run.draw(rows, at_least=ENOUGH)
    if run.in_stretches or len(rows) <= SAMPLED:
        files += [
            file
            for step in run.files.saved_steps()
            if (file := run.files.checkpoint(step)).is_file()
        ]
    allowed, logged = run.rounding(VALIDATION, None).mean_bits, run.files.validation_bits()
    for file in files:
        model = ModelPredictor.load(file, "cpu")
        step, claimed = (
            model.checkpoint.provenance.step,
            model.checkpoint.provenance.validation_bits,
        )
        if file != run.files.best and model.checkpoint.sha256 == run.checkpoint.sha256:
            continue
        losses = event_bits(
            model.predict_proba(run.corpus, rows[chosen]), run.corpus.target_return[rows[chosen]]
        )
        mean, margin = float(losses.mean()), allowed
        if len(chosen) < len(rows):
            margin += STANDARD_ERRORS * float(losses.std()) / math.sqrt(len(chosen))
        named = file == run.files.best or file == run.files.checkpoint(step)
        proof.check(named, f"{file.name} is the checkpoint of step {step}")
        for where, said in ((file.name, claimed), (METRICS_NAME, logged.get(step))):
            holds = isinstance(said, float) and abs(said - mean) <= margin
            problem = (
                f"{where} claims {said} Validation bits at step {step}, its events cost {mean:.6f}"
            )
            proof.check(holds, problem, len(chosen))
        proof.notes.append(
            f"step {step}: {mean:.6f} Validation bits over {len(chosen):,} events, claimed "
            f"{claimed}"
        )


def _check_looks(
    proof: Proof, corpus: Corpus, run: AuditedRun, looks: list[TestAccess], heads: list[str]
) -> None:
    """Every look has its evaluation, and every evaluation of a test its look before it."""
    stored, own = run.evaluations(), run.checkpoint.sha256
    # A refit is never evaluated: what selects it, and its heads, are looks under its own name.
    names = {run.files.path.name, *(Path(str(each.get("run"))).name for each in stored.values())}
    for split, name in sorted(
        {(look.split, look.run) for look in looks if look.checkpoint_sha256 == own}
    ):
        if name in names and run.checkpoint.provenance.purpose != USE:
            proof.check(
                split in stored, f"{split}: looked at, but its evaluation is gone (vaiom evaluate)"
            )
        elif split not in stored:
            proof.notes.append(
                f"{split}: looked at with this checkpoint as {name}, and its evaluation is not here"
            )
    for split, each in stored.items():
        head = each.get("ledger_sha256")
        known = head is None or head in heads
        proof.check(
            known,
            f"{split}: evaluated on another ledger, or lines of this one were changed or removed",
        )
        if is_recorded(corpus, split):
            before = looks[: heads.index(head)] if head in heads else looks
            models = [
                look
                for look in before
                if look.split == split and look.checkpoint_sha256 != NO_CHECKPOINT
            ]
            numbers = [
                number
                for number, look in enumerate(models, start=1)
                if look.checkpoint_sha256 == own
            ]
            proof.check(
                bool(numbers), f"{split}: scored, but the look is not in the corpus's ledger"
            )
            chained = bool(numbers) and models[numbers[0] - 1].previous is not None
            proof.check(
                head is not None or not chained,
                f"{split}: the evaluation names no ledger, as newer ones do",
            )
            same = [
                look
                for look in before
                if (look.split, look.num_events) == (split, each.get("num_events"))
            ]
            left_out = {look.run for look in same if look.checkpoint_sha256 == NO_CHECKPOINT} - {
                *each.get("bits", {})
            }
            if left_out:
                proof.notes.append(
                    f"{split}: baselines scored before, and not shown: "
                    f"{', '.join(sorted(left_out))}"
                )
            # Other processes that scored at the same time may have been counted too.
            counted = bool(numbers) and numbers[0] <= (each.get("looks") or 0) <= len(models)
            proof.check(
                counted,
                f"{split}: scored {each.get('looks')} times by then, the ledger says otherwise",
            )
            if counted and each["looks"] < numbers[-1]:
                again = f"look {numbers[-1]} by then was of the same checkpoint"
                proof.notes.append(f"{split}: counts {each['looks']} looks, and {again}")
