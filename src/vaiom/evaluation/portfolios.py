"""Backtests of portfolios: value at risk and expected shortfall of the joint forecasts.

Enters: a `Panel` and the correlation of each stamp. Leaves: coverage of each portfolio and the loss
of Fissler and Ziegel (2016), against historical simulation, an exponential covariance (RiskMetrics
1996) and a GARCH-t of constant correlation. Returns and risks are shares of the gross value. Not in
the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Floats, clean_returns
from vaiom.baselines.garch import GarchT
from vaiom.baselines.stored_losses import load_fit
from vaiom.corpus.store import Corpus
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.copula import scores_of
from vaiom.distribution.dependence import Dependence
from vaiom.distribution.joint import JointDistribution
from vaiom.evaluation.calibration import chi_square_tail, christoffersen, kupiec
from vaiom.evaluation.inference import BlockBootstrap, bootstrap_blocks
from vaiom.evaluation.panel import Panel

LEVELS = (0.95, 0.99)
RANDOM_PORTFOLIOS = 10
SEED = 17
"""Of the random portfolios."""
COVARIANCE_DECAYS = (0.94, 0.97, 0.99)
"""Those that RiskMetrics recommends for days and months, and one with a longer memory."""
STAMPS_AT_ONCE = 64
"""Of which losses are sorted together; bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class JointConfig:
    """How much history and how many draws portfolios are judged with."""

    history: int = 1_000
    """Stamps before a split from which its first state is made, and of historical simulation."""
    least_history: int = 100
    """With fewer stamps before a split no past loss exceeds a limit at 99%, and portfolios are not
    judged.
    """
    draws: int = 4_096
    """Of the joint distribution at each stamp."""


PUBLISHED_CONFIG = JointConfig()


@dataclass(frozen=True, kw_only=True)
class RiskGain:
    """Another forecast of the same risk."""

    against: str
    exceedance_rate: float
    gain: float
    """How much larger its Fissler-Ziegel loss is on average."""
    weeks: BlockBootstrap
    """Of the gain, with calendar weeks as blocks."""


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


def portfolios_of(size: int) -> dict[str, Floats]:
    """Shares of the gross value (assets,): equal ones, as much long as short, and random ones."""
    is_short = np.arange(size) % 2 == 1
    num_short = size // 2
    num_long = size - num_short
    portfolios = {
        "equal": np.full(size, 1 / size),
        "dollar_neutral": np.where(is_short, -0.5 / max(1, num_short), 0.5 / num_long),
    }
    rng = np.random.default_rng(SEED)
    drawn = rng.standard_normal((RANDOM_PORTFOLIOS, size))
    for number, amounts in enumerate(drawn, start=1):
        gross = np.abs(amounts).sum()
        portfolios[f"random_{number}"] = amounts / gross
    return portfolios


