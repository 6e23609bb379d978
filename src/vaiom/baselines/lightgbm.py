"""Boosted trees over the features of one row, with a seeded Train holdout for early stopping and a last check.

Enters: Train events and a feature set. Leaves: a LightGBM model and its probabilities of the return buckets.
Paper: Methods, "Baselines" (LightGBM) and Appendix "LightGBM Hyperparameters".
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import (
    FIT_NAME,
    Baseline,
    Floats,
    Progress,
    Rows,
    count_targets,
    damaged_fit,
    num_return_buckets,
    smooth,
)
from vaiom.baselines.features import FEATURES
from vaiom.errors import DataError
from vaiom.events.corpus import Corpus
from vaiom.files import read_json, write_json
from vaiom.model.config import class_of

if TYPE_CHECKING:
    import lightgbm

MODEL_NAME = "model.txt"
HOLDOUT_TOLERANCE_BITS = 0.02
"""Trees that are worse than Frequency by more on the events held out of Train are not used."""
_PREDICT_ROWS = 1 << 17  # bounds the memory of wide feature sets


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
    chronological: bool = False  # hold out the latest of the drawn events instead of random ones
    max_events: int = 1_000_000
    seed: int = 17

    def params(self, num_classes: int) -> dict[str, Any]:
        """What the library is told."""
        return {
            "objective": "multiclass",
            "num_class": num_classes,
            "metric": "multi_logloss",
            "learning_rate": self.learning_rate,
            "num_leaves": self.num_leaves,
            "min_data_in_leaf": self.min_child_samples,
            "lambda_l1": self.l1,
            "lambda_l2": self.l2,
            "bagging_fraction": self.subsample,
            "bagging_freq": self.bagging_freq,
            "feature_fraction": self.colsample,
            "seed": self.seed,
            "deterministic": True,
            # Left to itself the library times both layouts, and the faster may differ from run to run.
            "force_col_wise": True,
            "verbosity": -1,
        }


WIDE_TREES = TreeConfig(learning_rate=0.05, max_events=500_000)
"""For many features: fewer events and fewer, larger steps, so that a fit takes minutes on a few cores."""


class LightGBM(Baseline):
    """One row's features, by the baseline's name, to bucket probabilities; kept as LightGBM's own text file."""

    booster_: lightgbm.Booster
    holdout_bits_: float
    frequency_bits_: float  # of the same holdout, from the same fitted events

    def __init__(self, name: str = "lightgbm", config: TreeConfig | None = None, progress: Progress | None = None):
        super().__init__(name, progress)
        self.features = FEATURES[name]
        self.settings = config or (WIDE_TREES if name in ("lightgbm_lags", "lightgbm_extra") else TreeConfig())

    def config(self) -> dict[str, Any]:
        fields = {"fields": list(self.features.fields), "num_categories": self.features.num_categories}
        return {**asdict(self.settings), **fields}

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        import lightgbm as lgb

        fitted, holdout = split_holdout(rows, corpus.target_timestamps[rows], self.settings)
        if not len(holdout):
            raise DataError(
                "too few events for a holdout", expected="at least two Train events", got=len(rows), where=self.name
            )
        train = self._dataset(corpus, fitted)
        booster = lgb.train(
            self.settings.params(num_return_buckets(corpus)),
            train,
            num_boost_round=self.settings.rounds,
            valid_sets=[self._dataset(corpus, holdout, reference=train)],
            callbacks=[lgb.early_stopping(self.settings.patience, verbose=False), self._report],
        )
        self.holdout_bits_ = booster.best_score["valid_0"]["multi_logloss"] / math.log(2)
        shares = smooth(count_targets(corpus, fitted))
        self.frequency_bits_ = float(-(count_targets(corpus, holdout) @ np.log2(shares)) / len(holdout))
        if self.holdout_bits_ > self.frequency_bits_ + HOLDOUT_TOLERANCE_BITS:
            raise DataError(
                f"{self.name} is worse than Frequency on the events held out of Train, so it is not used",
                expected=f"at most {self.frequency_bits_ + HOLDOUT_TOLERANCE_BITS:.4f} bits/event",
                got=f"{self.holdout_bits_:.4f} bits/event",
                fix="bring in a longer history, or leave this baseline out with --only",
            )
        self.booster_ = booster  # of the best round: the library drops the later ones

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        probs = np.empty((len(rows), num_return_buckets(corpus)))
        for start in range(0, len(rows), _PREDICT_ROWS):
            part = slice(start, start + _PREDICT_ROWS)
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

        summary, file = read_json(folder / FIT_NAME), folder / MODEL_NAME
        try:
            self.booster_ = lgb.Booster(model_str=file.read_text())
            self.holdout_bits_, self.frequency_bits_ = summary["holdout_bits"], summary["frequency_bits"]
        except (OSError, KeyError, TypeError, ValueError, lgb.basic.LightGBMError) as error:
            raise damaged_fit(file) from error
        return self

    def _dataset(self, corpus: Corpus, rows: Rows, reference: lightgbm.Dataset | None = None) -> lightgbm.Dataset:
        import lightgbm as lgb

        return lgb.Dataset(
            self.features.of(corpus, rows),
            label=class_of(corpus.target_return[rows]),
            reference=reference,
            feature_name=list(self.features.fields),
            categorical_feature=self.features.categories,
        )

    def _report(self, env: lightgbm.callback.CallbackEnv) -> None:
        if self.progress and (results := env.evaluation_result_list):
            bits = results[0][2] / math.log(2)
            self.progress(env.iteration + 1, env.end_iteration, f"rounds, holdout {bits:.4f} bits")


def split_holdout(rows: Rows, moments: npt.NDArray[np.datetime64], config: TreeConfig) -> tuple[Rows, Rows]:
    """A seeded draw of the events to use, and which of them are held out; both in the order of the corpus."""
    drawn = np.random.default_rng(config.seed).permutation(len(rows))[: config.max_events]
    if config.chronological:
        drawn = drawn[np.argsort(moments[drawn], kind="stable")[::-1]]
    num_held_out = round(config.holdout_share * len(drawn))
    return rows[np.sort(drawn[num_held_out:])], rows[np.sort(drawn[:num_held_out])]
