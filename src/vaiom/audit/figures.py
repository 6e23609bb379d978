"""Proof (e): the figures of an evaluation, and of the report, are those of its per-event file.

Enters: a run folder with `evaluation-<split>.json` and `events-<split>`, its corpus and its model. Leaves: a `Proof`.
What follows from the events is computed again from them and the corpus; what needs whole forecasts, which the events
file does not hold, from the checkpoint's own answers where the split is small enough to be scored once more. The notes
name every figure that was left out. That the computation itself is right is shown by tests, against plain loops.
Paper: Methods, "Paired Test Uncertainty"; Results, main Test table.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.audit.proof import AuditConfig, Claim, Proof, proving
from vaiom.baselines.base import Rows
from vaiom.codec import to_json
from vaiom.errors import DataError, UserError
from vaiom.evaluation.evaluate import figures_of_events, figures_of_forecasts, share_of_zeros
from vaiom.evaluation.events_file import MODEL, ScoredEvents, join_events, read_events
from vaiom.evaluation.inference import compare, compare_seeds
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import event_bits
from vaiom.events.corpus import Corpus
from vaiom.files import read_json
from vaiom.report.contents import read_run
from vaiom.report.results import headline_tables, tables_of
from vaiom.run import REPORT_NAME, Run

FIGURES = Claim(
    "e. figures",
    "every figure of evaluation-*.json from the per-event files, the corpus and the model; report.html shows them",
)
RELATIVE, ABSOLUTE = 1e-9, 1e-11
SAME_BITS = 1e-9
"""Up to here the checkpoint answers as it did; beyond, another machine or precision answered, and ranks may differ."""
RANKED = (
    *("pit", "pit_histogram", "pit_p_value", "bins", "error", "backtests", "backtests_by"),
    *("heaviest_share", "persistence", "persistence_if_independent"),
)
"""Figures that can jump where forecasts move a little."""


def prove_figures(run: Path, corpus: Corpus, model: ModelPredictor, *, rescore: int = AuditConfig.rescore) -> Proof:
    with proving(FIGURES) as proof:
        for split in Run(run).evaluated_splits():
            stored, events = read_json(Run(run).evaluation(split)), read_events(run, split)
            named = list(stored.get("bits") or ())
            proof.check(named == list(events.bits), f"{split}: the file names {named}, the events {list(events.bits)}")
            rows = _rows_of(corpus, events)
            if proof.check(rows is not None, f"{split}: events that the corpus does not have") and rows is not None:
                figures = figures_of_events(corpus, rows, events)
                if stored.get("sample") is None:  # version 0.1 did not store it
                    del figures["sample"]
                if stored.get("corpus_sha256") == corpus.sha256:
                    figures["zero_share"] = share_of_zeros(corpus, split)
                else:
                    proof.notes.append(f"{split}: not recomputed, the corpus has grown since: zero_share")
                figures |= _compared_with_others(proof, run, split, stored, events)
                compare_figures(proof, to_json(figures), stored, split)
                _compare_forecasts(proof, corpus, model, rows, split, stored, events, rescore)
        _compare_page(proof, run, corpus)
    return proof


def compare_figures(proof: Proof, ours: Any, stored: Any, path: str, absolute: float = ABSOLUTE) -> None:
    """Every leaf of what was computed again must be in the file."""
    if isinstance(ours, dict):
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


def _compared_with_others(
    proof: Proof, run: Path, split: str, stored: dict[str, Any], events: ScoredEvents
) -> dict[str, Any]:
    """What the file says of several splits or runs at once, where it does."""
    figures: dict[str, Any] = {}
    if stored.get("all_tests"):
        tests = [name for name in Run(run).evaluated_splits() if name.startswith("test-")]
        # Where a test was scored again beside other baselines since, the lists differ and the proof says so.
        parts = [read_events(run, name) for name in tests]
        figures["all_tests"] = compare(join_events(parts, predictors=list(parts[0].bits)))
    if stored.get("seeds"):
        runs = {}
        try:
            for name in next(iter(stored["seeds"].values()))["bits"]:
                # The runs that were named lie where they lay, or beside this one.
                folder = Path(name) if Path(name).is_dir() else run.parent / Path(name).name
                scored = events if name == stored.get("run") else read_events(folder, split, same_as=events)
                runs[name] = scored.bits[MODEL]
            figures["seeds"] = compare_seeds(events, runs)
        except DataError as error:
            proof.notes.append(f"{split}: not recomputed: seeds ({error.problem}: {error.where})")
    return figures


def _rows_of(corpus: Corpus, events: ScoredEvents) -> Rows | None:
    """The row of each event: that of its asset whose next bar is the target."""
    row_of = {
        symbol: {time: row for row, time in enumerate(corpus.target_timestamps[rows].tolist(), start=rows.start)}
        for symbol, rows in corpus.asset_slices.items()
    }
    pairs = zip(events.symbols.tolist(), events.target_times.tolist(), strict=True)
    found = [row_of.get(symbol, {}).get(time) for symbol, time in pairs]
    return None if None in found else np.array(found, np.int64)


def _compare_forecasts(
    proof: Proof,
    corpus: Corpus,
    model: ModelPredictor,
    rows: Rows,
    split: str,
    stored: dict[str, Any],
    events: ScoredEvents,
    rescore: int,
) -> None:
    """What needs whole forecasts: the checkpoint gives them once more."""
    if len(rows) > rescore:
        proof.notes.append(
            f"{split}: {len(rows):,} events, more than are scored again; not recomputed: the PIT and its tests, "
            "reliability, Brier, RPS, entropy, forecast tails, value-at-risk and shortfall backtests, latent states"
        )
        return
    probs = model.predict_proba(corpus, rows)
    largest = float(np.abs(event_bits(probs, events.buckets) - events.bits[MODEL]).max())
    figures = to_json(figures_of_forecasts(model, corpus, rows, probs, events))
    note = f"{split}: all {len(rows):,} events scored again, largest difference {largest:.1e} bits"
    if largest > SAME_BITS:
        note += (
            ": means over the forecasts are held to that; not recomputed: PIT and its tests, bins and errors of "
            "reliability, backtests, heaviest states"
        )
        figures = _without_ranks(figures)
    proof.notes.append(note)
    compare_figures(proof, figures, stored, split, absolute=largest if largest > SAME_BITS else ABSOLUTE)


def _without_ranks(figures: Any) -> Any:
    if isinstance(figures, dict):
        return {key: _without_ranks(value) for key, value in figures.items() if key not in RANKED}
    return [_without_ranks(value) for value in figures] if isinstance(figures, list) else figures


def _compare_page(proof: Proof, run: Path, corpus: Corpus) -> None:
    """Every table of results on the page is the one that the run's evaluations give."""
    if not Run(run).report.is_file():
        proof.notes.append(f"the run has no {REPORT_NAME} (vaiom report)")
        return
    try:
        contents = read_run(run, corpus.path)
    except UserError as error:
        proof.check(False, f"{REPORT_NAME} cannot be of these files: {error.problem}")
        return
    page = Run(run).report.read_text()
    # What the corpus says of itself may have grown since the page was written.
    tables = headline_tables(contents)
    for split in contents.splits:
        parts = tables_of(split.evaluation, split.label)
        tables += [table for part in parts if part not in ("headline", "all_tests") for table in parts[part]]
    for table in tables:
        proof.check(table.to_html() in page, f"{REPORT_NAME} shows another table, or none: {table.caption}")
