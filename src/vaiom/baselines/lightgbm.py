"""Boosted trees over the features of one row (LightGBM, Ke et al. 2017).

Early stopping and a last check use events that are held out of Train.

Paper: Methods, "Baselines"; Appendix "LightGBM Hyperparameters". Features of what the asset did
before are an addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import (
    FIT_NAME,
    Baseline,
    Floats,
    Rows,
    clean_returns,
    count_targets,
    damaged_fit,
    rows_by_asset,
    smooth,
)
from vaiom.baselines.history import HISTORY_COLUMNS, history_features
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
from vaiom.market.sessions import DAY
from vaiom.market.timeframes import step_seconds
from vaiom.model.config import class_of

if TYPE_CHECKING:
    import lightgbm

MODEL_NAME = "model.txt"
HOLDOUT_TOLERANCE_BITS = 0.02
"""Trees that are worse than Frequency by more on the events held out of Train are not used."""
_DATE_FIELDS = ("years_since_2000", "month", "day_of_month", "day_of_year")
"""Trees would memorise dates."""
_UNDATED = [name for name in CONT_FIELDS if not name.startswith(_DATE_FIELDS)]
_ROWS_AT_ONCE = 1 << 17
"""Of which features are held in memory in a prediction."""

Features = npt.NDArray[np.float32]


class FeatureSet(NamedTuple):
    """The features of a row, (n, fields); the last `num_categories` fields are categorical."""

    fields: tuple[str, ...]
    num_categories: int
    of: Callable[[Corpus, Rows], Features]


def single_bar_features(corpus: Corpus, rows: Rows) -> Features:
    """The row's own continuous fields and its metadata."""
    return np.concatenate([corpus.cont[rows], corpus.meta[rows]], axis=1, dtype=np.float32)


def lag_features(corpus: Corpus, rows: Rows) -> Features:
    """The row's own fields but dates, what its asset did up to it, and its metadata."""
    own = corpus.cont[rows][:, [CONT_FIELDS.index(name) for name in _UNDATED]]
    past = np.empty((len(rows), len(_HISTORY_FIELDS)), np.float32)
    step = step_seconds(corpus.tokenizer.timeframe)
    corpus.require_columns(HISTORY_COLUMNS)
    for symbol, chosen in rows_by_asset(corpus, rows).items():
        # Rows after the last one are not read.
        history = slice(corpus.asset_slices[symbol].start, int(rows[chosen].max()) + 1)
        columns = {name: corpus.columns[name][history] for name in HISTORY_COLUMNS}
        scale = corpus.target_scale[history]
        unit = np.divide(1.0, scale, out=np.full(len(scale), np.nan), where=scale > 0)
        features = history_features(columns, clean_returns(corpus, history), unit, step)
        at = rows[chosen] - history.start
        past[chosen] = np.stack([column[at] for _, column in features], axis=1)
    return np.concatenate([own, past, corpus.meta[rows]], axis=1, dtype=np.float32)


def extra_features(corpus: Corpus, rows: Rows) -> Features:
    """`lag_features` after the corpus's fields beyond the paper's, some of them of other assets."""
    return np.concatenate([corpus.extra[rows], lag_features(corpus, rows)], axis=1)


def _history_fields() -> tuple[str, ...]:
    """The names of the features of the past, which are those of an asset with one row."""
    one = np.ones(1)
    features = history_features(dict.fromkeys(HISTORY_COLUMNS, one), one, one, DAY)
    return tuple(name for name, _ in features)


_HISTORY_FIELDS = _history_fields()
_LAG_FIELDS = (*_UNDATED, *_HISTORY_FIELDS, *META_FIELDS)
_NUM_META = len(META_FIELDS)
FEATURES = {
    "lightgbm_disc": FeatureSet(
        DISC_FIELDS, len(DISC_FIELDS), lambda corpus, rows: corpus.disc[rows].astype(np.float32)
    ),
    "lightgbm_cont": FeatureSet(CONT_FIELDS, 0, lambda corpus, rows: corpus.cont[rows]),
    "lightgbm_quick": FeatureSet((*CONT_FIELDS, *META_FIELDS), _NUM_META, single_bar_features),
    "lightgbm": FeatureSet((*CONT_FIELDS, *META_FIELDS), _NUM_META, single_bar_features),
    "lightgbm_lags": FeatureSet(_LAG_FIELDS, _NUM_META, lag_features),
    "lightgbm_extra": FeatureSet((*EXTRA_FIELDS, *_LAG_FIELDS), _NUM_META, extra_features),
}
"""By baseline."""


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
    chronological: bool = False
    """Hold out the latest of the drawn events instead of random ones."""
    max_events: int = 1_000_000
    seed: int = 17

    def params(self, num_classes: int) -> dict[str, Any]:
        """The parameters under LightGBM's own names, for a softmax over so many classes."""
        return {
            "objective": "multiclass",
            "num_class": num_classes,
            "metric": "multi_logloss",
            "verbosity": -1,
            "num_leaves": self.num_leaves,
            "min_data_in_leaf": self.min_child_samples,
            "learning_rate": self.learning_rate,
            "lambda_l1": self.l1,
            "lambda_l2": self.l2,
            "bagging_fraction": self.subsample,
            "bagging_freq": self.bagging_freq,
            "feature_fraction": self.colsample,
            "seed": self.seed,
            "deterministic": True,
            # Left to itself the library times both layouts, and the choice may differ between runs.
            "force_col_wise": True,
        }


