"""Bits per event: minus the base-2 logarithm of the probability that its bucket was given; by
groups, and as a file.

Paper: Methods, "Baselines" (clipping and renormalisation) and the evaluation protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Baseline, Floats, Predictor, Rows
from vaiom.baselines.store import BITS_PREFIX, bits_of_columns
from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.distribution.buckets import BucketDistribution
from vaiom.errors import DataError
from vaiom.features.fields import MIN_PROBABILITY, NUM_RETURN_BUCKETS
from vaiom.files import BAD_ARRAYS, atomic_file, read_arrays
from vaiom.model.config import class_of
from vaiom.run import Run

MODEL = "model"
TAIL_BUCKETS = 4
"""Buckets beyond the fixed cutoffs on each side."""

Buckets = npt.NDArray[np.integer]
Labels = npt.NDArray[Any]
Times = npt.NDArray[np.datetime64]
_PROB_PREFIX = "prob_"
_COLUMNS = ("symbol", "target_time", "bucket", BITS_PREFIX + MODEL)


@dataclass(frozen=True, kw_only=True)
class GroupBits:
    """Mean bits per event of every predictor over the events with one label."""

    group: str
    num_events: int
    bits: dict[str, float]


def class_ids(buckets: Buckets, num_buckets: int) -> npt.NDArray[np.int64]:
    """Bucket ids 1..K as positions 0..K-1; an event without a bucket has no likelihood."""
    ids: npt.NDArray[np.int64] = class_of(buckets.astype(np.int64))
    if len(ids) and not (ids.min() >= 0 and ids.max() < num_buckets):
        raise ValueError(
            f"buckets must lie in 1..{num_buckets}, got {buckets.min()}..{buckets.max()}"
        )
    return ids


def clip_probabilities(probs: Floats) -> Floats:
    """Probabilities raised to `MIN_PROBABILITY` at least, and renormalised."""
    raised = np.maximum(probs, MIN_PROBABILITY)
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def event_bits(probs: Floats, buckets: Buckets) -> Floats:
    """The loss of every event in bits, shape (n,)."""
    if not np.isfinite(probs).all():
        raise ValueError("probabilities must be finite")
    ids = class_ids(buckets, probs.shape[-1])[:, None]
    return -np.log2(np.take_along_axis(clip_probabilities(probs), ids, axis=-1)[:, 0])


def losses_of(
    predictors: Iterable[Predictor], corpus: Corpus, rows: Rows, context: int
) -> dict[str, Floats]:
    """Losses of the events at these rows by predictor; a baseline that is not fitted yet is fitted
    on Train first.
    """
    out = {}
    for each in predictors:
        if isinstance(each, Baseline) and not each.is_fitted:
            each.fit(corpus, corpus.endpoints(TRAIN, context))
        out[each.name] = event_bits(each.predict_proba(corpus, rows), corpus.target_return[rows])
    return out


def bits_by_group(bits: Mapping[str, Floats], groups: Labels) -> list[GroupBits]:
    """Means over the events of each label in `groups` (n,), in the labels' order; labels without
    events are absent.
    """
    labels, group_of, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means = {name: np.bincount(group_of, weights=losses) / counts for name, losses in bits.items()}
    return [
        GroupBits(
            group=str(label),
            num_events=int(count),
            bits={name: float(means[name][at]) for name in means},
        )
        for at, (label, count) in enumerate(zip(labels, counts, strict=True))
    ]


def tail_masks(buckets: Buckets) -> dict[str, npt.NDArray[np.bool_]]:
    """Which events (n,) ended in the negative tail, in the positive one, in either."""
    negative, positive = buckets <= TAIL_BUCKETS, buckets > NUM_RETURN_BUCKETS - TAIL_BUCKETS
    return {"negative": negative, "positive": positive, "both": negative | positive}


class TargetEvents(NamedTuple):
    """The events of one target in a split."""

    corpus: Corpus
    """With that target: its own properties are those of the next bar or of a sum of bars."""
    rows: Rows


@dataclass(frozen=True, kw_only=True)
class TargetScore:
    """What is said of the scores of every target, the next bar or several bars."""

    num_events: int
    zero_share: float
    """Share of the known returns of the split that were exactly zero and are no events."""
    bits: dict[str, float]
    """Mean per event, by predictor, the model first."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredEvents:
    """The events of a split in the order of the corpus, (n,) each; `bits` has the model first."""

    symbols: npt.NDArray[np.str_]
    target_times: Times
    buckets: Buckets
    bits: dict[str, Floats]
    probs: Floats | None = None
    """(n, K) of the model; None in older files."""

    def __post_init__(self) -> None:
        columns = (self.symbols, self.target_times, *self.bits.values(), self.probs)
        if {len(column) for column in columns if column is not None} != {len(self)}:
            raise ValueError("columns of other events than the buckets")

    def __len__(self) -> int:
        return len(self.buckets)

    @property
    def mean_bits(self) -> dict[str, float]:
        """Per event, by predictor."""
        return {name: float(losses.mean()) for name, losses in self.bits.items()}


def score_events(
    corpus: Corpus, rows: Rows, bits: dict[str, Floats], probs: Floats | None = None
) -> ScoredEvents:
    """The events of these rows with the losses of each predictor, first those of a model with these
    forecasts.
    """
    names, buckets = np.array(["", *corpus.tokenizer.symbols]), corpus.target_return[rows]
    return ScoredEvents(
        symbols=names[corpus.meta[rows, 0]],
        target_times=corpus.target_timestamps[rows].astype("datetime64[s]"),
        buckets=buckets,
        bits=bits if probs is None else {MODEL: event_bits(probs, buckets), **bits},
        probs=probs,
    )


