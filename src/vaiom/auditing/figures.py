"""Proofs (e), (h) and (i): figures are those of their events, events those of the checkpoint and of
what Train fits.

Paper: Methods, "Paired Test Uncertainty"; Results, main Test table.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Set
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.auditing.leakage import PROBABILITY_TOLERANCE
from vaiom.auditing.pipeline import AuditedRun
from vaiom.auditing.proof import AuditConfig, Proof, claim
from vaiom.baselines.base import Floats, Rows
from vaiom.codec import from_json, to_json
from vaiom.corpus.splits import SEALED, VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import fit_target
from vaiom.distribution.dependence import Dependence
from vaiom.errors import UserError
from vaiom.evaluation.copula_fit import fit_dependence
from vaiom.evaluation.evaluate import compare_tests, judge
from vaiom.evaluation.horizon_scores import (
    ROOT_OF_TIME,
    events_name,
    figures_of_horizon,
    horizon_events,
    judge_horizons,
)
from vaiom.evaluation.inference import compare_seeds
from vaiom.evaluation.ledger import is_recorded, ledger_heads, model_accesses
from vaiom.evaluation.panel import make_panel
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.record import FORMS, RUN_PREFIX, Evaluation, ForecastScore, caveat_of_missing
from vaiom.evaluation.scores import (
    MODEL,
    ScoredEvents,
    difference_of,
    event_bits,
    find_rows,
    read_events,
)
from vaiom.files import sha256_of
from vaiom.model.checkpoint import USE
from vaiom.model.horizon_heads import load_horizons
from vaiom.report.contents import Inputs, read_run
from vaiom.report.page import render
from vaiom.run import REPORT_NAME, Run
from vaiom.training.experiment import experiment_of_checkpoint

RELATIVE, ABSOLUTE = 1e-9, 1e-11
# Up to here the checkpoint answers as it did; beyond, another machine or precision answered.
SAME_BITS = 1e-9
BASELINE_BITS = 1e-6  # of a baseline's loss: other libraries end a fit in other last digits
FLIPPED_STATES = 8  # events whose heaviest latent state may change where another machine answered
JOINT_FIGURE = 5e-3  # of a figure of portfolios and joint forecasts, where another machine answered
HORIZON_FIGURE = 1e-3  # of a figure that rests on what the heads of horizons answer now
MEAN_BITS = 1e-5  # of a mean that training added up in FP32
FIT_TOLERANCE = 1e-3  # of a correlation, which may rest on forecasts that a GPU made
CHANGED_RETURNS = 200  # returns that are changed to see which targets follow
DEPENDENCE_STAMPS = 64  # stamps before a cut over which the dependence of assets is followed
FIGURES = "figures"
PATHS = ("run", "corpus")  # of an evaluation: where they lay
INPUTS = re.compile(r'<script type="application/json" id="inputs">(.*?)</script>')


@claim(
    "e. figures",
    "losses scored again; every figure of evaluation-*.json from the events, the corpus and the "
    "model; report.html",
)
def prove_figures(proof: Proof, run: AuditedRun) -> None:
    corpus, evaluations = run.corpus, run.evaluations()
    if not evaluations:
        why = "the run has no evaluation (vaiom evaluate)"
        if run.checkpoint.provenance.purpose == USE:
            why = "a refit is for use, and nothing was held out of it"
        proof.notes.append(f"not run: {why}")
        return
    for split, stored in evaluations.items():
        Evaluation.read(
            run.files.path, split
        )  # refuses a damaged file; `stored` lacks what old files do not have
        events = read_events(run.files.path, split)
        rows = find_rows(corpus, corpus.target_timestamps, events.symbols, events.target_times)
        if not proof.check(
            bool((rows >= 0).all()), f"{split}: events that the corpus does not have"
        ):
            continue
        _compare_evaluation(proof, run, split, rows, events, stored)
        has_heads = not stored.get("horizons") or run.files.horizons.is_file()
        proof.check(
            has_heads,
            f"{split}: figures of horizons, and {run.files.horizons.name} is gone (vaiom horizons)",
        )
        _compare_baselines(proof, run, split, rows, events, stored.get("baselines"), {MODEL})
    tests = [evaluations[name] for name in corpus.splits.test_names if name in evaluations]
    if 1 < len(tests) == len(corpus.splits.tests):
        together = any(each.get("all_tests") is not None for each in tests)
        proof.check(
            together,
            "all tests were scored, and no evaluation has the figures of all of them together",
        )
    for folder in map(Run, sorted(run.files.forecasts.glob("*"))):
        for split in folder.evaluated_splits():
            _compare_scored_forecasts(proof, run, folder, split)
    _compare_page(proof, run)


def _compare_baselines(
    proof: Proof,
    run: AuditedRun,
    where: str,
    rows: Rows,
    events: ScoredEvents,
    folder: str | None,
    done: Set[str],
) -> None:
    for name in events.bits:
        if name in done:
            continue
        if (fitted := run.fitted(name, folder)) is None:
            proof.notes.append(
                f"{where}: {name} was not computed again (--baselines fits those that are named)"
            )
            continue
        if name not in run.config.baselines:
            proof.notes.append(
                f"{where}: {name} by its stored fit, not fitted again (--baselines {name} does)"
            )
        bits = event_bits(fitted.predict_proba(run.corpus, rows), events.buckets)
        _compare_losses(proof, where, name, bits - events.bits[name], BASELINE_BITS)


def _compare_scored_forecasts(proof: Proof, run: AuditedRun, folder: Run, split: str) -> None:
    """Forecasts of others cannot be made again: those of a test must be in the ledger, and all
    figures follow.
    """
    corpus, name = run.corpus, folder.path.name
    stored, where = to_json(ForecastScore.read(folder.path, split)), f"{name}, {split}"
    both = ours, events = read_events(run.files.path, split), read_events(folder.path, split)
    run_rows, rows = (
        find_rows(corpus, corpus.target_timestamps, each.symbols, each.target_times)
        for each in both
    )
    probs, inside = (
        events.probs,
        len(np.unique(rows)) == len(rows) and bool(np.isin(rows, run_rows).all()),
    )
    proof.check(
        inside and probs is not None,
        f"{where}: events without forecasts, or that the run does not have",
    )
    if not inside or probs is None:
        return
    missing, place, digest = (
        len(ours) - len(rows),
        np.searchsorted(run_rows, rows),
        sha256_of(probs.tobytes()),
    )
    losses = {MODEL: event_bits(probs, ours.buckets[place])}
    losses |= {
        other: ours.bits[MODEL][place] for other in events.bits if other.startswith(RUN_PREFIX)
    }
    for predictor, bits in losses.items():
        _compare_losses(proof, where, predictor, bits - events.bits[predictor], SAME_BITS)
    _compare_baselines(proof, run, where, rows, events, stored["baselines"], losses.keys())
    looks = enumerate(model_accesses(corpus, split), start=1)
    numbers = [number for number, look in looks if look.checkpoint_sha256 == digest]
    in_ledger = stored["looks"] in (numbers if is_recorded(corpus, split) else [None])
    proof.check(in_ledger, f"{where}: the ledger has no such look at these forecasts")
    figures = judge(corpus, split, rows, events)
    num_unused = stored["num_unused"]  # of a table that is not here
    proof.check(
        stored["form"] in FORMS, f"{where}: forecasts of an unknown form, {stored['form'][:80]}"
    )
    figures["caveats"].insert(0, caveat_of_missing(missing, len(ours), num_unused, stored["form"]))
    figures |= dict.fromkeys(
        ("all_tests", "seeds", "bits_alone", "joint", "horizons", "precision", "ledger_sha256")
    )
    figures |= {
        "checkpoint_sha256": digest,
        "run_sha256": run.checkpoint.sha256,
        "seed": 0,
        "step": 0,
    }
    figures |= {
        "experiment": name,
        "run": name,
        "split": split,
        "num_missing": missing,
        "num_unused": num_unused,
    }
    _compare_named(proof, figures, stored, where, {})
    proof.notes.append(f"{where}: forecasts of others, taken as they were given")


def _compare_losses(
    proof: Proof, where: str, name: str, difference: Floats, tolerance: float
) -> None:
    largest = np.abs(difference).max(initial=0)
    problem = f"{where}: {name} gives an event {largest:.1e} bits more or fewer than the file"
    proof.check(largest <= tolerance, problem, len(difference))


def compare_figures(
    proof: Proof, ours: Any, stored: Any, path: str, absolute: float = ABSOLUTE
) -> None:
    """Every value of what was computed again must be in the file, and no other."""
    if isinstance(ours, dict):
        added = sorted(stored.keys() - ours.keys()) if isinstance(stored, dict) else []
        proof.check(not added, f"{path}: the file has {', '.join(added)}, which nothing gives")
        for key, value in ours.items():
            inside = stored.get(key) if isinstance(stored, dict) else None
            compare_figures(proof, value, inside, f"{path}.{key}", absolute)
    elif isinstance(ours, list):
        same_size = isinstance(stored, list) and len(stored) == len(ours)
        if proof.check(same_size, f"{path}: {len(ours)} entries recomputed, not those of the file"):
            for index, value in enumerate(ours):
                compare_figures(proof, value, stored[index], f"{path}[{index}]", absolute)
    elif isinstance(ours, float) and isinstance(stored, int | float):
        same = math.isclose(ours, stored, rel_tol=RELATIVE, abs_tol=absolute)
        proof.check(same, f"{path}: the file says {stored}, recomputed {ours}")
    else:
        proof.check(bool(ours == stored), f"{path}: the file says {stored}, recomputed {ours}")


def _compare_evaluation(
    proof: Proof,
    run: AuditedRun,
    split: str,
    rows: Rows,
    events: ScoredEvents,
    stored: dict[str, Any],
) -> None:
    """Compare each figure of the file with what the events, the corpus and the model give now."""
    events, tolerances = _score_again(proof, run, split, rows, events, stored)
    dependence = (
        Dependence.read(run.files.dependence, run.checkpoint.sha256)
        if stored.get("joint")
        else None
    )
    fits = Path(stored["baselines"]) if stored.get("baselines") else None
    figures = judge(run.corpus, split, rows, events, run.model, dependence, fits)
    if not stored.get("joint") and run.files.dependence.is_file():
        proof.notes.append(
            f"{split}: the evaluation has no joint figures, and {run.files.dependence.name} is "
            f"there"
        )
    if stored.get("all_tests"):
        tests = [name for name in run.files.evaluated_splits() if name.startswith("test-")]
        figures["all_tests"] = compare_tests(run.files.path, tests, list(events.bits))
    if stored.get("seeds"):
        seeds, models = {}, [run.checkpoint]
        try:
            for name in next(iter(stored["seeds"].values()))["bits"]:
                # Runs of other seeds are where they were evaluated, or beside this one.
                folder = (
                    Path(name) if Path(name).is_dir() else run.files.path.parent / Path(name).name
                )
                scored = (
                    events
                    if name == stored.get("run")
                    else read_events(folder, split, same_as=events)
                )
                seeds[name] = scored.bits[MODEL]
                if scored is not events:
                    model, chosen = ModelPredictor.load(Run(folder).best, "cpu"), run.draw(rows)
                    models.append(model.checkpoint)
                    now = event_bits(
                        model.predict_proba(run.corpus, rows[chosen]), events.buckets[chosen]
                    )
                    own = run.rounding(split, None).explains(seeds[name][chosen] - now)
                    proof.check(
                        own,
                        f"{split}: seeds: the losses of {name} are not its checkpoint's",
                        len(chosen),
                    )
            figures["seeds"] = compare_seeds(events, seeds)
            recipes = {
                experiment_of_checkpoint(each).with_changes(seed=0).sha256 for each in models
            }
            different = {each.sha256 for each in models}, {each.provenance.seed for each in models}
            other_seeds = len(recipes) == 1 and all(len(each) == len(models) for each in different)
            proof.check(other_seeds, f"{split}: seeds: not different seeds of one experiment")
        except UserError as error:
            proof.notes.append(f"{split}: not recomputed: seeds ({error.problem}: {error.where})")
    if (
        stored.get("ledger_sha256") is None and stored.get("sample") is None
    ):  # which version 0.1 does not have
        proof.notes.append(f"{split}: not compared: sample")
        del figures["sample"]
    if stored.get("corpus_sha256") != run.corpus.sha256:
        proof.notes.append(f"{split}: not recomputed, the corpus has grown since: zero_share")
        del figures["zero_share"]
    if "bits_alone" not in stored:  # as in older evaluations
        figures.pop("bits_alone", None)
    _compare_named(proof, figures, stored, split, tolerances)


def _compare_named(
    proof: Proof,
    figures: dict[str, Any],
    stored: dict[str, Any],
    where: str,
    tolerances: dict[str, float],
) -> None:
    for name, value in figures.items():
        if name == "confidence_set" and None in (value, stored.get(name)):  # which needs `arch`
            proof.notes.append(f"{where}: not compared: {name}")
        else:
            compare_figures(
                proof,
                to_json(value),
                stored.get(name),
                f"{where}.{name}",
                tolerances.get(name, ABSOLUTE),
            )


def _score_again(
    proof: Proof,
    run: AuditedRun,
    split: str,
    rows: Rows,
    events: ScoredEvents,
    stored: dict[str, Any],
) -> tuple[ScoredEvents, dict[str, float]]:
    """Compare the losses with the checkpoint's; returns the events, with forecasts if possible, and
    tolerances.
    """
    chosen = run.draw(rows, whole=events.probs is None)
    probs = run.model.predict_proba(run.corpus, rows[chosen])
    rounding = run.rounding(split, stored.get("precision"))
    difference = events.bits[MODEL][chosen] - event_bits(probs, events.buckets[chosen])
    largest, mean = float(np.abs(difference).max(initial=0)), float(difference.mean())
    some = f"all {len(rows):,}" if len(chosen) == len(rows) else f"{len(chosen):,} of {len(rows):,}"
    scored = f"{some} events scored again, largest difference {largest:.1e} bits, mean {mean:+.1e}"
    explained = f"{rounding.bits:.1e} bits of an event, {rounding.mean_bits:.1e} of their mean"
    proof.notes.append(f"{split}: {scored}; {rounding.precision} arithmetic explains {explained}")
    problem = (
        f"{split}: losses that are not the checkpoint's: {largest:.1e} bits off, "
        f"{mean:+.1e} in the mean"
    )
    proof.check(rounding.explains(difference), problem, len(chosen))
    names_ledger = stored.get("ledger_sha256") is not None  # as all evaluations with forecasts do
    if events.probs is not None:
        proof.check(
            names_ledger,
            f"{split}: the evaluation names no ledger, as all that come with forecasts do",
        )
        own = np.abs(event_bits(events.probs, events.buckets) - events.bits[MODEL]).max(initial=0)
        proof.check(
            own <= SAME_BITS, f"{split}: losses and probabilities of the events disagree", len(rows)
        )
        moved = float(np.abs(events.probs[chosen] - probs).max(initial=0))
        problem = f"{split}: a probability differs by {moved:.1e} from the checkpoint's"
        proof.check(moved <= rounding.probability, problem, probs.size)
    elif largest <= SAME_BITS and len(chosen) == len(rows):
        events = replace(events, probs=probs)
    else:
        proof.check(not names_ledger, f"{split}: the forecasts were taken out of the events file")
        proof.notes.append(
            f"{split}: an old file without forecasts; not recomputed: the PIT and its tests, "
            f"reliability, Brier, RPS, "
            "entropy, forecast tails, value-at-risk and shortfall backtests, latent states"
        )
    if largest <= SAME_BITS:
        return events, {}
    # The file has no forecasts for these figures: they rest on what the model answers on this
    # machine.
    latent = max(rounding.bits, FLIPPED_STATES / len(rows))
    # Rounding was measured on other inputs than those without other assets.
    alone = 2 * rounding.mean_bits
    return events, {"mixture": latent, "bits_alone": alone, "joint": JOINT_FIGURE}


def _compare_page(proof: Proof, run: AuditedRun) -> None:
    """The report must be what `vaiom report` writes from these files, with the inputs that the page
    names.
    """
    corpus = run.corpus
    if not run.files.report.is_file():
        proof.notes.append(f"the run has no {REPORT_NAME} (vaiom report)")
        return
    page, heads = run.files.report.read_text(errors="replace"), ledger_heads(corpus)
    try:
        inputs = from_json(Inputs, json.loads("".join(INPUTS.findall(page))))
        contents = read_run(run.files.path, corpus.path)
    except (UserError, ValueError, RecursionError) as error:
        proof.check(
            False,
            f"{REPORT_NAME} is not of these files and this version: {str(error).splitlines()[0]}",
        )
        return
    evaluations = run.evaluations()
    known = {
        *vars(contents.inputs).values(),
        *(each.get(name) for each in evaluations.values() for name in PATHS),
    }
    if told := [
        text for text in (inputs.run, inputs.corpus, inputs.corpus_problem) if text not in known
    ]:
        proof.notes.append(
            f"{REPORT_NAME} says that it was written elsewhere: {'; '.join(map(repr, told))}"
        )
    # Looks after the page was written are not on it; those that its evaluations know of are.
    tests = [
        each.get("ledger_sha256")
        for split, each in evaluations.items()
        if is_recorded(corpus, split)
    ]
    if inputs.ledger_sha256 in heads:
        hidden = [head for head in tests if head in heads[heads.index(inputs.ledger_sha256) + 1 :]]
        proof.check(not hidden, f"{REPORT_NAME} leaves out looks that its evaluations know of")
    matplotlib, head = (
        contents.inputs.matplotlib,
        inputs.ledger_sha256 if inputs.ledger_sha256 in heads else heads[-1],
    )
    contents = replace(
        contents, inputs=replace(inputs, ledger_sha256=head if inputs.corpus else None)
    )
    if inputs.corpus is None:
        contents = replace(contents, corpus=None)
    try:
        expected, stored = _parts(render(contents)), _parts(page)
    except Exception as error:  # figures that make no sense together
        proof.check(
            False, f"{REPORT_NAME} cannot be made from these files: {type(error).__name__}: {error}"
        )
        return
    same = [name for name, _ in expected] == [name for name, _ in stored]
    if not proof.check(
        same, f"{REPORT_NAME} has other sections or figures than `vaiom report` writes"
    ):
        return
    skipped = {}
    if inputs.corpus and corpus.sha256 != contents.checkpoint.provenance.corpus_sha256:
        skipped = dict.fromkeys(
            ("quality", "provenance"), "the corpus is not what it was for the page"
        )
    if matplotlib != inputs.matplotlib:
        skipped[FIGURES] = f"matplotlib {inputs.matplotlib} drew them and this is {matplotlib}"
    proof.notes += [f"{REPORT_NAME}, {name}: not compared, {why}" for name, why in skipped.items()]
    for (name, text), (_, stored_text) in zip(expected, stored, strict=True):
        if name not in skipped:
            lines = zip_longest(text.splitlines(), stored_text.splitlines(), fillvalue="")
            ours, theirs = next((pair for pair in lines if pair[0] != pair[1]), ("", ""))
            problem = f"{REPORT_NAME}, {name}: says {theirs[:200]!r}, the files {ours[:200]!r}"
            problem += "; a page of another version is written again by `vaiom report`"
            proof.check(text == stored_text, problem, text.count("\n") + 1)


def _parts(page: str) -> list[tuple[str, str]]:
    """The sections of a page by name, without figures, then each figure."""
    figures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    text = re.sub(r"<svg.*?</svg>", "<svg>", page, flags=re.DOTALL)
    first, *rest = re.split(r'<section id="(\w+)"', text)
    return [
        ("top", first),
        *zip(rest[::2], rest[1::2], strict=True),
        *((FIGURES, figure) for figure in figures),
    ]


@claim(
    "h. dependence",
    "how assets depend on each other: Train alone fits the same; before a stamp, with all rows "
    "after it scrambled, too",
)
def prove_dependence(
    proof: Proof, fit: Dependence, model: ModelPredictor, corpus: Corpus, config: AuditConfig
) -> None:
    rng, held_out = (
        np.random.default_rng(config.seed),
        corpus.split_codes == corpus.splits.code(VALIDATION),
    )
    again = fit_dependence(model, _scrambled_after(corpus, _end_of_train(corpus), rng))
    for name, stored in vars(fit).items():
        fitted, is_matrix = getattr(again, name), isinstance(stored, np.ndarray)
        near = (
            is_matrix
            and stored.shape == fitted.shape
            and np.allclose(stored, fitted, rtol=0, atol=FIT_TOLERANCE)
        )
        same = near if is_matrix else stored == fitted
        proof.check(same, f"Train gives another {name}: {fitted}, not {stored}")
    for cut in rng.choice(np.unique(corpus.timestamps[held_out]), config.cuts):
        states = []
        for each in (corpus, _scrambled_after(corpus, cut, rng)):
            panel = make_panel(model, each, cut + 1, cut + 1, DEPENDENCE_STAMPS)
            *_, last = panel.states(fit)
            states.append((panel.stamps, last.covariance))
        (stamps, before), (damaged_stamps, after) = states
        same = np.array_equal(stamps, damaged_stamps) and np.allclose(
            before, after, rtol=0, atol=PROBABILITY_TOLERANCE
        )
        proof.check(same, f"another state after {cut} with other rows after it", len(stamps))
    proof.notes.append(f"{config.cuts} cuts, {DEPENDENCE_STAMPS} stamps before each")


def _end_of_train(corpus: Corpus) -> np.datetime64:
    """The last moment of Train."""
    return np.datetime64(corpus.splits.train_end, "us") - np.timedelta64(1, "us")


def _scrambled_after(corpus: Corpus, cut: np.datetime64, rng: np.random.Generator) -> Corpus:
    """The corpus with each asset's rows after a cut in another order, at the stamps that were
    there.
    """
    order = np.arange(len(corpus))
    for rows in corpus.asset_slices.values():
        later = rows.start + int((corpus.timestamps[rows] <= cut).sum())
        order[later : rows.stop] = rng.permutation(order[later : rows.stop])
    damaged = {
        name: column[order] for name, column in corpus.columns.items() if name != "timestamp"
    }
    return replace(corpus, columns={**corpus.columns, **damaged})


@claim(
    "i. horizons",
    "Train alone fits the same horizons; a target is its own bars and no other; losses and "
    "figures computed again",
)
def prove_horizons(proof: Proof, run: AuditedRun) -> None:
    corpus, horizons = run.corpus, load_horizons(run.files.horizons, run.checkpoint)
    views = {fit.bars: corpus.with_target(fit) for fit in horizons.fitted.fits}
    train = _scrambled_after(corpus, _end_of_train(corpus), np.random.default_rng(run.config.seed))
    for horizon, view in views.items():
        same = to_json(fit_target(train, horizon)) == to_json(view.target().fit)
        proof.check(same, f"{horizon} bars: Train fits other buckets, shape or scale")
        _prove_targets(proof, view, run.config.seed)
    evaluations = run.evaluations()
    for split in dict.fromkeys((VALIDATION, *evaluations)):
        stored = evaluations.get(split, {})
        scores = {each["bars"]: each for each in stored.get("horizons") or ()}
        if scores:
            bars = [each["bars"] for each in stored["horizons"]]
            proof.check(
                bars == list(views), f"{split}: horizons {bars}, the heads are of {list(views)}"
            )
        elif split in evaluations:
            proof.notes.append(f"{split}: the evaluation has no horizons")
        if not scores and split != VALIDATION:
            continue
        folder, unseal = stored.get("baselines"), split if split == SEALED else None
        fits = Path(folder) if folder and Path(folder).is_dir() else None
        of_horizons = horizon_events(run.model, horizons, corpus, split, unseal)
        for score, ours, rows in judge_horizons(
            run.model, horizons, corpus, of_horizons, baselines=fits
        ):
            where, view = f"{split}, {score.bars} bars", views[score.bars]
            if split == VALIDATION:
                claimed, bits = (
                    horizons.fitted.validation_bits.get(str(score.bars), math.nan),
                    score.bits[MODEL],
                )
                problem = f"{where}: the heads claim {claimed} bits, their events cost {bits:.6f}"
                proof.check(abs(claimed - bits) <= MEAN_BITS, problem, len(ours))
            if not scores:
                continue
            events, stored_score = (
                read_events(run.files.path, events_name(split, score.bars)),
                scores.get(score.bars),
            )
            proof.count += len(ours)
            if (
                events.probs is None
                or ours.probs is None
                or not stored_score
                or difference_of(ours, events)
            ):
                proof.check(False, f"{where}: other events or outcomes than those of the split", 0)
                continue
            moved, rounding = (
                float(np.abs(events.probs - ours.probs).max()),
                run.rounding(split, (horizons, view)),
            )
            problem = f"{where}: a probability differs by {moved:.1e} from the heads'"
            proof.check(moved <= rounding.probability, problem)
            own = events.bits[MODEL] - ours.bits[MODEL]
            off = f"{np.abs(own).max():.1e} bits off, {own.mean():+.1e} in the mean"
            proof.check(
                rounding.explains(own), f"{where}: losses that are not the heads': {off}", len(own)
            )
            now = {
                name: getattr(score, name)
                for name in ("wider", "variance_of_steps", "variance_realised")
            }
            figures = figures_of_horizon(view, rows, events) | now
            _compare_named(proof, figures, stored_score, where, dict.fromkeys(now, HORIZON_FIGURE))
            for name in [name for name in events.bits if name != MODEL]:
                if name in ours.bits:
                    allowed = rounding.bits if name == ROOT_OF_TIME else BASELINE_BITS
                    _compare_losses(
                        proof, where, name, events.bits[name] - ours.bits[name], allowed
                    )
                else:
                    proof.notes.append(f"{where}: {name} was not computed again, no fit was found")


def _prove_targets(proof: Proof, view: Corpus, seed: int) -> None:
    """Change returns that are far from each other: only targets that span one may change, and no
    scale may.
    """
    bars, size = view.horizon, len(view)
    places = np.arange(bars, size, 2 * bars + 1)
    places = np.sort(np.random.default_rng(seed).permutation(places)[:CHANGED_RETURNS])
    returns = np.array(view.columns["log_ret"])
    returns[places] += 1e-3
    other = replace(view, columns={**view.columns, "log_ret": returns})
    moved = ~np.isclose(other.log_ret_next, view.log_ret_next, rtol=0, atol=1e-9, equal_nan=True)
    spans = np.zeros(size, bool)
    spans[(places[:, None] - np.arange(1, bars + 1)).ravel()] = True
    spans &= np.isfinite(view.log_ret_next)
    proof.check(
        np.array_equal(moved, spans),
        f"{bars} bars: targets of other bars than the next",
        len(places),
    )
    proof.check(
        np.array_equal(other.target_scale, view.target_scale),
        f"{bars} bars: a scale that sees its target",
        size,
    )
