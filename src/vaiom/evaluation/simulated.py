"""A simulated market in figures: how much it resembles real bars, and how near a run comes to its oracle.

Paper: "Return Bucket Construction" (tails), "Continuous dynamic features" (ret_z, gap_z), "Baselines".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaiom.baselines.base import Predictor
from vaiom.baselines.counts import Frequency, Markov
from vaiom.evaluation.inference import asset_months, standard_error
from vaiom.evaluation.scores import losses_of
from vaiom.events.corpus import DEFAULT_CONTEXT, Corpus
from vaiom.events.fields import CONT_FIELDS
from vaiom.events.splits import TRAIN, VALIDATION
from vaiom.run import Run
from vaiom.simulate.oracle import Oracle

TAIL_CUTOFF = 2.0
MAX_DISTANCE = {"tail_share": 0.015, "abs_ret_z_autocorrelation_lag_1": 0.05}
GAIN, GAIN_RANGE_BITS = "oracle_gain_over_frequency_bits", (0.08, 0.20)


@dataclass(frozen=True, kw_only=True)
class MarketMeasure:
    """One measure on both markets; None where it does not exist, or where nothing is demanded of it."""

    measure: str
    simulated: float
    real: float | None = None
    demand: str | None = None
    met: bool | None = None


@dataclass(frozen=True, kw_only=True)
class OracleComparison:
    """Mean bits per event by predictor, worst known first."""

    bits: dict[str, float]
    share_closed: float
    """Of the distance between Frequency and the true distribution."""


def compare_with_oracle(corpus: Corpus, bars: Path, run: Path, device: str = "auto") -> OracleComparison:
    """Score a run, two baselines and the oracle on the Validation events that the run was selected on."""
    from vaiom.evaluation.predictor import ModelPredictor

    model = ModelPredictor.load(Run(run).best, device)
    context = model.checkpoint.model.config.history
    predictors: list[Predictor] = [Frequency(), Markov(), model, Oracle.load(bars)]
    losses = losses_of(predictors, corpus, corpus.endpoints(VALIDATION, context), context)
    bits = {name: float(values.mean()) for name, values in losses.items()}
    share = (bits["frequency"] - bits["model"]) / (bits["frequency"] - bits["oracle"])
    return OracleComparison(bits=bits, share_closed=share)


def compare_markets(simulated: Corpus, oracle: Oracle, real: Corpus) -> list[MarketMeasure]:
    """The shape of the returns, data quality, and what can be predicted on Validation."""
    ours, theirs = _shape(simulated), _shape(real)
    rows = simulated.endpoints(VALIDATION)
    bits = losses_of([Frequency(), Markov(), oracle], simulated, rows, DEFAULT_CONTEXT)
    real_bits = losses_of([Frequency(), Markov()], real, real.endpoints(VALIDATION), DEFAULT_CONTEXT)
    gains = bits["frequency"] - bits["oracle"]
    blocks = asset_months(simulated.meta[rows, 0], simulated.target_timestamps[rows])
    ours |= {f"{name}_bits": float(losses.mean()) for name, losses in bits.items()}
    theirs |= {f"{name}_bits": float(losses.mean()) for name, losses in real_bits.items()}
    ours |= {GAIN: float(gains.mean()), "oracle_gain_standard_error": standard_error(gains, blocks)}
    demands = {
        name: (f"within {limit} of real", abs(ours[name] - theirs[name]) <= limit)
        for name, limit in MAX_DISTANCE.items()
    }
    low, high = GAIN_RANGE_BITS
    demands[GAIN] = f"{low} to {high}", low <= ours[GAIN] <= high
    table = []
    for name, value in ours.items():
        demand, met = demands.get(name, (None, None))
        table.append(MarketMeasure(measure=name, simulated=value, real=theirs.get(name), demand=demand, met=met))
    return table


def _shape(corpus: Corpus) -> dict[str, float]:
    train = corpus.endpoints(TRAIN)
    z_next = np.abs(corpus.log_ret_next[train] / corpus.sigma20[train])
    stale = corpus.cont[:, CONT_FIELDS.index("mask_stale")] != 0
    gap_z = corpus.cont[~corpus.mask_any, CONT_FIELDS.index("gap_z")]
    return {
        "tail_share": float(np.mean(z_next > TAIL_CUTOFF)),
        "share_beyond_5": float(np.mean(z_next > 5)),
        **{f"abs_ret_z_autocorrelation_lag_{lag}": _autocorrelation(corpus, lag) for lag in (1, 5, 24)},
        "zero_return_share": float(stale.mean()),
        "zero_gap_share": float(np.mean(gap_z == 0)),
        "gap_tail_share": float(np.mean(np.abs(gap_z) > TAIL_CUTOFF)),
    }


def _autocorrelation(corpus: Corpus, lag: int) -> float:
    """Correlation of |ret_z| with itself `lag` rows later where both rows are unmasked; the mean over assets."""
    column = np.abs(corpus.cont[:, CONT_FIELDS.index("ret_z")].astype(np.float64))
    each = []
    for rows in corpus.asset_slices.values():
        values, usable = column[rows], ~corpus.mask_any[rows]
        both = usable[lag:] & usable[:-lag]
        each.append(float(np.corrcoef(values[lag:][both], values[:-lag][both])[0, 1]))
    return float(np.mean(each))
