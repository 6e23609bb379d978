"""The tables and sentences of an evaluation, as the terminal, the page and the audit show them; the
verdict.

Paper: Results, main Test table; Appendices on period results, tail buckets and the asset-month
block bootstrap.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import attrgetter as at

from vaiom.baselines.base import PLAIN
from vaiom.corpus.splits import SEALED, VALIDATION
from vaiom.evaluation.evaluate import FEW_BLOCKS, Evaluation, MixtureReport
from vaiom.evaluation.inference import CONFIDENCE_SET_REPLICATES, PairedComparison
from vaiom.evaluation.joint import JointEvaluation
from vaiom.evaluation.scores import MODEL
from vaiom.report.contents import RunContents
from vaiom.report.tables import (
    Column,
    Table,
    bits,
    count,
    facts,
    interval,
    p_value,
    percent,
    percent2,
    percents,
    ratio,
    side_of_zero,
    signed,
    text,
)

_EVENTS = Column("events", count, "num_events")
_AGAINST = Column("against", text, "baseline")
_GAIN = (
    Column(
        "gain",
        signed,
        "gain_bits",
        "Baseline minus model, bits per event: positive favours the model",
    ),
    Column(
        "95% interval", interval, "asset_months.interval", "Percentile bootstrap over asset-months"
    ),
    Column("blocks won", ratio, "asset_months.wins", "Asset-months with a positive mean gain"),
    Column("win-rate", percent, "asset_months.win_rate"),
    Column("its interval", percents, "asset_months.win_rate_interval"),
)
_BY_MONTHS = Column(
    "by months, 95%", interval, "months.interval", "Blocks of months: assets may move together"
)
_TESTS = (
    _AGAINST,
    Column(
        "low tail",
        signed,
        lambda each: each.gain.tails["negative"].gain_bits,
        "Over events in buckets 1 to 4",
    ),
    Column(
        "high tail",
        signed,
        lambda each: each.gain.tails["positive"].gain_bits,
        "Over events in buckets 13 to 16",
    ),
    Column("both tails", signed, lambda each: each.gain.tails["both"].gain_bits),
    Column("months won", ratio, "gain.months.wins"),
    replace(_BY_MONTHS, source="gain.months.interval"),
    Column(
        "DM p",
        p_value,
        "diebold_mariano.p_value",
        "Diebold-Mariano, two-sided, Newey-West variance",
    ),
)
_SEEDS = (
    Column("against", text, lambda item: item[0]),
    Column("seeds", count, lambda item: len(item[1].bits)),
    Column("mean bits", bits, lambda item: item[1].mean_bits),
    Column("SD over seeds", bits, lambda item: item[1].seed_sd_bits),
    Column("mean gain", signed, lambda item: item[1].mean_gain_bits),
    Column("sampling error", bits, lambda item: item[1].sampling_error_bits),
    Column("95% interval", interval, lambda item: item[1].average.interval),
    Column("seeds won", ratio, lambda item: (item[1].seeds_that_win, len(item[1].bits))),
)
_SCORES = (
    _EVENTS,
    Column("Brier", bits, "brier"),
    Column("RPS", bits, "ranked_probability_score"),
    Column("entropy", bits, "entropy_bits"),
    Column("tails forecast", percent, "tails_predicted"),
    Column("tails observed", percent, "tails_observed"),
    Column("uniform p", p_value, "pit_p_value"),
)
_HORIZON_GAIN = (*_GAIN[:2], _BY_MONTHS, _GAIN[2])
_COHERENCE = (
    Column("bars", count, "bars"),
    _EVENTS,
    Column("exact zeros", percent2, "zero_share", "Sums that are no events"),
    Column(
        "wider", percent, "wider", "Events whose central 90% is wider than at the horizon before"
    ),
    Column(
        "variance over steps'",
        "{:.3f}".format,
        "variance_of_steps",
        "Over the one-bar variances along the way",
    ),
    Column(
        "realised over it",
        "{:.3f}".format,
        "variance_realised",
        "Mean squared return over the forecast one",
    ),
    Column("not fitted", text, lambda each: ", ".join(each.not_fitted)),
)
_BACKTESTS = (
    Column("side", text, "side", "Long loses in the lower tail, short in the upper"),
    Column("level", partial(percent, digits=0), "level"),
    _EVENTS,
    Column("exceeded", percent2, "exceedance_rate", "Should equal the level"),
    Column(
        "Kupiec p", p_value, "kupiec_p", "Whether the limit is exceeded as often as its level says"
    ),
    Column("Christoffersen p", p_value, "independence_p", "Whether exceedances come in clusters"),
    Column("both p", p_value, "conditional_coverage_p"),
    Column(
        "shortfall Z",
        signed,
        "shortfall_z2",
        "Acerbi and Szekely's second: positive for losses beyond it",
    ),
    Column("Z p", p_value, "shortfall_p", "One-sided"),
)

_COPULAS = (
    Column("against", text, "against"),
    Column(
        "its bits/stamp",
        bits,
        "bits",
        "Mean log2 of the copula's density: what it knows more than independence",
    ),
    Column("gain", signed, "gain_bits", "Bits per stamp that the joint distribution has more"),
    Column("95% interval", interval, "weeks.interval", "Percentile bootstrap over weeks"),
)
_PORTFOLIOS = (
    Column(
        "portfolio",
        text,
        "portfolio",
        "Shares of the gross value; the random ones are the same in every run",
    ),
    Column("level", partial(percent, digits=0), "level"),
    Column("stamps", count, "num_stamps"),
    Column("exceeded", percent2, "exceedance_rate", "Should equal one minus the level"),
    Column("Kupiec p", p_value, "kupiec_p"),
    Column("Christoffersen p", p_value, "independence_p"),
)


def headline_tables(contents: RunContents) -> list[Table]:
    """Two tables per split, and one of all test splits together."""
    tables = [tables_of(split.evaluation, split.label) for split in contents.splits]
    together = [table for parts in tables for table in parts["all_tests"]]
    return [table for parts in tables for table in parts["headline"]] + together[-1:]


def tables_of(result: Evaluation, label: str, own: str = MODEL) -> dict[str, list[Table]]:
    """Every table of an evaluation by section of the report; `label` names the split, `own` the
    judged predictor.
    """
    together = sorted(result.all_tests or [], key=at("gain.gain_bits"))
    inside = [
        replace(column, source=f"gain.{column.source}") for column in (_EVENTS, *_GAIN, _BY_MONTHS)
    ]
    all_tests = Table.of("All test splits together: paired gain", [_AGAINST, *inside], together)
    risk = f"{label}: value at risk and expected shortfall"
    tables = {
        "headline": _headline(result, label, own),
        "all_tests": [all_tests] if together else [],
        "groups": _groups(result, label, own),
        "seeds": [Table.of(f"{label}: seeds together", _SEEDS, result.seeds.items())]
        if result.seeds
        else [],
        "calibration": [_calibration(result, label), Table.of(risk, _BACKTESTS, result.backtests)],
        "calibration_by": [],
        "joint": _joint(result.joint, label) if result.joint else [],
        "states": [_states(result.mixture, label)] if result.mixture else [],
        "horizons": _horizons(result, label),
    }
    for by in result.calibration_by:
        name = by.replace("vol_regime", "volatility regime")
        group = Column(name, text, "group")
        tables["calibration_by"] += [
            Table.of(
                f"{label}: calibration by {name}", [group, *_SCORES], result.calibration_by[by]
            ),
            Table.of(f"{risk} by {name}", [group, *_BACKTESTS], result.backtests_by[by]),
        ]
    return tables


def notes_of(result: Evaluation) -> list[str]:
    """What limits the figures of an evaluation."""
    notes = [*result.caveats]
    if result.confidence_set:
        size, inside = result.confidence_set.size, ", ".join(result.confidence_set.included)
        notes.append(
            f"The {1 - size:.0%} model confidence set, the predictors that no other has beaten: "
            f"{inside}."
        )
    if result.bits_alone is not None:
        loss = signed(result.bits_alone - result.bits[MODEL])
        notes.append(
            f"Without the bars of other assets the model has {bits(result.bits_alone)} bits "
            f"({loss})."
        )
    zeros = (
        f"{percent2(result.zero_share)} of the next returns in this split were exactly zero "
        f"and are no events."
    )
    return [*notes, f"Every figure is conditional on a non-zero next return: {zeros}"]


def describe_states(mixture: MixtureReport) -> str:
    return (
        f"{mixture.effective_states:.2f} of {len(mixture.mean_weight)} latent states are in "
        f"effective use; knowing the "
        f"state would add {bits(mixture.separation_bits)} bits per event. The heaviest state "
        f"stays from one event of "
        f"an asset to the next in {percent(mixture.persistence)} of the cases, against "
        f"{percent(mixture.persistence_if_independent)} if it were drawn anew. "
        f"Measured on {count(mixture.num_events)} events; the numbers of states mean nothing "
        f"across runs."
    )


def _headline(result: Evaluation, label: str, own: str) -> list[Table]:
    """Bits of every predictor, best first, with the model's gain over it; then tails, months and
    tests of the gains.
    """
    gains = {each.baseline: [column.take(each.gain) for column in _GAIN] for each in result.against}
    order = sorted(result.bits, key=lambda name: result.bits[name])
    cost = Column(
        "bits/event",
        bits,
        about="Mean of minus log2 of the probability given to the bucket that came",
    )
    caption = f"{label}, {count(result.num_events)} events: bits per event and paired gain"
    rows = [
        [own if name == MODEL else name, result.bits[name], *gains.get(name, [""] * len(_GAIN))]
        for name in order
    ]
    p_values = result.confidence_set.p_values if result.confidence_set else {}
    about = "Model confidence set: small when the baseline was beaten by some predictor"
    finest = partial(p_value, least=1 / CONFIDENCE_SET_REPLICATES)
    in_set = Column("MCS p", finest, lambda each: p_values.get(each.baseline), about)
    ranked = sorted(result.against, key=at("gain.gain_bits"))
    return [
        Table(caption, [Column("predictor"), cost, *_GAIN], rows, frozenset({order.index(MODEL)})),
        Table.of(f"{label}: tails, months and tests", [*_TESTS, in_set], ranked),
    ]


def _groups(result: Evaluation, label: str, own: str) -> list[Table]:
    """Bits by asset and gains by month."""
    baselines = [name for name in result.bits if name != MODEL]
    by_asset = [
        Column("asset"),
        Column("events", count),
        *(Column(name, bits) for name in (own, *baselines)),
    ]
    by_month = [
        Column("month"),
        Column("events", count),
        *(Column(name, signed) for name in baselines),
    ]
    costs = [[each.group, each.num_events, *each.bits.values()] for each in result.by["asset"]]
    months = result.by["month"]
    gains = [
        [each.group, each.num_events, *(each.bits[b] - each.bits[MODEL] for b in baselines)]
        for each in months
    ]
    return [
        Table(f"{label}: bits per event by asset", by_asset, costs),
        Table(f"{label}: gain over each baseline by month of the target", by_month, gains),
    ]


def _calibration(result: Evaluation, label: str) -> Table:
    model, scores = result.calibration, result.calibration.overall
    rows = {
        "PIT uniform (Kuiper)": f"p {p_value(model.pit.p_value)}",
        "largest mean error of a bucket": percent2(max(each.error for each in model.buckets)),
        "largest mean error up to an edge": percent2(max(each.error for each in model.cumulative)),
    }
    for tail in model.tails:
        name = "both tails" if tail.outcome == "both" else f"{tail.outcome} tail"
        rows[f"{name}: forecast, observed"] = (
            f"{percent2(tail.predicted)}, {percent2(tail.observed)}"
        )
    rows["Brier score"] = bits(scores.brier)
    rows["ranked probability score"] = bits(scores.ranked_probability_score)
    rows["sharpness (entropy of the forecasts)"] = f"{bits(scores.entropy_bits)} bits"
    return facts(f"{label}: calibration of the model", rows)


def _joint(joint: JointEvaluation, label: str) -> list[Table]:
    """Copulas, and portfolios with the gain in Fissler-Ziegel loss over each other forecast of
    their risk.
    """
    caption = (
        f"{label}, {count(joint.num_stamps)} stamps: {bits(joint.bits)} bits per stamp over "
        f"independence"
    )
    copulas = Table.of(caption, _COPULAS, joint.copulas)
    if not joint.portfolios:
        return [copulas]
    columns = [*_PORTFOLIOS]
    for other in joint.portfolios[0].against:
        columns += [Column(f"over {other.against}", signed, about="In Fissler-Ziegel loss")]
        columns += [Column("95% interval", interval)]
    rows = []
    for portfolio in joint.portfolios:
        gains = [
            value for other in portfolio.against for value in (other.gain, other.weeks.interval)
        ]
        rows.append([*(column.take(portfolio) for column in _PORTFOLIOS), *gains])
    return [
        copulas,
        Table(
            f"{label}: value at risk of portfolios, and gain in Fissler-Ziegel loss", columns, rows
        ),
    ]


def _horizons(result: Evaluation, label: str) -> list[Table]:
    """Bits of every predictor at each horizon, and how the horizons agree."""
    scores = result.horizons or []
    rows = [
        [
            each.bars,
            name,
            each.bits[name],
            *("" if name == MODEL else c.take(each.gains[name]) for c in _HORIZON_GAIN),
        ]
        for each in scores
        for name in sorted(each.bits, key=lambda name: each.bits[name])
    ]
    own = frozenset(index for index, row in enumerate(rows) if row[1] == MODEL)
    columns = [
        Column("bars", count),
        Column("predictor"),
        Column("bits/event", bits),
        *_HORIZON_GAIN,
    ]
    agree = Table.of(f"{label}: how horizons agree", _COHERENCE, scores)
    return (
        [Table(f"{label}: return over the next bars", columns, rows, own), agree] if scores else []
    )


def _states(mixture: MixtureReport, label: str) -> Table:
    """Use and separation of the latent states, which are counted from 1."""
    states, distances = range(len(mixture.mean_weight)), mixture.pair_separation_bits
    columns = [Column("state", count), Column("mean weight", percent)]
    columns.append(Column("heaviest", percent, about="Share of events it weighs most in"))
    columns += [
        Column(f"from {each + 1}", bits, about="Jensen-Shannon divergence in bits")
        for each in states
    ]
    rows = [
        [
            each + 1,
            weight,
            heaviest,
            *("" if other == each else distances[each][other] for other in states),
        ]
        for each, weight, heaviest in zip(
            states, mixture.mean_weight, mixture.heaviest_share, strict=True
        )
    ]
    return Table(f"{label}: latent states", columns, rows)


def verdict(contents: RunContents) -> list[str]:
    """The finding on each test split, or on Validation where none was scored, and what
    limits it.
    """
    return [
        *(describe(split.evaluation, split.period) for split in contents.judged),
        *limits(contents),
    ]


def headline(contents: RunContents) -> str:
    """The finding in a few words: the least favourable of the judged splits decides."""
    gains = [
        (side_of_zero(each.gain.asset_months.interval), split.period, each)
        for split in contents.judged
        for each in split.evaluation.against
    ]
    if not gains:
        return "Compared with no baseline"
    side, period, worst = min(gains, key=lambda each: (each[0], each[2].gain.gain_bits))
    if side > 0:
        return (
            f"Better than every baseline: {bits(worst.gain.gain_bits)} bits ahead of "
            f"{worst.baseline}"
        )
    return f"{'Worse than' if side < 0 else 'Cannot be told from'} {worst.baseline} on {period}"


def limits(contents: RunContents) -> list[str]:
    """What the reader must know before believing the findings."""
    splits, out = contents.judged, []
    if all(split.name == VALIDATION for split in splits):
        selected = "The model was selected on Validation, so these figures flatter it a little."
        out.append(f"No test split was scored. {selected}")
    last = splits[-1].evaluation
    both = next(tail for tail in last.calibration.tails if tail.outcome == "both")
    shares = f"{percent(both.observed)} of the events where {percent(both.predicted)} was forecast"
    out.append(f"On {splits[-1].period} returns ended in a tail in {shares}.")
    if {each.baseline for each in last.against} <= {*PLAIN}:
        out.append(
            "The model was compared with the simplest baselines only: `vaiom baselines` fits "
            "stronger ones."
        )
    looked = {
        "the sealed interval" if each.name == SEALED else each.period: each.evaluation.looks
        for each in splits
    }
    if looks := [
        f"{name} once" if times == 1 else f"{name} {times} times"
        for name, times in looked.items()
        if times
    ]:
        out.append(f"Looks at Test on this corpus, these included: {', '.join(looks)}.")
    return out


def describe(result: Evaluation, period: str, who: str = "the model") -> str:
    """The finding on a period in a sentence or two."""
    ranked = sorted(result.against, key=lambda each: each.gain.gain_bits)
    start = f"On {period} ({result.split}, {count(result.num_events)} events) {who} needs "
    start += f"{bits(result.bits[MODEL])} bits per event"
    if not ranked:
        return f"{start}. It was compared with no baseline."
    sentence = f"{start}, {_compare_with_strongest(ranked[0])}."
    if len(ranked) > 1 and ranked[0].gain.asset_months.interval:
        sides = [side_of_zero(each.gain.asset_months.interval) for each in ranked]
        beaten, lost = sides.count(1), sides.count(-1)
        share = (
            f"all {len(ranked)} baselines"
            if beaten == len(ranked)
            else f"{beaten} of {len(ranked)} baselines"
        )
        sentence += (
            f" By intervals that exclude zero it beats "
            f"{share}{f' and loses to {lost}' if lost else ''}."
        )
    return sentence


def _compare_with_strongest(each: PairedComparison) -> str:
    gain, pair, months = (
        each.gain.gain_bits,
        each.gain.asset_months.interval,
        each.gain.months.interval,
    )
    blocks = each.gain.asset_months.num_blocks
    amount = (
        f"{bits(abs(gain))} {'fewer' if gain > 0 else 'more'} than {each.baseline}, the "
        f"strongest baseline"
    )
    if pair is None:
        return (
            f"{amount}; there is a single block, so no interval can be given and the "
            f"difference may be chance"
        )
    within = f"gain {signed(gain)}, 95% interval {signed(pair[0])} to {signed(pair[1])}"
    within += f" over {blocks} asset-months only, a rough width" if blocks <= FEW_BLOCKS else ""
    if side_of_zero(pair) == 0:
        return f"{amount}, but the interval includes zero ({within}): the two cannot be told apart"
    if months is not None and side_of_zero(months) == 0:
        wide = f"({signed(months[0])} to {signed(months[1])})"
        return f"{amount} ({within}); with whole months as blocks the interval includes zero {wide}"
    return f"{amount} ({within})" if gain > 0 else f"{amount} ({within}): the baseline is better"