def score_target(corpus: Corpus, rows: Rows, events: ScoredEvents) -> dict[str, Any]:
    """The fields of `TargetScore`, of the corpus's own target and the events at these rows."""
    in_split = corpus.split_codes == corpus.split_codes[rows[0]]
    known = corpus.log_ret_next[in_split & corpus.target().known]
    return {
        "num_events": len(events),
        "zero_share": float(np.mean(known == 0)),
        "bits": events.mean_bits,
    }


def served_distributions(
    corpus: Corpus, rows: Rows, probs: Floats, times: float = 1.0
) -> BucketDistribution:
    """The forecasts (n, 16) for these rows as they are served, with their scale times `times`."""
    return BucketDistribution(
        probs=probs / probs.sum(axis=-1, keepdims=True),
        sigma=corpus.target_scale[rows].astype(np.float64) * times,
        shape=corpus.return_shape,
    )


def find_rows(
    corpus: Corpus, known: Times, symbols: Labels, stamps: Times
) -> npt.NDArray[np.int64]:
    """The row that has each symbol and stamp, given the stamps `known` of all rows; far below 0
    where there is none.
    """
    out = np.full(len(symbols), np.iinfo(np.int32).min, np.int64)
    for symbol, inside in corpus.asset_slices.items():
        own, times = np.flatnonzero(symbols == symbol), known[inside]
        place = np.minimum(np.searchsorted(times, stamps[own]), len(times) - 1)
        hit = times[place] == stamps[own]
        out[own[hit]] = inside.start + place[hit]
    return out


def write_events(run: Path, split: str, events: ScoredEvents) -> Path:
    """Write the events of a split into a run folder, in place of an earlier file of that split."""
    columns: dict[str, npt.NDArray[Any]] = {
        "symbol": events.symbols,
        "target_time": events.target_times.astype(
            "datetime64[ms]"
        ),  # the coarsest unit that Parquet has
        "bucket": events.buckets,
        **{BITS_PREFIX + name: losses for name, losses in events.bits.items()},
    }
    if events.probs is not None:
        columns |= {
            f"{_PROB_PREFIX}{bucket}": each for bucket, each in enumerate(events.probs.T, start=1)
        }
    file, other = Run(run).events(split), Run(run).events(split, ".npz")
    try:
        import polars
    except ImportError:
        file, other = other, file
        with atomic_file(file) as staged, staged.open("wb") as stream:
            np.savez_compressed(stream, **columns)  # type: ignore[arg-type]
    else:
        with atomic_file(file) as staged:
            polars.DataFrame(columns).write_parquet(staged)
    other.unlink(missing_ok=True)
    return file


def read_events(run: Path, split: str, same_as: ScoredEvents | None = None) -> ScoredEvents:
    """Read what `write_events` wrote, in either format; other events than those of `same_as` are
    refused.
    """
    table, packed = Run(run).events(split), Run(run).events(split, ".npz")
    file = table if table.is_file() or not packed.is_file() else packed
    fix = f"vaiom evaluate {run} --split {split}"
    if not file.is_file():
        raise DataError("this split of the run has no scored events", where=file, fix=fix)
    try:
        if file == packed:
            columns = read_arrays(file)
        else:
            from vaiom.market.folder import read_parquet

            frame = read_parquet(file, file)
            columns = {name: frame[name].to_numpy() for name in frame.columns}
        if not columns.keys() >= {*_COLUMNS}:
            raise ValueError(f"columns {', '.join(columns)}, without some of {', '.join(_COLUMNS)}")
        if columns["bucket"].dtype.kind != "u":
            raise ValueError("buckets that are no small whole numbers")
        names, probs = (
            [f"{_PROB_PREFIX}{bucket}" for bucket in range(1, NUM_RETURN_BUCKETS + 1)],
            None,
        )
        if columns.keys() & {*names}:
            probs = np.stack([columns[name] for name in names], axis=1)
            if probs.dtype != np.float64 or not np.allclose(probs.sum(axis=1), 1, atol=1e-3):
                raise ValueError("probabilities that do not sum to one")
        events = ScoredEvents(
            symbols=columns["symbol"].astype(np.str_),
            target_times=columns["target_time"].astype("datetime64[s]"),
            buckets=columns["bucket"],
            bits=bits_of_columns(columns),
            probs=probs,
        )
    except ImportError as error:
        raise DataError(
            "reading this file needs polars", where=file, fix=f"install polars, or {fix}"
        ) from error
    except (DataError, *BAD_ARRAYS) as error:
        got = (
            error.got
            if isinstance(error, DataError)
            else (str(error) or type(error).__name__).splitlines()[0]
        )
        raise DataError("not readable as scored events", where=file, got=got, fix=fix) from error
    if same_as is not None:
        require_same_events(same_as, events, where=run)
    return events


def require_same_events(ours: ScoredEvents, theirs: ScoredEvents, where: object) -> None:
    """Refuse to compare losses of different events; names the first that differs."""
    if got := difference_of(ours, theirs):
        problem = "the two event sets differ, and losses of different events are not compared"
        expected = f"the same {len(ours)} events in the same order"
        fix = "evaluate both on one corpus and split, with the same context"
        raise DataError(problem, where=where, expected=expected, got=got, fix=fix)


def difference_of(ours: ScoredEvents, theirs: ScoredEvents) -> str | None:
    """How the second of two sets of events differs; None where they are the same."""
    if len(ours) != len(theirs):
        return f"{len(theirs)} events"
    columns = ("symbols", "target_times", "buckets")
    differs = np.any([getattr(ours, name) != getattr(theirs, name) for name in columns], axis=0)
    return f"event {int(differs.argmax())} differs" if differs.any() else None
