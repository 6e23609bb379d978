"""The distribution of a simulated market's return over the next bars, given what anyone can
observe, by simulation.

Each probability is of the same number of simulated futures: the error of p of n futures is sqrt(p
(1 - p) / n). Prices are not rounded to ticks on the way, which are far smaller than a bar's move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from vaiom.codec import from_json
from vaiom.corpus.store import Corpus
from vaiom.evaluation.horizon_scores import horizon_events, judge_horizons
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import MODEL, event_bits
from vaiom.files import read_json
from vaiom.model.horizon_heads import load_horizons
from vaiom.run import Run
from vaiom.simulation.hours import Asset, calendar_profile
from vaiom.simulation.oracle import TRUTH_FOLDER, UNIT_VARIANCE, Dynamics, Oracle, Truth

FUTURES = 2_000
_ROWS_AT_ONCE = 250


@dataclass(frozen=True, eq=False)
class HorizonOracle:
    """Predicts like a baseline at any horizon, but from the process that made the bars."""

    truths: Mapping[str, Truth]
    assets: Mapping[str, Asset]
    dynamics: Dynamics
    seed: int = 17
    name = "oracle"

    @classmethod
    def load(cls, bars_folder: Path, seed: int = 17) -> Self:
        """The oracle of a folder that `vaiom data simulate` wrote."""
        told: dict[str, Any] = read_json(bars_folder / TRUTH_FOLDER / "market.json")
        assets = {symbol: from_json(Asset, value) for symbol, value in told["assets"].items()}
        return cls(
            Oracle.load(bars_folder).truths,
            assets,
            from_json(Dynamics, told["market"]["dynamics"]),
            seed,
        )

    def predict_proba(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        """Probabilities (n, K) of the bucket that each row's sum falls into, one imagined future
        more in each.
        """
        edges, rng = corpus.edges["return"], np.random.default_rng(self.seed)
        counts = np.ones((len(rows), len(edges) - 1))
        for symbol, inside in corpus.asset_slices.items():
            chosen = np.flatnonzero((rows >= inside.start) & (rows < inside.stop))
            for part in np.split(chosen, range(_ROWS_AT_ONCE, len(chosen), _ROWS_AT_ONCE)):
                own = rows[part].astype(np.int64)
                sums = self._futures(symbol, own - inside.start, corpus.horizon, rng)
                places = np.searchsorted(edges[1:-1], sums / corpus.target_scale[own][:, None])
                np.add.at(counts, (part[:, None], places), 1.0)
        return counts / counts.sum(axis=1, keepdims=True)

    def _futures(
        self, symbol: str, rows: np.ndarray, bars: int, rng: np.random.Generator
    ) -> np.ndarray:
        """(n, FUTURES) sums of the next log returns after these rows of an asset; the calendar
        ahead is known.
        """
        truth, moves = self.truths[symbol], self.dynamics
        hours = truth.timestamps.astype("datetime64[h]")
        profile = calendar_profile(self.assets[symbol], hours)[
            rows[:, None] + np.arange(1, bars + 1)
        ]
        shape, (low, high) = (len(rows), FUTURES), moves.variance_bounds
        drift, spread = np.array(moves.drift), np.array(moves.spread)
        reach = np.cumsum(moves.transition, axis=1)
        variance = np.broadcast_to(((truth.scale[rows] / profile[:, 0]) ** 2)[:, None], shape)
        away, total = truth.pull[rows][:, None], np.zeros(shape)
        chances = np.cumsum(truth.weights[rows], axis=1)[:, None, :]
        for step in range(bars):
            state = (rng.random((*shape, 1)) >= chances[..., :-1]).sum(axis=-1)
            noise = UNIT_VARIANCE * rng.standard_t(4, shape)
            scale = profile[:, step, None] * np.sqrt(variance)
            move = away - moves.pull * total + scale * (drift[state] + spread[state] * noise)
            shock = move / profile[:, step, None]
            kept = (
                1.0
                - moves.shock_weight
                - moves.memory
                + moves.shock_weight * shock**2
                + moves.memory * variance
            )
            variance, total, chances = np.clip(kept, low, high), total + move, reach[state]
        return total


def compare_horizons(
    corpus: Corpus, bars: Path, run: Path, *, device: str = "auto", most: int = 2_000
) -> Any:
    """By number of bars: mean bits of a run with horizons, of Frequency and of the oracle on
    Validation, and its error.

    The oracle's probabilities come from two simulations, whose halves tell how many bits their
    chance costs.
    """
    model = ModelPredictor.load(Run(run).best, device)
    horizons, found = load_horizons(Run(run).horizons, model.checkpoint), {}
    of_horizons = horizon_events(model, horizons, corpus, "validation")
    for score, events, own in judge_horizons(model, horizons, corpus, of_horizons):
        fit = next(fit for fit in horizons.fitted.fits if fit.bars == score.bars)
        some = np.unique(np.linspace(0, len(own) - 1, most).astype(np.int64))
        view, rows, buckets = corpus.with_target(fit), own[some], events.buckets[some]
        halves = [HorizonOracle.load(bars, seed).predict_proba(view, rows) for seed in (17, 29)]
        apart = float(np.mean([event_bits(half, buckets).mean() for half in halves]))
        together = float(event_bits(np.mean(halves, axis=0), buckets).mean())
        bits = {name: float(events.bits[name][some].mean()) for name in ("frequency", MODEL)}
        found[score.bars] = {
            **bits,
            "oracle": 2 * together - apart,
            "oracle_error": apart - together,
        }
    return found