def fissler_ziegel(loss: Floats, risk: Floats, level: float) -> Floats:
    """The loss whose mean is least at the true value at risk v and expected shortfall e.

    `risk` (..., 2) holds v and e. The form of Patton, Ziegel and Chen (2019), of degree zero:

        (max(loss - v, 0) / (1 - level) + v) / e + log(e) - 1
    """
    value_at_risk = risk[..., 0]
    shortfall = risk[..., 1]
    beyond = np.maximum(loss - value_at_risk, 0) / (1 - level)
    ratio = (beyond + value_at_risk) / shortfall
    return np.asarray(ratio + np.log(shortfall) - 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class EllipticScales:
    """Scales (stamps, assets) of Student-t returns, and their degrees of freedom."""

    scales: Floats
    degrees: float


def backtest_portfolios(
    panel: Panel,
    correlations: Mapping[int, Floats],
    fit: Dependence,
    garch: EllipticScales | None = None,
    config: JointConfig = PUBLISHED_CONFIG,
) -> list[PortfolioBacktest]:
    """Backtest portfolios on the judged stamps at which every asset has a bar.

    `correlations` holds the forecast correlation of each judged stamp. Empty if fewer than
    `config.least_history` whole stamps come before them.
    """
    portfolios = portfolios_of(len(panel.symbols))
    shares = np.stack(list(portfolios.values()))
    whole = panel.whole_stamps()
    is_judged = np.isin(whole, list(correlations))
    judged = whole[is_judged]
    num_before = len(whole) - len(judged)
    if not config.least_history <= num_before < len(whole):
        return []
    returns = np.expm1(panel.log_ret[whole])
    losses = -returns @ shares.T
    ours = _drawn_risks(panel, judged, correlations, fit, shares, config.draws)
    window = min(config.history, num_before)
    past = _past_risks(losses, window)
    ewma = riskmetrics_risks(returns, shares, losses, num_before)
    references = {"historical_simulation": past[is_judged], "ewma_covariance": ewma[is_judged]}
    if garch is not None:
        scaled = shares * garch.scales[judged, None]
        scales = _portfolio_scales(scaled, fit.correlation)
        references["garch_t_constant_correlation"] = elliptic_risks(scales, garch.degrees)
    weeks = panel.stamps[judged].astype("datetime64[W]")
    backtests = []
    for number, name in enumerate(portfolios):
        loss = losses[is_judged, number]
        for place, level in enumerate(LEVELS):
            own = ours[:, number, place]
            others = {each: risks[:, number, place] for each, risks in references.items()}
            backtest = _backtest(name, level, loss, own, others, weeks.astype(np.int64))
            backtests.append(backtest)
    return backtests


def _portfolio_scales(amounts: Floats, covariance: Floats) -> Floats:
    """The scales (...) of portfolios of these amounts (..., assets), from the covariance of the
    assets' returns.
    """
    variances = np.einsum("...i,ij,...j->...", amounts, covariance, amounts)
    return np.asarray(np.sqrt(variances))


def _backtest(
    portfolio: str,
    level: float,
    loss: Floats,
    risk: Floats,
    references: Mapping[str, Floats],
    weeks: npt.NDArray[np.int64],
) -> PortfolioBacktest:
    """Judge the risks (stamps, 2) of one portfolio at one level by its losses (stamps,)."""
    exceeded = loss > risk[:, 0]
    own = fissler_ziegel(loss, risk, level)
    against = []
    for reference, other in references.items():
        gain = fissler_ziegel(loss, other, level) - own
        beyond = loss > other[:, 0]
        compared = RiskGain(
            against=reference,
            exceedance_rate=float(beyond.mean()),
            gain=float(gain.mean()),
            weeks=bootstrap_blocks(gain, weeks),
        )
        against.append(compared)
    one_series = np.zeros(len(loss))
    value_at_risk, shortfall = risk.mean(axis=0).tolist()
    return PortfolioBacktest(
        portfolio=portfolio,
        level=level,
        num_stamps=len(loss),
        exceedance_rate=float(exceeded.mean()),
        kupiec_p=chi_square_tail(kupiec(exceeded, 1 - level), 1),
        independence_p=chi_square_tail(christoffersen(exceeded, one_series), 1),
        value_at_risk=value_at_risk,
        expected_shortfall=shortfall,
        against=against,
    )


def _drawn_risks(
    panel: Panel,
    stamps: npt.NDArray[np.int64],
    correlations: Mapping[int, Floats],
    fit: Dependence,
    shares: Floats,
    draws: int,
) -> Floats:
    """Risks (stamps, portfolios, levels, 2) from draws of the joint distribution at each stamp."""
    degrees = fit.degrees["1"]
    risks = []
    for start in range(0, len(stamps), STAMPS_AT_ONCE):
        block = stamps[start : start + STAMPS_AT_ONCE]
        log_ret = np.empty((len(block), draws, shares.shape[1]))
        for place, at in enumerate(block.tolist()):
            joint = _joint_forecast(panel, at, correlations[at], degrees)
            log_ret[place] = joint.sample(draws, seed=at)
        losses = -np.expm1(log_ret) @ shares.T  # (stamps, draws, portfolios)
        risks.append(sample_risks(np.moveaxis(losses, -1, 1)))
    return np.concatenate(risks)


def _joint_forecast(
    panel: Panel, at: int, correlation: Floats, degrees: float | None
) -> JointDistribution:
    """The joint distribution of all assets at a stamp."""
    dists = panel.dists
    marginals = {}
    for symbol, number in zip(panel.symbols, panel.numbers[at], strict=True):
        probs = dists.probs[number]
        sigma = float(dists.sigma[number])
        marginals[symbol] = BucketDistribution(probs=probs, sigma=sigma, shape=dists.shape)
    return JointDistribution.of(marginals, panel.prob_zero, correlation, degrees)


def _past_risks(losses: Floats, window: int) -> Floats:
    """Historical simulation: risks (stamps, portfolios, levels, 2) from the last `window` losses
    before each stamp; NaN for the first stamps.
    """
    past = np.lib.stride_tricks.sliding_window_view(losses[:-1], window, axis=0)
    risks = np.full((*losses.shape, len(LEVELS), 2), np.nan)
    later = risks[window:]
    for start in range(0, len(past), STAMPS_AT_ONCE):
        block = slice(start, start + STAMPS_AT_ONCE)
        later[block] = sample_risks(past[block])
    return risks


def sample_risks(losses: Floats) -> Floats:
    """Value at risk and expected shortfall (..., levels, 2) of sampled losses (..., draws)."""
    ordered = np.sort(losses, axis=-1)
    count = ordered.shape[-1]
    risks = np.empty((*ordered.shape[:-1], len(LEVELS), 2))
    for place, level in enumerate(LEVELS):
        num_worst = max(1, round((1 - level) * count))
        worst = ordered[..., count - num_worst :]
        risks[..., place, 0] = _sorted_quantile(ordered, level)
        risks[..., place, 1] = worst.mean(axis=-1)
    return risks


def _sorted_quantile(ordered: Floats, level: float) -> Floats:
    """The quantile of sorted values along the last axis, linear between them."""
    place = level * (ordered.shape[-1] - 1)
    below = math.floor(place)
    above = math.ceil(place)
    low = ordered[..., below]
    step = ordered[..., above] - low
    return np.asarray(low + (place - below) * step)


def elliptic_risks(scales: Floats, degrees: float | None) -> Floats:
    """Both risks (..., levels, 2) of losses with these scales (...), Student-t or normal.

    The expected shortfall of a Student-t with density f and quantile q at the level is
    f(q) (degrees + q^2) / ((degrees - 1) (1 - level)) (McNeil, Frey and Embrechts 2015, 2.25).
    """
    levels = np.array(LEVELS)
    beyond = 1 - levels
    limits = scores_of(levels, degrees)
    squares = limits**2
    if degrees is None:
        density = np.exp(-squares / 2) / math.sqrt(2 * math.pi)
        shortfalls = density / beyond
    else:
        log_norm = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
        log_norm -= math.log(degrees * math.pi) / 2
        log_ratios = np.log1p(squares / degrees)
        density = np.exp(log_norm - (degrees + 1) / 2 * log_ratios)
        shortfalls = density / beyond * (degrees + squares) / (degrees - 1)
    standard = np.stack([limits, shortfalls], axis=-1)
    return np.asarray(scales[..., None, None] * standard)


def riskmetrics_risks(returns: Floats, shares: Floats, losses: Floats, num_before: int) -> Floats:
    """Normal risks (stamps, portfolios, levels, 2) from an EWMA of the covariance of returns
    (stamps, assets).

    The decay is that of the least Fissler-Ziegel loss on the first `num_before` stamps but for the
    first ones, on which the covariance still remembers where it began.
    """
    remembered = min(len(returns) // 10, num_before // 2)
    deciding = slice(remembered, num_before)

    def risks(decay: float) -> Floats:
        covariance = np.cov(returns[:num_before].T)
        scales = np.empty((len(returns), len(shares)))
        for at, row in enumerate(returns):
            scales[at] = _portfolio_scales(shares, covariance)
            products = np.outer(row, row)
            covariance = decay * covariance + (1 - decay) * products
        return elliptic_risks(scales, None)

    def mean_loss(candidate: Floats) -> float:
        total = 0.0
        for place, level in enumerate(LEVELS):
            own_risks = candidate[deciding, :, place]
            own_loss = fissler_ziegel(losses[deciding], own_risks, level)
            total += float(own_loss.mean())
        return total

    candidates = [risks(decay) for decay in COVARIANCE_DECAYS]
    return min(candidates, key=mean_loss)


def garch_scales(
    panel: Panel, corpus: Corpus, context: int, fits: Path | None
) -> EllipticScales | None:
    """Scales of the Student-t returns of a stored `garch_t` at each stamp and asset of a panel.

    The degrees of freedom are the mean over the assets. None where no fit of every asset is stored
    in `fits`.
    """
    garch = load_fit(GarchT(), corpus, context, fits) if fits else None
    if garch is None or set(panel.symbols) - garch.models_.keys():
        return None
    all_degrees = [model.degrees for model in garch.models_.values()]
    degrees = float(np.mean(all_degrees))
    scales = np.full_like(panel.scale, np.nan)
    for asset, symbol in enumerate(panel.symbols):
        inside = corpus.asset_slices[symbol]
        present = panel.rows[:, asset] >= 0
        rows = panel.rows[present, asset]
        model = replace(garch.models_[symbol], degrees=degrees)
        variances = model.next_variance(clean_returns(corpus, inside))
        scales[present, asset] = model.scale(variances[rows - inside.start])
    return EllipticScales(scales=scales, degrees=degrees)
