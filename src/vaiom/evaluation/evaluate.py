"""A run judged on one split: every figure of the headline table and what stands behind it, written into the run folder.

Enters: a run folder, a corpus, a split, stored losses of baselines if there are any. Leaves: an `Evaluation`,
`events-<split>` with the loss of each event and `evaluation-<split>.json` with everything else. A look at a test split
is recorded in the corpus before it is scored.
Paper: Results, main Test table; Methods, "Paired Test Uncertainty"; Appendices on period results and inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.baselines.counts import Frequency, Markov
from vaiom.baselines.store import load_losses
from vaiom.errors import ConfigError
from vaiom.evaluation.backtests import TailTest, outer_moments, tail_tests, tail_tests_by_group
from vaiom.evaluation.bootstrap import PairedGain, paired_inference
from vaiom.evaluation.calibration import Calibration, Scores, calibrate, scores_by_group
from vaiom.evaluation.events_file import (
    MODEL,
    ScoredEvents,
    read_events,
    require_same_events,
    scored_events,
    write_events,
)
from vaiom.evaluation.heldout import heldout_rows
from vaiom.evaluation.ledger import is_recorded, looks, record_look
from vaiom.evaluation.likelihood import Floats, GroupBits, asset_months, bits_by_group, event_bits
from vaiom.evaluation.mixture import MixtureReport, mixture_report, mixture_states, stretches
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.rivals import (
    ConfidenceSet,
    DieboldMariano,
    SeedSummary,
    across_seeds,
    confidence_set,
    diebold_mariano,
)
from vaiom.events.corpus import Corpus
from vaiom.events.fields import DISC_FIELDS, NUM_RETURN_BUCKETS
from vaiom.events.splits import SEALED, TRAIN
from vaiom.files import read_json, write_json
from vaiom.model.checkpoint import USE
from vaiom.run import Run
from vaiom.training.scoring import Progress

FEW_MONTHS = 6

_VOL_REGIME = DISC_FIELDS.index("vol_regime")

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Against:
    """The model beside one baseline."""

    baseline: str
    gain: PairedGain
    diebold_mariano: DieboldMariano


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All figures of one run on one split; `bits` and every breakdown have the model first."""

    split: str
    run: str
    corpus: str
    corpus_sha256: str
    checkpoint_sha256: str
    experiment: str
    seed: int
    step: int
    num_events: int
    zero_share: float
    """Next returns of the split that were exactly zero and are therefore no events."""
    looks: int | None
    """How often the split was scored, this time included; None where looks are not counted."""
    bits: dict[str, float]
    """Mean per event, by predictor."""
    against: list[Against]
    all_tests: list[Against] | None
    """Over all test splits together, where each was scored with this checkpoint and these baselines."""
    confidence_set: ConfidenceSet | None
    seeds: dict[str, SeedSummary] | None
    """By baseline, where other runs of the experiment were named."""
    by: dict[str, list[GroupBits]]
    """By asset, by month, hour and bucket of the target, by the volatility regime of the row."""
    calibration: Calibration
    calibration_by: dict[str, list[Scores]]
    backtests: list[TailTest]
    """Value at risk and expected shortfall, after the fact."""
    backtests_by: dict[str, list[TailTest]]
    mixture: MixtureReport | None
    caveats: list[str]
    """What weakens these figures, in words."""

    def __repr__(self) -> str:
        bits = ", ".join(f"{name} {value:.4f}" for name, value in self.bits.items())
        return f"<Evaluation of {self.experiment} on {self.split}, {self.num_events:,} events, bits: {bits}>"


