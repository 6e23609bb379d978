"""A ledger of live forecasts, recorded before their bars, and the e-value of their gain over the
baseline.

Enters: forecasts, their outcomes and removals of bars. Leaves: a JSON line of each, with the
SHA-256 of all bytes before it, so that no entry can be changed once a later hash is published. A
model that, mixed with a little of the baseline, is no better reaches an e-value above 20 with
probability at most 1/20, however often one looks (Choe and Ramdas, "Comparing Sequential
Forecasters").
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.codec import from_json, to_json
from vaiom.distribution.returns import ReturnDistribution
from vaiom.errors import DataError
from vaiom.files import ensure_folder, flush, hold_folder
from vaiom.forecast.bars import moment_of, seconds_of, utc_now

HEDGE = 1 / 64
"""Share of the baseline in the tested mixture, which bounds its loss to six bits on any bar."""
STAKES = 0.9 * 0.5 ** np.arange(8)
"""Fractions of the wealth that are staked in parallel."""
MAX_LOG_WEALTH = 690.0
"""Larger wealth is no number that JSON can hold."""
SHOWN_BYTES = 80
"""How much of a wrong line an error shows."""
BEGINNING = b'{"time": "'
"""Start of every line. A torn line has it too, or zeros where a power cut lost a block."""


@dataclass(frozen=True, kw_only=True)
class Commitment:
    """A forecast, when it was made."""

    symbol: str
    as_of: datetime
    model: str
    """SHA-256 of the model's tensors."""
    sigma: float
    probs: list[float]
    missing_assets: list[str]
    """Assets that the model reads and whose bars were missing."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.sigma + sum(self.probs)):
            raise ValueError("a forecast has finite numbers")


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """The bar that followed."""

    symbol: str
    as_of: datetime
    """Time of the forecast."""
    target_time: datetime
    model_bits: float | None
    """None if the bar is not scored."""
    frequency_bits: float | None

    def __post_init__(self) -> None:
        if not all(0 <= (bits or 0) < math.inf for bits in (self.model_bits, self.frequency_bits)):
            raise ValueError("bits are finite and not negative")


@dataclass(frozen=True, kw_only=True)
class Removal:
    """The bars of an asset after a moment were wrong and are gone, with what they settled."""

    symbol: str
    after: datetime

    def covers(self, symbol: str, stamp: datetime) -> bool:
        """Whether the bar of this stamp was removed."""
        return symbol == self.symbol and stamp > self.after


Entry = Commitment | Settlement | Removal
_KINDS: dict[str, type[Entry]] = {"forecast": Commitment, "settled": Settlement, "removed": Removal}


class _Evidence:
    """Which outcomes count, and the e-value of their gains."""

    def __init__(self) -> None:
        self._settled: dict[tuple[str, datetime], tuple[int, float]] = {}
        """Stamp of the bar and gain, NaN if it is not scored, by symbol and time of the forecast:
        the last outcome, as a wrong bar may have been removed and come again.
        """
        self._hindsight: set[tuple[str, datetime]] = set()
        """Forecasts made again after their bar was known, because bars before it had been wrong."""
        self._known: tuple[int, float | None] = 0, None
        """The e-value at a size of the file."""

    def take(self, entry: Entry) -> None:
        """Count the next entry of the ledger."""
        if isinstance(entry, Settlement):
            key = entry.symbol, entry.as_of
            self._settled.pop(key, None)
            if key not in self._hindsight:
                gain = math.nan
                if entry.model_bits is not None and entry.frequency_bits is not None:
                    gain = float(_gain(entry.model_bits, entry.frequency_bits))
                self._settled[key] = seconds_of(entry.target_time), gain
        elif isinstance(entry, Removal):
            for key, (stamp, _) in list(self._settled.items()):
                if entry.covers(key[0], moment_of(stamp)):
                    del self._settled[key]
                    if entry.covers(*key):
                        self._hindsight.add(key)

    def e_value(self, size: int) -> float | None:
        """The e-value at a size of the file; None without a scored outcome."""
        known_size, value = self._known
        if size != known_size:
            settled = np.array([*self._settled.values()])  # at once: another thread adds to them
            scored = settled[~np.isnan(settled[:, 1])] if len(settled) else settled
            value = _wealth(*scored.T) if len(scored) else None
            self._known = size, value
        return value


class ForecastLedger:
    """An open ledger; a line is on disk when a method returns."""

    def __init__(self, file: Path, model: str, clock: Callable[[], datetime] = utc_now) -> None:
        """Open or make the file for the forecasts of a model (its hash), and hold it against other
        processes.
        """
        self.file = file
        self.model = model
        self.clock = clock
        self._last: dict[str, Entry] = {}
        """The last entry by symbol."""
        self._evidence = _Evidence()
        self._digest = hashlib.sha256()
        self._size = 0
        """Bytes of the complete lines."""
        self._lock = threading.Lock()
        self._is_torn = True
        """Whether a partial line may follow the complete ones."""
        ensure_folder(file.parent)
        with ExitStack() as stack:
            stack.enter_context(hold_folder(file))
            self._stream = stack.enter_context(file.open("ab", buffering=0))
            self._read()
            self._truncate()
            flush(file.parent)
            self._held = stack.pop_all()

    @property
    def head(self) -> str:
        """The SHA-256 of the file, which reveals any later change of what it covers."""
        return self._digest.hexdigest()

    @property
    def e_value(self) -> float | None:
        """The e-value of all settled forecasts against "no better than Frequency"."""
        return self._evidence.e_value(self._size)

    def commit(self, *dists: ReturnDistribution) -> None:
        """Record forecasts of different assets, but those that are already the last ones."""
        entries = [
            Commitment(
                symbol=dist.symbol,
                as_of=dist.as_of,
                model=self.model,
                sigma=dist.sigma,
                probs=dist.probs.tolist(),
                missing_assets=list(dist.missing_assets),
            )
            for dist in dists
        ]
        with self._lock:
            new = [entry for entry in entries if self._last.get(entry.symbol) != entry]
            if new:
                self._append("forecast", *new)

    def settle(self, *entries: Settlement) -> None:
        """Record the outcomes of forecasts."""
        with self._lock:
            self._append("settled", *entries)

    def remove(self, symbol: str, after: datetime) -> None:
        """Record that the bars of an asset after a moment were removed."""
        with self._lock:
            self._append("removed", Removal(symbol=symbol, after=after))

    def close(self) -> None:
        """Close the file for other processes to write."""
        self._held.close()

    def _read(self) -> None:
        """Take the lines that are there, or refuse a file that is no ledger or was changed."""
        for line, entry in read_ledger(self.file):
            if entry is None:
                raise DataError(
                    "the ledger was changed",
                    where=self.file,
                    got=line[:SHOWN_BYTES].decode(errors="replace"),
                    fix="name another file; `vaiom audit --ledger` says more",
                )
            self._take(line, entry)
        rest = self.file.read_bytes()[self._size :]
        pairs = zip(rest, BEGINNING, strict=False)
        if any(got not in (0, expected) for got, expected in pairs):
            raise DataError(
                "no ledger of forecasts",
                where=self.file,
                got=rest[:SHOWN_BYTES].decode(errors="replace"),
                fix="name a file that is not there yet",
            )

    def _append(self, kind: str, *entries: Entry) -> None:
        """Write lines, all or none, with one flush of the disk."""
        time = self.clock().isoformat(timespec="seconds")
        digest = self._digest.copy()
        lines = []
        for entry in entries:
            value = {"time": time, "kind": kind, **to_json(entry), "previous": digest.hexdigest()}
            line = (json.dumps(value) + "\n").encode()
            digest.update(line)
            lines.append(line)
        if not os.path.samestat(self.file.stat(), os.fstat(self._stream.fileno())):
            raise OSError(errno.ESTALE, "another file is in its place", str(self.file))
        if self._is_torn:
            self._truncate()
        self._is_torn = True
        data = b"".join(lines)
        try:
            if self._stream.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))
            os.fsync(self._stream.fileno())
        except OSError:
            with suppress(OSError):
                self._truncate()
            raise
        self._is_torn = False
        for line, entry in zip(lines, entries, strict=True):
            self._take(line, entry)

    def _truncate(self) -> None:
        """Truncate on disk before writing: a power cut may keep parts of both."""
        self._stream.truncate(self._size)
        os.fsync(self._stream.fileno())
        self._is_torn = False

    def _take(self, line: bytes, entry: Entry) -> None:
        """Count a line that is on disk."""
        self._digest.update(line)
        self._last[entry.symbol] = entry
        self._evidence.take(entry)
        # Last: what a reader computes before is not taken for the value of this size.
        self._size += len(line)


def read_ledger(file: Path) -> Iterator[tuple[bytes, Entry | None]]:
    """The complete lines, raw and parsed; None where a line is no entry or does not continue the
    chain.
    """
    digest = hashlib.sha256()
    *lines, _ = file.read_bytes().split(b"\n")
    if lines and b"\0" in lines[-1]:
        lines.pop()  # a power cut kept its end but not its start
    for text in lines:
        line = text + b"\n"
        yield line, _parse(text, digest.hexdigest())
        digest.update(line)


def _parse(text: bytes, previous: str) -> Entry | None:
    """The entry of a line; None if it is none, or does not follow lines with this hash."""
    try:
        value = json.loads(text)
        chained = value.pop("previous") == previous
        kind = _KINDS[value.pop("kind")]
        datetime.fromisoformat(value.pop("time"))
        entry = from_json(kind, value)
        has_zone = any(getattr(each, "tzinfo", None) for each in vars(entry).values())
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return entry if chained and not has_zone else None


def e_value(
    stamps: Sequence[datetime], model_bits: Sequence[float], baseline_bits: Sequence[float]
) -> float:
    """The wealth from 1 of a gambler who bets at each stamp that the model costs fewer bits than
    the baseline.

    The assets of a stamp share one bet, because their returns are not independent.
    """
    gains = _gain(np.array(model_bits), np.array(baseline_bits))
    return _wealth(np.array(stamps, "datetime64[s]"), gains)


def _gain(model: Any, baseline: Any) -> Any:
    """Bits that the model, hedged by a share of the baseline, costs less than the baseline."""
    return baseline + np.logaddexp2(np.log2(1 - HEDGE) - model, np.log2(HEDGE) - baseline)


def _wealth(stamps: npt.NDArray[Any], gains: npt.NDArray[np.float64]) -> float:
    """The mean wealth of gamblers who stake each of `STAKES` on the mean gain of every stamp."""
    _, group = np.unique(stamps, return_inverse=True)
    by_stamp = np.bincount(group, gains) / np.bincount(group)
    returns = by_stamp / -np.log2(HEDGE)
    log_wealth = np.log1p(STAKES[:, None] * returns).sum(axis=1)
    log_mean = np.logaddexp.reduce(log_wealth) - np.log(len(STAKES))
    return float(np.exp(min(log_mean, MAX_LOG_WEALTH)))
