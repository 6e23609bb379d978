"""A run judged on one split: `evaluation-<split>.json` with its figures, `events-<split>` with the
loss of each event.

Paper: Results, main Test table; Methods, "Paired Test Uncertainty"; Appendices on period results
and inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import PLAIN, Floats, Rows, baseline
from vaiom.baselines.store import load_losses
from vaiom.codec import decode, to_json
from vaiom.corpus.store import Corpus
from vaiom.distribution.dependence import Dependence
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.calibration import Calibration, Scores, TailTest, judge_forecasts
from vaiom.evaluation.horizon_scores import (
    HorizonScore,
    events_name,
    horizon_events,
    judge_horizons,
    rows_along_the_way,
    served_distributions,
)
from vaiom.evaluation.inference import (
    ConfidenceSet,
    PairedComparison,
    SeedSummary,
    compare,
    compare_seeds,
)
from vaiom.evaluation.joint import JointEvaluation, JointPeriod, judge_joint
from vaiom.evaluation.ledger import ledger_heads, record_access
from vaiom.evaluation.predictor import ModelPredictor, heldout_rows
from vaiom.evaluation.scores import (
    MODEL,
    GroupBits,
    ScoredEvents,
    bits_by_group,
    event_bits,
    losses_of,
    read_events,
    score_events,
    write_events,
)
from vaiom.features.fields import CROSS_FIELDS, DISC_FIELDS, NUM_RETURN_BUCKETS
from vaiom.files import Progress, ensure_folder, read_json, write_bytes, write_json
from vaiom.model.checkpoint import USE
from vaiom.model.horizon_heads import load_horizons
from vaiom.run import MODELS, Run, find_run

RUN_PREFIX = "run "
"""Before the name of the run that forecasts are scored against, as a predictor."""
FORMS = ("probabilities", "quantiles", "samples")
"""In which tables of forecasts of others may hold them."""
FEW_BLOCKS = 6
"""So many blocks give an interval that is no more than a rough width."""
NUM_STRETCHES = 16
STRETCH_EVENTS = 128


@dataclass(frozen=True, kw_only=True)
class SampleSize:
    """The size of a split, from which its caveats follow."""

    num_assets: int
    num_months: int
    empty_buckets: list[int]
    """Buckets in which no event ended."""


@dataclass(frozen=True, kw_only=True)
class MixtureReport:
    """Use and separation of the latent states of a MoMS head, numbered differently in each run;
    lists are by state.
    """

    num_events: int
    mean_weight: list[float]
    heaviest_share: list[float]
    effective_states: float
    """Two to the entropy of the mean weights: how many equally used states would be as varied."""
    separation_bits: float
    pair_separation_bits: list[list[float]]
    persistence: float | None
    """None where no two successive events belong to one asset."""
    persistence_if_independent: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All figures of one run on one split; `bits` and every breakdown have the model first."""

    remade_by: ClassVar = "vaiom evaluate {run} --split {split}"
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
    against: list[PairedComparison]
    all_tests: list[PairedComparison] | None
    """Over all test splits together, where each was scored with this checkpoint and these
    baselines.
    """
    confidence_set: ConfidenceSet | None
    seeds: dict[str, SeedSummary] | None
    """By baseline, where other runs of the experiment were named."""
    by: dict[str, list[GroupBits]]
    """By asset, by month, hour and bucket of the target, by the volatility regime of the row."""
    calibration: Calibration
    calibration_by: dict[str, list[Scores]]
    backtests: list[TailTest]
    """Value at risk and expected shortfall of the served distributions."""
    backtests_by: dict[str, list[TailTest]]
    mixture: MixtureReport | None
    caveats: list[str]
    """What weakens these figures, in words."""
    sample: SampleSize | None = None
    """None in files of version 0.1."""
    ledger_sha256: str | None = None
    """Of the corpus's ledger after this look; None, as the two below, in older files."""
    precision: str | None = None
    """In which matrices were multiplied."""
    baselines: str | None = None
    """The folder of stored losses; None also where the plain baselines were fitted on the spot."""
    bits_alone: float | None = None
    """Of the model without the bars of other assets; None where it reads none, and for models that
    score by windows.
    """
    joint: JointEvaluation | None = None
    """Of the assets together, where their dependence was fitted (`vaiom dependence`)."""
    horizons: list[HorizonScore] | None = None
    """Beyond the next bar; None where the run has no such horizons."""

    def __repr__(self) -> str:
        bits = ", ".join(f"{name} {value:.4f}" for name, value in self.bits.items())
        return (
            f"<{type(self).__name__} of {self.experiment} on {self.split}, {self.num_events:,} "
            f"events, bits: {bits}>"
        )

    @classmethod
    def read(cls, run: Path, split: str, checkpoint_sha256: str | None = None) -> Self:
        """What `evaluate_run` wrote into a run folder; one of another checkpoint than that named is
        refused.
        """
        file, again = Run(run).evaluation(split), cls.remade_by.format(run=run, split=split)
        result = decode(
            cls,
            read_json(file),
            "not an evaluation of this version of vaiom",
            where=file,
            fix=again,
        )
        if checkpoint_sha256 not in (None, result.checkpoint_sha256):
            problem, got = (
                "the evaluation is of another checkpoint than the run's best one",
                result.checkpoint_sha256,
            )
            raise DataError(problem, where=file, expected=checkpoint_sha256, got=got, fix=again)
        return result


