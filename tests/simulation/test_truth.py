"""The exact distribution: against enumeration of hidden paths, against integration, and against its
own future.
"""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vaiom.errors import DataError
from vaiom.simulation.oracle import Dynamics, Filter, Oracle, Truth, save_truth, student_mass

DYNAMICS = Dynamics()
TICKS_PER_UNIT = 1000


def stamps(count: int) -> np.ndarray:
    return np.datetime64("2024-01-01", "us") + np.arange(count) * np.timedelta64(1, "h")


def reference_cdf(x: float) -> float:
    """The textbook distribution function of Student's t with four degrees of freedom, at unit
    variance.
    """
    t = x * math.sqrt(2)
    u = 1 + t * t / 4
    return 0.5 + 3 / 8 * t / math.sqrt(u) * (1 - t * t / (12 * u))


def reference_weights(
    ticks: list[int | None], profile: list[float], dynamics: Dynamics
) -> np.ndarray:
    """P(state at the next bar | closes) by adding up every path of hidden states; None is a faulty
    row.
    """
    states = range(len(dynamics.spread))
    start = dynamics.stationary()
    joint = np.zeros(len(dynamics.spread))
    for path in itertools.product(
        states, repeat=len(ticks)
    ):  # states at rows 1, 2, ..., and at the next bar
        probability = start[path[0]]
        for before, after in itertools.pairwise(path):
            probability *= dynamics.transition[before][after]
        variance, last = 1.0, ticks[0]
        for row, state in zip(range(1, len(ticks)), path, strict=False):
            now = ticks[row]
            if now is None:
                continue
            scale = profile[row] * math.sqrt(variance)
            centre = dynamics.pull * math.log(ticks[0] / last) + scale * dynamics.drift[state]
            low, high = (
                (math.log((now + half) / last) - centre) / (scale * dynamics.spread[state])
                for half in (-0.5, 0.5)
            )
            probability *= reference_cdf(high) - reference_cdf(low)
            variance = dynamics.next_variance(variance, math.log(now / last) / profile[row])
            last = now
        joint[path[-1]] += probability
    return joint / joint.sum()


@settings(max_examples=30, deadline=None)
@given(
    moves=st.lists(st.one_of(st.none(), st.integers(-40, 40)), min_size=1, max_size=5),
    profile=st.lists(st.floats(0.002, 0.02), min_size=8, max_size=8),
)
def test_filter_equals_enumeration_of_hidden_paths(
    moves: list[int | None], profile: list[float]
) -> None:
    ticks: list[int | None] = [1000]
    level = 1000
    for move in moves:
        level += move or 0
        ticks.append(None if move is None else level)
    close = np.array([np.nan if tick is None else tick / TICKS_PER_UNIT for tick in ticks])
    truth = Filter(TICKS_PER_UNIT, DYNAMICS).observe(
        stamps(len(close)), close, np.array(profile[: len(close) + 1])
    )
    np.testing.assert_allclose(
        truth.weights[-1], reference_weights(ticks, profile, DYNAMICS), rtol=1e-9
    )


@given(lower=st.floats(-50, 50), width=st.floats(0, 20))
def test_student_mass_equals_the_textbook_formula(lower: float, width: float) -> None:
    got = student_mass(np.array([lower]), np.array([lower + width]))[0]
    assert got == pytest.approx(reference_cdf(lower + width) - reference_cdf(lower), abs=1e-14)


def test_student_mass_keeps_its_digits_in_both_tails() -> None:
    far = np.array([1e3, 1e5, 1e8])
    upper, lower = student_mass(far, np.full(3, np.inf)), student_mass(np.full(3, -np.inf), -far)
    # P(T > t) tends to 3 / t^4, with t = sqrt(2) x.
    np.testing.assert_allclose(upper, 0.75 / far**4, rtol=1e-5)
    np.testing.assert_array_equal(upper, lower)


def test_student_mass_integrates_its_density() -> None:
    x = np.linspace(-1.3, 2.1, 200_001)
    density = math.sqrt(2) * 0.375 * (1 + x**2 / 2) ** -2.5
    got = student_mass(x[:1], x[-1:])[0]
    assert got == pytest.approx(
        float(np.sum((density[1:] + density[:-1]) / 2 * np.diff(x))), rel=1e-8
    )


