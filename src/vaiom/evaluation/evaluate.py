"""A run judged on one split: `evaluation-<split>.json` with its figures, `events-<split>` with the
loss of each event.

Enters: a run, a corpus, the name of a split. Leaves: an `Evaluation`. The model computes every row
that any figure needs once; figures follow from these arrays. Paper: Results, main Test table;
Methods, "Paired Test Uncertainty"; Appendices on period results and inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import PLAIN, Floats, Rows, baseline
from vaiom.baselines.stored_losses import load_losses
from vaiom.codec import to_json
from vaiom.corpus.store import Corpus
from vaiom.distribution.dependence import Dependence
from vaiom.errors import ConfigError
from vaiom.evaluation.access_ledger import ledger_heads, record_access
from vaiom.evaluation.calibration import judge_forecasts
from vaiom.evaluation.horizon_scores import (
    events_name,
    horizon_events,
    judge_horizons,
    rows_along_the_way,
)
from vaiom.evaluation.inference import (
    ConfidenceSet,
    PairedComparison,
    compare,
    compare_seeds,
)
from vaiom.evaluation.joint_scores import JointPeriod, judge_joint
from vaiom.evaluation.mixture import diagnose_mixture
from vaiom.evaluation.predictor import ModelPredictor, heldout_rows
from vaiom.evaluation.record import Evaluation, SampleSize, caveats_of
from vaiom.evaluation.scores import (
    MODEL,
    Buckets,
    ScoredEvents,
    TargetEvents,
    bits_by_group,
    event_bits,
    losses_of,
    read_events,
    score_events,
    score_target,
    served_distributions,
    write_events,
)
from vaiom.features.fields import CROSS_FIELDS, DISC_FIELDS, NUM_RETURN_BUCKETS
from vaiom.files import Progress, ensure_folder, read_json, write_bytes, write_json
from vaiom.model.checkpoint import Checkpoint
from vaiom.model.horizon_heads import HorizonHeads, load_horizons
from vaiom.run import MODELS, Run, find_run


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
    model: ModelPredictor | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Evaluation:
    """Score the best checkpoint of a run on a split, and baselines on exactly the same events.

    `baselines` is a folder of stored losses; without it the plain baselines are fitted now.
    `other_seeds` are runs that were evaluated on this split before. Figures and losses are written
    into the run, or into `out` with a copy of the model. `model` is the checkpoint where it is
    loaded already.
    """
    source = find_run(run)
    if out is None:
        require_own(source, fix="name a folder with --out")
    folder = out or source
    if model is None:
        model = ModelPredictor.load(Run(source).best, device, progress)
    checkpoint = model.checkpoint
    context = checkpoint.model.config.history
    rows = heldout_rows(corpus, split, checkpoint, unseal=unseal)
    if baselines is None:
        losses = losses_of(map(baseline, PLAIN), corpus, rows, context)
    else:
        losses = load_losses(baselines, corpus, split, context)
    dependence = _read_dependence(source, checkpoint, corpus)
    heads = _read_heads(source, checkpoint)
    other_bits = _read_other_seeds(folder, split, other_seeds, score_events(corpus, rows, losses))
    if out:
        _copy_model(source, ensure_folder(out))
    # Whatever can be refused has been refused: from here on the split is accessed.
    looks = record_access(
        corpus, split, run=folder.name, checkpoint_sha256=checkpoint.sha256, num_events=len(rows)
    )
    targets = horizon_events(model, heads, corpus, split, unseal) if heads else []
    model.compute(corpus, _needed_rows(rows, targets, corpus, split, context, dependence))
    events = score_events(corpus, rows, losses, model.predict_proba(corpus, rows))
    write_events(folder, split, events)
    horizons = []
    if heads:
        judged = judge_horizons(model, heads, corpus, targets, baselines=baselines)
        for score, own_events, _ in judged:
            write_events(folder, events_name(split, score.bars), own_events)
            horizons.append(score)
    seeds = None
    if other_bits:
        seeds = compare_seeds(events, {str(folder): events.bits[MODEL], **other_bits})
    result = Evaluation(
        split=split,
        run=str(folder),
        corpus=str(corpus.path),
        corpus_sha256=corpus.sha256,
        checkpoint_sha256=checkpoint.sha256,
        experiment=checkpoint.provenance.experiment,
        seed=checkpoint.provenance.seed,
        step=checkpoint.provenance.step,
        looks=looks,
        all_tests=_compare_all_tests(folder, corpus, split, checkpoint.sha256, list(events.bits)),
        seeds=seeds,
        ledger_sha256=ledger_heads(corpus)[-1] if corpus.path else None,
        precision=str(model.precision).removeprefix("torch."),
        baselines=str(baselines) if baselines else None,
        horizons=horizons or None,
        **judge(corpus, split, rows, events, model, dependence, baselines),
    )
    write_json(Run(folder).evaluation(split), to_json(result))
    return result


def _read_dependence(run: Path, checkpoint: Checkpoint, corpus: Corpus) -> Dependence | None:
    """The dependence of a run's assets; None where it has none, or the corpus has other assets."""
    file = Run(run).dependence
    if not file.is_file():
        return None
    dependence = Dependence.read(file, checkpoint.sha256)
    return dependence if dependence.symbols == corpus.tokenizer.symbols else None


def _read_heads(run: Path, checkpoint: Checkpoint) -> HorizonHeads | None:
    file = Run(run).horizons
    return load_horizons(file, checkpoint) if file.is_file() else None


