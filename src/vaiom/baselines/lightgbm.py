"""Boosted trees over the features of one row, with a seeded Train holdout for early stopping and a
last check.

Paper: Methods, "Baselines"; Appendix "LightGBM Hyperparameters". Features of what the asset did
before are an addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from vaiom.baselines import base
from vaiom.baselines.base import Baseline, Floats, Rows, clean_returns, count_targets, rows_by_asset
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError
from vaiom.features.fields import (
    CONT_FIELDS,
    DISC_FIELDS,
    EXTRA_FIELDS,
    META_FIELDS,
    NUM_RETURN_BUCKETS,
)
from vaiom.files import Progress, read_json, write_json
from vaiom.market.sessions import DAY, FIRST_MONDAY, WEEK
from vaiom.market.timeframes import step_seconds
from vaiom.model.config import class_of

if TYPE_CHECKING:
    import lightgbm

MODEL_NAME = "model.txt"
HOLDOUT_TOLERANCE_BITS = 0.02
"""Trees that are worse than Frequency by more on the events held out of Train are not used."""
SEASON_COUNT = 60  # how many earlier days, or weeks, say what is usual in a slot
CYCLES = {"day": DAY, "week": WEEK}

# Trees would memorise dates.
_DATES = ("years_since_2000", "month", "day_of_month", "day_of_year")
_UNDATED = [name for name in CONT_FIELDS if not name.startswith(_DATES)]
_PREDICT_ROWS = 1 << 17  # bounds the memory of wide feature sets

Ints = npt.NDArray[np.int64]


class FeatureSet(NamedTuple):
    """Features of a row; the last `num_categories` fields are categorical."""

    fields: tuple[str, ...]
    num_categories: int
    of: Callable[[Corpus, Rows], npt.NDArray[np.float32]]


def history_features(
    columns: Mapping[str, npt.NDArray[Any]], returns: Floats, unit: Floats, step: int
) -> Iterator[tuple[str, Floats]]:
    """Name and column (n,) of each feature of an asset's past up to a row, from all of its rows
    (n,).

    `returns` are NaN where not clean, `unit` is one over the row's `sigma20`, bars are `step`
    seconds apart.
    """
    seconds = columns["timestamp"].astype(np.int64)
    volatility, gaps = (columns[name].astype(np.float64) for name in ("relative_log_vol", "gap_z"))
    size, abs_z = np.abs(returns), np.where(np.isfinite(returns), np.abs(columns["ret_z"]), np.nan)
    slots = {cycle: ((seconds - FIRST_MONDAY) % length) // step for cycle, length in CYCLES.items()}
    # The next slot by the clock: that of the target if no bar is skipped.
    next_slots = {
        cycle: ((seconds + step - FIRST_MONDAY) % length) // step
        for cycle, length in CYCLES.items()
        for cycle, length in CYCLES.items()
    }
    for lag in (0, 1, 2, 3, 4, 5, 11, 22, 23, 24):
        yield f"return_lag_{lag}", lagged(returns, lag) * unit
    for window in (3, 6, 12, 24, 48, 120, 480, 2_400):
        yield f"abs_return_mean_{window}", rolling_mean(size, window) * unit
    for window in (3, 12, 24, 120):
        yield f"return_mean_{window}", rolling_mean(returns, window) * unit
    yield "abs_return_max_24", rolling_max(size, 24) * unit
    for lag in (1, 3, 6, 12, 24, 120):
        yield f"relative_log_vol_lag_{lag}", lagged(volatility, lag)
    for lag in (1, 2, 3):
        yield f"gap_z_lag_{lag}", lagged(gaps, lag)
    for lag in (1, 6, 24, 120):
        yield f"seconds_since_lag_{lag}", seconds - lagged(seconds.astype(np.float64), lag)
    for cycle, count in product(CYCLES, (1, 5, 20, 60)):
        yield (
            f"next_slot_of_{cycle}_{count}",
            recent_mean(size, slots[cycle], next_slots[cycle], count) * unit,
        )
    for cycle in CYCLES:
        yield (
            f"next_slot_of_{cycle}_z",
            recent_mean(abs_z, slots[cycle], next_slots[cycle], SEASON_COUNT),
        )
    for cycle, window in product(CYCLES, (3, 12, 48)):
        yield (
            f"season_of_{cycle}_{window}",
            seasonal_forecast(size, slots[cycle], next_slots[cycle], window) * unit,
        )
    for cycle in CYCLES:
        yield f"slot_of_{cycle}", slots[cycle].astype(np.float64)


def seasonal_forecast(size: Floats, own_slot: Ints, target_slot: Ints, window: int) -> Floats:
    """The usual size of the target slot, times the mean ratio of the last `window` rows to the
    usual size of theirs.
    """
    usual = recent_mean(size, own_slot, own_slot, SEASON_COUNT)
    return recent_mean(size, own_slot, target_slot, SEASON_COUNT) * rolling_mean(
        size / usual, window
    )


def lagged(values: Floats, lag: int) -> Floats:
    """The value `lag` rows earlier, NaN before the first."""
    return np.concatenate(
        [np.full(min(lag, len(values)), np.nan), values[: max(len(values) - lag, 0)]]
    )


def rolling_mean(values: Floats, window: int) -> Floats:
    """Mean of the finite values among the last `window` rows, NaN where there is none."""
    end = np.arange(1, len(values) + 1)
    return _mean_between(values, np.maximum(end - window, 0), end)


def rolling_max(values: Floats, window: int) -> Floats:
    """Largest finite value among the last `window` rows, NaN where there is none."""
    padded = np.concatenate(
        [np.full(window - 1, -np.inf), np.where(np.isfinite(values), values, -np.inf)]
    )
    largest = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    return np.where(np.isfinite(largest), largest, np.nan)


def recent_mean(values: Floats, own_slot: Ints, target_slot: Ints, count: int) -> Floats:
    """For each row, the mean over the last `count` rows, up to itself, that are in its
    target slot.
    """
    out = np.full(len(values), np.nan)
    num_slots = int(max(own_slot.max(), target_slot.max())) + 1
    for rows, targets in zip(
        _by_slot(own_slot, num_slots), _by_slot(target_slot, num_slots), strict=True
    ):
        end = np.searchsorted(rows, targets, side="right")
        out[targets] = _mean_between(values[rows], np.maximum(end - count, 0), end)
    return out


def _by_slot(slots: Ints, num_slots: int) -> list[Ints]:
    """The rows of each slot in order."""
    order = np.argsort(slots, kind="stable")
    return np.split(order, np.searchsorted(slots[order], np.arange(1, num_slots)))


def _mean_between(values: Floats, start: Ints, end: Ints) -> Floats:
    """Means of the finite values at positions start..end-1."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    number = counts[end] - counts[start]
    return np.where(number > 0, (sums[end] - sums[start]) / np.maximum(number, 1), np.nan)