@dataclass(frozen=True, kw_only=True, repr=False)
class ForecastScore(Evaluation):
    """Forecasts judged as a model: `experiment` is their name, the checkpoint's hash that of their
    probabilities.
    """

    remade_by: ClassVar = (
        "vaiom score FORECASTS --against RUN --split {split} --save, or remove {run}"
    )
    form: str
    num_missing: int
    """Events of the split without a forecast, or without a loss of the run: they are not scored."""
    num_unused: int = 0
    """Forecasts that belong to no event of the split."""
    run_sha256: str | None
    """The checkpoint of the run that they were scored against."""


def require_own(run: Path, fix: str) -> None:
    """Refuse to write into a packaged model."""
    if run.parent == MODELS:
        raise ConfigError("a packaged model is not written into", where=run, fix=fix)


def evaluate_run(
    run: Path,
    corpus: Corpus,
    split: str,
    *,
    baselines: Path | None = None,
    other_seeds: Sequence[Path] = (),
    unseal: str | None = None,
    out: Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Evaluation:
    """Score the best checkpoint of a run on a split and compare it with baselines on exactly the
    same events.

    Figures and losses are written into the run, or into `out` with a copy of the model.
    """
    source = find_run(run)
    if out is None:
        require_own(source, fix="name a folder with --out")
    model, run = ModelPredictor.load(Run(source).best, device, progress), out or source
    checkpoint = model.checkpoint
    context, rows = (
        checkpoint.model.config.history,
        heldout_rows(corpus, split, checkpoint, unseal=unseal),
    )
    if baselines is not None:
        losses = load_losses(baselines, corpus, split, context)
    else:
        losses = losses_of(map(baseline, PLAIN), corpus, rows, context)
    unscored, file = score_events(corpus, rows, losses), Run(source).dependence
    dependence = Dependence.read(file, checkpoint.sha256) if file.is_file() else None
    further = (
        load_horizons(Run(source).horizons, checkpoint) if Run(source).horizons.is_file() else None
    )
    if any(other.resolve() == run.resolve() for other in other_seeds):
        raise ConfigError(
            "a run is not another seed of itself", where=run, fix="name the other runs alone"
        )
    others = {
        str(other): read_events(other, split, same_as=unscored).bits[MODEL] for other in other_seeds
    }
    if out:
        ensure_folder(out)
        for old, new in (
            (Run(source).best, Run(out).best),
            (Run(source).horizons, Run(out).horizons),
        ):
            if old.is_file():
                write_bytes(new, old.read_bytes())
    # Whatever can be refused has been: from here on it is a look.
    looks = record_access(
        corpus, split, run=run.name, checkpoint_sha256=checkpoint.sha256, num_events=len(rows)
    )
    own_events = horizon_events(model, further, corpus, split, unseal) if further else []
    needed = [rows]
    if further:
        needed.append(rows_along_the_way(own_events))
    if dependence and corpus.tokenizer.symbols == dependence.symbols:
        period = JointPeriod.of(corpus, split, dependence)
        needed.append(period.rows(corpus, context))
    model.compute(corpus, np.concatenate(needed))
    events = score_events(corpus, rows, losses, model.predict_proba(corpus, rows))
    write_events(run, split, events)
    tests = corpus.splits.test_names
    files = [Run(run).evaluation(name) for name in tests if name != split] if split in tests else []
    earlier = {file: read_json(file) for file in files if file.is_file()}
    # All tests together, where each was scored with this checkpoint.
    same = [each.get("checkpoint_sha256") == checkpoint.sha256 for each in earlier.values()]
    together = 0 < len(files) == sum(same)
    judged = (
        judge_horizons(model, further, corpus, own_events, baselines=baselines) if further else ()
    )
    horizons = []
    for score, own, _ in judged:
        write_events(run, events_name(split, score.bars), own)
        horizons.append(score)
    result = Evaluation(
        split=split,
        run=str(run),
        corpus=str(corpus.path),
        corpus_sha256=corpus.sha256,
        checkpoint_sha256=checkpoint.sha256,
        experiment=checkpoint.provenance.experiment,
        seed=checkpoint.provenance.seed,
        step=checkpoint.provenance.step,
        looks=looks,
        all_tests=compare_tests(run, tests, list(events.bits)) if together else None,
        seeds=compare_seeds(events, {str(run): events.bits[MODEL], **others}) if others else None,
        ledger_sha256=ledger_heads(corpus)[-1] if corpus.path else None,
        precision=str(model.precision).removeprefix("torch."),
        baselines=str(baselines) if baselines else None,
        horizons=horizons or None,
        **judge(corpus, split, rows, events, model, dependence, baselines),
    )
    write_json(Run(run).evaluation(split), to_json(result))
    for file, stored in earlier.items():
        if stored.get("all_tests"):  # which rested on events that were just replaced
            renewed = compare_tests(run, tests, list(stored["bits"])) if together else None
            write_json(file, {**stored, "all_tests": to_json(renewed)})
    return result


def judge(
    corpus: Corpus,
    split: str,
    rows: Rows,
    events: ScoredEvents,
    model: ModelPredictor | None = None,
    dependence: Dependence | None = None,
    baselines: Path | None = None,
) -> dict[str, Any]:
    """The figures of a split's events at these rows by field of `Evaluation`; some need forecasts,
    others a model.
    """
    labels: dict[str, npt.NDArray[Any]] = {
        "asset": events.symbols,
        "month": events.target_times.astype("datetime64[M]"),
        "hour": events.target_times.astype("datetime64[h]").astype(np.int64) % 24,
        "bucket": events.buckets,
        "vol_regime": corpus.disc[rows, DISC_FIELDS.index("vol_regime")],
    }
    sample = SampleSize(
        num_assets=len(np.unique(events.symbols)),
        num_months=len(np.unique(labels["month"])),
        empty_buckets=[
            int(k) for k in np.setdiff1d(np.arange(1, NUM_RETURN_BUCKETS + 1), events.buckets)
        ],
    )
    figures = {
        "num_events": len(events),
        "zero_share": float(
            np.mean(corpus.log_ret_next[corpus.split_codes == corpus.splits.code(split)] == 0)
        ),
        "bits": events.mean_bits,
        "against": compare(events),
        "confidence_set": ConfidenceSet.of(events.bits, events.target_times),
        "by": {name: bits_by_group(events.bits, groups) for name, groups in labels.items()},
        "sample": sample,
        "caveats": caveats_of(sample, model.checkpoint.provenance.purpose if model else ""),
    }
    if events.probs is None:
        return figures
    known = {name: labels[name] for name in ("asset", "hour", "vol_regime")}  # before the return
    served, log_ret = (
        served_distributions(corpus, rows, events.probs),
        corpus.log_ret_next[rows].astype(np.float64),
    )
    figures |= judge_forecasts(served, events.probs, events.buckets, log_ret, events.symbols, known)
    figures["mixture"] = diagnose_mixture(model, corpus, rows) if model else None
    if model:
        figures["bits_alone"] = score_alone(model, corpus, rows, events.buckets)
    if model and dependence:
        figures["joint"] = judge_joint(model, corpus, split, dependence, baselines)
    return figures


def score_alone(
    model: ModelPredictor, corpus: Corpus, rows: Rows, buckets: npt.NDArray[np.integer]
) -> float | None:
    """Mean bits of the model where no other asset has a bar."""
    config = model.checkpoint.config
    if not config.attention_window or not set(CROSS_FIELDS) & set(config.input_fields):
        return None
    return float(event_bits(model.predict_alone(corpus, rows), buckets).mean())


def stretches(rows: Rows) -> Rows:
    """A few runs of successive events spread over a split: enough for shares, and cheap."""
    if len(rows) <= NUM_STRETCHES * STRETCH_EVENTS:
        return rows
    starts = np.linspace(0, len(rows) - STRETCH_EVENTS, NUM_STRETCHES).astype(np.int64)
    return np.asarray(rows[(starts[:, None] + np.arange(STRETCH_EVENTS)).ravel()])


def diagnose_mixture(model: ModelPredictor, corpus: Corpus, rows: Rows) -> MixtureReport | None:
    """Diagnose the states of a model on stretches of these events; None where its head is no
    mixture.
    """
    some = stretches(rows)
    states = model.predict_states(corpus, some)
    return mixture_report(*states, corpus.meta[some, 0]) if states else None


def mixture_report(weights: Floats, components: Floats, assets: Rows) -> MixtureReport:
    """Diagnose state weights (n, S) and components (n, S, K) of events (n,) in time order within
    each asset.
    """
    num_states = weights.shape[1]
    heaviest = weights.argmax(axis=1)
    share = np.bincount(heaviest, minlength=num_states) / len(heaviest)
    use = weights.mean(axis=0)
    follows = assets[1:] == assets[:-1]
    states, halves = range(num_states), np.full(2, 0.5)
    pairs = [
        [float(_jensen_shannon(halves, components[:, [i, j]]).mean()) for j in states]
        for i in states
    ]
    return MixtureReport(
        num_events=len(weights),
        mean_weight=use.tolist(),
        heaviest_share=share.tolist(),
        effective_states=float(2 ** _entropy(use)),
        separation_bits=float(_jensen_shannon(weights, components).mean()),
        pair_separation_bits=pairs,
        persistence=float((heaviest[1:] == heaviest[:-1])[follows].mean())
        if follows.any()
        else None,
        persistence_if_independent=float((share**2).sum()),
    )


def _jensen_shannon(weights: Floats, components: Floats) -> Floats:
    """Entropy of the mixture less the mean entropy of its components, per event; never
    below zero.
    """
    mixed = (weights[..., None] * components).sum(axis=-2)
    return np.asarray(
        np.maximum(_entropy(mixed) - (weights * _entropy(components)).sum(axis=-1), 0.0)
    )


def _entropy(probs: Floats) -> Floats:
    """Bits, along the last axis."""
    bits: Floats = -(probs * np.log2(np.where(probs > 0, probs, 1.0))).sum(axis=-1)
    return bits


def compare_tests(
    run: Path, tests: Sequence[str], predictors: Sequence[str]
) -> list[PairedComparison]:
    """The model against baselines over the events of several splits, with the predictors that all
    of them have.
    """
    parts = [read_events(run, split) for split in tests]
    common = [name for name in predictors if all(name in part.bits for part in parts)]
    columns = ("symbols", "target_times", "buckets")
    keys = {name: np.concatenate([vars(part)[name] for part in parts]) for name in columns}
    bits = {name: np.concatenate([part.bits[name] for part in parts]) for name in common}
    return compare(ScoredEvents(**keys, bits=bits))


def caveats_of(sample: SampleSize, purpose: str) -> list[str]:
    """What limits the figures of this split, in words."""
    out = ["The model is a refit, for use and not for evidence."] if purpose == USE else []
    if sample.num_months == 1:
        out.append("One month only: the month-clustered interval is undefined.")
    if sample.num_months * sample.num_assets == 1:
        out.append("One asset in one month is a single block: no interval can be given.")
    elif sample.num_assets == 1:
        out.append("One asset only: asset-months and months are the same blocks.")
    if 1 < sample.num_months <= FEW_BLOCKS:
        out.append(
            f"The month-clustered interval rests on {sample.num_months} blocks only: take it as a "
            f"rough width."
        )
    if sample.empty_buckets:
        empty = ", ".join(map(str, sample.empty_buckets))
        out.append(
            f"No event ended in bucket {empty}: no figure there, and calibration is untested."
        )
    return out


def caveat_of_missing(missing: int, num_events: int, unused: int, form: str) -> str:
    """How many events of a split have no forecast, and how many forecasts no event, in words."""
    share = missing / num_events
    caveat = (
        f"{missing:,} of the {num_events:,} events of the split ({share:.2%}) are missing "
        f"and not scored; "
    )
    return caveat + f"{unused:,} lines of the table, which holds {form}, belong to no event of it."