@settings(max_examples=50, deadline=None)
@given(price=st.integers(1, 5_000), scale=st.floats(1e-5, 0.3), weight=st.floats(0, 1))
def test_mass_is_a_distribution_over_whole_ticks(price: int, scale: float, weight: float) -> None:
    weights = np.array([[weight, (1 - weight) / 2, (1 - weight) / 2]])
    truth = Truth(
        timestamps=stamps(1),
        ticks=np.array([price]),
        pull=np.array([0.001]),
        scale=np.array([scale]),
        weights=weights,
        spread=np.array(DYNAMICS.spread),
        drift=np.array(DYNAMICS.drift),
    )
    rows = np.array([0])
    ticks = np.arange(1.0, 3.0 * price + 2.0)[None]
    each = truth.mass(rows, ticks - 1, ticks)[0]
    beyond = truth.mass(rows, ticks[:, -1:], np.array([[np.inf]]))[0, 0]
    assert (each >= 0).all()
    assert each.sum() + beyond == pytest.approx(1.0, abs=1e-12)
    below = truth.mass(rows, np.full_like(ticks, -np.inf), ticks)[0]
    np.testing.assert_allclose(below, np.cumsum(each), atol=1e-12)


def test_later_closes_never_change_an_earlier_row() -> None:
    rng = np.random.default_rng(5)
    close = np.round(np.exp(np.cumsum(0.001 * rng.standard_normal(300))), 3)
    profile = rng.uniform(0.0005, 0.002, 301)
    whole = Filter(TICKS_PER_UNIT, DYNAMICS).observe(stamps(300), close, profile)
    changed = close.copy()
    changed[200:] = close[200:][::-1] * 1.01
    changed[250] = np.nan
    other = Filter(TICKS_PER_UNIT, DYNAMICS).observe(stamps(300), changed, profile)
    for name in ("ticks", "pull", "scale", "weights"):
        np.testing.assert_array_equal(getattr(whole, name)[:200], getattr(other, name)[:200])
    assert not np.array_equal(whole.weights[200:], other.weights[200:])


@pytest.mark.parametrize(
    "change",
    [
        {"drift": (0.0,)},
        {"spread": (1.0, 0.0, 1.0)},
        {"transition": ((0.5, 0.5, 0.1), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))},
        {"shock_weight": 0.5, "memory": 0.5},
        {"pull": -0.1},
        {"variance_bounds": (2.0, 3.0)},
    ],
)
def test_dynamics_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Dynamics(**change)  # type: ignore[arg-type]


def test_stationary_shares_stay_where_they_are() -> None:
    shares = DYNAMICS.stationary()
    np.testing.assert_allclose(shares @ np.array(DYNAMICS.transition), shares, atol=1e-14)
    assert shares.sum() == pytest.approx(1.0)


def test_a_missing_or_damaged_truth_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no known distribution"):
        Oracle.load(tmp_path)
    path = tmp_path / "truth" / "XAUSIM.npz"
    save_truth(
        path,
        [Filter(TICKS_PER_UNIT, DYNAMICS).observe(stamps(9), np.full(9, 1.5), np.full(10, 0.001))],
    )
    whole = path.read_bytes()
    assert len(Oracle.load(tmp_path).truths["XAUSIM"].ticks) == 9
    other = io.BytesIO()
    np.savez(other, ticks=np.arange(3))
    array = io.BytesIO()
    np.save(array, np.arange(3))
    for content in (b"", b"not a zip", whole[:-50], other.getvalue(), array.getvalue()):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"XAUSIM\.npz"):
            Oracle.load(tmp_path)


def test_a_changed_byte_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "XAUSIM.npz"
    rng = np.random.default_rng(1)
    close = np.round(np.exp(np.cumsum(0.001 * rng.standard_normal(9))), 3)
    truth = Filter(TICKS_PER_UNIT, DYNAMICS).observe(stamps(9), close, np.full(10, 0.001))
    save_truth(path, [truth])
    whole = path.read_bytes()
    noticed = 0
    positions = range(0, len(whole), 3)
    for position in positions:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 255]) + whole[position + 1 :])
        try:
            read = Truth.load(path)
        except DataError:
            noticed += 1
            continue
        for name in truth.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(read, name), getattr(truth, name))
    assert noticed > len(positions) / 2
