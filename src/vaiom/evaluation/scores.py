"""Bits per event: the one definition of how a forecast is scored; by groups, and as a file.

Enters: probabilities of buckets and the buckets that came. Leaves: losses of events. The loss of a
forecast p is -log2 p[bucket], with p raised to `MIN_PROBABILITY` and renormalised. Paper: Methods,
"Baselines" (clipping and renormalisation) and the evaluation protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Baseline, Floats, Predictor, Rows
from vaiom.baselines.stored_losses import BITS_PREFIX, bits_of_columns
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
SUM_TOLERANCE = 1e-3
"""How far the sum of stored probabilities may be from one."""
_PROB_COLUMNS = [f"prob_{bucket}" for bucket in range(1, NUM_RETURN_BUCKETS + 1)]
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
    """(n,) the loss of each event in bits, of forecasts (n, K) and the buckets (n,) that came."""
    if not np.isfinite(probs).all():
        raise ValueError("probabilities must be finite")
    ids = class_ids(buckets, probs.shape[-1])[:, None]
    given = np.take_along_axis(clip_probabilities(probs), ids, axis=-1)
    return -np.log2(given[:, 0])


def losses_of(
    predictors: Iterable[Predictor], corpus: Corpus, rows: Rows, context: int
) -> dict[str, Floats]:
    """Losses of the events at these rows by predictor; a baseline that is not fitted yet is fitted
    on Train first.
    """
    losses = {}
    for each in predictors:
        if isinstance(each, Baseline) and not each.is_fitted:
            each.fit(corpus, corpus.endpoints(TRAIN, context))
        probs = each.predict_proba(corpus, rows)
        losses[each.name] = event_bits(probs, corpus.target_return[rows])
    return losses


def bits_by_group(bits: Mapping[str, Floats], groups: Labels) -> list[GroupBits]:
    """Means over the events of each label in `groups` (n,), in the labels' order; labels without
    events are absent.
    """
    labels, group_of, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means = {name: np.bincount(group_of, weights=losses) / counts for name, losses in bits.items()}
    out = []
    for at, label in enumerate(labels):
        own = {name: float(by_group[at]) for name, by_group in means.items()}
        out.append(GroupBits(group=str(label), num_events=int(counts[at]), bits=own))
    return out


def tail_masks(buckets: Buckets) -> dict[str, npt.NDArray[np.bool_]]:
    """Which events (n,) ended in the negative tail, in the positive one, in either."""
    negative = buckets <= TAIL_BUCKETS
    positive = buckets > NUM_RETURN_BUCKETS - TAIL_BUCKETS
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
    """(n, K) of the model; None where they were not kept."""

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
    names = np.array(["", *corpus.tokenizer.symbols])
    buckets = corpus.target_return[rows]
    if probs is not None:
        bits = {MODEL: event_bits(probs, buckets), **bits}
    return ScoredEvents(
        symbols=names[corpus.meta[rows, 0]],
        target_times=corpus.target_timestamps[rows].astype("datetime64[s]"),
        buckets=buckets,
        bits=bits,
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
    """(n,) the row that has each symbol and stamp, given the stamps `known` (N,) of all rows; far
    below 0 where there is none.
    """
    out = np.full(len(symbols), np.iinfo(np.int32).min, np.int64)
    for symbol, inside in corpus.asset_slices.items():
        own = np.flatnonzero(symbols == symbol)
        times = known[inside]
        place = np.minimum(np.searchsorted(times, stamps[own]), len(times) - 1)
        hit = times[place] == stamps[own]
        out[own[hit]] = inside.start + place[hit]
    return out


def write_events(run: Path, split: str, events: ScoredEvents) -> Path:
    """Write the events of a split into a run folder, in place of an earlier file of that split.

    The file is Parquet, or `.npz` where no Parquet writer is installed.
    """
    columns: dict[str, npt.NDArray[Any]] = {
        "symbol": events.symbols,
        # Parquet has no coarser unit.
        "target_time": events.target_times.astype("datetime64[ms]"),
        "bucket": events.buckets,
    }
    for name, losses in events.bits.items():
        columns[BITS_PREFIX + name] = losses
    if events.probs is not None:
        columns |= dict(zip(_PROB_COLUMNS, events.probs.T, strict=True))
    table = Run(run).events(split)
    packed = Run(run).events(split, ".npz")
    try:
        import polars
    except ImportError:
        with atomic_file(packed) as staged, staged.open("wb") as stream:
            np.savez_compressed(stream, **columns)  # type: ignore[arg-type]
        table.unlink(missing_ok=True)
        return packed
    with atomic_file(table) as staged:
        polars.DataFrame(columns).write_parquet(staged)
    packed.unlink(missing_ok=True)
    return table


def read_events(run: Path, split: str, same_as: ScoredEvents | None = None) -> ScoredEvents:
    """Read what `write_events` wrote, in either format; other events than those of `same_as` are
    refused.
    """
    table = Run(run).events(split)
    packed = Run(run).events(split, ".npz")
    file = packed if packed.is_file() and not table.is_file() else table
    fix = f"vaiom evaluate {run} --split {split}"
    if not file.is_file():
        raise DataError("this split of the run has no scored events", where=file, fix=fix)
    problem = "not readable as scored events"
    try:
        events = _events_of_columns(_read_columns(file))
    except ImportError as error:
        needs = "reading this file needs polars"
        raise DataError(needs, where=file, fix=f"install polars, or {fix}") from error
    except DataError as error:
        raise DataError(problem, where=file, got=error.got, fix=fix) from error
    except BAD_ARRAYS as error:
        got = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(problem, where=file, got=got, fix=fix) from error
    if same_as is not None:
        require_same_events(same_as, events, where=run)
    return events


def _read_columns(file: Path) -> dict[str, npt.NDArray[Any]]:
    """The columns of a table or of packed arrays."""
    if file.suffix == ".npz":
        return read_arrays(file)
    from vaiom.market.folder import read_parquet

    frame = read_parquet(file, file)
    return {name: frame[name].to_numpy() for name in frame.columns}


def _events_of_columns(columns: dict[str, npt.NDArray[Any]]) -> ScoredEvents:
    """Scored events from the columns of a file; raises `ValueError` if they are none."""
    if not columns.keys() >= set(_COLUMNS):
        raise ValueError(f"columns {', '.join(columns)}, without some of {', '.join(_COLUMNS)}")
    if columns["bucket"].dtype.kind != "u":
        raise ValueError("buckets that are no small whole numbers")
    probs = None
    if columns.keys() & set(_PROB_COLUMNS):
        probs = np.stack([columns[name] for name in _PROB_COLUMNS], axis=1)
        if probs.dtype != np.float64 or not np.allclose(probs.sum(axis=1), 1, atol=SUM_TOLERANCE):
            raise ValueError("probabilities that do not sum to one")
    return ScoredEvents(
        symbols=columns["symbol"].astype(np.str_),
        target_times=columns["target_time"].astype("datetime64[s]"),
        buckets=columns["bucket"],
        bits=bits_of_columns(columns),
        probs=probs,
    )


def require_same_events(ours: ScoredEvents, theirs: ScoredEvents, where: object) -> None:
    """Refuse to compare losses of different events; names the first that differs."""
    got = difference_of(ours, theirs)
    if got:
        raise DataError(
            "the two event sets differ, and losses of different events are not compared",
            where=where,
            expected=f"the same {len(ours)} events in the same order",
            got=got,
            fix="evaluate both on one corpus and split, with the same context",
        )


def difference_of(ours: ScoredEvents, theirs: ScoredEvents) -> str | None:
    """How the second of two sets of events differs; None where they are the same."""
    if len(ours) != len(theirs):
        return f"{len(theirs)} events"
    differs = ours.symbols != theirs.symbols
    differs |= ours.target_times != theirs.target_times
    differs |= ours.buckets != theirs.buckets
    return f"event {int(differs.argmax())} differs" if differs.any() else None
