"""The trees: what they see, what is held out and checked, and the same answer twice."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fits import FEW_TREES, small

from vaiom.baselines.base import clean_returns
from vaiom.baselines.history import (
    lagged,
    recent_mean,
    rolling_max,
    rolling_mean,
    seasonal_forecast,
)
from vaiom.baselines.lightgbm import FEATURES, LightGBM, TreeConfig, split_holdout
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError
from vaiom.evaluation.scores import event_bits

ROWS = np.arange(700, 900)
DISC, CONT, HYBRID, LAGS = (FEATURES[f"lightgbm{kind}"] for kind in ("_disc", "_cont", "", "_lags"))


def test_the_papers_three_field_sets(corpus: Corpus) -> None:
    assert [len(each.fields) for each in (DISC, CONT, HYBRID)] == [15, 25, 28]
    assert [each.num_categories for each in (DISC, CONT, HYBRID)] == [15, 0, 3]
    np.testing.assert_array_equal(DISC.of(corpus, ROWS), corpus.disc[ROWS])
    np.testing.assert_array_equal(HYBRID.of(corpus, ROWS)[:, :25], CONT.of(corpus, ROWS))
    np.testing.assert_array_equal(HYBRID.of(corpus, ROWS)[:, 25:], corpus.meta[ROWS])


@given(
    count=st.integers(2, 500),
    cap=st.integers(2, 600),
    share=st.floats(0.05, 0.9),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_the_holdout_is_a_seeded_part_of_the_drawn_events(
    count: int, cap: int, share: float, seed: int
) -> None:
    rows = np.arange(0, 3 * count, 3)
    config = TreeConfig(max_events=cap, holdout_share=share, seed=seed)
    moments = np.random.default_rng(seed).permutation(count).astype("datetime64[h]")
    fitted, held_out = split_holdout(rows, moments, config)
    together = np.concatenate([fitted, held_out])
    assert len(together) == min(count, cap) == len(set(together.tolist()))
    assert set(together.tolist()) <= set(rows.tolist())
    assert len(held_out) == round(share * len(together))
    for part, again in zip((fitted, held_out), split_holdout(rows, moments, config), strict=True):
        np.testing.assert_array_equal(part, again)
        assert (np.diff(part) > 0).all()
    by_time = dataclasses.replace(config, chronological=True)
    earlier, later = (moments[part // 3] for part in split_holdout(rows, moments, by_time))
    assert len(later) == len(held_out)
    assert not len(later) or not len(earlier) or earlier.max() < later.min()


def test_the_same_seed_gives_the_same_trees_and_progress_is_told(corpus: Corpus) -> None:
    train, seen = corpus.endpoints("train"), []
    one = LightGBM("lightgbm", FEW_TREES, lambda *step: seen.append(step)).fit(corpus, train)
    two = small("lightgbm").fit(corpus, train)
    other = small("lightgbm", dataclasses.replace(FEW_TREES, seed=18)).fit(corpus, train)
    rows = corpus.endpoints("validation")
    np.testing.assert_array_equal(one.predict_proba(corpus, rows), two.predict_proba(corpus, rows))
    assert not np.array_equal(one.predict_proba(corpus, rows), other.predict_proba(corpus, rows))
    assert [step[:2] for step in seen] == [
        (done, FEW_TREES.rounds) for done in range(1, FEW_TREES.rounds + 1)
    ]


@pytest.mark.parametrize("name", ["lightgbm", "lightgbm_disc", "lightgbm_cont"])
def test_metadata_and_buckets_are_categories_to_the_trees(
    corpus: Corpus, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The text of a booster lists the values of a category, a:b:c, and the range of a number,
    [low:high].
    """
    train = corpus.endpoints("train", 16)
    booster = LightGBM(name, dataclasses.replace(FEW_TREES, rounds=1)).fit(corpus, train).booster_
    assert capfd.readouterr() == ("", "")
    [kinds] = re.findall("^feature_infos=(.*)$", booster.model_to_string(), re.MULTILINE)
    is_range = [kind.startswith("[") for kind in kinds.split(" ")]
    first_category = len(is_range) - FEATURES[name].num_categories
    assert not any(is_range[first_category:])
    assert sum(is_range) > 5 or name == "lightgbm_disc"


def test_the_holdout_score_is_that_of_the_kept_trees(corpus: Corpus) -> None:
    """Trees that overfit at once: what is kept are the rounds up to the best one."""
    greedy = TreeConfig(rounds=60, learning_rate=0.3, min_child_samples=60, patience=5)
    train = corpus.endpoints("train")
    model = LightGBM("lightgbm", greedy)
    model.fit(corpus, train)
    _, held_out = split_holdout(train, corpus.target_timestamps[train], greedy)
    bits = event_bits(model.predict_proba(corpus, held_out), corpus.target_return[held_out]).mean()
    assert model.holdout_bits_ == pytest.approx(bits, abs=1e-6)
    assert model.booster_.current_iteration() < 60 - greedy.patience


def test_of_sums_that_overlap_the_latest_are_held_out(corpus: Corpus) -> None:
    """A random event shares bars with its neighbours: trees that know those would not stop."""
    view = corpus.with_target(8)
    train = view.endpoints("train")
    model = small("lightgbm").fit(view, train)
    by_time = dataclasses.replace(FEW_TREES, chronological=True)
    _, held_out = split_holdout(train, view.target_timestamps[train], by_time)
    bits = event_bits(model.predict_proba(view, held_out), view.target_return[held_out]).mean()
    assert model.holdout_bits_ == pytest.approx(bits, abs=1e-6)


