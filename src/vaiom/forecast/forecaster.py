"""A trained model that forecasts from bars.

Enters: a run folder, a checkpoint or an exported file; bars of one or many assets. Leaves: a `ReturnDistribution` for
the bar that follows, or the forecasts of a whole history. A forecast depends on its own asset's bars up to its own
time and, where the model reads other assets, on theirs, which must come with them.
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

from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.events.inputs import MASK_BITS, timestamps_of
from vaiom.forecast import company
from vaiom.forecast.bars import MIN_BARS, checked_bars
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.engine import Card, Engine, Probabilities, TorchEngine, open_exported
from vaiom.forecast.history import History
from vaiom.forecast.inputs import Columns, RowMaker, inputs_of, meta_of
from vaiom.market.folder import check_symbol
from vaiom.market.stamps import timeframe_of
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
    missing_assets: tuple[str, ...] = ()
    """Assets that the model reads and that had no bar at the last stamp."""

    def __len__(self) -> int:
        return len(self.columns["timestamp"])


class Forecaster:
    """A trained model that forecasts from bars: the next one, every one of a history, or a live stream."""

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

    @property
    def reads_other_assets(self) -> bool:
        """Whether the inputs of an asset depend on other assets' bars."""
        return self.rows.cross

    @property
    def reads(self) -> tuple[str, ...]:
        """Assets whose bars a forecast of any asset wants beside its own; none where each is forecast by itself."""
        return self.symbols if self.reads_other_assets else ()

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
            "purpose": origin.purpose,
        }

    @overload
    def predict(self, bars: Mapping[str, Any], *, now: datetime | None = None) -> dict[str, ReturnDistribution]: ...
    @overload
    def predict(self, bars: Any, symbol: str, *, now: datetime | None = None) -> ReturnDistribution: ...
    def predict(
        self, bars: Any, symbol: str | None = None, *, now: datetime | None = None
    ) -> ReturnDistribution | dict[str, ReturnDistribution]:
        """Forecast the bar after the last: of one asset's frame, or of each frame of {symbol: frame}.

        With frames of many and a `symbol`, that asset alone is forecast, and a model that reads the others reads them.
        `now`, a moment of the bars' clock, lets a forecast say that its last bar is stale.
        """
        frames = _frames(bars, symbol)
        dists = {dist.symbol: dist for dist in self.forecast(self.windows(frames, symbol), now)}
        return dists if symbol is None else dists[symbol]

    @overload
    def predict_all(self, bars: Mapping[str, Any]) -> dict[str, History]: ...
    @overload
    def predict_all(self, bars: Any, symbol: str) -> History: ...
    def predict_all(self, bars: Any, symbol: str | None = None) -> History | dict[str, History]:
        """Forecast after every bar of a history, each from what was known at its time; `predict` gives the same."""
        assets = self._rows_of(_frames(bars, symbol), symbol)
        histories = {each: self._history(assets, each) for each in ([symbol] if symbol else assets)}
        return histories if symbol is None else histories[symbol]

    def online(self) -> OnlineForecaster:
        """A forecaster for live bars, which remembers what it needs of each asset."""
        from vaiom.forecast.online import OnlineForecaster

        return OnlineForecaster(self)

    def window(self, bars: Any, symbol: str) -> Window:
        """Check an asset's bars and keep what its next forecast depends on."""
        return self.windows({symbol: bars})[0]

    def windows(self, bars: Mapping[str, Any], symbol: str | None = None) -> list[Window]:
        """The windows of many assets, or of one of them, with what a model reads of the others."""
        assets = self._rows_of(bars, symbol)
        return [
            Window(
                symbol=each,
                columns={name: column[-self.context :] for name, column in assets[each].items()},
                missing_assets=company.named(self._absent(assets, each, -1)[0], self.reads),
            )
            for each in ([symbol] if symbol else assets)
        ]

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
            self.distribution(
                window.symbol, window.columns, -1, answer, len(window), now, missing_assets=window.missing_assets
            )
            for window, answer in zip(windows, probs, strict=True)
        ]

    def distribution(
        self,
        symbol: str,
        columns: Columns,
        row: int,
        probs: Probabilities,
        context: int,
        now: datetime | None = None,
        *,
        missing_assets: tuple[str, ...] = (),
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
        if missing_assets:
            notes.append(f"without other assets: no bar at {as_of} of {', '.join(missing_assets)}")
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
            missing_assets=missing_assets,
            notes=tuple(notes),
        )

    def _rows_of(self, bars: Mapping[str, Any], symbol: str | None) -> dict[str, Columns]:
        """Rows of whole histories; of one asset alone where no other is read."""
        assets = {}
        for each in [symbol] if symbol and not self.reads_other_assets else bars:
            wanted = MIN_BARS if symbol in (None, each) else 1
            frame = checked_bars(bars[each], check_symbol(each), self.tokenizer.timeframe, wanted)
            assets[each], _ = self.rows(frame, self.rows.start(), f"bars of {each}")
        return company.with_others(assets, self.symbols) if self.reads_other_assets else assets

    def _absent(self, assets: Mapping[str, Columns], symbol: str, first: int) -> npt.NDArray[np.bool_]:
        """(rows, assets read): who had no bar at the stamps of an asset's rows from `first` on."""
        return company.absent(assets, self.reads, symbol, assets[symbol]["timestamp"][first:])

    def _history(self, assets: Mapping[str, Columns], symbol: str) -> History:
        meta = meta_of(self.tokenizer, symbol)
        events = inputs_of(self.config, assets[symbol], meta)
        probs = [self.engine.growing_probs(events[: self.context], meta)[MIN_BARS - 1 :]]
        windows = np.lib.stride_tricks.sliding_window_view(events, min(self.context, len(events)), axis=0)
        for start in range(1, len(windows), _BATCH):
            batch = windows[start : start + _BATCH].swapaxes(1, 2).copy()
            probs.append(self.engine.probs(batch, np.repeat(meta[None], len(batch), axis=0)))
        return History(
            forecaster=self,
            symbol=symbol,
            columns={name: column[MIN_BARS - 1 :] for name, column in assets[symbol].items()},
            probs=np.concatenate(probs),
            absent=self._absent(assets, symbol, MIN_BARS - 1),
        )


def _frames(bars: Any, symbol: str | None) -> Mapping[str, Any]:
    """Frames by symbol, the one that is asked for among them."""
    if not isinstance(bars, Mapping):
        if symbol is None:
            raise ConfigError("whose bars are these?", expected='symbol="EURUSD", or {"EURUSD": frame}')
        return {symbol: bars}
    if symbol is not None and symbol not in bars:
        raise ConfigError("no bars of this asset", expected=", ".join(bars), got=f"symbol={symbol!r}")
    return bars


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
