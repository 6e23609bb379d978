"""How much the simulated market resembles real bars, measure by measure: `python
tools/compare_markets.py REAL_BARS`.

Paper: "Return Bucket Construction" (tails), "Continuous dynamic features" (ret_z, gap_z),
"Baselines".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from vaiom.baselines.counts import Frequency, Markov
from vaiom.cli.console import show
from vaiom.corpus.build import corpus_in_memory
from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import DEFAULT_CONTEXT
from vaiom.evaluation.inference import asset_months, standard_error
from vaiom.evaluation.scores import losses_of
from vaiom.features.fields import CONT_FIELDS
from vaiom.report.tables import Column, Table, bits, text
from vaiom.simulation.market import MarketConfig, write_market
from vaiom.simulation.oracle import Oracle

TAIL_CUTOFF = 2.0
MAX_DISTANCE = {"tail_share": 0.015, "abs_ret_z_autocorrelation_lag_1": 0.05}
GAIN, GAIN_RANGE_BITS = "oracle_gain_over_frequency_bits", (0.08, 0.20)


@dataclass(frozen=True, kw_only=True)
class MarketMeasure:
    """One measure on both markets; None where it does not exist, or where nothing is demanded of
    it.
    """

    measure: str
    simulated: float
    real: float | None = None
    demand: str | None = None
    met: bool | None = None


def compare_markets(simulated: Corpus, oracle: Oracle, real: Corpus) -> list[MarketMeasure]:
    """The shape of the returns, data quality, and what can be predicted on Validation."""
    ours, theirs = _shape(simulated), _shape(real)
    rows = simulated.endpoints(VALIDATION)
    bits = losses_of([Frequency(), Markov(), oracle], simulated, rows, DEFAULT_CONTEXT)
    real_bits = losses_of(
        [Frequency(), Markov()], real, real.endpoints(VALIDATION), DEFAULT_CONTEXT
    )
    gains = bits["frequency"] - bits["oracle"]
    blocks = asset_months(simulated.meta[rows, 0], simulated.target_timestamps[rows])
    ours |= {f"{name}_bits": float(losses.mean()) for name, losses in bits.items()}
    theirs |= {f"{name}_bits": float(losses.mean()) for name, losses in real_bits.items()}
    ours |= {GAIN: float(gains.mean()), "oracle_gain_standard_error": standard_error(gains, blocks)}
    demands = {}
    for name, limit in MAX_DISTANCE.items():
        demands[name] = f"within {limit} of real", abs(ours[name] - theirs[name]) <= limit
    low, high = GAIN_RANGE_BITS
    demands[GAIN] = f"{low} to {high}", low <= ours[GAIN] <= high
    table = []
    for name, value in ours.items():
        demand, met = demands.get(name, (None, None))
        table.append(
            MarketMeasure(
                measure=name, simulated=value, real=theirs.get(name), demand=demand, met=met
            )
        )
    return table


def _shape(corpus: Corpus) -> dict[str, float]:
    train = corpus.endpoints(TRAIN)
    z_next = np.abs(corpus.log_ret_next[train] / corpus.sigma20[train])
    stale = corpus.cont[:, CONT_FIELDS.index("mask_stale")] != 0
    gap_z = corpus.cont[~corpus.mask_any, CONT_FIELDS.index("gap_z")]
    return {
        "tail_share": float(np.mean(z_next > TAIL_CUTOFF)),
        "share_beyond_5": float(np.mean(z_next > 5)),
        **{
            f"abs_ret_z_autocorrelation_lag_{lag}": _autocorrelation(corpus, lag)
            for lag in (1, 5, 24)
        },
        "zero_return_share": float(stale.mean()),
        "zero_gap_share": float(np.mean(gap_z == 0)),
        "gap_tail_share": float(np.mean(np.abs(gap_z) > TAIL_CUTOFF)),
    }


def _autocorrelation(corpus: Corpus, lag: int) -> float:
    """Correlation of |ret_z| with itself `lag` rows later where both rows are unmasked; the mean
    over assets.
    """
    column = np.abs(corpus.cont[:, CONT_FIELDS.index("ret_z")].astype(np.float64))
    correlations = []
    for rows in corpus.asset_slices.values():
        values, usable = column[rows], ~corpus.mask_any[rows]
        both = usable[lag:] & usable[:-lag]
        correlations.append(float(np.corrcoef(values[lag:][both], values[:-lag][both])[0, 1]))
    return float(np.mean(correlations))


def main(real: Path) -> None:
    """Print the table of the default market and the bars of a folder."""
    config = MarketConfig()
    with TemporaryDirectory() as folder:  # both are measured by the definitions of the corpus
        bars = Path(folder) / "bars"
        write_market(config, bars)
        measures = compare_markets(
            corpus_in_memory(bars), Oracle.load(bars), corpus_in_memory(real)
        )
    met = {None: "", True: "yes", False: "NO"}
    columns = [
        Column("measure", text, "measure"),
        Column("simulated", bits, "simulated"),
        Column(str(real), bits, "real"),
        Column("demanded", text, lambda row: row.demand or ""),
        Column("met", text, lambda row: met[row.met]),
    ]
    show(Table.of("The simulated market compared with real bars", columns, measures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
