"""What live streams hold, compared."""

from __future__ import annotations

import numpy as np

from vaiom.forecast.stream import OnlineForecaster


def assert_same_streams(ours: OnlineForecaster, theirs: OnlineForecaster) -> None:
    """To the bit: the rows of each asset's window, its recursions, and how many bars it took."""
    assert ours.streams.keys() == theirs.streams.keys()
    for symbol, other in theirs.streams.items():
        stream = ours.streams[symbol]
        assert (stream.num_bars, stream.last) == (other.num_bars, other.last)
        assert stream.recursion.to_json() == other.recursion.to_json()
        if theirs.ready(symbol):
            columns = ours.window(symbol).columns
            for name, column in theirs.window(symbol).columns.items():
                np.testing.assert_array_equal(columns[name], column, err_msg=f"{symbol} {name}")
