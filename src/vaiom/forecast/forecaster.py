"""A trained model that forecasts from bars.

Enters: a run folder, a checkpoint or an exported file; bars of one or many assets. Leaves: a `ReturnDistribution` for
the bar that follows, or the forecasts of a whole history. A forecast depends on its own asset's bars up to its own
time.
Paper: Methods, "Input Representations" and "Evaluation and Ablation Protocol" (the final position of a window).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.events.inputs import ANY_MASK, MASK_BITS, has_flag, timestamps_of
from vaiom.forecast.bars import MIN_BARS, checked_bars
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.engine import Card, Engine, Probabilities, TorchEngine, open_exported
from vaiom.forecast.inputs import Columns, RowMaker, inputs_of, meta_of
from vaiom.market.bars import timeframe_of
from vaiom.market.folder import check_symbol
from vaiom.model.checkpoint import load_checkpoint
from vaiom.training.loop import BEST_NAME

if TYPE_CHECKING:
    from vaiom.forecast.online import OnlineForecaster

EXPORTED_SUFFIX = ".onnx"

# Windows that go through the model together.
_BATCH = 32
# A last bar older than this many timeframes has a successor that should be there.
_STALE_AFTER = 2
_MASK_WORDS = {
    "missing": "a price of the last bar is missing",
    "stale": "the last close repeats the one before",
    "bad_data": "the last bar moved absurdly far",
    "insufficient_history": "too few moving closes before the last bar",
    "scale_zero": "prices hardly moved before the last bar",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The last rows of one asset, at most as many as the model's context: all that a forecast depends on."""

    symbol: str
    columns: Columns

    def __len__(self) -> int:
        return len(self.columns["timestamp"])


