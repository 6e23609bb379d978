"""A ledger of live forecasts, recorded before their bars, and the e-value of their gain over the
baseline.

Each JSON line holds the SHA-256 of all bytes before it, so that no entry can be changed once a
later hash is published. A model that, mixed with a little of the baseline, is no better reaches an
e-value above 20 with probability at most 1/20, however often one looks (Choe and Ramdas, "Comparing
Sequential Forecasters").
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

# Share of the baseline in the tested mixture, which bounds its loss to six bits on any bar.
_HEDGE = 1 / 64
# Fractions of the wealth that are staked in parallel.
_STAKES = 0.9 * 0.5 ** np.arange(8)
_MOST_LOG = 690.0
_BEGINNING = b'{"time": "'
"""Start of every line; the rest of a torn line has it, or zeros in its place."""


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


class ForecastLedger:
    """An open ledger; a line is on disk when a method returns."""

    def __init__(self, file: Path, model: str, clock: Callable[[], datetime] = utc_now) -> None:
        self.file, self.model, self.clock = file, model, clock
        self._last: dict[str, Entry] = {}
        self._settled: dict[tuple[str, datetime], tuple[int, float]] = {}
        """Stamp and gain, if any, of each outcome: the last, as a wrong bar may have been removed
        and come again.
        """
        self._hindsight: set[tuple[str, datetime]] = set()
        """Forecasts made again after their bar was known, because bars before it had been wrong."""
        self._e_value: tuple[int, float | None] = 0, None
        """The e-value at a size of the file."""
        self._digest, self._size, self._lock = hashlib.sha256(), 0, threading.Lock()
        self._torn = True
        """Whether a partial line may follow the complete ones."""
        ensure_folder(file.parent)
        with ExitStack() as stack:
            stack.enter_context(hold_folder(file))
            self._stream = stack.enter_context(file.open("ab", buffering=0))
            for line, entry in read_ledger(file):
                if entry is None:
                    fix = "name another file; `vaiom audit --ledger` says more"
                    got = line[:80].decode(errors="replace")
                    raise DataError("the ledger was changed", where=file, got=got, fix=fix)
                self._take(line, entry)
            rest = file.read_bytes()[self._size :]
            if any(
                got not in (0, expected) for got, expected in zip(rest, _BEGINNING, strict=False)
            ):
                fix = "name a file that is not there yet"
                raise DataError(
                    "no ledger of forecasts",
                    where=file,
                    got=rest[:80].decode(errors="replace"),
                    fix=fix,
                )
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
        size, value = self._size, self._e_value[1]
        if size != self._e_value[0]:
            settled = np.array([*self._settled.values()])  # at once: another thread adds to them
            scored = settled[~np.isnan(settled[:, 1])] if len(settled) else settled
            value = _wealth(*scored.T) if len(scored) else None
            self._e_value = size, value
        return value

    def commit(self, *dists: ReturnDistribution) -> None:
        """Record forecasts of different assets, but those that are already the last ones."""
        entries = []
        for dist in dists:
            about: dict[str, Any] = {
                "symbol": dist.symbol,
                "as_of": dist.as_of,
                "sigma": dist.sigma,
            }
            about |= {"probs": dist.probs.tolist(), "missing_assets": list(dist.missing_assets)}
            entries.append(Commitment(**about, model=self.model))
        with self._lock:
            if new := [entry for entry in entries if self._last.get(entry.symbol) != entry]:
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
        self._held.close()

    def _append(self, kind: str, *entries: Entry) -> None:
        """Write lines, all or none, with one flush of the disk."""
        time, digest, lines = (
            self.clock().isoformat(timespec="seconds"),
            self._digest.copy(),
            list[bytes](),
        )
        for entry in entries:
            value = {"time": time, "kind": kind, **to_json(entry), "previous": digest.hexdigest()}
            lines.append((json.dumps(value) + "\n").encode())
            digest.update(lines[-1])
        if not os.path.samestat(self.file.stat(), os.fstat(self._stream.fileno())):
            raise OSError(errno.ESTALE, "another file is in its place", str(self.file))
        if self._torn:
            self._truncate()
        self._torn = True
        try:
            if self._stream.write(b"".join(lines)) != sum(map(len, lines)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))
            os.fsync(self._stream.fileno())
        except OSError:
            with suppress(OSError):
                self._truncate()
            raise
        self._torn = False
        for line, entry in zip(lines, entries, strict=True):
            self._take(line, entry)

    def _truncate(self) -> None:
        """Truncate on disk before writing: a power cut may keep parts of both."""
        self._stream.truncate(self._size)
        os.fsync(self._stream.fileno())
        self._torn = False

    def _take(self, line: bytes, entry: Entry) -> None:
        self._digest.update(line)
        self._last[entry.symbol] = entry
        if isinstance(entry, Settlement):
            self._settled.pop(key := (entry.symbol, entry.as_of), None)
            if key not in self._hindsight:
                bits = entry.model_bits, entry.frequency_bits
                self._settled[key] = (
                    seconds_of(entry.target_time),
                    math.nan if None in bits else float(_gain(*bits)),
                )
        elif isinstance(entry, Removal):
            gone = [
                key
                for key, (stamp, _) in self._settled.items()
                if entry.covers(key[0], moment_of(stamp))
            ]
            self._hindsight |= {key for key in gone if entry.covers(*key)}
            for key in gone:
                del self._settled[key]
        self._size += len(
            line
        )  # last: what a reader computes before is not taken for the value of this size


def read_ledger(file: Path) -> Iterator[tuple[bytes, Entry | None]]:
    """The complete lines, raw and parsed; None where a line is no entry or does not continue the
    chain.
    """
    digest, (*lines, _) = hashlib.sha256(), file.read_bytes().split(b"\n")
    if lines and b"\0" in lines[-1]:
        lines.pop()  # a power cut kept its end but not its start
    for text in lines:
        line = text + b"\n"
        try:
            value = json.loads(text)
            followed, kind, _ = (
                value.pop("previous"),
                value.pop("kind"),
                datetime.fromisoformat(value.pop("time")),
            )
            entry = from_json(_KINDS[kind], value) if followed == digest.hexdigest() else None
            if any(getattr(each, "tzinfo", None) for each in vars(entry).values()):
                raise ValueError("a stamp has no zone")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            entry = None
        yield line, entry
        digest.update(line)


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
    return baseline + np.logaddexp2(np.log2(1 - _HEDGE) - model, np.log2(_HEDGE) - baseline)


def _wealth(stamps: npt.NDArray[Any], gains: npt.NDArray[np.float64]) -> float:
    _, group = np.unique(stamps, return_inverse=True)
    by_stamp = np.bincount(group, gains) / np.bincount(group)
    log_wealth = np.log1p(_STAKES[:, None] * by_stamp / -np.log2(_HEDGE)).sum(axis=1)
    return float(np.exp(min(np.logaddexp.reduce(log_wealth) - np.log(len(_STAKES)), _MOST_LOG)))
