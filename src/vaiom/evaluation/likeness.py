"""How much a simulated market resembles real bars, measured by the same definitions on both.

Enters: a corpus of the simulated bars with their oracle, and a corpus of real bars. Leaves: the rows of a table, some
with the distance that is allowed. NumPy alone.
Paper: "Return Bucket Construction" (tails), "Continuous dynamic features" (ret_z, gap_z), "Baselines".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaiom.baselines.base import Baseline
from vaiom.baselines.counts import Frequency, Markov
from vaiom.evaluation.likelihood import Floats, asset_months, event_bits, paired_gain
from vaiom.events.corpus import Corpus
from vaiom.events.fields import CONT_FIELDS
from vaiom.events.splits import TRAIN, VALIDATION
from vaiom.simulate.oracle import Oracle

TAIL_CUTOFF = 2.0
MAX_TAIL_DISTANCE = 0.015
MAX_AUTOCORRELATION_DISTANCE = 0.05
GAIN_RANGE_BITS = (0.08, 0.20)


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """One measure on both markets; None where it does not exist, or where nothing is demanded of it."""

    measure: str
    simulated: float
    real: float | None = None
    demand: str | None = None
    met: bool | None = None


def compare_markets(simulated: Corpus, oracle: Oracle, real: Corpus) -> list[Likeness]:
    """The table of likeness: shape of the returns, data quality, and what can be predicted on Validation."""
    ours, theirs = _shape(simulated), _shape(real)
    limits = {"tail_share": MAX_TAIL_DISTANCE, "abs_ret_z_autocorrelation_lag_1": MAX_AUTOCORRELATION_DISTANCE}
    table = [_near(name, ours[name], theirs[name], limits.get(name)) for name in ours]
    for baseline in (Frequency(), Markov()):
        pair = [float(_validation_bits(baseline, corpus).mean()) for corpus in (simulated, real)]
        table.append(Likeness(measure=f"{baseline.name}_bits", simulated=pair[0], real=pair[1]))
    rows = simulated.endpoints(VALIDATION)
    bits = event_bits(oracle.predict_proba(simulated, rows), simulated.target_return[rows])
    gain = paired_gain(bits, _validation_bits(Frequency(), simulated), asset_months(simulated, rows))
    low, high = GAIN_RANGE_BITS
    return [
        *table,
        Likeness(measure="oracle_bits", simulated=float(bits.mean())),
        Likeness(
            measure="oracle_gain_over_frequency_bits",
            simulated=gain.gain_bits,
            demand=f"{low} to {high}",
            met=low <= gain.gain_bits <= high,
        ),
        Likeness(measure="oracle_gain_standard_error", simulated=gain.standard_error),
    ]


def _shape(corpus: Corpus) -> dict[str, float]:
    train = corpus.endpoints(TRAIN)
    z_next = np.abs(corpus.log_ret_next[train] / corpus.sigma20[train])
    stale = corpus.cont[:, CONT_FIELDS.index("mask_stale")] != 0
    gap_z = corpus.cont[~corpus.mask_any, CONT_FIELDS.index("gap_z")]
    return {
        "tail_share": float(np.mean(z_next > TAIL_CUTOFF)),
        "share_beyond_5": float(np.mean(z_next > 5)),
        "abs_ret_z_autocorrelation_lag_1": _autocorrelation(corpus, 1),
        "abs_ret_z_autocorrelation_lag_5": _autocorrelation(corpus, 5),
        "abs_ret_z_autocorrelation_lag_24": _autocorrelation(corpus, 24),
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


def _validation_bits(baseline: Baseline, corpus: Corpus) -> Floats:
    rows = corpus.endpoints(VALIDATION)
    probs = baseline.fit(corpus, corpus.endpoints(TRAIN)).predict_proba(corpus, rows)
    return event_bits(probs, corpus.target_return[rows])


def _near(measure: str, simulated: float, real: float, limit: float | None) -> Likeness:
    if limit is None:
        return Likeness(measure=measure, simulated=simulated, real=real)
    return Likeness(
        measure=measure,
        simulated=simulated,
        real=real,
        demand=f"within {limit} of real",
        met=abs(simulated - real) <= limit,
    )
