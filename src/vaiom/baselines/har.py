"""A heterogeneous autoregression (Corsi 2009) of the scale of Student-t returns. Not in the
paper.
"""

from __future__ import annotations

import numpy as np

from vaiom.baselines.base import Baseline, Floats, Rows, rows_by_asset, slot_sizes, slots_of
from vaiom.baselines.ewma import MIN_EVENTS, EwmaT
from vaiom.baselines.history import lagged, rolling_mean
from vaiom.baselines.student import fit_scale, return_bounds, student_buckets
from vaiom.corpus.store import Corpus
from vaiom.market.sessions import DAY
from vaiom.market.timeframes import step_seconds

_LEAST_RANGE = 0.01
"""Smallest range of a bar or day, in units of the week's: a bar without a range is little
information, not zero volatility.
"""
_LEAST_SQUARE = 1e-16
"""Smallest squared range, in squared log returns."""


class HarT(Baseline):
    """The log scale of the next return is linear in past ranges and in the clock:

        log s[t] = b0 + b1 log R(bar) + b2 log R(day) + b3 log R(week) + b4 log m[t+1] + b5 log m[t]
        r[t+1] = s[t] e,  e ~ t(v)

    R is the root of a mean squared range, High over Low (Parkinson 1980), and m the usual size of a
    return in its slot of the week. Corsi's realised variances are replaced by ranges, and his
    regression by maximum likelihood. Sums of bars are fitted directly.

    Attributes:
        models_: b0 to b5 and v by symbol, of the assets with enough Train events.
        sizes_: (assets + 1, slots of the week) m, over the mean of all.
        fallback_: for the other assets.
    """

    name = "har_t"
    models_: dict[str, tuple[float, ...]]
    sizes_: Floats
    fallback_: EwmaT

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        self.fallback_ = EwmaT().fit(corpus, rows)
        self.sizes_ = slot_sizes(corpus, rows)
        self.models_ = {}
        for symbol, chosen in rows_by_asset(corpus, rows).items():
            own = rows[chosen]
            if len(own) >= MIN_EVENTS:
                regressors = self._regressors(corpus, own, symbol)
                self.models_[symbol] = fit_scale(regressors, corpus.log_ret_next[own])

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        probs = self.fallback_.predict_proba(corpus, rows)
        for symbol, chosen in rows_by_asset(corpus, rows).items():
            if symbol in self.models_:
                own = rows[chosen]
                *weights, degrees = self.models_[symbol]
                scale = np.exp(self._regressors(corpus, own, symbol) @ weights)
                bounds = return_bounds(corpus, own) / scale[:, None]
                probs[chosen] = student_buckets(bounds, degrees)
        return probs

    def _regressors(self, corpus: Corpus, rows: Rows, symbol: str) -> Floats:
        """(n, 6) regressors of rows of one asset."""
        corpus.require_columns(["range_z"])
        inside = corpus.asset_slices[symbol]
        at = rows - inside.start
        # The field is in units of the previous row's scale; 0 is a bar without a range.
        ranges = corpus.columns["range_z"][inside] * lagged(corpus.columns["sigma20"][inside], 1)
        squares = np.where(ranges > 0, ranges**2, np.nan)
        bars_per_day = DAY // step_seconds(corpus.tokenizer.timeframe)
        # Of daily or longer bars: a bar, a week and a month.
        windows = (1, bars_per_day, 5 * bars_per_day) if bars_per_day > 1 else (1, 5, 22)
        means = [rolling_mean(squares, window)[at] for window in windows]
        floor = np.fmax(_LEAST_RANGE**2 * means[-1], _LEAST_SQUARE)
        log_ranges = [np.log(np.fmax(mean, floor)) / 2 for mean in means]
        slots = slots_of(corpus, inside)
        log_sizes = np.log(self.sizes_[corpus.tokenizer.asset_id(symbol)])
        next_size = log_sizes[slots[at]]
        own_size = log_sizes[slots[np.maximum(at - 1, 0)]]
        return np.stack([np.ones(len(rows)), *log_ranges, next_size, own_size], axis=1)
