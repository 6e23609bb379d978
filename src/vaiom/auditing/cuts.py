"""Where an audit cuts the bars, and what it does to those after a cut.

Bars enter. Moments leave by what is there, the bars around a moment, and bars that are damaged
after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator

from vaiom.auditing.pipeline import Array, Bars

if TYPE_CHECKING:
    import polars as pl

MIRRORED = "mirrored"
DAMAGES = ("scrambled", "deleted", "shifted", MIRRORED)
"""What may be done to the bars after a cut: to prices and volumes, to all of it, to the clock."""
MAX_SHIFT_HOURS = 1_000
NOISE = 0.1
"""Log scale of what scrambled prices are multiplied with."""
MIRROR_SCALE = 8.0
"""How much larger mirrored moves are, so that a rise is a fall and a small move a large one."""
LEARNING_ROWS = 64
"""Bars before the first whole window of a short cut, for recursions to settle."""
FUTURE_ROWS = 48
"""Bars after a short cut."""

DAY = np.timedelta64(1, "D")
LONG_WEEKEND = np.timedelta64(84, "h")
"""A longer closure is a holiday."""
HOURS_OF_WEEK = 168
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
EPOCH_WEEKDAY = 3
"""Unix time begins on a Thursday."""


def damage_after(
    bars: Bars, cut: np.datetime64, how: str, rng: Generator
) -> dict[str, pl.DataFrame]:
    """The same bars up to and including a cut, and damaged ones after it.

    `how` is one of `DAMAGES`: prices and volumes in another order and with noise, no bars at all,
    bars that are stamped up to some weeks later, or prices mirrored at the last close before the
    cut, with larger moves: every sign is then another, where chance would leave half of them.
    """
    damaged = {}
    for symbol, frame in bars.items():
        later = frame["Datetime"].to_numpy() > cut
        known = frame.filter(~later)
        tail = frame.filter(later)
        tail = _mirrored(known, tail) if how == MIRRORED else _damage(tail, how, rng)
        damaged[symbol] = known.vstack(tail)
    return damaged


def _damage(tail: pl.DataFrame, how: str, rng: Generator) -> pl.DataFrame:
    """Bars in another order with noise, later by some hours, or none at all."""
    import polars as pl

    from vaiom.market.folder import NUMBER_COLUMNS

    if how == "scrambled":
        # The noise matters where a single bar is left to reorder.
        noise = pl.Series(rng.lognormal(0, NOISE, len(tail)))
        order = rng.permutation(len(tail))
        return tail.with_columns(pl.col(NUMBER_COLUMNS).gather(order) * noise)
    if how == "shifted":
        late = timedelta(hours=int(rng.integers(1, MAX_SHIFT_HOURS)))
        return tail.with_columns(tail["Datetime"] + late)
    return tail.clear()


def _mirrored(known: pl.DataFrame, tail: pl.DataFrame) -> pl.DataFrame:
    """Later bars whose moves go the other way, `MIRROR_SCALE` times as far."""
    import polars as pl

    closes = pl.concat([known["Close"].reverse(), tail["Close"]]).drop_nulls()
    if not len(closes):
        return tail
    last_close = pl.lit(closes[0])

    def mirror(name: str) -> pl.Expr:
        return last_close * (last_close / pl.col(name)).pow(MIRROR_SCALE)

    return tail.with_columns(
        Open=mirror("Open"),
        High=mirror("Low"),
        Low=mirror("High"),
        Close=mirror("Close"),
        Volume=pl.col("Volume") * MIRROR_SCALE,
    )


def bars_around(bars: Bars, cut: np.datetime64, context: int) -> dict[str, pl.DataFrame]:
    """The bars near a cut of each asset that has begun: a few windows before, and some after."""
    near = {}
    for symbol, frame in bars.items():
        known = int(np.searchsorted(frame["Datetime"].to_numpy(), cut, side="right"))
        if known:
            # Recursions settle before the first whole window.
            first = max(0, known - context - LEARNING_ROWS)
            near[symbol] = frame[first : known + FUTURE_ROWS]
    return near


def rare_moments(bars: Bars) -> dict[str, Array]:
    """Moments where a leak of few rows would hide, by what is there.

    Every hour of the week and every month of all assets; of each asset its missing bars, week ends,
    holidays, start and end. Nothing after the last bar but one, where nothing is left to damage.
    """
    moments: dict[str, list[Array]] = {}
    for symbol, frame in bars.items():
        stamps = frame["Datetime"].to_numpy()
        if len(stamps) < FUTURE_ROWS:
            continue
        for kind, places in _moments_of_asset(frame).items():
            moments[f"{symbol}, {kind}"] = [places]
        hours = stamps.astype("datetime64[h]").astype(np.int64) % HOURS_OF_WEEK
        for hour in np.unique(hours):
            own = moments.setdefault(f"hour {hour} of the week", [])
            own.append(stamps[hours == hour])
        months = stamps.astype("datetime64[M]")
        for month in np.unique(months):
            own = moments.setdefault(f"in {month}", [])
            own.append(stamps[months == month])
    end = max(frame["Datetime"].to_numpy()[-1] for frame in bars.values())
    found = {}
    for kind, parts in moments.items():
        places = np.unique(np.concatenate(parts))
        places = places[places < end]
        if len(places):
            found[kind] = places
    return found


def calendar_moments(bars: Bars) -> dict[str, Array]:
    """Moments at each hour of each weekday of each week of a month, and at each day of the year.

    A leak may live in the hour of a release, such as the first Friday of each month at 13:00, or on
    one date. A week of a month is seven of its days: the first has the first of each weekday.
    """
    stamps = np.unique(np.concatenate([frame["Datetime"].to_numpy() for frame in bars.values()]))
    stamps = stamps[:-1]  # nothing is left to damage after the last
    days = stamps.astype("datetime64[D]")
    months = stamps.astype("datetime64[M]")
    hour = (stamps.astype("datetime64[h]") - days).astype(np.int64)
    weekday = (days.astype(np.int64) + EPOCH_WEEKDAY) % len(WEEKDAYS)
    month = months.astype(np.int64) % 12 + 1
    day = (days - months).astype(np.int64) + 1
    week = (day - 1) // len(WEEKDAYS) + 1
    found = {}
    for key, places in _grouped(stamps, week, weekday, hour):
        at_week, at_weekday, at_hour = key
        name = f"{WEEKDAYS[at_weekday]} {at_hour:02}:00 in week {at_week} of a month"
        found[name] = places
    for key, places in _grouped(stamps, month, day):
        at_month, at_day = key
        found[f"on {at_month:02}-{at_day:02}"] = places
    return found


def _grouped(stamps: Array, *keys: Array) -> Iterator[tuple[list[int], Array]]:
    """The stamps with each combination of keys that there is."""
    table = np.stack(keys, axis=1)
    order = np.lexsort(keys[::-1])
    changes = np.flatnonzero((np.diff(table[order], axis=0) != 0).any(axis=1)) + 1
    for places in np.split(order, changes):
        if len(places):
            yield table[places[0]].tolist(), stamps[places]


def _moments_of_asset(frame: pl.DataFrame) -> dict[str, Array]:
    """Moments at gaps, closures and ends of one asset's bars.

    A wait between bars that is longer than usual is a missing bar up to a day, a week end up to a
    long one, and a holiday beyond that.
    """
    from vaiom.market.folder import PRICE_COLUMNS

    stamps = frame["Datetime"].to_numpy()
    waits = np.diff(stamps)
    step = np.median(waits)
    last = stamps[:-1]
    first = stamps[1:]
    gap = (waits > step) & (waits <= DAY)
    weekend = (waits > DAY) & (waits <= LONG_WEEKEND)
    holiday = waits > LONG_WEEKEND
    priced = np.isfinite(frame.select(PRICE_COLUMNS).to_numpy()).all(axis=1)
    middle = FUTURE_ROWS // 2
    return {
        "a bar without prices": stamps[~priced],
        "before a missing bar": last[gap],
        "at a missing bar": last[gap] + step,
        "a week's last bar": last[weekend],
        "a week's first bar": first[weekend],
        "before a holiday": last[holiday],
        "after a holiday": first[holiday],
        "the asset's start": stamps[middle : middle + 1],
        "the asset's end": stamps[-2:-1],
    }
