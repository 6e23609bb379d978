"""The tables of an evaluation have its figures, each under its name and in the unit that is written
beside it.
"""

from __future__ import annotations

from types import SimpleNamespace as Of
from typing import Any

from vaiom.report.results import headline_tables, tables_of
from vaiom.report.tables import Table
from vaiom.report.verdict import describe_states, notes_of

MINUS, NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"

TABLES = {
    "headline": """
Test, 1,200 events: bits per event and paired gain
predictor | bits/event | gain | 95% interval | blocks won | win-rate | its interval
markov | 3.1500 | -0.0500 | [-0.0600, -0.0400] | 5/6 | 83.3% | [50.0%, 100%]
* model | 3.2000 | . | . | . | . | .
frequency | 3.3000 | +0.1000 | [+0.0900, +0.1100] | 5/6 | 83.3% | [50.0%, 100%]
Test: tails, months and tests
against | low tail | high tail | both tails | months won | by months, 95% | DM p | MCS p
markov | +0.1000 | -0.2000 | none | 2/3 | undefined | 0.031 | 1.00
frequency | +0.1000 | -0.2000 | none | 2/3 | undefined | 0.031 | <0.001
""",
    "all_tests": """
All test splits together: paired gain
against | events | gain | 95% interval | blocks won | win-rate | its interval | by months, 95%
markov | 1,200 | +0.2000 | [+0.1900, +0.2100] | 5/6 | 83.3% | [50.0%, 100%] | undefined
frequency | 1,200 | +0.3000 | [+0.2900, +0.3100] | 5/6 | 83.3% | [50.0%, 100%] | undefined
""",
    "groups": """
Test: bits per event by asset
asset | events | model | frequency | markov
EURUSD | 1,200 | 3.2000 | 3.3000 | 3.1500
Test: gain over each baseline by month of the target
month | events | frequency | markov
2025-01 | 1,200 | +0.1000 | -0.0500
""",
    "seeds": """
Test: seeds together
against | seeds | mean bits | SD over seeds | mean gain | sampling error | 95% interval | seeds won
frequency | 2 | 3.3000 | 0.1414 | -0.0100 | 0.0200 | [-0.0500, +0.0300] | 1/2
""",
    "calibration": """
Test: calibration of the model
what | value
PIT uniform (Kuiper) | p 0.034
largest mean error of a bucket | 3.00%
largest mean error up to an edge | 0.50%
negative tail: forecast, observed | 25.00%, 20.00%
positive tail: forecast, observed | 25.00%, 20.00%
both tails: forecast, observed | 25.00%, 20.00%
Brier score | 0.8750
ranked probability score | 0.0625
sharpness (entropy of the forecasts) | 3.1250 bits
Test: value at risk and expected shortfall
side | level | events | exceeded | Kupiec p | Christoffersen p | both p | shortfall Z | Z p
long | 5% | 600 | 5.25% | 0.70 | none | 0.20 | -0.1000 | <0.0001
""",
    "calibration_by": """
Test: calibration by asset
asset | events | Brier | RPS | entropy | tails forecast | tails observed | uniform p
EURUSD | 600 | 0.8750 | 0.0625 | 3.1250 | 25.0% | 20.0% | 0.50
Test: value at risk and expected shortfall by asset
asset | side | level | events | exceeded | Kupiec p | Christoffersen p | both p | shortfall Z | Z p
EURUSD | long | 5% | 600 | 5.25% | 0.70 | none | 0.20 | -0.1000 | <0.0001
Test: calibration by volatility regime
volatility regime | events | Brier | RPS | entropy | tails forecast | tails observed | uniform p
3 | 600 | 0.8750 | 0.0625 | 3.1250 | 25.0% | 20.0% | 0.50
Test: value at risk and expected shortfall by volatility regime
volatility regime | side | level | events | exceeded | Kupiec p | Christoffersen p | both p | shortfall Z | Z p
3 | long | 5% | 600 | 5.25% | 0.70 | none | 0.20 | -0.1000 | <0.0001
""",
    "joint": """
Test, 1,500 stamps: 0.8000 bits per stamp over independence
against | its bits/stamp | gain | 95% interval
independence | 0.0000 | +0.8000 | [+0.7000, +0.9000]
Test: value at risk of portfolios, and gain in Fissler-Ziegel loss
portfolio | level | stamps | exceeded | Kupiec p | Christoffersen p | over old | 95% interval | over ewma | 95% interval
equal | 95% | 1,400 | 4.75% | 0.60 | none | +0.2500 | [-0.1000, +0.5000] | +0.5000 | undefined
""",
    "states": """
Test: latent states
state | mean weight | heaviest | from 1 | from 2
1 | 75.0% | 90.0% | . | 0.5000
2 | 25.0% | 10.0% | 0.5000 | .
""",
    "horizons": """
Test: return over the next bars
bars | predictor | bits/event | gain | 95% interval | by months, 95% | blocks won
4 | root_of_time | 3.3000 | -0.1000 | undefined | undefined | 5/6
* 4 | model | 3.4000 | . | . | . | .
4 | frequency | 3.5000 | +0.1000 | [+0.0500, +0.1500] | [-0.1000, +0.3000] | 5/6
Test: how horizons agree
bars | events | exact zeros | wider | variance over steps' | realised over it | not fitted
4 | 1,100 | 0.25% | 99.5% | 1.062 | 0.938 | garch_t, lightgbm_lags
""",
}


