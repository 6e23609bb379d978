"""Load a trained model and forecast from bars.

Enters: a run folder, checkpoint or exported file; bars of one or many assets. Leaves: a
`ReturnDistribution` of the next bar, or the forecasts of a whole history. A forecast depends on its
asset's bars up to its own time and, if the model reads other assets, on theirs.
Paper: Methods, "Input Representations" and "Evaluation and Ablation Protocol" (the final position
of a window).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.corpus.rows import Columns, RowMaker, bars_of, meta_of
from vaiom.corpus.targets import TargetFit, fit_of_next_bar
from vaiom.distribution.dependence import Dependence
from vaiom.distribution.joint import JointDistribution
from vaiom.distribution.paths import ReturnPaths, sample_paths
from vaiom.distribution.returns import SHOWN_LEVELS, ReturnDistribution
from vaiom.errors import CheckpointError, ConfigError, require_installed
from vaiom.features.fields import MASK_BITS, UNKNOWN_ASSET, cross_columns, inputs_of
from vaiom.forecast.backend import (
    BATCH,
    EXPORTED_SUFFIX,
    Backend,
    Probabilities,
    open_checkpoint,
    open_exported,
)
from vaiom.forecast.bars import (
    CLOCK_ALLOWANCE,
    MIN_BARS,
    is_pandas,
    moment_of,
    moment_or_now,
    prepare_bars,
    split_assets,
)
from vaiom.forecast.joint_forecast import dependence_after, fitted_dependence, join, score_last_rows
from vaiom.forecast.window import History, Window, cut_window
from vaiom.market.sessions import next_stamp
from vaiom.market.symbols import find_pair
from vaiom.market.timeframes import timeframe_of
from vaiom.model.checkpoint import ModelCard
from vaiom.model.horizon_heads import unknown_horizon
from vaiom.run import BEST_NAME, DEFAULT_MODEL, Run, find_run, packaged_models

if TYPE_CHECKING:
    from vaiom.forecast.stream import OnlineForecaster

_DESCRIBED = (
    "corpus_sha256",
    "experiment",
    "seed",
    "step",
    "validation_bits",
    "splits",
    "vaiom_version",
)
_MASK_WORDS = {
    "missing": "a price of the last bar is missing",
    "stale": "the last close repeats the one before",
    "bad_data": "the last bar moved absurdly far",
    "insufficient_history": "too few moving closes before the last bar",
    "scale_zero": "prices hardly moved before the last bar",
}


class Forecaster:
    """A trained model that forecasts the next bar, every bar of a history, or a live stream."""

    context: int
    """Bars of a full window."""
    symbols: tuple[str, ...]
    """Assets that the model was trained on."""
    reads_other_assets: bool
    """Whether the inputs of an asset depend on other assets' bars."""
    reads: tuple[str, ...]
    """Assets whose bars every forecast needs beside its own; empty if assets are forecast
    separately.
    """

    def __init__(
        self, backend: Backend, card: ModelCard, dependence: Dependence | None = None
    ) -> None:
        self.backend, self.card, self.dependence = backend, card, dependence
        self.tokenizer, self.config = card.tokenizer, card.config
        self.rows = RowMaker(card.config.input_fields, card.tokenizer)
        self.timeframe: timedelta = timeframe_of(card.tokenizer.timeframe)
        self.context, self.symbols = card.config.context, card.tokenizer.symbols
        self.reads_other_assets = self.rows.cross
        self.reads = self.symbols if self.rows.cross else ()
        further = backend.horizons.fitted.fits if backend.horizons else ()
        self._metas = {symbol: meta_of(card.tokenizer, symbol) for symbol in self.symbols}
        self._horizons = {each.bars: each for each in (fit_of_next_bar(card.tokenizer), *further)}

    @classmethod
    def load(
        cls, path: str | Path, device: str | None = "cpu", threads: int | None = None
    ) -> Forecaster:
        """Load a run folder's selected model, a packaged model by name, a checkpoint or an exported
        file.

        With `device=None` a few forecasts are faster: if the model allows it, PyTorch is not
        imported.
        """
        file = find_run(Path(path))
        if not file.is_file():
            best = Run(file).best
            files = [best] if best.is_file() else [*file.glob(f"*{EXPORTED_SUFFIX}")]
            if len(files) != 1:
                expected = (
                    f"a run folder with {best.name}, a folder with one {EXPORTED_SUFFIX} "
                    f"file, or such a file"
                )
                got = f"{len(files)} exported files" if files else "neither"
                fix = (
                    "name one"
                    if files
                    else "`vaiom train` makes a run, `vaiom models` lists packaged ones"
                )
                raise CheckpointError(
                    "no model to load here", where=file, expected=expected, got=got, fix=fix
                )
            [file] = files
        if file.suffix == EXPORTED_SUFFIX:
            if device not in (None, "cpu", "auto"):
                raise ConfigError(
                    "exported models run on CPUs", got=f"device={device}", fix="load the run folder"
                )
            return cls(*open_exported(file, threads))
        backend, card = open_checkpoint(file, device, threads)
        fitted = Run(file.parent).dependence
        known = file.name == BEST_NAME and fitted.is_file()
        return cls(backend, card, Dependence.read(fitted, card.sha256) if known else None)

    @classmethod
    def pretrained(
        cls, name: str = DEFAULT_MODEL, device: str | None = "cpu", threads: int | None = None
    ) -> Forecaster:
        """Load a packaged model: no file, no network, no training."""
        models = packaged_models()
        if name not in models:
            raise ConfigError(
                "no such packaged model", expected=", ".join(models), got=name, fix="vaiom models"
            )
        return cls.load(models[name], device, threads)

    def __repr__(self) -> str:
        bars = f"{self.tokenizer.timeframe} bars of {len(self.symbols)} assets"
        return (
            f"<Forecaster {self.card.provenance.experiment}, {bars}, context {self.context}, "
            f"{self.backend.name}>"
        )

    def describe(self) -> dict[str, Any]:
        """What the model is and where it comes from, as JSON-safe values."""
        origin = self.card.provenance
        return {
            "engine": self.backend.name,
            "sha256": self.card.sha256,
            "tokenizer_sha256": self.tokenizer.sha256,
            **{name: getattr(origin, name) for name in _DESCRIBED},
            "timeframe": self.tokenizer.timeframe,
            "context": self.context,
            "symbols": list(self.symbols),
            "reads_other_assets": self.reads_other_assets,
            "purpose": origin.purpose,
        }

    @property
    def horizons(self) -> tuple[int, ...]:
        """The supported horizons in bars, 1 first."""
        return tuple(self._horizons)

    @overload
    def predict(
        self, bars: Mapping[str, Any], *, horizon: int = ..., now: datetime | None = ...
    ) -> dict[str, ReturnDistribution]: ...
    @overload
    def predict(
        self, bars: Any, symbol: str, *, horizon: int = ..., now: datetime | None = ...
    ) -> ReturnDistribution: ...
    def predict(
        self, bars: Any, symbol: str | None = None, *, horizon: int = 1, now: datetime | None = None
    ) -> ReturnDistribution | dict[str, ReturnDistribution]:
        """Forecast the bar after the last, of one asset's frame or of each frame of {symbol:
        frame}.

        With many frames and a `symbol`, only that asset is forecast, and a model that reads others
        reads them. `horizon`, one of `horizons`, is the number of bars that the log return spans.
        `now`, on the bars' clock and by default the present in UTC, decides whether the forecast is
        stale.
        """
        self.at(horizon)
        windows = self.windows(bars, symbol)
        dists = {
            dist.symbol: dist
            for dist in self.forecast(windows, moment_or_now(now), horizon=horizon)
        }
        return dists if symbol is None else dists[symbol]

    def joint(
        self, bars: Mapping[str, Any], *, horizon: int = 1, now: datetime | None = None
    ) -> JointDistribution:
        """Forecast the next returns of {symbol: frame} jointly, zero returns included.

        The current dependence is estimated from some hundred common bars beyond the model's
        context.
        """
        self.at(horizon)
        assets = self._rows_of(bars, None)
        if not assets:
            raise ConfigError("there are no bars to forecast from", expected='{"EURUSD": frame}')
        windows = [cut_window(assets, self.reads, each, self.context) for each in assets]
        dists = {
            dist.symbol: dist
            for dist in self.forecast(windows, moment_or_now(now), horizon=horizon)
        }
        fit = fitted_dependence(self)
        series = {
            symbol: score_last_rows(self, symbol, rows, fit.memory)
            for symbol, rows in assets.items()
        }
        return join(dists, dependence_after(fit, series))

    def predict_df(
        self,
        frame: Any,
        *,
        id_column: str = "symbol",
        timestamp_column: str = "Datetime",
        quantile_levels: Sequence[float] = SHOWN_LEVELS,
        now: datetime | None = None,
    ) -> Any:
        """Forecast each asset of a long frame of bars: a row per asset with the next bar's time and
        quantiles.

        pandas in, pandas out; Polars likewise. `predictions` are medians, all in log returns;
        `notes` are reasons for caution.
        """
        dists = self.predict(split_assets(frame, id_column, timestamp_column), now=now)
        every = dists.values()
        columns = {
            id_column: [*dists],
            timestamp_column: [dist.target_time for dist in every],
            "target_name": ["log_return"] * len(dists),
            "predictions": [dist.quantile(0.5) for dist in every],
            **{str(level): [dist.quantile(level) for dist in every] for level in quantile_levels},
            "notes": ["; ".join(dist.notes) for dist in every],
        }
        library: Any = import_module("pandas") if is_pandas(frame) else pl
        return library.DataFrame(columns)

    @overload
    def predict_all(self, bars: Mapping[str, Any], *, horizon: int = ...) -> dict[str, History]: ...
    @overload
    def predict_all(self, bars: Any, symbol: str, *, horizon: int = ...) -> History: ...
    def predict_all(
        self, bars: Any, symbol: str | None = None, *, horizon: int = 1
    ) -> History | dict[str, History]:
        """Forecast after every bar of a history, each from what was known at its time, as `predict`
        would.
        """
        self.at(horizon)
        assets = self._rows_of(bars, symbol)
        histories = {}
        for each in [symbol] if symbol else assets:
            meta = self.meta(each)
            events = inputs_of(self.config, assets[each], meta)
            probs = self.backend.probs_after_each(events, meta, self.context, horizon)[
                MIN_BARS - 1 :
            ]
            columns = {name: column[MIN_BARS - 1 :] for name, column in assets[each].items()}
            known = {**assets, each: columns}
            seen = [known[other]["timestamp"] if other in known else () for other in self.reads]
            absent = np.array([~np.isin(columns["timestamp"], stamps) for stamps in seen], bool)
            histories[each] = History(
                forecaster=self,
                symbol=each,
                columns=columns,
                probs=probs,
                absent=absent.reshape(-1, len(probs)).T,
                horizon=horizon,
                stamps=assets[each]["timestamp"],
            )
        return histories if symbol is None else histories[symbol]

    @overload
    def paths(
        self, bars: Mapping[str, Any], *, n: int = ..., seed: int | None = ...
    ) -> dict[str, ReturnPaths]: ...
    @overload
    def paths(
        self, bars: Any, symbol: str, *, n: int = ..., seed: int | None = ...
    ) -> ReturnPaths: ...
    def paths(
        self, bars: Any, symbol: str | None = None, *, n: int = 1000, seed: int | None = None
    ) -> ReturnPaths | dict[str, ReturnPaths]:
        """Sample paths of the return bar by bar, distributed as forecast at each of `horizons`.

        A seed draws the same steps for every asset; dependence between assets is not modelled.
        """
        require_installed("scipy")
        windows = self.windows(bars, symbol)
        dists = zip(
            *(self.forecast(windows, horizon=horizon) for horizon in self.horizons), strict=True
        )
        paths = {each[0].symbol: sample_paths(each, n, seed) for each in dists}
        return paths if symbol is None else paths[symbol]

    def at(self, horizon: int) -> TargetFit:
        """Scale, buckets and shape of the sum of this many next bars; untrained horizons are
        refused.
        """
        if horizon not in self._horizons:
            raise unknown_horizon(horizon, list(self.horizons[1:]))
        return self._horizons[horizon]

    def meta(self, symbol: str) -> npt.NDArray[np.int64]:
        """(3,) metadata of an asset: asset id, class id, timeframe id."""
        return self._metas[symbol] if symbol in self._metas else meta_of(self.tokenizer, symbol)

    def online(self) -> OnlineForecaster:
        """A forecaster for live bars; give it the bars so far with `extend_many`."""
        from vaiom.forecast.stream import OnlineForecaster

        return OnlineForecaster(self)

    def windows(self, bars: Any, symbol: str | None = None) -> list[Window]:
        """The windows of many assets, or of one of them, with the cross fields that the model
        reads.
        """
        assets = self._rows_of(bars, symbol)
        return [
            cut_window(assets, self.reads, each, self.context)
            for each in ([symbol] if symbol else assets)
        ]

    def forecast(
        self, windows: Iterable[Window], now: datetime | None = None, *, horizon: int = 1
    ) -> list[ReturnDistribution]:
        """Forecasts in the order of the windows; windows of equal length are batched."""
        windows, _ = list(windows), self.at(horizon)
        by_length: dict[int, list[int]] = {}
        for index, window in enumerate(windows):
            by_length.setdefault(len(window), []).append(index)
            window.require_scale()
        probs: dict[int, Probabilities] = {}
        for indices in by_length.values():
            for start in range(0, len(indices), BATCH):
                part = indices[start : start + BATCH]
                metas = [self.meta(windows[index].symbol) for index in part]
                events = [
                    inputs_of(self.config, windows[i].columns, meta)
                    for i, meta in zip(part, metas, strict=True)
                ]
                probs |= zip(
                    part,
                    self.backend.probs(np.stack(events), np.stack(metas), horizon),
                    strict=True,
                )
        return [
            self.distribution(each, probs[index], now, horizon=horizon)
            for index, each in enumerate(windows)
        ]

    def distribution(
        self,
        window: Window,
        probs: Probabilities,
        now: datetime | None = None,
        *,
        context: int | None = None,
        horizon: int = 1,
    ) -> ReturnDistribution:
        """The forecast from the probabilities at the last row of a window; `context` is
        its length.
        """
        at, last = (
            self.at(horizon),
            {name: window.columns[name][-1:] for name in ("timestamp", "sigma20")},
        )
        asset, missing = int(self.meta(window.symbol)[0]), window.missing_assets
        context = len(window) if context is None else context
        as_of = moment_of(int(last["timestamp"][0]))
        flags, step, now = (
            int(window.columns["flags"][-1]),
            self.rows.step,
            now and moment_or_now(now),
        )
        stamps = (window.columns["timestamp"] if window.stamps is None else window.stamps)[
            -self.context :
        ]
        coming = moment_of(next_stamp(stamps, step))
        stale_since = coming + self.timeframe  # when the next bar has closed
        notes = [
            f"masked: {words}"
            for name, words in _MASK_WORDS.items()
            if flags & int(MASK_BITS[name])
        ]
        masked, unknown = bool(notes), asset == UNKNOWN_ASSET
        old = now is not None and now > stale_since
        if old:
            notes.append(f"stale since {stale_since}: no bar of {coming} has arrived")
        if now is not None and as_of > now + CLOCK_ALLOWANCE:
            notes.append(
                f"ahead of time: the last bar is of {as_of}, and it is {now:%Y-%m-%d %H:%M}"
            )
        elif (
            now not in (None, as_of) and as_of + self.timeframe > now
        ):  # the stamp itself stands for its close
            notes.append(
                f"unfinished: the bar of {as_of} ends after {now:%Y-%m-%d %H:%M}, or has another "
                f"clock"
            )
        if unknown:
            known = find_pair(window.symbol) in self.tokenizer.symbols
            meant = f"; it knows {find_pair(window.symbol)}" if known else ""
            notes.append(
                f"unknown asset: the model never saw it and treats it as an average one{meant}"
            )
        if missing:
            notes.append(f"without other assets: no bar at {as_of} of {', '.join(missing)}")
        if context < self.context:
            notes.append(f"short context: {context} bars where the model can use {self.context}")
        return ReturnDistribution(
            symbol=window.symbol,
            probs=np.broadcast_to(probs, len(probs)),  # read-only: a cache may hold the same array
            edges=at.edges,
            sigma=float(at.scale(last, asset)[0]) or np.nan,
            shape=at.shape,
            prob_zero=at.zero_share[asset],
            as_of=as_of,
            target_time=coming if at.bars == 1 else moment_of(next_stamp(stamps, step, at.bars)),
            stale_since=stale_since,
            horizon=at.bars,
            context=context,
            stale=masked or old,
            masked=masked,
            unknown_asset=unknown,
            missing_assets=missing,
            notes=tuple(notes),
        )

    def _rows_of(self, bars: Any, symbol: str | None) -> dict[str, Columns]:
        """Rows of whole histories: {symbol: frame} or one asset's frame; only of one asset if no
        other is read.
        """
        if not isinstance(bars, Mapping):
            if symbol is None:
                raise ConfigError(
                    "whose bars are these?", expected='symbol="EURUSD", or {"EURUSD": frame}'
                )
            bars = {symbol: bars}
        if symbol is not None and symbol not in bars:
            raise ConfigError(
                "no bars of this asset", expected=", ".join(bars), got=f"symbol={symbol!r}"
            )
        assets = {}
        for each in [symbol] if symbol and not self.reads_other_assets else bars:
            min_bars = MIN_BARS if symbol in (None, each) else 1
            frame = prepare_bars(bars[each], each, self.tokenizer.timeframe, min_bars)
            assets[each], _ = self.rows(bars_of(frame, f"bars of {each}"))
        if self.reads_other_assets and assets:  # of the assets that the model was trained on
            for each, fields in cross_columns(assets, self.symbols).items():
                assets[each] |= fields
        return assets