def _lags(corpus: Corpus, rows: Rows) -> npt.NDArray[np.float32]:
    """The row's own fields but dates, what its asset did up to it, and its metadata."""
    own = corpus.cont[rows][:, [CONT_FIELDS.index(name) for name in _UNDATED]]
    past = np.empty((len(rows), len(_HISTORY_FIELDS)), np.float32)
    for symbol, chosen in rows_by_asset(corpus, rows).items():
        own_rows = rows[chosen]
        # Rows after the last one are not read.
        history = slice(corpus.asset_slices[symbol].start, int(own_rows.max()) + 1)
        columns = {name: corpus.columns[name][history] for name in _HISTORY_COLUMNS}
        with np.errstate(divide="ignore"):
            unit = 1.0 / corpus.target_scale[history]
        unit[~np.isfinite(unit)] = np.nan
        step = step_seconds(corpus.tokenizer.timeframe)
        features = history_features(columns, clean_returns(corpus, history), unit, step)
        past[chosen] = np.stack(
            [column[own_rows - history.start] for _, column in features], axis=1
        )
    return np.concatenate([own, past, corpus.meta[rows]], axis=1, dtype=np.float32)


_HISTORY_COLUMNS = ("timestamp", "ret_z", "relative_log_vol", "gap_z")
_ONE = np.ones(1)  # an asset with one row, for the names of its features
_HISTORY_FIELDS = tuple(
    name for name, _ in history_features(dict.fromkeys(_HISTORY_COLUMNS, _ONE), _ONE, _ONE, DAY)
)
_LAG_FIELDS = (*_UNDATED, *_HISTORY_FIELDS, *META_FIELDS)
_NUM_META = len(META_FIELDS)