def test_the_holdout_check_refuses_trees_that_are_worse_than_frequency(corpus: Corpus) -> None:
    train = corpus.endpoints("train")
    wild = TreeConfig(rounds=1, learning_rate=20.0, min_child_samples=2, l2=0.0)
    with pytest.raises(DataError, match="worse than Frequency"):
        LightGBM("lightgbm", wild).fit(corpus, train)
    with pytest.raises(DataError, match="too few events"):
        LightGBM("lightgbm").fit(corpus, train[:1])


def series(seed: int, size: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(size) < 0.2, np.nan, rng.normal(size=size))


def mean_of(values: list[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else np.nan


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 50), window=st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_windows_against_plain_loops(seed: int, size: int, window: int) -> None:
    values = series(seed, size)
    slots, asked = np.random.default_rng(seed).integers(0, 4, (2, size))
    for at in range(size):
        part = values[max(0, at - window + 1) : at + 1]
        np.testing.assert_allclose(
            rolling_mean(values, window)[at], mean_of(part.tolist()), atol=1e-12
        )
        largest = max((value for value in part if np.isfinite(value)), default=np.nan)
        np.testing.assert_array_equal(rolling_max(values, window)[at], largest)
        np.testing.assert_array_equal(
            lagged(values, window)[at], values[at - window] if at >= window else np.nan
        )
        of_slot = [values[row] for row in range(at + 1) if slots[row] == asked[at]]
        np.testing.assert_allclose(
            recent_mean(values, slots, asked, window)[at], mean_of(of_slot[-window:]), atol=1e-12
        )


def test_a_daily_season_is_forecast_exactly() -> None:
    day = np.array([1.0, 4.0, 2.0])
    slots = np.tile(np.arange(3), 40)
    size = day[slots] * np.repeat([1.0, 1.0, 1.0, 1.0], 30)
    np.testing.assert_allclose(
        seasonal_forecast(size, slots, (slots + 1) % 3, 5)[3:], day[(slots + 1) % 3][3:]
    )


def test_lag_features_of_a_row_by_hand(corpus: Corpus) -> None:
    second = list(corpus.asset_slices.values())[1]
    row = second.start + 3_000
    got = dict(zip(LAGS.fields, LAGS.of(corpus, np.array([row]))[0], strict=True))
    returns, scale = clean_returns(corpus, slice(second.start, row + 1)), corpus.sigma20[row]
    stamps = corpus.timestamps[second.start : row + 1].astype("datetime64[h]")
    next_hour = (stamps[-1] + 1).item()
    hours = {
        "day": [stamp.item().hour for stamp in stamps],
        "week": [24 * stamp.item().weekday() + stamp.item().hour for stamp in stamps],
    }
    targets = {"day": next_hour.hour, "week": 24 * next_hour.weekday() + next_hour.hour}
    sizes = np.abs(returns)
    relative = np.where(
        np.isfinite(returns), np.abs(corpus.columns["ret_z"][second.start : row + 1]), np.nan
    )
    plain: dict[str, float] = {}
    for name in LAGS.fields:
        words = name.split("_")
        bars = int(words[-1]) if words[-1].isdigit() else 0
        if name.startswith("return_lag_"):
            plain[name] = returns[-1 - bars] / scale
        elif name.startswith("abs_return_mean_"):
            plain[name] = mean_of(sizes[-bars:].tolist()) / scale
        elif name.startswith("return_mean_"):
            plain[name] = mean_of(returns[-bars:].tolist()) / scale
        elif name == "abs_return_max_24":
            plain[name] = np.nanmax(sizes[-24:]) / scale
        elif name.startswith(("relative_log_vol_lag_", "gap_z_lag_")):
            plain[name] = corpus.columns[name.partition("_lag_")[0]][row - bars]
        elif name.startswith("seconds_since_lag_"):
            plain[name] = (corpus.timestamps[row] - corpus.timestamps[row - bars]).astype(int)
        elif name.startswith("next_slot_of_"):
            values = (relative if words[-1] == "z" else sizes * (1 / scale)).tolist()
            own = [
                v
                for v, hour in zip(values, hours[words[3]], strict=True)
                if hour == targets[words[3]]
            ]
            plain[name] = mean_of(own[-(bars or 60) :])
    assert len(plain) == 10 + 8 + 4 + 1 + 6 + 3 + 4 + 8 + 2
    assert {name: got[name] for name in plain} == pytest.approx(
        plain, rel=1e-4, abs=1e-6, nan_ok=True
    )
    moment = stamps[-1].item()
    assert (got["slot_of_day"], got["slot_of_week"]) == (
        moment.hour,
        24 * moment.weekday() + moment.hour,
    )
    assert got["asset_id"] == 2


def test_an_assets_first_rows_know_nothing_of_the_asset_before(corpus: Corpus) -> None:
    second = list(corpus.asset_slices.values())[1]
    got = dict(zip(LAGS.fields, LAGS.of(corpus, np.array([second.start + 1]))[0], strict=True))
    assert np.isnan(
        [got["return_lag_2"], got["relative_log_vol_lag_3"], got["seconds_since_lag_6"]]
    ).all()