class Forecaster:
    reads_other_assets = False
    """Whether the inputs of an asset depend on other assets' bars."""

    def __init__(self, engine: Engine, card: Card) -> None:
        self.engine, self.card = engine, card
        self.tokenizer, self.config = card.tokenizer, card.config
        self.rows = RowMaker(card.config, card.tokenizer)
        self.timeframe: timedelta = timeframe_of(card.tokenizer.timeframe)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu", threads: int | None = None) -> Forecaster:
        """Load a run folder's selected model, a checkpoint, or what `vaiom export` wrote (which runs on CPUs)."""
        file = _model_file(Path(path))
        if file.suffix == EXPORTED_SUFFIX:
            if device not in ("cpu", "auto"):
                raise ConfigError("exported models run on CPUs", got=f"device={device}", fix="load the run folder")
            return cls(*open_exported(file, threads))
        checkpoint = load_checkpoint(file)
        return cls(TorchEngine(checkpoint.model, device, threads), Card.of(checkpoint))

    @property
    def context(self) -> int:
        """Bars of a full window."""
        return self.config.context

    @property
    def symbols(self) -> tuple[str, ...]:
        """Assets that the model was trained on."""
        return self.tokenizer.symbols

    def describe(self) -> dict[str, Any]:
        """Which model this is, in JSON-safe values: engine, hashes, timeframe, assets, protocol."""
        origin = self.card.provenance
        return {
            "engine": self.engine.name,
            "sha256": self.card.sha256,
            "tokenizer_sha256": self.tokenizer.sha256,
            "corpus_sha256": origin.corpus_sha256,
            "experiment": origin.experiment,
            "seed": origin.seed,
            "step": origin.step,
            "validation_bits": origin.validation_bits,
            "splits": origin.splits,
            "vaiom_version": origin.vaiom_version,
            "timeframe": self.tokenizer.timeframe,
            "context": self.context,
            "symbols": list(self.symbols),
            "reads_other_assets": self.reads_other_assets,
        }

    @overload
    def predict(self, bars: Mapping[str, Any], *, now: datetime | None = None) -> dict[str, ReturnDistribution]: ...
    @overload
    def predict(self, bars: Any, symbol: str, *, now: datetime | None = None) -> ReturnDistribution: ...
    def predict(
        self, bars: Any, symbol: str | None = None, *, now: datetime | None = None
    ) -> ReturnDistribution | dict[str, ReturnDistribution]:
        """Forecast the bar after the last: of one asset's frame, or of each frame of {symbol: frame}.

        `now`, a moment of the bars' clock, lets a forecast say that its last bar is stale.
        """
        if isinstance(bars, Mapping):
            if symbol is not None:
                raise ConfigError("bars of many assets name them already", got=f"symbol={symbol!r}")
            windows = [self.window(frame, name) for name, frame in bars.items()]
            return {dist.symbol: dist for dist in self.forecast(windows, now)}
        if symbol is None:
            raise ConfigError("whose bars are these?", expected='symbol="EURUSD", or {"EURUSD": frame}')
        return self.forecast([self.window(bars, symbol)], now)[0]

    def predict_all(self, bars: Any, symbol: str) -> History:
        """Forecast after every bar of a history, each from what was known at its time; `predict` gives the same."""
        frame = checked_bars(bars, check_symbol(symbol), self.tokenizer.timeframe)
        columns, _ = self.rows(frame, self.rows.start(), f"bars of {symbol}")
        meta = meta_of(self.tokenizer, symbol)
        events = inputs_of(self.config, columns, meta)
        first = self.engine.growing_probs(events[: self.context], meta)[MIN_BARS - 1 :]
        probs = [first]
        windows = np.lib.stride_tricks.sliding_window_view(events, min(self.context, len(events)), axis=0)
        for start in range(1, len(windows), _BATCH):
            batch = windows[start : start + _BATCH].swapaxes(1, 2).copy()
            probs.append(self.engine.probs(batch, np.repeat(meta[None], len(batch), axis=0)))
        rows = {name: column[MIN_BARS - 1 :] for name, column in columns.items()}
        return History(forecaster=self, symbol=symbol, columns=rows, probs=np.concatenate(probs))

    def online(self) -> OnlineForecaster:
        """A forecaster for live bars, which remembers what it needs of each asset."""
        from vaiom.forecast.online import OnlineForecaster

        return OnlineForecaster(self)

    def window(self, bars: Any, symbol: str) -> Window:
        """Check an asset's bars and keep what its next forecast depends on."""
        frame = checked_bars(bars, check_symbol(symbol), self.tokenizer.timeframe)
        columns, _ = self.rows(frame, self.rows.start(), f"bars of {symbol}")
        return Window(symbol=symbol, columns={name: column[-self.context :] for name, column in columns.items()})

    def forecast(self, windows: Iterable[Window], now: datetime | None = None) -> list[ReturnDistribution]:
        """Forecasts in the order of the windows; those of one length share passes through the model."""
        windows = list(windows)
        for window in windows:
            if not window.columns["sigma20"][-1] > 0:
                raise DataError(
                    "there is no scale to forecast with: no close of this history moved",
                    where=f"bars of {window.symbol}",
                    fix="bring in a longer history",
                )
        probs: list[Probabilities] = [np.empty(0)] * len(windows)
        by_length: dict[int, list[int]] = {}
        for index, window in enumerate(windows):
            by_length.setdefault(len(window), []).append(index)
        for indices in by_length.values():
            for start in range(0, len(indices), _BATCH):
                part = indices[start : start + _BATCH]
                metas = [meta_of(self.tokenizer, windows[index].symbol) for index in part]
                events = [inputs_of(self.config, windows[i].columns, meta) for i, meta in zip(part, metas, strict=True)]
                answers = self.engine.probs(np.stack(events), np.stack(metas))
                for index, answer in zip(part, answers, strict=True):
                    probs[index] = answer
        return [
            self.distribution(window.symbol, window.columns, -1, answer, len(window), now)
            for window, answer in zip(windows, probs, strict=True)
        ]

    def distribution(
        self, symbol: str, columns: Columns, row: int, probs: Probabilities, context: int, now: datetime | None = None
    ) -> ReturnDistribution:
        """Put probabilities that were made at a row into returns."""
        as_of: datetime = timestamps_of(columns)[row].astype("datetime64[us]").item()
        unknown = symbol not in self.tokenizer.symbols
        shares = self.tokenizer.zero_share
        flags = columns["flags"][row]
        notes = [f"masked: {_MASK_WORDS[name]}" for name, bit in MASK_BITS.items() if flags & bit]
        if now is not None and now - as_of > _STALE_AFTER * self.timeframe:
            notes.append(f"stale: the last bar is of {as_of}, and now is {now}")
        stale = bool(notes)
        if unknown:
            notes.append("unknown asset: the model never saw it and treats it as an average one")
        if context < self.context:
            notes.append(f"short context: {context} bars where the model can use {self.context}")
        return ReturnDistribution(
            symbol=symbol,
            probs=probs,
            edges=self.tokenizer.edges["return"],
            sigma=float(columns["sigma20"][row]),
            shape=self.tokenizer.return_shape,
            prob_zero=float(np.mean(shares)) if unknown else shares[self.tokenizer.symbols.index(symbol)],
            as_of=as_of,
            target_time=as_of + self.timeframe,
            context=context,
            stale=stale,
            unknown_asset=unknown,
            notes=tuple(notes),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """Forecasts made after each bar of one asset, oldest first; `history[i]` is a `ReturnDistribution`."""

    forecaster: Forecaster
    symbol: str
    columns: Columns
    probs: Probabilities
    """(n, 16)."""

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def as_of(self) -> npt.NDArray[np.datetime64]:
        return timestamps_of(self.columns)

    @property
    def sigma(self) -> npt.NDArray[np.float64]:
        return self.columns["sigma20"]

    @property
    def context(self) -> npt.NDArray[np.int64]:
        """Bars that the model saw."""
        return np.minimum(np.arange(len(self)) + MIN_BARS, self.forecaster.context)

    @property
    def masked(self) -> npt.NDArray[np.bool_]:
        """Forecasts made at a masked row, which are not to be trusted."""
        return has_flag(self.columns["flags"], ANY_MASK)

    def __getitem__(self, index: int) -> ReturnDistribution:
        index = range(len(self))[index]
        context = int(self.context[index])
        return self.forecaster.distribution(self.symbol, self.columns, index, self.probs[index], context)

    def to_frame(self) -> pl.DataFrame:
        """One row per forecast: as_of, context, sigma, masked, p1 to p16."""
        probs = {f"p{bucket}": self.probs[:, bucket - 1] for bucket in range(1, self.probs.shape[1] + 1)}
        as_of = self.as_of.astype("datetime64[us]")
        return pl.DataFrame(
            {"as_of": as_of, "context": self.context, "sigma": self.sigma, "masked": self.masked, **probs}
        )


def _model_file(path: Path) -> Path:
    """The model that a path stands for: itself, a run's selected checkpoint, or a folder's one exported file."""
    if path.is_file():
        return path
    if (path / BEST_NAME).is_file():
        return path / BEST_NAME
    exported = sorted(path.glob(f"*{EXPORTED_SUFFIX}")) if path.is_dir() else []
    if len(exported) == 1:
        return exported[0]
    raise CheckpointError(
        "no model to load here",
        where=path,
        expected=f"a run folder with {BEST_NAME}, a folder with one {EXPORTED_SUFFIX} file, or such a file",
        got=f"{len(exported)} exported files" if exported else "neither",
        fix="`vaiom train` makes a run; name the file where there are several",
    )
