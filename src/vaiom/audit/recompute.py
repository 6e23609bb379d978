"""Proof (e): the figures of an evaluation, and of the report, are those of its per-event file.

Enters: a run folder with `evaluation-<split>.json` and `events-<split>`, its corpus and its model. Leaves: a `Proof`.
What follows from the events is computed again from them; what also needs the row, from the corpus; what needs whole
forecasts, which the events file does not hold, from the checkpoint's own answers where the split is small enough to be
scored once more. The notes name every figure that was left out.
Paper: Methods, "Paired Test Uncertainty"; Results, main Test table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.audit import plain
from vaiom.audit.forecasts import Forecasts, Shape, clipped, forecast_figures
from vaiom.audit.page import check_page
from vaiom.audit.proof import AuditConfig, Claim, Proof, proving
from vaiom.audit.states import state_figures
from vaiom.errors import DataError
from vaiom.evaluation.events_file import MODEL, ScoredEvents, read_events, require_same_events
from vaiom.evaluation.mixture import mixture_states, stretches
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.events.corpus import Corpus
from vaiom.events.splits import SEALED, VALIDATION
from vaiom.files import read_json
from vaiom.run import Run

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
NEED_FORECASTS = (
    "the PIT and its tests, forecast shares and errors of reliability, Brier, RPS, entropy, forecast tails, "
    "value-at-risk and shortfall backtests, latent states"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """One split of a run: what was said of it, and the events that it was said of."""

    name: str
    stored: dict[str, Any]
    events: ScoredEvents


def prove_figures(run: Path, corpus: Corpus, model: ModelPredictor, *, rescore: int = AuditConfig.rescore) -> Proof:
    with proving(FIGURES) as proof:
        for name in Run(run).evaluated_splits():
            stored, events = read_json(run / f"evaluation-{name}.json"), read_events(run, name)
            split = Scored(name=name, stored=stored, events=events)
            named = list(stored.get("bits") or ())
            proof.check(named == list(events.bits), f"{name}: the file names {named}, the events {list(events.bits)}")
            figures = figures_of(events)
            if stored.get("sample") is None:  # version 0.1 said it in its caveats alone
                del figures["sample"]
            compare_figures(proof, figures, stored, name)
            _compare_together(proof, run, split)
            rows = _rows_of(corpus, events)
            if proof.check(rows is not None, f"{name}: events that the corpus does not have") and rows is not None:
                _compare_with_rows(proof, corpus, rows, split)
                _compare_forecasts(proof, corpus, model, rows, split, rescore)
        check_page(proof, run, corpus)
    return proof


def figures_of(events: ScoredEvents) -> plain.Figures:
    """What follows from the events alone, as the evaluation file spells it."""
    labels: dict[str, list[Any]] = {
        "asset": events.symbols.tolist(),
        "month": plain.months_of(events),
        "hour": plain.hours_of(events),
        "bucket": events.buckets.tolist(),
    }
    return {
        "num_events": len(events),
        "bits": {name: plain.mean(losses) for name, losses in events.bits.items()},
        "against": plain.against(events),
        "by": {name: plain.means_by_label(events.bits, values) for name, values in labels.items()},
        "calibration": plain.observed_shares(events),
        "sample": plain.sample_size(events),
    }


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
    else:
        proof.check(_same(ours, stored, absolute), f"{path}: the file says {stored}, recomputed {ours}")


def _same(ours: Any, stored: Any, absolute: float) -> bool:
    if isinstance(ours, float) and isinstance(stored, int | float):
        return math.isclose(ours, stored, rel_tol=RELATIVE, abs_tol=absolute)
    return bool(ours == stored)


def _compare_together(proof: Proof, run: Path, split: Scored) -> None:
    """What the file says of several predictors, splits or runs at once, where it does."""
    figures: plain.Figures = {}
    if split.stored.get("confidence_set"):
        figures["confidence_set"] = plain.confidence_set(split.events)
    if split.stored.get("all_tests"):
        tests = [name for name in Run(run).evaluated_splits() if name.startswith("test-")]
        # Where a test was scored again beside other baselines since, the lists differ and the proof says so.
        figures["all_tests"] = plain.against(plain.joined([read_events(run, name) for name in tests]))
    if split.stored.get("seeds"):
        try:
            figures["seeds"] = plain.seeds(split.events, _seed_runs(run, split))
        except DataError as error:
            proof.notes.append(f"{split.name}: not recomputed: seeds ({error.problem}: {error.where})")
    compare_figures(proof, figures, split.stored, split.name)


def _seed_runs(run: Path, split: Scored) -> dict[str, plain.Floats]:
    """The model's bits of each run that was named, which lie where they lay or beside this one."""
    runs = {}
    for name in next(iter(split.stored["seeds"].values()))["bits"]:
        folder = Path(name) if Path(name).is_dir() else run.parent / Path(name).name
        scored = split.events if name == split.stored.get("run") else read_events(folder, split.name)
        require_same_events(split.events, scored, where=folder)
        runs[name] = scored.bits[MODEL]
    return runs