FEATURES = {
    "lightgbm_disc": FeatureSet(
        DISC_FIELDS, len(DISC_FIELDS), lambda c, rows: c.disc[rows].astype(np.float32)
    ),
    "lightgbm_cont": FeatureSet(CONT_FIELDS, 0, lambda c, rows: c.cont[rows]),
    "lightgbm": FeatureSet(
        (*CONT_FIELDS, *META_FIELDS),
        _NUM_META,
        lambda c, rows: np.concatenate([c.cont[rows], c.meta[rows]], axis=1, dtype=np.float32),
    ),
    "lightgbm_lags": FeatureSet(_LAG_FIELDS, _NUM_META, _lags),
    "lightgbm_extra": FeatureSet(
        (*EXTRA_FIELDS, *_LAG_FIELDS),
        _NUM_META,
        lambda c, rows: np.concatenate([c.extra[rows], _lags(c, rows)], axis=1),
    ),
}
"""By baseline; the last has the corpus's extra fields too, some of them of other assets."""


@dataclass(frozen=True, kw_only=True)
class TreeConfig:
    """Hyperparameters; the defaults are the paper's."""

    rounds: int = 1_000
    num_leaves: int = 31
    learning_rate: float = 0.03
    min_child_samples: int = 500
    l1: float = 0.1
    l2: float = 5.0
    subsample: float = 0.8
    colsample: float = 0.8
    bagging_freq: int = 1
    patience: int = 100
    holdout_share: float = 0.2
    chronological: bool = (
        False  # hold out the latest of the drawn events, as over several bars, and not random ones
    )
    max_events: int = 1_000_000
    seed: int = 17

    def params(self, num_classes: int) -> dict[str, Any]:
        """The library's parameters."""
        task = {
            "objective": "multiclass",
            "num_class": num_classes,
            "metric": "multi_logloss",
            "verbosity": -1,
        }
        tree = {"num_leaves": self.num_leaves, "min_data_in_leaf": self.min_child_samples}
        shrinkage = {
            "learning_rate": self.learning_rate,
            "lambda_l1": self.l1,
            "lambda_l2": self.l2,
        }
        sampling = {"bagging_fraction": self.subsample, "bagging_freq": self.bagging_freq}
        sampling |= {"feature_fraction": self.colsample}
        # Left to itself the library times both layouts, and the faster may differ from run to run.
        repeatable = {"seed": self.seed, "deterministic": True, "force_col_wise": True}
        return task | tree | shrinkage | sampling | repeatable


WIDE_TREES = TreeConfig(learning_rate=0.05, max_events=500_000)
"""For many features: fewer events and larger steps, so that a fit takes minutes on a few cores."""


