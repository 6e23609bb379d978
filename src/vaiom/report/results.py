"""The tables of an evaluation, as the terminal, the page and the model card show them.

An `Evaluation` enters; tables by section of the report leave. Paper: Results, main Test table;
Appendices on period results, tail buckets and the asset-month block bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from vaiom.evaluation.calibration import Calibration
from vaiom.evaluation.inference import CONFIDENCE_SET_REPLICATES
from vaiom.evaluation.joint_scores import JointEvaluation
from vaiom.evaluation.mixture import MixtureReport
from vaiom.evaluation.record import Evaluation
from vaiom.evaluation.scores import MODEL
from vaiom.report.contents import RunContents
from vaiom.report.result_columns import (
    AGAINST,
    BACKTESTS,
    BARS,
    COHERENCE,
    COPULAS,
    COST,
    EVENTS,
    MONTHS,
    PAIRED,
    PAIRED_AT_HORIZON,
    PORTFOLIOS,
    PREDICTOR,
    SCORES,
    SEEDS,
    TESTS,
    _of_gain,
)
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
    signed,
    text,
)


def headline_tables(contents: RunContents) -> list[Table]:
    """Two tables per split, and one of all test splits together.

    The last is that of the latest test: each evaluation of a test renews it.
    """
    tables = []
    together: list[Table] = []
    for split in contents.splits:
        sections = tables_of(split.evaluation, split.label)
        tables += sections["headline"]
        together = sections["all_tests"] or together
    return tables + together


def tables_of(result: Evaluation, label: str, own: str = MODEL) -> dict[str, list[Table]]:
    """Every table of an evaluation, by section of the report.

    `label` names the split in captions, `own` the judged predictor in rows and headers. Sections
    of what was not evaluated are empty: seeds, the dependence of assets, longer horizons, latent
    states, and all tests together.
    """
    tables = {
        "headline": [_bits_and_gains(result, label, own), _tails_and_tests(result, label)],
        "all_tests": _all_tests(result),
        "groups": [_bits_by_asset(result, label, own), _gains_by_month(result, label)],
        "seeds": [],
        "calibration": [_calibration(result.calibration, label)],
        "calibration_by": _calibration_by_group(result, label),
        "joint": _joint(result.joint, label) if result.joint else [],
        "states": [_states(result.mixture, label)] if result.mixture else [],
        "horizons": _horizons(result, label),
    }
    tables["calibration"].append(Table.of(_risk_caption(label), BACKTESTS, result.backtests))
    if result.seeds:
        tables["seeds"] = [Table.of(f"{label}: seeds together", SEEDS, result.seeds.items())]
    return tables


def _bits_and_gains(result: Evaluation, label: str, own: str) -> Table:
    """Bits per event of every predictor, fewest first, with the gain of the model over it.

    A gain is baseline minus model on the same events, so positive favours the model; its interval
    is a percentile bootstrap over asset-months. The model's own row is set in bold type.
    """
    gains = {}
    for each in result.against:
        gains[each.baseline] = [column.take(each.gain) for column in PAIRED]
    no_gain = [""] * len(PAIRED)
    order = sorted(result.bits, key=result.bits.__getitem__)
    rows = []
    for name in order:
        shown = own if name == MODEL else name
        rows.append([shown, result.bits[name], *gains.get(name, no_gain)])
    caption = f"{label}, {count(result.num_events)} events: bits per event and paired gain"
    columns = [PREDICTOR, COST, *PAIRED]
    return Table(caption, columns, rows, strong=frozenset({order.index(MODEL)}))


def _tails_and_tests(result: Evaluation, label: str) -> Table:
    """Tails, months and significance tests of the gain over each baseline, the smallest gain first.

    Diebold and Mariano's test has a Newey-West variance; the p-value of the model confidence set
    (Hansen, Lunde and Nason 2011) is the baseline's own.
    """
    found = result.confidence_set
    p_values = found.p_values if found else {}
    in_set = Column(
        "MCS p",
        partial(p_value, least=1 / CONFIDENCE_SET_REPLICATES),
        lambda each: p_values.get(each.baseline),
        "Model confidence set: small when the baseline was beaten by some predictor",
    )
    ranked = sorted(result.against, key=attrgetter("gain.gain_bits"))
    return Table.of(f"{label}: tails, months and tests", [*TESTS, in_set], ranked)


def _all_tests(result: Evaluation) -> list[Table]:
    """Gains over the events of all test splits, where each was scored with this checkpoint."""
    if not result.all_tests:
        return []
    ranked = sorted(result.all_tests, key=attrgetter("gain.gain_bits"))
    columns = [AGAINST, *map(_of_gain, (EVENTS, *PAIRED, MONTHS))]
    return [Table.of("All test splits together: paired gain", columns, ranked)]


def _bits_by_asset(result: Evaluation, label: str, own: str) -> Table:
    """Bits per event of every predictor over the events of each asset."""
    names = [own if name == MODEL else name for name in result.bits]
    columns = [Column("asset"), Column("events", count)]
    columns += [Column(name, bits) for name in names]
    rows = [[each.group, each.num_events, *each.bits.values()] for each in result.by["asset"]]
    return Table(f"{label}: bits per event by asset", columns, rows)


def _gains_by_month(result: Evaluation, label: str) -> Table:
    """Gain in bits per event over each baseline, by month of the target."""
    baselines = [name for name in result.bits if name != MODEL]
    columns = [Column("month"), Column("events", count)]
    columns += [Column(name, signed) for name in baselines]
    rows = []
    for each in result.by["month"]:
        gains = [each.bits[name] - each.bits[MODEL] for name in baselines]
        rows.append([each.group, each.num_events, *gains])
    return Table(f"{label}: gain over each baseline by month of the target", columns, rows)


def _calibration(model: Calibration, label: str) -> Table:
    """Whether probabilities mean what they say, in one column of facts.

    Uniformity of the PIT by Kuiper's test, the mean reliability error of the worst bucket and of
    the worst cumulative probability, forecast and observed shares of the tails, and proper scores.
    """
    scores = model.overall
    rows = {
        "PIT uniform (Kuiper)": f"p {p_value(model.pit.p_value)}",
        "largest mean error of a bucket": percent2(max(each.error for each in model.buckets)),
        "largest mean error up to an edge": percent2(max(each.error for each in model.cumulative)),
    }
    for tail in model.tails:
        name = "both tails" if tail.outcome == "both" else f"{tail.outcome} tail"
        shares = f"{percent2(tail.predicted)}, {percent2(tail.observed)}"
        rows[f"{name}: forecast, observed"] = shares
    rows["Brier score"] = bits(scores.brier)
    rows["ranked probability score"] = bits(scores.ranked_probability_score)
    rows["sharpness (entropy of the forecasts)"] = f"{bits(scores.entropy_bits)} bits"
    return facts(f"{label}: calibration of the model", rows)


def _calibration_by_group(result: Evaluation, label: str) -> list[Table]:
    """Scores and backtests of each grouping, a pair of tables each: by asset, hour and volatility
    regime, which are known before the return.
    """
    tables = []
    for by, scores in result.calibration_by.items():
        name = by.replace("vol_regime", "volatility regime")
        group = Column(name, text, "group")
        caption = f"{label}: calibration by {name}"
        tables.append(Table.of(caption, [group, *SCORES], scores))
        caption = f"{_risk_caption(label)} by {name}"
        tables.append(Table.of(caption, [group, *BACKTESTS], result.backtests_by[by]))
    return tables


def _risk_caption(label: str) -> str:
    """The caption of backtests, which stand once over all events and once by each grouping."""
    return f"{label}: value at risk and expected shortfall"


def _joint(joint: JointEvaluation, label: str) -> list[Table]:
    """Copulas in bits per stamp, and the value at risk of portfolios where there are any.

    Bits are of the joint density of all assets over that of independent ones.
    """
    stamps = f"{label}, {count(joint.num_stamps)} stamps"
    caption = f"{stamps}: {bits(joint.bits)} bits per stamp over independence"
    tables = [Table.of(caption, COPULAS, joint.copulas)]
    if joint.portfolios:
        tables.append(_portfolios(joint, label))
    return tables


def _portfolios(joint: JointEvaluation, label: str) -> Table:
    """Backtests of portfolios, and the gain in Fissler-Ziegel loss over other forecasts of risk.

    That loss is consistent for value at risk and expected shortfall together (Fissler and Ziegel
    2016); its intervals are bootstrapped over weeks.
    """
    columns = [*PORTFOLIOS]
    for other in joint.portfolios[0].against:
        columns.append(Column(f"over {other.against}", signed, about="In Fissler-Ziegel loss"))
        columns.append(Column("95% interval", interval))
    rows = []
    for portfolio in joint.portfolios:
        row = [column.take(portfolio) for column in PORTFOLIOS]
        for other in portfolio.against:
            row += [other.gain, other.weeks.interval]
        rows.append(row)
    caption = f"{label}: value at risk of portfolios, and gain in Fissler-Ziegel loss"
    return Table(caption, columns, rows)


def _horizons(result: Evaluation, label: str) -> list[Table]:
    """Bits of every predictor at each horizon, and how the horizons agree with each other.

    Rows of the model are set in bold type.
    """
    if not result.horizons:
        return []
    rows: list[Sequence[Any]] = []
    own = []
    for each in result.horizons:
        for name in sorted(each.bits, key=each.bits.__getitem__):
            if name == MODEL:
                own.append(len(rows))
                gains: list[Any] = [""] * len(PAIRED_AT_HORIZON)
            else:
                gains = [column.take(each.gains[name]) for column in PAIRED_AT_HORIZON]
            rows.append([each.bars, name, each.bits[name], *gains])
    columns = [BARS, PREDICTOR, COST, *PAIRED_AT_HORIZON]
    caption = f"{label}: return over the next bars"
    costs = Table(caption, columns, rows, strong=frozenset(own))
    return [costs, Table.of(f"{label}: how horizons agree", COHERENCE, result.horizons)]


def _states(mixture: MixtureReport, label: str) -> Table:
    """Use and separation of the latent states, which are counted from 1.

    Distances between two states are Jensen-Shannon divergences of their distributions in bits.
    """
    states = range(len(mixture.mean_weight))
    columns = [
        Column("state", count),
        Column("mean weight", percent),
        Column("heaviest", percent, about="Share of events it weighs most in"),
    ]
    about = "Jensen-Shannon divergence in bits"
    columns += [Column(f"from {each + 1}", bits, about=about) for each in states]
    rows = []
    for each in states:
        distances: list[Any] = [*mixture.pair_separation_bits[each]]
        distances[each] = ""
        rows.append([each + 1, mixture.mean_weight[each], mixture.heaviest_share[each], *distances])
    return Table(f"{label}: latent states", columns, rows)