def blocks(interval: tuple[float, float] | None, wins: tuple[int, int] = (5, 6)) -> Any:
    return Of(
        interval=interval, wins=wins, win_rate=wins[0] / wins[1], win_rate_interval=(0.5, 1.0)
    )


def gain(bits: float, near: tuple[float, float] | None, wide: tuple[float, float] | None) -> Any:
    tails = {
        "negative": Of(gain_bits=0.1),
        "positive": Of(gain_bits=-0.2),
        "both": Of(gain_bits=None),
    }
    return Of(
        num_events=1_200,
        gain_bits=bits,
        asset_months=blocks(near),
        months=blocks(wide, (2, 3)),
        tails=tails,
    )


def against(name: str, bits: float) -> Any:
    return Of(
        baseline=name,
        gain=gain(bits, (bits - 0.01, bits + 0.01), None),
        diebold_mariano=Of(p_value=0.0312),
    )


def scores(group: str) -> Any:
    return Of(
        group=group,
        num_events=600,
        brier=0.875,
        ranked_probability_score=0.0625,
        entropy_bits=3.125,
        tails_predicted=0.25,
        tails_observed=0.2,
        pit_p_value=0.5,
    )


def backtest(group: str) -> Any:
    return Of(
        group=group,
        side="long",
        level=0.05,
        num_events=600,
        exceedance_rate=0.0525,
        kupiec_p=0.7,
        independence_p=None,
        conditional_coverage_p=0.2,
        shortfall_z2=-0.1,
        shortfall_p=0.00002,
    )


def reliability(outcome: str, error: float) -> Any:
    return Of(outcome=outcome, predicted=0.25, observed=0.2, error=error)


def evaluation() -> Any:
    """Small numbers that differ, one of each kind of figure at least."""
    bits = {"model": 3.2, "frequency": 3.3, "markov": 3.15}
    return Of(
        num_events=1_200,
        bits=bits,
        against=[against("frequency", 0.1), against("markov", -0.05)],
        all_tests=[against("frequency", 0.3), against("markov", 0.2)],
        confidence_set=Of(
            p_values={"markov": 1.0, "frequency": 0.0, "model": 0.04},
            included=["markov", "model"],
            size=0.1,
        ),
        seeds={
            "frequency": Of(
                bits={"a": 3.2, "b": 3.4},
                mean_bits=3.3,
                seed_sd_bits=0.1414,
                mean_gain_bits=-0.01,
                sampling_error_bits=0.02,
                average=blocks((-0.05, 0.03)),
                seeds_that_win=1,
            )
        },
        by={
            "asset": [Of(group="EURUSD", num_events=1_200, bits=bits)],
            "month": [Of(group="2025-01", num_events=1_200, bits=bits)],
        },
        calibration=Of(
            overall=scores("all"),
            pit=Of(p_value=0.034),
            buckets=[reliability("1", 0.01), reliability("2", 0.03)],
            cumulative=[reliability("<= 1", 0.005), reliability("<= 2", 0.002)],
            tails=[reliability(side, 0.01) for side in ("negative", "positive", "both")],
        ),
        calibration_by={"asset": [scores("EURUSD")], "vol_regime": [scores("3")]},
        backtests=[backtest("all")],
        backtests_by={"asset": [backtest("EURUSD")], "vol_regime": [backtest("3")]},
        mixture=Of(
            num_events=2_048,
            mean_weight=[0.75, 0.25],
            heaviest_share=[0.9, 0.1],
            effective_states=1.754,
            separation_bits=0.0625,
            pair_separation_bits=[[0.0, 0.5], [0.5, 0.0]],
            persistence=0.95,
            persistence_if_independent=0.82,
        ),
        joint=Of(
            num_stamps=1_500,
            bits=0.8,
            copulas=[Of(against="independence", bits=0.0, gain_bits=0.8, weeks=blocks((0.7, 0.9)))],
            portfolios=[
                Of(
                    portfolio="equal",
                    level=0.95,
                    num_stamps=1_400,
                    exceedance_rate=0.0475,
                    kupiec_p=0.6,
                    independence_p=None,
                    against=[
                        Of(against="old", gain=0.25, weeks=blocks((-0.1, 0.5))),
                        Of(against="ewma", gain=0.5, weeks=blocks(None)),
                    ],
                )
            ],
        ),
        horizons=[
            Of(
                bars=4,
                num_events=1_100,
                zero_share=0.0025,
                bits={"model": 3.4, "frequency": 3.5, "root_of_time": 3.3},
                gains={
                    "frequency": gain(0.1, (0.05, 0.15), (-0.1, 0.3)),
                    "root_of_time": gain(-0.1, None, None),
                },
                wider=0.995,
                variance_of_steps=1.0625,
                variance_realised=0.9375,
                not_fitted=["garch_t", "lightgbm_lags"],
            )
        ],
        caveats=["One month only."],
        bits_alone=3.25,
        zero_share=0.0125,
    )


