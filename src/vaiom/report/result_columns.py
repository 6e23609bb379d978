"""The columns of the tables of an evaluation: name, form, the field that it shows, what it means.

Paper: Results, main Test table; Appendices on period results and tail buckets.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from vaiom.report.tables import (
    Column,
    bits,
    count,
    interval,
    p_value,
    percent,
    percent2,
    percents,
    ratio,
    signed,
    text,
)

_percent0 = partial(percent, digits=0)
_digits3 = "{:.3f}".format

EVENTS = Column("events", count, "num_events")
AGAINST = Column("against", text, "baseline")
PREDICTOR = Column("predictor")
COST = Column(
    "bits/event",
    bits,
    about="Mean of minus log2 of the probability given to the bucket that came",
)
LEVEL = Column("level", _percent0, "level")
KUPIEC = Column(
    "Kupiec p",
    p_value,
    "kupiec_p",
    "Whether the limit is exceeded as often as its level says",
)
CHRISTOFFERSEN = Column(
    "Christoffersen p", p_value, "independence_p", "Whether exceedances come in clusters"
)

# Of a paired gain: the model against one baseline on the same events.
GAIN = Column(
    "gain",
    signed,
    "gain_bits",
    "Baseline minus model, bits per event: positive favours the model",
)
ASSET_MONTHS = Column(
    "95% interval", interval, "asset_months.interval", "Percentile bootstrap over asset-months"
)
BLOCKS_WON = Column(
    "blocks won", ratio, "asset_months.wins", "Asset-months with a positive mean gain"
)
WIN_RATE = Column("win-rate", percent, "asset_months.win_rate")
WIN_RATE_INTERVAL = Column("its interval", percents, "asset_months.win_rate_interval")
MONTHS = Column(
    "by months, 95%", interval, "months.interval", "Blocks of months: assets may move together"
)
PAIRED = (GAIN, ASSET_MONTHS, BLOCKS_WON, WIN_RATE, WIN_RATE_INTERVAL)
PAIRED_AT_HORIZON = (GAIN, ASSET_MONTHS, MONTHS, BLOCKS_WON)


def _of_gain(column: Column) -> Column:
    """The same column for items that hold the gain as an attribute."""
    return replace(column, source=f"gain.{column.source}")


def _tail_gain(outcome: str) -> Any:
    """Finds the gain over the events that ended in a tail."""
    return lambda each: each.gain.tails[outcome].gain_bits


LOW_TAIL = Column("low tail", signed, _tail_gain("negative"), "Over events in buckets 1 to 4")
HIGH_TAIL = Column("high tail", signed, _tail_gain("positive"), "Over events in buckets 13 to 16")
BOTH_TAILS = Column("both tails", signed, _tail_gain("both"))
MONTHS_WON = Column("months won", ratio, "gain.months.wins")
DIEBOLD_MARIANO = Column(
    "DM p",
    p_value,
    "diebold_mariano.p_value",
    "Diebold-Mariano, two-sided, Newey-West variance",
)
TESTS = (
    AGAINST,
    LOW_TAIL,
    HIGH_TAIL,
    BOTH_TAILS,
    MONTHS_WON,
    _of_gain(MONTHS),
    DIEBOLD_MARIANO,
)

# Of all seeds against one baseline; an item is the baseline's name and their summary.
SEEDS = (
    Column("against", text, lambda item: item[0]),
    Column("seeds", count, lambda item: len(item[1].bits)),
    Column("mean bits", bits, lambda item: item[1].mean_bits),
    Column("SD over seeds", bits, lambda item: item[1].seed_sd_bits),
    Column("mean gain", signed, lambda item: item[1].mean_gain_bits),
    Column("sampling error", bits, lambda item: item[1].sampling_error_bits),
    Column("95% interval", interval, lambda item: item[1].average.interval),
    Column("seeds won", ratio, lambda item: (item[1].seeds_that_win, len(item[1].bits))),
)
SCORES = (
    EVENTS,
    Column("Brier", bits, "brier"),
    Column("RPS", bits, "ranked_probability_score"),
    Column("entropy", bits, "entropy_bits"),
    Column("tails forecast", percent, "tails_predicted"),
    Column("tails observed", percent, "tails_observed"),
    Column("uniform p", p_value, "pit_p_value"),
)

SIDE = Column("side", text, "side", "Long loses in the lower tail, short in the upper")
EXCEEDED = Column("exceeded", percent2, "exceedance_rate", "Should equal the level")
BOTH_P = Column("both p", p_value, "conditional_coverage_p")
SHORTFALL = Column(
    "shortfall Z",
    signed,
    "shortfall_z2",
    "Acerbi and Szekely's second: positive for losses beyond it",
)
SHORTFALL_P = Column("Z p", p_value, "shortfall_p", "One-sided")
BACKTESTS = (
    SIDE,
    LEVEL,
    EVENTS,
    EXCEEDED,
    KUPIEC,
    CHRISTOFFERSEN,
    BOTH_P,
    SHORTFALL,
    SHORTFALL_P,
)

BARS = Column("bars", count, "bars")
ZEROS = Column("exact zeros", percent2, "zero_share", "Sums that are no events")
WIDER = Column(
    "wider", percent, "wider", "Events whose central 90% is wider than at the horizon before"
)
STEP_VARIANCE = Column(
    "variance over steps'",
    _digits3,
    "variance_of_steps",
    "Over the one-bar variances along the way",
)
REALISED_VARIANCE = Column(
    "realised over it",
    _digits3,
    "variance_realised",
    "Mean squared return over the forecast one",
)
NOT_FITTED = Column("not fitted", text, lambda each: ", ".join(each.not_fitted))
COHERENCE = (BARS, EVENTS, ZEROS, WIDER, STEP_VARIANCE, REALISED_VARIANCE, NOT_FITTED)

COPULA_BITS = Column(
    "its bits/stamp",
    bits,
    "bits",
    "Mean log2 of the copula's density: what it knows more than independence",
)
COPULA_GAIN = Column(
    "gain", signed, "gain_bits", "Bits per stamp that the joint distribution has more"
)
WEEKS = Column("95% interval", interval, "weeks.interval", "Percentile bootstrap over weeks")
COPULAS = (Column("against", text, "against"), COPULA_BITS, COPULA_GAIN, WEEKS)
PORTFOLIO = Column(
    "portfolio",
    text,
    "portfolio",
    "Shares of the gross value; the random ones are the same in every run",
)
STAMPS = Column("stamps", count, "num_stamps")
PORTFOLIOS = (
    PORTFOLIO,
    LEVEL,
    STAMPS,
    replace(EXCEEDED, about="Should equal one minus the level"),
    KUPIEC,
    CHRISTOFFERSEN,
)