class LightGBM(Baseline):
    """One row's features, by the baseline's name, to bucket probabilities; kept as LightGBM's own
    text file.
    """

    booster_: lightgbm.Booster
    holdout_bits_: float
    frequency_bits_: float  # of the same holdout, from the same fitted events

    def __init__(
        self,
        name: str = "lightgbm",
        config: TreeConfig | None = None,
        progress: Progress | None = None,
    ):
        super().__init__(name, progress)
        self.features = FEATURES[name]
        self.settings = config or (
            WIDE_TREES if name in ("lightgbm_lags", "lightgbm_extra") else TreeConfig()
        )

    def config(self) -> dict[str, Any]:
        fields = {
            "fields": list(self.features.fields),
            "num_categories": self.features.num_categories,
        }
        return {**asdict(self.settings), **fields}

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        import lightgbm as lgb

        # Targets of several bars overlap: random neighbours would tell what is held out, and trees
        # would stop too late.
        settings = replace(
            self.settings, chronological=self.settings.chronological or corpus.horizon > 1
        )
        fitted, holdout = split_holdout(rows, corpus.target_timestamps[rows], settings)
        if not len(holdout):
            problem, expected = "too few events for a holdout", "at least two Train events"
            raise DataError(problem, expected=expected, got=len(rows), where=self.name)
        train = self._dataset(corpus, fitted)
        booster = lgb.train(
            self.settings.params(NUM_RETURN_BUCKETS),
            train,
            num_boost_round=self.settings.rounds,
            valid_sets=[self._dataset(corpus, holdout, reference=train)],
            callbacks=[lgb.early_stopping(self.settings.patience, verbose=False), self._report],
        )
        self.holdout_bits_ = booster.best_score["valid_0"]["multi_logloss"] / math.log(2)
        shares = base.smooth(count_targets(corpus, fitted))
        self.frequency_bits_ = float(
            -(count_targets(corpus, holdout) @ np.log2(shares)) / len(holdout)
        )
        if self.holdout_bits_ > self.frequency_bits_ + HOLDOUT_TOLERANCE_BITS:
            most = f"at most {self.frequency_bits_ + HOLDOUT_TOLERANCE_BITS:.4f} bits/event"
            problem = (
                f"{self.name} is worse than Frequency on the events held out of Train, so "
                f"it is not used"
            )
            fix = "bring in a longer history, or leave this baseline out with --only"
            raise DataError(
                problem, expected=most, got=f"{self.holdout_bits_:.4f} bits/event", fix=fix
            )
        self.booster_ = booster  # of the best round: the library drops the later ones

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        probs = np.empty((len(rows), NUM_RETURN_BUCKETS))
        for start in range(0, len(rows), _PREDICT_ROWS):
            part = slice(start, start + _PREDICT_ROWS)
            probs[part] = self.booster_.predict(self.features.of(corpus, rows[part]))
        return probs

    def save(self, folder: Path) -> None:
        (folder / MODEL_NAME).write_text(self.booster_.model_to_string())
        rounds = self.booster_.num_trees() // self.booster_.num_model_per_iteration()
        bits = {"holdout_bits": self.holdout_bits_, "frequency_bits": self.frequency_bits_}
        write_json(folder / base.FIT_NAME, {"rounds": rounds, **bits})

    def load(self, folder: Path) -> Self:
        import lightgbm as lgb

        summary, file = read_json(folder / base.FIT_NAME), folder / MODEL_NAME
        try:
            self.booster_ = lgb.Booster(model_str=file.read_text())
            self.holdout_bits_, self.frequency_bits_ = (
                summary["holdout_bits"],
                summary["frequency_bits"],
            )
        except (OSError, KeyError, TypeError, ValueError, lgb.basic.LightGBMError) as error:
            raise base.damaged_fit(file) from error
        return self

    def _dataset(
        self, corpus: Corpus, rows: Rows, reference: lightgbm.Dataset | None = None
    ) -> lightgbm.Dataset:
        import lightgbm as lgb

        size = len(self.features.fields)
        return lgb.Dataset(
            self.features.of(corpus, rows),
            label=class_of(corpus.target_return[rows]),
            reference=reference,
            feature_name=list(self.features.fields),
            categorical_feature=list(range(size - self.features.num_categories, size)),
        )

    def _report(self, env: lightgbm.callback.CallbackEnv) -> None:
        if self.progress and (results := env.evaluation_result_list):
            bits = results[0][2] / math.log(2)
            self.progress(env.iteration + 1, env.end_iteration, f"rounds, holdout {bits:.4f} bits")


def split_holdout(
    rows: Rows, moments: npt.NDArray[np.datetime64], config: TreeConfig
) -> tuple[Rows, Rows]:
    """A seeded draw of the events to use, and which of them are held out; both in the order of the
    corpus.
    """
    drawn = np.random.default_rng(config.seed).permutation(len(rows))[: config.max_events]
    if config.chronological:
        drawn = drawn[np.argsort(moments[drawn], kind="stable")[::-1]]
    num_held_out = round(config.holdout_share * len(drawn))
    return rows[np.sort(drawn[num_held_out:])], rows[np.sort(drawn[:num_held_out])]
