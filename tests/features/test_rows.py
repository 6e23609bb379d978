"""A live bar gives the bits of the history, and only what a model reads is computed."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from numpy.testing import assert_array_equal

from corpus.full_bars import full_bars
from strategies import random_bars
from vaiom.errors import DataError
from vaiom.features.fields import CROSS_FIELDS, EXTRA_FIELDS
from vaiom.features.quantities import BarArrays
from vaiom.features.rows import BarFeatures, bars_of

EDGES = {
    "return": np.array([-np.inf, -1, 0, 1, np.inf]),
    "gap": np.array([-np.inf, 0, np.inf]),
    "vol_regime": np.array([-np.inf, 0, np.inf]),
}


@pytest.mark.parametrize("fields", [("ret_z", *EXTRA_FIELDS), ("ret_z", "log_wait")])
@settings(max_examples=6)
@given(full_bars(max_rows=80))
def test_one_live_bar_as_numbers_gives_the_bits_of_the_history(
    fields: tuple[str, ...], bars: pl.DataFrame
) -> None:
    features = BarFeatures(fields, EDGES, "1h")
    every = bars_of(bars)
    whole, end = features(every)
    state = features.start()
    last = None
    for row in range(len(bars)):
        bar = BarArrays._make(column[row] for column in every)
        with np.errstate(invalid="ignore", divide="ignore"):
            live, state = features(bar, state, last)
        last = int(bar.seconds)
        assert live.keys() == whole.keys()
        for name, values in live.items():
            assert_array_equal(values, whole[name][[row]], name, strict=True)
    assert state.to_json() == end.to_json()


@pytest.mark.parametrize(
    ("names", "needs_means", "reads_others"),
    [
        (("ret_z",), False, False),
        (("ret_z", "log_wait"), False, False),
        (("cross_abs", "ret_z"), False, True),
        (("range_z", "usd_factor"), True, True),
    ],
)
def test_only_what_a_models_fields_need_is_computed(
    names: tuple[str, ...], needs_means: bool, reads_others: bool
) -> None:
    features = BarFeatures(names, EDGES, "1h")
    assert (features.needs_means, features.reads_others) == (needs_means, reads_others)
    assert features.extra_fields == tuple(name for name in EXTRA_FIELDS if name in names)
    assert features.step == 3600
    columns, state = features(bars_of(random_bars(50)))
    assert (state.slots is not None) == needs_means == ("range_z" in columns)
    assert ("log_wait" in columns) == ("log_wait" in names)
    assert not set(CROSS_FIELDS) & set(columns)


@pytest.mark.parametrize(
    "wrong",
    [
        datetime(1969, 12, 31, 23, 59, 59),
        datetime(2106, 2, 7, 6, 28, 16),
        datetime(2024, 1, 1, 0, 0, 0, 1),
    ],
)
def test_a_stamp_that_cannot_be_stored_is_named(wrong: datetime) -> None:
    bars = random_bars(2)
    for good in (datetime(1970, 1, 1), datetime(2106, 2, 7, 6, 28, 15)):
        assert len(bars_of(bars.with_columns(Datetime=pl.lit(good))).seconds) == 2
    spoiled = bars.with_columns(Datetime=pl.Series([bars["Datetime"][0], wrong]))
    with pytest.raises(DataError, match=rf"EURUSD, row 2[\s\S]*{wrong}"):
        bars_of(spoiled, "EURUSD")