WIDE_TREES = TreeConfig(learning_rate=0.05, max_events=500_000)
"""For many features: fewer events and larger steps, so that a fit takes minutes on a few cores."""
QUICK_TREES = TreeConfig(rounds=80, learning_rate=0.1, patience=10, max_events=200_000)
"""Few events and large steps: seconds instead of minutes."""
SETTINGS = {
    "lightgbm_quick": QUICK_TREES,
    "lightgbm_lags": WIDE_TREES,
    "lightgbm_extra": WIDE_TREES,
}
"""By baseline, where they are not the paper's."""


class LightGBM(Baseline):
    """Trees from one row's features, which the baseline's name chooses, to bucket probabilities.

    Attributes:
        booster_: the trees up to the best round, kept as LightGBM's own text file.
        holdout_bits_: loss on the events held out of Train.
        frequency_bits_: loss of Frequency on them, fitted to the same events as the trees.
    """

    booster_: lightgbm.Booster
    holdout_bits_: float
    frequency_bits_: float

    def __init__(
        self,
        name: str = "lightgbm",
        config: TreeConfig | None = None,
        progress: Progress | None = None,
    ):
        super().__init__(name, progress)
        self.features = FEATURES[name]
        self.settings = config or SETTINGS.get(name, TreeConfig())

    def config(self) -> dict[str, Any]:
        return {
            **asdict(self.settings),
            "fields": list(self.features.fields),
            "num_categories": self.features.num_categories,
        }

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        import lightgbm as lgb

        # Targets of several bars overlap: random neighbours would tell what is held out, and trees
        # would stop too late.
        chronological = self.settings.chronological or corpus.horizon > 1
        settings = replace(self.settings, chronological=chronological)
        fitted, holdout = split_holdout(rows, corpus.target_timestamps[rows], settings)
        if not len(holdout):
            raise DataError(
                "too few events for a holdout",
                expected="at least two Train events",
                got=len(rows),
                where=self.name,
            )
        train = self._dataset(corpus, fitted)
        booster = lgb.train(
            settings.params(NUM_RETURN_BUCKETS),
            train,
            num_boost_round=settings.rounds,
            valid_sets=[self._dataset(corpus, holdout, reference=train)],
            callbacks=[lgb.early_stopping(settings.patience, verbose=False), self._report],
        )
        self.holdout_bits_ = booster.best_score["valid_0"]["multi_logloss"] / math.log(2)
        log_shares = np.log2(smooth(count_targets(corpus, fitted)))
        self.frequency_bits_ = float(-(count_targets(corpus, holdout) @ log_shares) / len(holdout))
        most = self.frequency_bits_ + HOLDOUT_TOLERANCE_BITS
        if self.holdout_bits_ > most:
            raise DataError(
                f"{self.name} is worse than Frequency on the events held out of Train, so it is "
                f"not used",
                expected=f"at most {most:.4f} bits/event",
                got=f"{self.holdout_bits_:.4f} bits/event",
                fix="bring in a longer history, or leave this baseline out with --only",
            )
        self.booster_ = booster  # of the best round: the library drops the later ones

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        probs = np.empty((len(rows), NUM_RETURN_BUCKETS))
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            probs[part] = self.booster_.predict(self.features.of(corpus, rows[part]))
        return probs

    def save(self, folder: Path) -> None:
        (folder / MODEL_NAME).write_text(self.booster_.model_to_string())
        summary = {
            "rounds": self.booster_.num_trees() // self.booster_.num_model_per_iteration(),
            "holdout_bits": self.holdout_bits_,
            "frequency_bits": self.frequency_bits_,
        }
        write_json(folder / FIT_NAME, summary)

    def load(self, folder: Path) -> Self:
        import lightgbm as lgb

        file = folder / MODEL_NAME
        summary = read_json(folder / FIT_NAME)
        try:
            self.booster_ = lgb.Booster(model_str=file.read_text())
            self.holdout_bits_ = summary["holdout_bits"]
            self.frequency_bits_ = summary["frequency_bits"]
        except (OSError, KeyError, TypeError, ValueError, lgb.basic.LightGBMError) as error:
            raise damaged_fit(file) from error
        return self

    def _dataset(
        self, corpus: Corpus, rows: Rows, reference: lightgbm.Dataset | None = None
    ) -> lightgbm.Dataset:
        """Features and classes of these rows; histograms are binned as those of `reference`."""
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
        """Tell the progress of the rounds, as LightGBM calls back."""
        if self.progress and env.evaluation_result_list:
            nats = env.evaluation_result_list[0][2]
            detail = f"rounds, holdout {nats / math.log(2):.4f} bits"
            self.progress(env.iteration + 1, env.end_iteration, detail)


def split_holdout(
    rows: Rows, moments: npt.NDArray[np.datetime64], config: TreeConfig
) -> tuple[Rows, Rows]:
    """A seeded draw of the events to fit on, and of those held out; both in the order of the
    corpus. `moments` (n,) are the times of the rows' targets.
    """
    drawn = np.random.default_rng(config.seed).permutation(len(rows))[: config.max_events]
    if config.chronological:
        drawn = drawn[np.argsort(moments[drawn], kind="stable")[::-1]]
    num_held_out = round(config.holdout_share * len(drawn))
    return rows[np.sort(drawn[num_held_out:])], rows[np.sort(drawn[:num_held_out])]