def evaluate_run(
    run: Path,
    corpus: Corpus,
    split: str,
    *,
    baselines: Path | None = None,
    other_seeds: Sequence[Path] = (),
    unseal: str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Evaluation:
    """Score the best checkpoint of a run on a split and compare it with baselines on exactly the same events."""
    model = ModelPredictor.load(Run(run).best, device, progress)
    checkpoint = model.checkpoint
    rows = heldout_rows(corpus, split, checkpoint, unseal=unseal)
    rivals = _baseline_bits(corpus, split, rows, checkpoint.model.config.context, baselines, unseal == SEALED)
    unscored = scored_events(corpus, rows, rivals)
    others = _other_seeds(run, other_seeds, split, unscored)
    # Whatever can be refused has been: from here on it is a look.
    counted = is_recorded(corpus, split)
    if counted:
        record_look(corpus, split, run=run.name, checkpoint_sha256=checkpoint.sha256, num_events=len(rows))
    probs = model.predict_proba(corpus, rows)
    events = replace(unscored, bits={MODEL: event_bits(probs, unscored.buckets), **rivals})
    write_events(run, split, events)
    result = Evaluation(
        split=split,
        run=str(run),
        corpus=str(corpus.path),
        corpus_sha256=corpus.sha256,
        checkpoint_sha256=checkpoint.sha256,
        experiment=checkpoint.provenance.experiment,
        seed=checkpoint.provenance.seed,
        step=checkpoint.provenance.step,
        num_events=len(events),
        zero_share=_zero_share(corpus, split),
        looks=looks(corpus, split) if counted else None,
        bits={name: float(losses.mean()) for name, losses in events.bits.items()},
        against=compare(events),
        all_tests=_all_tests(run, corpus, split, checkpoint.sha256, events) if counted else None,
        confidence_set=confidence_set(events.bits, events.target_times),
        seeds=_seeds(corpus, rows, events, {str(run): events.bits[MODEL], **others}) if others else None,
        by={name: bits_by_group(events.bits, labels) for name, labels in _labels(corpus, rows, events).items()},
        **_forecast_quality(corpus, rows, probs, events, checkpoint.model.config.context),
        mixture=_mixture(model, corpus, rows),
        caveats=_caveats(events, checkpoint.provenance.purpose),
    )
    write_json(Run(run).evaluation(split), asdict(result))
    return result


def compare(events: ScoredEvents) -> list[Against]:
    """The model against every baseline on the events."""
    model = events.bits[MODEL]
    return [
        Against(
            baseline=name,
            gain=paired_inference(model, losses, events.buckets, events.symbols, events.target_times),
            diebold_mariano=diebold_mariano(model, losses, events.target_times),
        )
        for name, losses in events.bits.items()
        if name != MODEL
    ]


def _baseline_bits(
    corpus: Corpus, split: str, rows: Rows, context: int, stored: Path | None, unseal: bool
) -> dict[str, Floats]:
    """Losses that were stored for these events, or those of the two baselines that fit in a moment."""
    if stored is not None:
        return dict(load_losses(stored, corpus, split, context, unseal=unseal))
    train = corpus.endpoints(TRAIN, context)
    buckets = corpus.target_return[rows]
    return {
        each.name: event_bits(each.fit(corpus, train).predict_proba(corpus, rows), buckets)
        for each in (Frequency(), Markov())
    }


def _labels(corpus: Corpus, rows: Rows, events: ScoredEvents) -> dict[str, npt.NDArray[Any]]:
    return {
        "asset": events.symbols,
        "month": events.target_times.astype("datetime64[M]"),
        "hour": events.target_times.astype("datetime64[h]").astype(np.int64) % 24,
        "bucket": events.buckets,
        "vol_regime": corpus.disc[rows, _VOL_REGIME],
    }


def _forecast_quality(corpus: Corpus, rows: Rows, probs: Floats, events: ScoredEvents, context: int) -> dict[str, Any]:
    """Calibration and backtests, overall and by what is known before the return: asset, hour, volatility regime."""
    labels = _labels(corpus, rows, events)
    known = {name: labels[name] for name in ("asset", "hour", "vol_regime")}
    edges = np.asarray(corpus.edges["return"], np.float64)
    train = corpus.endpoints(TRAIN, context)
    outer = outer_moments(corpus.log_ret_next[train] / corpus.sigma20[train], edges)
    z_next = corpus.log_ret_next[rows] / corpus.sigma20[rows]
    risk = (probs, edges, z_next, events.symbols, outer)
    return {
        "calibration": calibrate(probs, events.buckets),
        "calibration_by": {name: scores_by_group(probs, events.buckets, groups) for name, groups in known.items()},
        "backtests": tail_tests(*risk),
        "backtests_by": {name: tail_tests_by_group(*risk, groups) for name, groups in known.items()},
    }


def _mixture(model: ModelPredictor, corpus: Corpus, rows: Rows) -> MixtureReport | None:
    chosen = stretches(rows)
    states = mixture_states(model, corpus, chosen)
    return None if states is None else mixture_report(*states, corpus.meta[chosen, 0])


def _zero_share(corpus: Corpus, split: str) -> float:
    returns = corpus.log_ret_next[corpus.split_codes == corpus.splits.code(split)]
    return float(np.mean(returns == 0))


def _all_tests(
    run: Path, corpus: Corpus, split: str, checkpoint_sha256: str, events: ScoredEvents
) -> list[Against] | None:
    """The same comparison over every test split, where the others were scored with this checkpoint before."""
    names = corpus.splits.test_names
    if split not in names or len(names) < 2:
        return None
    parts = []
    for name in names:
        if name == split:
            parts.append(events)
            continue
        file = Run(run).evaluation(name)
        if not file.is_file() or read_json(file).get("checkpoint_sha256") != checkpoint_sha256:
            return None
        parts.append(read_events(run, name))
    common = [name for name in events.bits if all(name in part.bits for part in parts)]
    return compare(
        ScoredEvents(
            symbols=np.concatenate([part.symbols for part in parts]),
            target_times=np.concatenate([part.target_times for part in parts]),
            buckets=np.concatenate([part.buckets for part in parts]),
            bits={name: np.concatenate([part.bits[name] for part in parts]) for name in common},
        )
    )


def _other_seeds(run: Path, others: Sequence[Path], split: str, events: ScoredEvents) -> dict[str, Floats]:
    """Bits of runs that were evaluated before, on exactly these events."""
    out = {}
    for other in others:
        if other.resolve() == run.resolve():
            raise ConfigError("a run is not another seed of itself", where=other, fix="name the other runs alone")
        scored = read_events(other, split)
        require_same_events(events, scored, where=other)
        out[str(other)] = scored.bits[MODEL]
    return out


def _seeds(
    corpus: Corpus, rows: Rows, events: ScoredEvents, runs: Mapping[str, Floats]
) -> dict[str, SeedSummary] | None:
    blocks = asset_months(corpus, rows)
    if len(np.unique(blocks)) < 2:
        return None
    return {name: across_seeds(runs, losses, blocks) for name, losses in events.bits.items() if name != MODEL}


def _caveats(events: ScoredEvents, purpose: str) -> list[str]:
    """What limits the figures of this split, in words."""
    out = ["The model is a refit, for use and not for evidence."] if purpose == USE else []
    num_months = len(np.unique(events.target_times.astype("datetime64[M]")))
    num_assets = len(np.unique(events.symbols))
    if num_months == 1:
        out.append("One month only: the month-clustered interval is undefined.")
    if num_months * num_assets == 1:
        out.append("One asset in one month is a single block: no interval can be given.")
    elif num_assets == 1:
        out.append("One asset only: asset-months and months are the same blocks.")
    if 1 < num_months <= FEW_MONTHS:
        out.append(f"The month-clustered interval rests on {num_months} blocks only: take it as a rough width.")
    never = [bucket for bucket in range(1, NUM_RETURN_BUCKETS + 1) if not (events.buckets == bucket).any()]
    if never:
        out.append(
            f"No event ended in bucket {', '.join(map(str, never))}: no figure there, and calibration is untested."
        )
    return out
