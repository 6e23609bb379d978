"""The risks of a portfolio are figures of its draws, with standard errors."""

from __future__ import annotations

import json
import math
import pickle
from copy import copy, deepcopy
from dataclasses import asdict

import numpy as np
import pytest

from vaiom.distribution.portfolio import Estimate, Portfolio
from vaiom.errors import ConfigError

PROFITS = np.random.default_rng(12).standard_t(3, (1_000, 3)) * [1.0, -2.0, 0.0]
TOTAL = PROFITS.sum(axis=1)
BOOK = Portfolio(positions={"A": 10.0, "B": -20.0, "C": 0.0}, profits=PROFITS, notes=("few bars",))


@pytest.mark.parametrize("q", [0.0, 0.0005, 0.3, 0.9999, 1.0])
def test_a_quantile_and_its_standard_error(q: float) -> None:
    error = math.sqrt(q * (1 - q) / 1_000)
    low, high = np.quantile(TOTAL, np.clip([q - error, q + error], 0, 1))
    found = BOOK.quantile(q)
    assert found == pytest.approx(np.quantile(TOTAL, q))
    assert found.standard_error == pytest.approx((high - low) / 2)


@pytest.mark.parametrize(("level", "count"), [(0.95, 50), (0.99, 10), (0.999, 1)])
def test_the_risks_are_those_of_the_worst_draws(level: float, count: int) -> None:
    limit = BOOK.value_at_risk(level)
    quantile = BOOK.quantile(1 - level)
    assert (limit, limit.standard_error) == (-quantile, quantile.standard_error)
    losses = -np.sort(TOTAL)[:count]
    shortfall = BOOK.expected_shortfall(level)
    assert shortfall == pytest.approx(losses.mean())
    variance = losses.var() + level * (losses.mean() - losses.min()) ** 2
    assert shortfall.standard_error == pytest.approx(math.sqrt(variance / count))


def test_what_the_draws_cannot_say_is_refused() -> None:
    for level in (0.0, 1.0, -0.1, 0.9995):
        for figure in (BOOK.value_at_risk, BOOK.expected_shortfall, BOOK.contributions):
            with pytest.raises(ConfigError, match="risk level"):
                figure(level)
    for wrong in (-0.01, 1.01):
        with pytest.raises(ConfigError, match="quantile's level"):
            BOOK.quantile(wrong)


def test_a_figure_from_draws_keeps_its_error_wherever_it_goes() -> None:
    risk = BOOK.value_at_risk(0.95)
    pickled = [pickle.loads(pickle.dumps(risk, protocol)) for protocol in range(6)]
    for moved in (copy(risk), deepcopy(risk), *pickled):
        assert isinstance(moved, Estimate)
        assert (moved, moved.standard_error) == (risk, risk.standard_error)


def test_contributions_are_means_of_the_draws_near_the_limit_and_beyond_it() -> None:
    order = np.argsort(TOTAL)
    near = -PROFITS[order[45:56]].mean(axis=0)  # a tenth of the 50 worst on both sides
    limits = near * BOOK.value_at_risk(0.95) / near.sum()
    shortfalls = -PROFITS[order[:50]].mean(axis=0)
    parts = BOOK.contributions(0.95)
    for number, (symbol, amount) in enumerate(BOOK.positions.items()):
        unit = amount or math.inf
        wanted = {
            "amount": amount,
            "value_at_risk": limits[number],
            "expected_shortfall": shortfalls[number],
            "marginal_value_at_risk": limits[number] / unit,
            "marginal_expected_shortfall": shortfalls[number] / unit,
        }
        assert asdict(parts[symbol]) == pytest.approx(wanted)
    nothing = Portfolio(positions={"A": 0.0}, profits=np.zeros((100, 1))).contributions(0.9)["A"]
    assert set(asdict(nothing).values()) == {0.0}


def test_everything_as_json() -> None:
    limit, shortfall = BOOK.value_at_risk(0.99), BOOK.expected_shortfall(0.99)
    parts = BOOK.contributions(0.99)
    caution = f"has a standard error of {shortfall.standard_error / shortfall:.2%}"
    assert json.loads(json.dumps(BOOK.to_dict(), allow_nan=False)) == {
        "level": 0.99,
        "value_at_risk": limit,
        "expected_shortfall": shortfall,
        "standard_errors": {
            "value_at_risk": limit.standard_error,
            "expected_shortfall": shortfall.standard_error,
        },
        "quantiles": {str(q): BOOK.quantile(q) for q in (0.01, 0.05, 0.5, 0.95, 0.99)},
        "contributions": {symbol: asdict(each) for symbol, each in parts.items()},
        "notes": ["few bars", f"the expected shortfall of 1,000 draws {caution}"],
    }
    assert [BOOK.value_at_risk(), BOOK.expected_shortfall()] == [limit, shortfall]
    assert BOOK.contributions() == parts
    few = Portfolio(positions={"A": 1.0}, profits=np.array([[-2.0], [1.0]]))
    assert repr(few).startswith("<Portfolio of A: 99% value at risk 1.97 +- ")


def test_the_plot_has_a_line_for_each_risk() -> None:
    figure = pytest.importorskip("matplotlib.figure")
    ax = BOOK.plot(figure.Figure().subplots())
    assert ax.get_title() == "A, B, C; lines at 99% VaR and ES"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("profit", "of 1,000 draws")
    lines = {line.get_linestyle(): line.get_xdata()[0] for line in ax.lines}
    assert lines == {"-": -BOOK.value_at_risk(), ":": -BOOK.expected_shortfall()}
    counts = [bar.get_height() for bar in ax.patches]
    assert (len(counts), sum(counts)) == (200, 998)  # of a thousand, one beyond each end