def shown(tables: list[Table]) -> str:
    """Tables as they are read, in ASCII; strong rows have a star."""
    lines = []
    for table in tables:
        lines += [table.caption, " | ".join(column.name for column in table.columns)]
        for at, row in enumerate(table.formatted()):
            lines.append(
                ("* " if at in table.strong else "") + " | ".join(cell or "." for cell in row)
            )
    return "\n".join(lines).replace(MINUS, "-").replace(NOTHING, "none")


def test_every_table_has_the_figures_of_the_evaluation_under_their_names() -> None:
    found = tables_of(evaluation(), "Test")
    assert {section: shown(tables) for section, tables in found.items()} == {
        section: text.strip() for section, text in TABLES.items()
    }


def test_tables_of_forecasts_have_their_name_in_place_of_the_models() -> None:
    found = tables_of(evaluation(), "Test", "ours")
    for section in ("headline", "groups"):
        assert shown(found[section]) == TABLES[section].strip().replace("model", "ours")


def test_what_an_evaluation_lacks_has_no_table() -> None:
    missing = dict.fromkeys(
        ("all_tests", "seeds", "mixture", "joint", "horizons", "confidence_set")
    )
    less = Of(**{**vars(evaluation()), **missing, "calibration_by": {}})
    found = tables_of(less, "Test")
    optional = ("all_tests", "seeds", "calibration_by", "joint", "states", "horizons")
    assert {section for section, tables in found.items() if not tables} == {*optional}
    assert [row[-1] for row in found["headline"][1].formatted()] == [NOTHING, NOTHING]
    less.joint = evaluation().joint
    less.joint.portfolios = []
    assert len(tables_of(less, "Test")["joint"]) == 1


def test_all_test_splits_together_stand_once_and_last() -> None:
    first, second = evaluation(), evaluation()
    first.all_tests = [against("frequency", 0.9)]
    splits = [Of(evaluation=each, label=label) for each, label in ((first, "H1"), (second, "H2"))]
    contents: Any = Of(splits=splits)
    tables = headline_tables(contents)
    assert [table.caption.split(":")[0].split(",")[0] for table in tables] == [
        "H1",
        "H1",
        "H2",
        "H2",
        "All test splits together",
    ]
    assert shown(tables[-1:]) == TABLES["all_tests"].strip()


def test_notes_say_what_limits_the_figures() -> None:
    zeros = "1.25% of the next returns in this split were exactly zero and are no events."
    zeros = f"Every figure is conditional on a non-zero next return: {zeros}"
    assert notes_of(evaluation()) == [
        "One month only.",
        "The 90% model confidence set, the predictors that no other has beaten: markov, model.",
        "Without the bars of other assets the model has 3.2500 bits (+0.0500).",
        zeros,
    ]
    less = Of(**{**vars(evaluation()), "confidence_set": None, "bits_alone": None, "caveats": []})
    assert notes_of(less) == [zeros]


def test_states_are_described_in_words() -> None:
    assert describe_states(evaluation().mixture) == (
        "1.75 of 2 latent states are in effective use; knowing the state would add 0.0625 bits "
        "per event. "
        "The heaviest state stays from one event of an asset to the next in 95.0% of the cases, "
        "against 82.0% if it "
        "were drawn anew. Measured on 2,048 events; the numbers of states mean nothing across runs."
    )
