"""The dependence of assets: fitted on Train, judged on a split.

Enters: a model, a corpus. Leaves: a `Dependence` for the run folder; a `JointEvaluation` with the
log density of the copula at the PITs of each stamp, against other copulas on the same marginals.
For portfolios it has the coverage of value at risk, and the loss of Fissler and Ziegel (in the form
of Patton, Ziegel and Chen 2019) of it and the expected shortfall, against historical simulation, an
exponential covariance (RiskMetrics) and a GARCH-t of constant correlation. A bar counts for the
stamp at which it was the target; a missing or absurd return does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Floats, clean_returns
from vaiom.baselines.store import load_fit
from vaiom.baselines.volatility import GarchT
from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import fit_of_next_bar
from vaiom.distribution import copula, dependence
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.copula import scores_of
from vaiom.distribution.dependence import Dependence, DependenceState, ReferenceCopula
from vaiom.distribution.joint import JointDistribution
from vaiom.errors import DataError
from vaiom.evaluation.calibration import chi_square_tail, christoffersen, kupiec
from vaiom.evaluation.inference import BlockBootstrap, bootstrap_blocks
from vaiom.evaluation.predictor import ModelPredictor, seen_by

TRAIN_STAMPS = 20_000
"""Of the end of Train, on which the dependence is fitted."""
HALF_LIVES = (60, 120, 240, 480)
SHRINKAGES = (0.05, 0.1, 0.2, 0.4)
WEIGHTS = (0.5, 0.7, 0.8, 0.9, 0.95)
DEGREES = (4.0, 5.0, 6.0, 8.0, 10.0, 14.0, 20.0, 30.0, None)
HISTORY = 1_000
"""Stamps before a split from which its first state is made, and of historical simulation."""
LEAST_HISTORY = 100
"""Stamps before a split without which no past loss exceeds a limit at 99%, and portfolios are not
judged.
"""
LEVELS = (0.95, 0.99)
DRAWS = 4_096
RANDOM_PORTFOLIOS = 10
SEED = 17
COVARIANCE_DECAYS = (0.94, 0.97, 0.99)

_FITTED_STAMPS = 600

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """Forecasts and outcomes by stamp and asset, (stamps, assets) each, NaN where an asset has no
    bar.
    """

    symbols: tuple[str, ...]
    prob_zero: dict[str, float]
    stamps: npt.NDArray[np.datetime64]
    dists: BucketDistribution
    numbers: Ints
    """Of the forecasts in `dists`, -1 where there is none, as are `rows` of the corpus."""
    pit: Floats
    scores: Floats
    scale: Floats
    log_ret: Floats
    rows: Ints

    def present(self, at: int) -> Ints:
        """The assets that have a bar at a stamp."""
        return np.flatnonzero(self.rows[at] >= 0)

    def states(self, fit: Dependence) -> Iterator[DependenceState]:
        """The state before each stamp and after the last."""
        return fit.initial_state().states(self.symbols, self.scores, self.scale)

    def averages(self, start: Floats, decay: float) -> Iterator[Floats]:
        """The average of products of scores before each stamp."""
        for scores in self.scores:
            yield start
            start = dependence.update_ewma(start, scores, decay)

    def correlations(self, chosen: list[int], states: list[DependenceState]) -> list[Floats]:
        """The correlation of the assets that are present at each of some stamps, given the state
        before it.
        """
        out = []
        for at, state in zip(chosen, states, strict=True):
            assets = self.present(at)
            out.append(
                state.correlation([self.symbols[asset] for asset in assets], self.scale[at, assets])
            )
        return out

    def nats(
        self, chosen: list[int], correlations: Iterable[Floats], degrees: float | None
    ) -> list[float]:
        """The log density of a copula at each of some stamps, given correlations of all assets or
        of those present.
        """
        out = []
        for at, matrix in zip(chosen, correlations, strict=True):
            assets = self.present(at)
            own = matrix if len(matrix) == len(assets) else matrix[np.ix_(assets, assets)]
            out.append(copula.log_density(own, self.pit[at, assets], degrees))
        return out


def make_panel(
    model: ModelPredictor, corpus: Corpus, first: np.datetime64, last: np.datetime64, before: int
) -> Panel:
    """Forecasts of all targets from `first` to before `last`, and of some stamps before them."""
    times, seen_as = corpus.target_timestamps, model.checkpoint.tokenizer
    # Those that are served with the model: a corpus built like it has its own.
    zero_share = np.array(fit_of_next_bar(seen_as).zero_share)[
        [*map(seen_as.asset_id, corpus.tokenizer.symbols)]
    ]
    usable = (corpus.sigma20 > 0) & corpus.target().known & (times < last)
    for asset in corpus.asset_slices.values():
        usable[asset.start : min(asset.start + model.checkpoint.config.history - 1, asset.stop)] = (
            False
        )
    stamps = np.unique(times[usable])
    stamps = stamps[max(0, int(np.searchsorted(stamps, first)) - before) :]
    rows = np.flatnonzero(usable & np.isin(times, stamps))
    if not len(rows):
        raise DataError(
            "no forecast to learn a dependence from",
            where=corpus.path,
            expected=f"targets after {first}",
        )
    dists = BucketDistribution(
        probs=model.predict_proba(corpus, rows),
        sigma=corpus.sigma20[rows],
        shape=corpus.tokenizer.return_shape,
    )
    at, assets = np.searchsorted(stamps, times[rows]), corpus.meta[rows, 0] - 1
    log_ret = corpus.log_ret_next[rows].astype(np.float64)
    pit = copula.pit_of(dists, zero_share[assets], log_ret)

    def spread(values: npt.NDArray[Any], fill: float = np.nan) -> npt.NDArray[Any]:
        out = np.full((len(stamps), len(corpus.tokenizer.symbols)), fill, values.dtype)
        out[at, assets] = values
        return out

    return Panel(
        symbols=corpus.tokenizer.symbols,
        prob_zero=dict(zip(corpus.tokenizer.symbols, zero_share.tolist(), strict=True)),
        stamps=stamps,
        numbers=spread(np.arange(len(rows)), -1),
        dists=dists,
        pit=spread(pit),
        scores=spread(scores_of(pit)),
        scale=spread(dependence.scale_of(dists)),
        log_ret=spread(log_ret),
        rows=spread(rows, -1),
    )


def fit_dependence(model: ModelPredictor, corpus: Corpus) -> Dependence:
    """The most likely of a small grid on the last stamps of Train; correlations are never of the
    stamp they judge.
    """
    corpus = seen_by(model.checkpoint, corpus)
    end = np.datetime64(corpus.splits.train_end)
    panel = make_panel(model, corpus, end, end, TRAIN_STAMPS)
    # The shrinkage target is of the first half and its weight is chosen on the second; the final
    # target is of both.
    half = len(panel.stamps) // 2
    late = [
        each
        for each, own in zip(panel.symbols, panel.scores[:half].T, strict=True)
        if np.isnan(own).all()
    ]
    if late or len(panel.symbols) < 2 or len(panel.stamps) < HISTORY:
        expected = (
            f"two assets and {HISTORY} stamps at least, and bars of every asset in their first half"
        )
        got = f"{len(panel.symbols)} and {len(panel.stamps)}" + (
            f", none of {', '.join(late)}" if late else ""
        )
        where, fix = (
            f"{corpus.path}, {TRAIN}",
            "leave out assets that begin late, or bring in a longer history",
        )
        raise DataError(
            "too little to learn a dependence from",
            where=where,
            expected=expected,
            got=got,
            fix=fix,
        )
    fit = Dependence(
        checkpoint_sha256=model.checkpoint.sha256,
        symbols=panel.symbols,
        classes=corpus.tokenizer.classes,
        **_moments(panel, half),
        decay=0.5,
        shrinkage=1.0,
        degrees={"1": None},
        references={},
        num_stamps=len(panel.stamps),
    )
    spread = np.unique(np.linspace(half, len(panel.stamps) - 1, _FITTED_STAMPS).astype(np.int64))
    chosen = [at for at in spread.tolist() if len(panel.present(at)) > 1]
    decays, candidates = [0.5 ** (1 / half_life) for half_life in HALF_LIVES], []
    for decay in decays:
        states = _select(panel.states(replace(fit, decay=decay)), chosen)
        for shrinkage in SHRINKAGES:
            new = replace(fit, decay=decay, shrinkage=shrinkage)
            candidates.append(
                (new, panel.correlations(chosen, [replace(state, fit=new) for state in states]))
            )
    fit, correlations = max(
        candidates, key=lambda candidate: sum(panel.nats(chosen, candidate[1], 8.0))
    )
    degrees = max(DEGREES, key=lambda degrees: sum(panel.nats(chosen, correlations, degrees)))
    references = _fit_references(panel, fit.correlation, chosen, decays)
    return replace(
        fit, degrees={"1": degrees}, references=references, **_moments(panel, len(panel.stamps))
    )


def _moments(panel: Panel, stop: int) -> dict[str, Any]:
    """Covariance and correlation over the first stamps."""
    scores, scales = panel.scores[:stop], np.log(panel.scale[:stop])
    unit = np.nanmean(scales - np.nanmean(scales, axis=0), axis=1, keepdims=True)
    covariance = _mean(scores * np.exp(scales - unit))
    covariance /= math.exp(float(np.log(np.diag(covariance)).mean()))
    return {"covariance": covariance, "correlation": copula.correlation_of(_mean(scores))}


def _fit_references(
    panel: Panel, start: Floats, chosen: list[int], decays: list[float]
) -> dict[str, ReferenceCopula]:
    averages = {decay: _select(panel.averages(start, decay), chosen) for decay in decays}

    def nats(reference: ReferenceCopula) -> float:
        correlations = (
            reference.correlation(average, start) for average in averages[reference.decay]
        )
        return sum(panel.nats(chosen, correlations, reference.degrees))

    dcc = max(
        [ReferenceCopula(weight=weight, decay=decay) for weight in WEIGHTS for decay in decays],
        key=nats,
    )
    return {
        "constant_gaussian": ReferenceCopula(),
        "ewma_gaussian": max(
            [ReferenceCopula(weight=1.0, decay=decay) for decay in decays], key=nats
        ),
        "dcc_gaussian": dcc,
        "dcc_t": max([replace(dcc, degrees=degrees) for degrees in DEGREES], key=nats),
    }


def _mean(values: Floats) -> Floats:
    """Mean of products over stamps (stamps, n), NaN where absent; positive definite."""
    matrix = np.diag(np.nanmean(values**2, axis=0))
    for number, row in enumerate(values, start=1):
        matrix = dependence.update_ewma(matrix, row, number / (number + 1))
    return matrix


def _select(values: Iterable[Any], chosen: list[int]) -> list[Any]:
    places = set(chosen)
    return [value for at, value in enumerate(values) if at in places]


@dataclass(frozen=True, kw_only=True)
class RiskGain:
    """How much larger the loss of another forecast of risk is; weeks are the blocks of the
    interval.
    """

    against: str
    exceedance_rate: float
    gain: float
    weeks: BlockBootstrap


@dataclass(frozen=True, kw_only=True)
class PortfolioBacktest:
    """One portfolio at one level: amounts are shares of the gross value, risks of it are in the
    same unit.
    """

    portfolio: str
    level: float
    num_stamps: int
    exceedance_rate: float
    kupiec_p: float | None
    independence_p: float | None
    value_at_risk: float
    """Mean over the stamps, as is the next."""
    expected_shortfall: float
    against: list[RiskGain]


@dataclass(frozen=True, kw_only=True)
class CopulaGain:
    """Bits per stamp that the copula has more than another; weeks are the blocks of the
    interval.
    """

    against: str
    bits: float
    """Of the other copula, over independence."""
    gain_bits: float
    weeks: BlockBootstrap


@dataclass(frozen=True, kw_only=True)
class JointEvaluation:
    """The gain of a dependence on one split."""

    num_stamps: int
    bits: float
    """Mean log2 density of the copula per stamp: what it knows more than independence."""
    copulas: list[CopulaGain]
    portfolios: list[PortfolioBacktest]


def judge_joint(
    model: ModelPredictor, corpus: Corpus, split: str, fit: Dependence, fits: Path | None = None
) -> JointEvaluation | None:
    """Judge a dependence on the stamps of a split, each from what was known before it; `fits` may
    have a GARCH-t.

    None where the corpus has other assets than Train had, or no stamp has two of them.
    """
    if corpus.tokenizer.symbols != fit.symbols:
        return None
    times = corpus.target_timestamps[corpus.split_codes == corpus.splits.code(split)]
    panel = make_panel(model, corpus, times.min(), times.max() + 1, HISTORY + fit.memory)
    begin = int(np.searchsorted(panel.stamps, times.min()))
    scored = [at for at in range(begin, len(panel.stamps)) if len(panel.present(at)) > 1]
    if not scored:
        return None
    correlations = panel.correlations(scored, _select(panel.states(fit), scored))
    ours = np.array(panel.nats(scored, correlations, fit.degrees["1"])) / math.log(2)
    bits = {"independence": np.zeros(len(scored))}
    for name, reference in fit.references.items():
        averages = _select(panel.averages(fit.correlation, reference.decay), scored)
        theirs = (reference.correlation(average, fit.correlation) for average in averages)
        bits[name] = np.array(panel.nats(scored, theirs, reference.degrees)) / math.log(2)
    weeks = panel.stamps.astype("datetime64[W]").astype(np.int64)
    garch = _garch_scales(model, corpus, panel, fits)
    return JointEvaluation(
        num_stamps=len(scored),
        bits=float(ours.mean()),
        copulas=[
            CopulaGain(
                against=name,
                bits=float(theirs.mean()),
                gain_bits=float((ours - theirs).mean()),
                weeks=bootstrap_blocks(ours - theirs, weeks[scored]),
            )
            for name, theirs in bits.items()
        ],
        portfolios=[
            *_backtest(panel, dict(zip(scored, correlations, strict=True)), fit, weeks, garch)
        ],
    )


def portfolios_of(size: int) -> dict[str, Floats]:
    """Shares of the gross value (assets,): equal ones, as much long as short, and random ones."""
    signs = np.where(np.arange(size) % 2, -1.0, 1.0)
    neutral = np.where(signs > 0, 0.5 / (signs > 0).sum(), -0.5 / max(1, (signs < 0).sum()))
    drawn = np.random.default_rng(SEED).standard_normal((RANDOM_PORTFOLIOS, size))
    random = {
        f"random_{number}": each / np.abs(each).sum() for number, each in enumerate(drawn, start=1)
    }
    return {"equal": np.full(size, 1 / size), "dollar_neutral": neutral, **random}


def fissler_ziegel(loss: Floats, risk: Floats, level: float) -> Floats:
    """The loss whose mean is least at the true value at risk and expected shortfall, the last axis
    of `risk`.
    """
    value_at_risk, shortfall = risk[..., 0], risk[..., 1]
    beyond = np.maximum(loss - value_at_risk, 0) / (1 - level)
    return np.asarray((beyond + value_at_risk) / shortfall + np.log(shortfall) - 1)


def _backtest(
    panel: Panel,
    correlations: dict[int, Floats],
    fit: Dependence,
    weeks: Ints,
    garch: tuple[Floats, float] | None,
) -> Iterator[PortfolioBacktest]:
    """Backtest portfolios on the stamps at which every asset has a bar."""
    whole, dists = np.flatnonzero((panel.rows >= 0).all(axis=1)), panel.dists
    portfolios = portfolios_of(len(panel.symbols))
    shares, returns = np.stack(list(portfolios.values())), np.expm1(panel.log_ret[whole])
    losses, judged = -returns @ shares.T, np.isin(whole, list(correlations))
    begin, ours = int((~judged).sum()), np.empty((len(whole), len(shares), len(LEVELS), 2))
    if not LEAST_HISTORY <= begin < len(whole):
        return
    for index in np.flatnonzero(judged):
        at = int(whole[index])
        forecasts = {
            symbol: BucketDistribution(
                probs=dists.probs[n], sigma=float(dists.sigma[n]), shape=dists.shape
            )
            for symbol, n in zip(panel.symbols, panel.numbers[at], strict=True)
        }
        joint = JointDistribution.of(forecasts, panel.prob_zero, correlations[at], fit.degrees["1"])
        ours[index] = _tails(-np.expm1(joint.sample(DRAWS, seed=at)) @ shares.T)
    windows = np.lib.stride_tricks.sliding_window_view(losses, min(HISTORY, begin), axis=0)
    past = np.full_like(ours, np.nan)
    past[windows.shape[-1] :] = [_tails(window.T) for window in windows[:-1]]
    risks = {
        "historical_simulation": past,
        "ewma_covariance": _ewma_risk(returns, shares, losses, begin),
    }
    if garch is not None:
        scaled = shares * garch[0][whole][:, None]
        spread = np.sqrt(np.einsum("tpi,ij,tpj->tp", scaled, fit.correlation, scaled))
        risks["garch_t_constant_correlation"] = _elliptic(spread, garch[1])
    for (number, name), (place, level) in product(enumerate(portfolios), enumerate(LEVELS)):
        loss, risk = losses[judged, number], ours[judged, number, place]
        exceeded, own = loss > risk[:, 0], fissler_ziegel(loss, risk, level)
        against = []
        for reference, every in risks.items():
            other = every[judged, number, place]
            gain = fissler_ziegel(loss, other, level) - own
            comparison = RiskGain(
                against=reference,
                exceedance_rate=float((loss > other[:, 0]).mean()),
                gain=float(gain.mean()),
                weeks=bootstrap_blocks(gain, weeks[whole[judged]]),
            )
            against.append(comparison)
        yield PortfolioBacktest(
            portfolio=name,
            level=level,
            num_stamps=len(loss),
            exceedance_rate=float(exceeded.mean()),
            kupiec_p=chi_square_tail(kupiec(exceeded, 1 - level), 1),
            independence_p=chi_square_tail(christoffersen(exceeded, np.zeros(len(loss))), 1),
            value_at_risk=float(risk[:, 0].mean()),
            expected_shortfall=float(risk[:, 1].mean()),
            against=against,
        )


def _tails(losses: Floats) -> Floats:
    """Value at risk and expected shortfall (portfolios, levels, 2) of drawn or past losses (draws,
    portfolios).
    """
    ordered = np.sort(losses, axis=0)
    limits = np.quantile(ordered, LEVELS, axis=0)
    shortfalls = [
        ordered[len(ordered) - max(1, round((1 - level) * len(ordered))) :].mean(axis=0)
        for level in LEVELS
    ]
    return np.stack([limits, np.stack(shortfalls)], axis=-1).swapaxes(0, 1)


def _elliptic(spread: Floats, degrees: float | None) -> Floats:
    """Both risks (stamps, portfolios, levels, 2) of Student-t or normal losses with this scale."""
    levels = np.array(LEVELS)
    limits = scores_of(levels, degrees)
    if degrees is None:
        shortfalls = np.exp(-(limits**2) / 2) / math.sqrt(2 * math.pi) / (1 - levels)
    else:
        log_scale = (
            math.lgamma((degrees + 1) / 2)
            - math.lgamma(degrees / 2)
            - math.log(degrees * math.pi) / 2
        )
        density = np.exp(log_scale - (degrees + 1) / 2 * np.log1p(limits**2 / degrees))
        shortfalls = density / (1 - levels) * (degrees + limits**2) / (degrees - 1)
    return np.asarray(spread[:, :, None, None] * np.stack([limits, shortfalls], axis=-1))


def _garch_scales(
    model: ModelPredictor, corpus: Corpus, panel: Panel, fits: Path | None
) -> tuple[Floats, float] | None:
    """Scales (stamps, assets) and the mean degrees of freedom of a stored GARCH-t; None where there
    is none.
    """
    garch = load_fit(GarchT(), corpus, model.checkpoint.config.history, fits) if fits else None
    if garch is None or set(panel.symbols) - garch.models_.keys():
        return None
    degrees = float(np.mean([model.degrees for model in garch.models_.values()]))
    scales = np.full_like(panel.scale, np.nan)
    for asset, symbol in enumerate(panel.symbols):
        inside, present = corpus.asset_slices[symbol], panel.rows[:, asset] >= 0
        variances = garch.models_[symbol].next_variance(clean_returns(corpus, inside))
        scales[present, asset] = np.sqrt(
            variances[panel.rows[present, asset] - inside.start] * (degrees - 2) / degrees
        )
    return scales, degrees


def _ewma_risk(returns: Floats, shares: Floats, losses: Floats, judged: int) -> Floats:
    """RiskMetrics, with the decay of the least loss before the stamps that are judged."""

    def risk(decay: float) -> Floats:
        matrix, spread = np.cov(returns[:judged].T), np.empty((len(returns), len(shares)))
        for at, row in enumerate(returns):
            spread[at] = np.sqrt(np.einsum("pi,ij,pj->p", shares, matrix, shares))
            matrix = decay * matrix + (1 - decay) * np.outer(row, row)
        return _elliptic(spread, None)

    def loss(risks: Floats) -> float:
        before = slice(min(len(returns) // 10, judged // 2), judged)
        pairs = enumerate(LEVELS)
        return sum(
            float(fissler_ziegel(losses[before], risks[before, :, at], level).mean())
            for at, level in pairs
        )

    return min(map(risk, COVARIANCE_DECAYS), key=loss)
