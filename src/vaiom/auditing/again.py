"""Proof (e): evaluated again in a temporary folder, a run gives the files that lie in it.

An `AuditedRun` enters, a proof leaves. Stored forecasts are compared with the model's own, stored
losses of baselines with those of their fits. Then `evaluate_run` makes every figure again from the
stored ones. Forecasts of others are scored again, and the page is written again. Paper: Methods,
"Paired Test Uncertainty"; Results, main Test table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.compare import (
    Figures,
    compare_figures,
    compare_losses,
    compare_rounded,
    largest,
)
from vaiom.auditing.fits import check_dependence, check_horizons
from vaiom.auditing.others_again import compare_forecasts_of_others
from vaiom.auditing.page_again import compare_page
from vaiom.auditing.proof import Proof, claim
from vaiom.auditing.rounding import BASELINE_BITS, SAME_BITS
from vaiom.auditing.workspace import StoredForecasts, Workspace, unseal_of
from vaiom.baselines.base import Rows
from vaiom.codec import to_json
from vaiom.distribution.dependence import Dependence
from vaiom.errors import UserError
from vaiom.evaluation.evaluate import compare_tests, evaluate_run
from vaiom.evaluation.horizon_scores import events_name, figures_of_horizon
from vaiom.evaluation.predictor import ModelPredictor, heldout_rows
from vaiom.evaluation.record import Evaluation
from vaiom.evaluation.scores import (
    MODEL,
    ScoredEvents,
    difference_of,
    event_bits,
    read_events,
    score_events,
)
from vaiom.files import read_json
from vaiom.model.checkpoint import USE, Checkpoint
from vaiom.model.horizon_heads import load_horizons
from vaiom.run import Run
from vaiom.training.experiment import experiment_of_checkpoint

PLACES = ("run", "corpus", "baselines")
"""Parts of an evaluation that say where its inputs lay."""
PROVED_ELSEWHERE = ("looks", "ledger_sha256", "precision", "corpus_sha256", "all_tests")
"""Parts that are compared with the ledger, with the checkpoint, or of all tests at once."""


@claim(
    "e. evaluation",
    "evaluated again in a temporary folder: forecasts, losses, every figure, forecasts of others "
    "and report.html; dependence and horizons fitted again on Train",
)
def prove_evaluation(proof: Proof, run: AuditedRun) -> None:
    """Make everything that an evaluation wrote again, and compare it with what lies in the run."""
    if run.files.dependence.is_file():
        fit = Dependence.read(run.files.dependence, run.checkpoint.sha256)
        check_dependence(proof, fit, run.model, run.corpus, run.config)
    if run.files.horizons.is_file():
        check_horizons(proof, run)
    splits = run.files.evaluated_splits()
    if not splits:
        why = "the run has no evaluation (vaiom evaluate)"
        if run.checkpoint.provenance.purpose == USE:
            why = "a refit is for use, and nothing was held out of it"
        proof.note(f"no figures: {why}")
        return
    with tempfile.TemporaryDirectory() as folder:
        work = Workspace.inside(Path(folder), proof, run)
        for split in splits:
            _compare_split(work, split)
        _compare_all_tests(work)
        for scored in sorted(run.files.forecasts.glob("*")):
            for split in Run(scored).evaluated_splits():
                compare_forecasts_of_others(work, Run(scored), split)
    compare_page(proof, run)


def _compare_split(work: Workspace, split: str) -> None:
    """Evaluate one split again, and compare its events and figures."""
    files = work.run.files
    Evaluation.read(files.path, split)  # refuses what is no evaluation
    stored = read_json(files.evaluation(split))
    events = read_events(files.path, split)
    rows = _rows_of_events(work, split, events)
    if rows is None or events.probs is None:
        return
    model = StoredForecasts(work.run.checkpoint, rows, events.probs)
    losses = work.store_losses(split, split, rows, events, stored["baselines"], {MODEL})
    seeds = _other_seeds(work, split, stored, events)
    evaluate_run(
        files.path,
        work.corpus,
        split,
        model=model,
        baselines=losses,
        other_seeds=seeds or (),
        unseal=unseal_of(split),
        out=work.out,
    )
    ours = read_json(Run(work.out).evaluation(split))
    tolerances = _compare_forecasts(work, split, model, events, stored["precision"])
    if ours["horizons"] and stored["horizons"]:
        for figures in ours["horizons"]:
            _compare_horizon(work, split, figures)
    _rename_seeds(work, ours, stored, seeds)
    _leave_out(work, split, ours, stored)
    compare_figures(work.proof, ours, stored, split, tolerances)


def _rows_of_events(work: Workspace, split: str, events: ScoredEvents) -> Rows | None:
    """The rows of stored events, which must be all that the split holds, with forecasts."""
    proof = work.proof
    try:
        rows = heldout_rows(work.corpus, split, work.run.checkpoint, unseal=unseal_of(split))
    except UserError as error:
        proof.check(False, f"{split}: cannot be evaluated: {error.problem}")
        return None
    difference = difference_of(score_events(work.corpus, rows, {}), events)
    problem = f"{split}: other events than the corpus has: {difference}"
    if not proof.check(difference is None, problem, len(rows)):
        return None
    taken = "the forecasts were taken out of the events file"
    proof.check(events.probs is not None, f"{split}: {taken}")
    return rows


def _compare_forecasts(
    work: Workspace, split: str, model: StoredForecasts, events: ScoredEvents, precision: str
) -> dict[str, float]:
    """The stored forecasts are the checkpoint's up to rounding, and the losses are theirs.

    Returns by how much figures may differ that rest on other answers of the model: by nothing,
    unless another machine made them.
    """
    proof = work.proof
    losses = events.bits[MODEL]
    own = event_bits(model.probs, events.buckets)
    problem = f"{split}: losses and probabilities of the events disagree"
    proof.check(largest(own - losses) <= SAME_BITS, problem, len(events))
    chosen = work.run.draw(model.rows)
    probs = model.own_forecasts(work.corpus, model.rows[chosen])
    now = event_bits(probs, events.buckets[chosen])
    rounding = work.run.rounding(split, precision)
    some = "all" if len(chosen) == len(events) else f"{len(chosen):,} of"
    off = losses[chosen] - now
    proof.note(
        f"{split}: {some} {len(events):,} events scored again, largest difference "
        f"{largest(off):.1e} bits, mean {off.mean():+.1e}; {rounding}"
    )
    moved = model.probs[chosen] - probs
    compare_rounded(proof, split, "the checkpoint's", rounding, off, moved)
    return {} if largest(off) <= SAME_BITS else rounding.of_figures(len(events))


def _compare_horizon(work: Workspace, split: str, figures: Figures) -> None:
    """The stored events of a horizon are those of its heads up to rounding.

    The figures that follow from these events are put in place of those made on this machine.
    """
    proof = work.proof
    files = work.run.files
    bars = figures["bars"]
    where = f"{split}, {bars} bars"
    name = events_name(split, bars)
    now = read_events(work.out, name)
    try:
        events = read_events(files.path, name, same_as=now)
    except UserError as error:
        proof.check(False, f"{where}: {error.problem}")
        return
    if events.probs is None or now.probs is None:
        proof.check(False, f"{where}: events without forecasts")
        return
    heads = load_horizons(files.horizons, work.run.checkpoint)
    [fit] = [fit for fit in heads.fitted.fits if fit.bars == bars]
    view = work.corpus.with_target(fit)
    rounding = work.run.rounding_ahead(split, heads, view)
    off = events.bits[MODEL] - now.bits[MODEL]
    compare_rounded(proof, where, "the heads'", rounding, off, events.probs - now.probs)
    # One baseline scales the model's own forecasts of the next bar.
    tolerance = max(BASELINE_BITS, rounding.bits)
    for other in events.bits.keys() - {MODEL}:
        what = f"{where}: {other}"
        if other in now.bits:
            off = events.bits[other] - now.bits[other]
            compare_losses(proof, what, off, tolerance)
        else:
            proof.note(f"{what} was not computed again, no fit was found")
    rows = view.endpoints(split, work.run.history, unseal=True)
    figures |= to_json(figures_of_horizon(view, rows, events))


def _seeds_of(stored: Figures) -> list[str]:
    """The names of the runs whose seeds were summarised, this one first."""
    for summary in (stored["seeds"] or {}).values():
        return list(summary["bits"])
    return []


def _other_seeds(
    work: Workspace, split: str, stored: Figures, events: ScoredEvents
) -> list[Path] | None:
    """The runs of other seeds, checked to be what they are said to be; None if one is gone."""
    run = work.run
    folders = []
    checkpoints = [run.checkpoint]
    for name in _seeds_of(stored)[1:]:
        # They are where they were evaluated, or beside this run.
        beside = run.files.path.parent / Path(name).name
        folder = Path(name) if Path(name).is_dir() else beside
        try:
            theirs = read_events(folder, split, same_as=events)
            model = ModelPredictor.load(Run(folder).best, "cpu")
        except UserError as error:
            why = f"{error.problem}: {error.where}"
            work.proof.note(f"{split}: not recomputed: seeds ({why})")
            return None
        folders.append(folder)
        checkpoints.append(model.checkpoint)
        rows = work.rows_of(split)
        chosen = run.draw(rows)
        probs = model.predict_proba(work.corpus, rows[chosen])
        off = theirs.bits[MODEL][chosen] - event_bits(probs, events.buckets[chosen])
        problem = f"{split}: seeds: the losses of {name} are not its checkpoint's"
        explained = run.rounding(split, None).explains(off)
        work.proof.check(explained, problem, len(chosen))
    if folders:
        problem = f"{split}: seeds: not different seeds of one experiment"
        work.proof.check(_are_seeds(checkpoints), problem)
    return folders


def _are_seeds(checkpoints: Sequence[Checkpoint]) -> bool:
    """Whether these are different models, trained by one recipe from different seeds."""
    experiments = [experiment_of_checkpoint(each) for each in checkpoints]
    recipes = {each.with_changes(seed=0).sha256 for each in experiments}
    weights = {each.sha256 for each in checkpoints}
    seeds = {each.provenance.seed for each in checkpoints}
    return len(recipes) == 1 and len(weights) == len(seeds) == len(checkpoints)


def _rename_seeds(
    work: Workspace, ours: Figures, stored: Figures, folders: Sequence[Path] | None
) -> None:
    """Give the runs in a summary of seeds the names that they had when they were evaluated."""
    if folders is None:
        ours["seeds"] = stored["seeds"]
        return
    places = [str(work.out), *map(str, folders)]
    names = dict(zip(places, _seeds_of(stored), strict=False))
    for summary in (ours["seeds"] or {}).values():
        summary["bits"] = {names[place]: bits for place, bits in summary["bits"].items()}


def _leave_out(work: Workspace, split: str, ours: Figures, stored: Figures) -> None:
    """Leave out what cannot be the same or is proved elsewhere, and say so where it matters."""
    proof = work.proof
    same = {*PLACES, *PROVED_ELSEWHERE}
    if None in (ours["confidence_set"], stored["confidence_set"]):  # which needs `arch`
        proof.note(f"{split}: not compared: confidence_set")
        same.add("confidence_set")
    if stored["corpus_sha256"] != work.corpus.sha256:
        proof.note(f"{split}: not recomputed, the corpus has grown since: zero_share")
        same.add("zero_share")
    files = work.run.files
    for name, file in (("joint", files.dependence), ("horizons", files.horizons)):
        if ours[name] is not None and stored[name] is None:
            proof.note(f"{split}: the evaluation has no {name}, and {file.name} is there")
            same.add(name)
    for name in same:
        ours[name] = stored[name]


def _compare_all_tests(work: Workspace) -> None:
    """The figures over all tests together are those of their stored events."""
    tests = work.corpus.splits.test_names
    scored = [split for split in tests if Run(work.out).evaluation(split).is_file()]
    if len(tests) < 2 or len(scored) < len(tests):
        return
    told = False
    for split in tests:
        stored = read_json(work.run.files.evaluation(split))
        if stored["all_tests"] is not None:
            told = True
            ours = to_json(compare_tests(work.out, tests, list(stored["bits"])))
            compare_figures(work.proof, ours, stored["all_tests"], f"{split}.all_tests")
    problem = "all tests were scored, and no evaluation has the figures of all of them together"
    work.proof.check(told, problem)