def _read_other_seeds(
    run: Path, split: str, others: Sequence[Path], same_as: ScoredEvents
) -> dict[str, Floats]:
    """The model's losses in other runs, by run, on the same events."""
    if any(other.resolve() == run.resolve() for other in others):
        fix = "name the other runs alone"
        raise ConfigError("a run is not another seed of itself", where=run, fix=fix)
    return {str(other): read_events(other, split, same_as=same_as).bits[MODEL] for other in others}


def _copy_model(source: Path, out: Path) -> None:
    """Copy the checkpoint and its heads into a folder of results."""
    for name in (Run(source).best.name, Run(source).horizons.name):
        if (source / name).is_file():
            write_bytes(out / name, (source / name).read_bytes())


def _needed_rows(
    rows: Rows,
    targets: Sequence[TargetEvents],
    corpus: Corpus,
    split: str,
    context: int,
    dependence: Dependence | None,
) -> Rows:
    """The rows that the figures of an evaluation need from the model."""
    needed = [rows]
    if targets:
        needed.append(rows_along_the_way(targets))
    if dependence:
        needed.append(JointPeriod.of(corpus, split, dependence).rows(corpus, context))
    return np.concatenate(needed)


def _compare_all_tests(
    run: Path, corpus: Corpus, split: str, checkpoint_sha256: str, predictors: Sequence[str]
) -> list[PairedComparison] | None:
    """The comparison over all tests, once each was scored with this checkpoint.

    Earlier evaluations of other tests are renewed: theirs rested on events that were just replaced.
    """
    tests = corpus.splits.test_names
    if split not in tests or len(tests) == 1:
        return None
    files = [Run(run).evaluation(name) for name in tests if name != split]
    earlier = {file: read_json(file) for file in files if file.is_file()}
    of_checkpoint = [
        each.get("checkpoint_sha256") == checkpoint_sha256 for each in earlier.values()
    ]
    complete = sum(of_checkpoint) == len(files)
    for file, stored in earlier.items():
        if stored.get("all_tests"):
            renewed = compare_tests(run, tests, list(stored["bits"])) if complete else None
            write_json(file, {**stored, "all_tests": to_json(renewed)})
    return compare_tests(run, tests, predictors) if complete else None


def judge(
    corpus: Corpus,
    split: str,
    rows: Rows,
    events: ScoredEvents,
    model: ModelPredictor | None = None,
    dependence: Dependence | None = None,
    baselines: Path | None = None,
) -> dict[str, Any]:
    """The figures of the events at these rows, by field of `Evaluation`.

    Calibration and backtests need the forecasts of the events, the last figures a model too.
    """
    labels: dict[str, npt.NDArray[Any]] = {
        "asset": events.symbols,
        "month": events.target_times.astype("datetime64[M]"),
        "hour": events.target_times.astype("datetime64[h]").astype(np.int64) % 24,
        "bucket": events.buckets,
        "vol_regime": corpus.disc[rows, DISC_FIELDS.index("vol_regime")],
    }
    every_bucket = np.arange(1, NUM_RETURN_BUCKETS + 1)
    sample = SampleSize(
        num_assets=len(np.unique(events.symbols)),
        num_months=len(np.unique(labels["month"])),
        empty_buckets=np.setdiff1d(every_bucket, events.buckets).tolist(),
    )
    figures = {
        **score_target(corpus, rows, events),
        "against": compare(events),
        "confidence_set": ConfidenceSet.of(events.bits, events.target_times),
        "by": {name: bits_by_group(events.bits, groups) for name, groups in labels.items()},
        "sample": sample,
        "caveats": caveats_of(sample, model.checkpoint.provenance.purpose if model else ""),
    }
    if events.probs is not None:
        known_before = {name: labels[name] for name in ("asset", "hour", "vol_regime")}
        figures |= judge_forecasts(
            served_distributions(corpus, rows, events.probs),
            events.probs,
            events.buckets,
            corpus.log_ret_next[rows].astype(np.float64),
            events.symbols,
            known_before,
        )
        figures["mixture"] = diagnose_mixture(model, corpus, rows) if model else None
    if events.probs is not None and model:
        figures["bits_alone"] = score_alone(model, corpus, rows, events.buckets)
        if dependence:
            figures["joint"] = judge_joint(model, corpus, split, dependence, baselines)
    return figures


def score_alone(
    model: ModelPredictor, corpus: Corpus, rows: Rows, buckets: Buckets
) -> float | None:
    """Mean bits of the model as if no other asset had a bar; None where it reads none."""
    config = model.checkpoint.config
    if not config.attention_window or not set(CROSS_FIELDS) & set(config.input_fields):
        return None
    return float(event_bits(model.predict_alone(corpus, rows), buckets).mean())


def compare_tests(
    run: Path, tests: Sequence[str], predictors: Sequence[str]
) -> list[PairedComparison]:
    """Compare the model with baselines over the events of several splits, as far as each split has
    the predictor.
    """
    parts = [read_events(run, split) for split in tests]
    common = [name for name in predictors if all(name in part.bits for part in parts)]
    return compare(
        ScoredEvents(
            symbols=np.concatenate([part.symbols for part in parts]),
            target_times=np.concatenate([part.target_times for part in parts]),
            buckets=np.concatenate([part.buckets for part in parts]),
            bits={name: np.concatenate([part.bits[name] for part in parts]) for name in common},
        )
    )