def _rows_of(corpus: Corpus, events: ScoredEvents) -> list[int] | None:
    """The row of each event: that of its asset whose next bar is the target."""
    row_of = {
        symbol: {time: row for row, time in enumerate(corpus.target_timestamps[rows].tolist(), start=rows.start)}
        for symbol, rows in corpus.asset_slices.items()
    }
    pairs = zip(events.symbols.tolist(), events.target_times.tolist(), strict=True)
    found = [row_of.get(symbol, {}).get(time) for symbol, time in pairs]
    return None if None in found else [row for row in found if row is not None]


def _compare_with_rows(proof: Proof, corpus: Corpus, rows: list[int], split: Scored) -> None:
    regimes = corpus.columns["vol_regime"][rows].tolist()
    figures: plain.Figures = {"by": {"vol_regime": plain.means_by_label(split.events.bits, regimes)}}
    if split.stored.get("corpus_sha256") == corpus.sha256:
        figures["zero_share"] = _zero_share(corpus, split.name)
    else:
        proof.notes.append(f"{split.name}: not recomputed, the corpus has grown since: zero_share")
    compare_figures(proof, figures, split.stored, split.name)


def _zero_share(corpus: Corpus, split: str) -> float:
    """Targets of the split's interval that did not move, masked or not."""
    splits = corpus.splits
    intervals = dict(zip((VALIDATION, *splits.test_names), (splits.validation, *splits.tests), strict=True))
    times = corpus.target_timestamps
    inside = times >= np.datetime64(splits.seal if split == SEALED else intervals[split][0])
    if split != SEALED:
        inside &= times < np.datetime64(intervals[split][1])
    return plain.mean([float(each == 0) for each in corpus.log_ret_next[inside].tolist()])


def _compare_forecasts(
    proof: Proof, corpus: Corpus, model: ModelPredictor, rows: list[int], split: Scored, rescore: int
) -> None:
    """What needs whole forecasts: the checkpoint gives them once more."""
    name, count = split.name, len(split.events)
    if count > rescore:
        proof.notes.append(f"{name}: {count:,} events, more than are scored again; not recomputed: {NEED_FORECASTS}")
        return
    shares = [clipped(each) for each in model.predict_proba(corpus, np.array(rows)).tolist()]
    came = [-math.log2(own[bucket - 1]) for own, bucket in zip(shares, split.events.buckets.tolist(), strict=True)]
    largest = float(np.abs(np.array(came) - split.events.bits[MODEL]).max())
    figures = {**_forecast_figures(corpus, rows, split.events, shares), **_state_figures(corpus, model, rows)}
    said = f"{name}: all {count:,} events scored again, largest difference {largest:.1e} bits"
    if largest <= SAME_BITS:
        proof.notes.append(said)
        compare_figures(proof, figures, split.stored, name)
        return
    proof.notes.append(
        f"{said}: means over the forecasts are held to that; not recomputed: PIT and its tests, bins and errors "
        "of reliability, backtests, heaviest states"
    )
    compare_figures(proof, _without_ranks(figures), split.stored, name, absolute=largest)


def _forecast_figures(
    corpus: Corpus, rows: list[int], events: ScoredEvents, shares: list[list[float]]
) -> plain.Figures:
    symbols = events.symbols.tolist()
    shape = corpus.tokenizer.return_shape
    return forecast_figures(
        Forecasts(shares=shares, buckets=events.buckets.tolist(), z_next=_scaled(corpus, rows), symbols=symbols),
        Shape(
            knots=shape.knots.tolist(),
            lower=(shape.lower.scale, shape.lower.shape),
            upper=(shape.upper.scale, shape.upper.shape),
        ),
        {
            "asset": symbols,
            "hour": plain.hours_of(events),
            "vol_regime": corpus.columns["vol_regime"][rows].tolist(),
        },
    )


def _state_figures(corpus: Corpus, model: ModelPredictor, rows: list[int]) -> plain.Figures:
    chosen = stretches(np.array(rows))
    states = mixture_states(model, corpus, chosen)
    if states is None:
        return {"mixture": None}
    return {"mixture": state_figures(states[0].tolist(), states[1].tolist(), corpus.meta[chosen, 0].tolist())}


def _without_ranks(figures: Any) -> Any:
    if isinstance(figures, dict):
        return {key: _without_ranks(value) for key, value in figures.items() if key not in RANKED}
    return [_without_ranks(value) for value in figures] if isinstance(figures, list) else figures


def _scaled(corpus: Corpus, rows: list[int]) -> list[float]:
    """Next returns over the scale that divides them."""
    pairs = zip(corpus.log_ret_next[rows].tolist(), corpus.sigma20[rows].tolist(), strict=True)
    return [log_ret / sigma for log_ret, sigma in pairs]
