"""Join the forecasts of several assets by the dependence that their past bars show.

Enters: rows of each asset, and its next forecast. Leaves: a `JointDistribution`. Not in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.dependence import (
    Dependence,
    DependenceState,
    ScoreSeries,
    scale_of,
    score_series,
)
from vaiom.distribution.joint import JointDistribution
from vaiom.distribution.returns import ReturnDistribution, notes_of
from vaiom.errors import ConfigError, DataError, require_installed
from vaiom.features.rows import RowColumns

if TYPE_CHECKING:
    from vaiom.forecast.forecaster import Forecaster

FEW_STAMPS = 100
"""With fewer common bars, correlations are unreliable."""


def fitted_dependence(forecaster: Forecaster) -> Dependence:
    """The fitted dependence of a model, or an error that says how to get one."""
    require_installed("scipy")
    if forecaster.dependence is None:
        raise ConfigError(
            "this model was never fitted to several assets together",
            where=forecaster,
            fix="`vaiom dependence RUN` fits it, and packaged models have one",
        )
    return forecaster.dependence


def forecast_rows(
    forecaster: Forecaster, symbol: str, rows: RowColumns, number: int
) -> tuple[BucketDistribution, RowColumns]:
    """The forecasts after each of the last `number` rows of an asset, and these rows.

    The rows should begin a context before them: then each forecast sees what `predict` does.
    """
    probs = forecaster.probs_after_each(symbol, rows)[-number:]
    last = {name: column[-len(probs) :] for name, column in rows.items()}
    shape = forecaster.at(1).shape
    return BucketDistribution(probs=probs, sigma=last["sigma20"], shape=shape), last


def score_last_rows(
    forecaster: Forecaster, symbol: str, rows: RowColumns, number: int
) -> ScoreSeries:
    """Scores and scales of an asset's last `number` rows, by the forecasts before them."""
    newest = {name: column[-(number + forecaster.context) :] for name, column in rows.items()}
    dists, last = forecast_rows(forecaster, symbol, newest, number + 1)
    zero_share = forecaster.at(1).zero_share[forecaster.meta(symbol)[0]]
    return score_series(dists, zero_share, last)


def dependence_after(fit: Dependence, series: Mapping[str, ScoreSeries]) -> DependenceState:
    """The dependence after the scored bars of assets, by symbol; as many as it remembers."""
    stamps = np.concatenate([each.stamps for each in series.values()])
    if len(series) > 1 and len(np.unique(stamps)) == len(stamps):
        raise DataError(
            "the assets have no bar in common",
            where=", ".join(series),
            expected="bars of one clock that overlap",
            fix="bring their bars to one clock (vaiom data import --shift), or bring in longer "
            "histories",
        )
    return fit.initial_state().updated_through(series)


def join(dists: Mapping[str, ReturnDistribution], state: DependenceState) -> JointDistribution:
    """Join forecasts of one horizon by the dependence after the bars that they know."""
    symbols = list(dists)
    scales = np.array([float(scale_of(dist)) for dist in dists.values()])
    horizon = dists[symbols[0]].horizon
    degrees = state.fit.degrees
    notes = [*notes_of(dists.values()), *_cautions(dists, state)]
    if str(horizon) not in degrees:
        notes.append(f"the dependence over {horizon} bars is taken to be that of one")
    return JointDistribution.of(
        dists,
        {symbol: dist.prob_zero for symbol, dist in dists.items()},
        state.correlation(symbols, scales),
        degrees.get(str(horizon), degrees["1"]),
        horizon=horizon,
        as_of=max(dist.as_of for dist in dists.values()),
        notes=tuple(notes),
    )


def _cautions(dists: Mapping[str, ReturnDistribution], state: DependenceState) -> list[str]:
    """Reasons for caution that forecasts together have: bars that differ, and few in common."""
    newest = max(dist.as_of for dist in dists.values())
    notes = []
    for symbol, dist in dists.items():
        if dist.as_of < newest:
            notes.append(f"{symbol}: its last bar is of {dist.as_of}")
    if len(dists) == 1:
        return notes
    counts = dict(zip(state.symbols, state.counts.tolist(), strict=True))
    for symbol in dists:
        count = counts.get(symbol, 0)
        if count < FEW_STAMPS:
            origin = "that of Train" if symbol in state.fit.symbols else "the mean of its class"
            notes.append(
                f"{symbol}: {count} bars beside others: its correlation is mostly {origin}"
            )
    return notes
