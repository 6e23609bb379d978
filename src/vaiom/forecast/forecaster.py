"""Load a trained model and forecast from bars.

Enters: a run folder, checkpoint or exported file; bars of one or many assets. Leaves: a
`ReturnDistribution` of the next bar, or the forecasts of a whole history. A forecast depends on its
asset's bars up to its own time and, if the model reads other assets, on theirs.
Paper: Methods, "Input Representations" and "Evaluation and Ablation Protocol" (the final position
of a window).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from vaiom.corpus.targets import TargetFit, fit_of_next_bar
from vaiom.distribution.dependence import Dependence
from vaiom.distribution.joint import JointDistribution
from vaiom.distribution.paths import ReturnPaths, sample_paths
from vaiom.distribution.returns import SHOWN_LEVELS, ReturnDistribution
from vaiom.errors import ConfigError, require_installed
from vaiom.features.cross import cross_columns
from vaiom.features.fields import UNKNOWN_ASSET
from vaiom.features.inputs import inputs_of
from vaiom.features.rows import BarFeatures, RowColumns, bars_of
from vaiom.forecast import cautions
from vaiom.forecast.backend import BATCH, Backend, Events, Meta, Probabilities
from vaiom.forecast.bars import MIN_BARS, moment_of, moment_or_now, prepare_bars
from vaiom.forecast.frames import frames_by_symbol, split_assets, table_like
from vaiom.forecast.joint_forecast import dependence_after, fitted_dependence, join, score_last_rows
from vaiom.forecast.opening import find_model_file, open_model
from vaiom.forecast.window import History, Window, cut_window, find_absent
from vaiom.market.sessions import next_stamp
from vaiom.market.symbols import usual_symbol
from vaiom.market.timeframes import timeframe_of
from vaiom.model.checkpoint import ModelCard
from vaiom.model.horizon_heads import unknown_horizon
from vaiom.run import BEST_NAME, DEFAULT_MODEL, Run, packaged_models

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


class Forecaster:
    """A trained model that forecasts the next bar, every bar of a history, or a live stream.

    Bars are a pandas or Polars frame of one asset, with its `symbol`, or a mapping of symbols to
    such frames. With many frames and a `symbol`, only that asset is forecast, and the others are
    there for a model that reads them. A `horizon` is the number of bars that the log return spans,
    one of `horizons`.
    """

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
        self.backend = backend
        self.card = card
        self.dependence = dependence
        self.tokenizer = card.tokenizer
        self.config = card.config
        edges = card.tokenizer.edges
        self.rows = BarFeatures(card.config.input_fields, edges, card.tokenizer.timeframe)
        self.timeframe: timedelta = timeframe_of(card.tokenizer.timeframe)
        self.context = card.config.context
        self.symbols = card.tokenizer.symbols
        self.reads_other_assets = self.rows.reads_others
        self.reads = self.symbols if self.reads_other_assets else ()
        self._metas = {symbol: card.tokenizer.meta(symbol) for symbol in self.symbols}
        next_bar = fit_of_next_bar(card.tokenizer)
        longer = backend.horizons.fitted.fits if backend.horizons else ()
        self._targets = {target.bars: target for target in (next_bar, *longer)}
        self._is_run = False  # whether heads for more horizons can be trained beside the model

    @classmethod
    def load(
        cls, path: str | Path, device: str | None = "cpu", threads: int | None = None
    ) -> Forecaster:
        """Load a run folder's selected model, a packaged model by name, a checkpoint or an exported
        file.

        With `device=None` a few forecasts are faster: if the model allows it, PyTorch is not
        imported.
        """
        file = find_model_file(path)
        backend, card = open_model(file, device, threads)
        run = Run(file.parent)
        is_selected = file.name == BEST_NAME
        dependence = None
        if is_selected and run.dependence.is_file():
            dependence = Dependence.read(run.dependence, card.sha256)
        forecaster = cls(backend, card, dependence)
        forecaster._is_run = is_selected and run.config.is_file()
        return forecaster

    @classmethod
    def pretrained(
        cls, name: str = DEFAULT_MODEL, device: str | None = "cpu", threads: int | None = None
    ) -> Forecaster:
        """Load a packaged model: no file, no network, no training."""
        models = packaged_models()
        if name not in models:
            known = ", ".join(models)
            raise ConfigError(
                "no such packaged model", expected=known, got=name, fix="vaiom models"
            )
        return cls.load(models[name], device, threads)

    def __repr__(self) -> str:
        bars = f"{self.tokenizer.timeframe} bars of {len(self.symbols)} assets"
        model = f"context {self.context}, {self.backend.name}"
        return f"<Forecaster {self.card.provenance.experiment}, {bars}, {model}>"

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
        return tuple(self._targets)

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
        """Forecast the return after the last bar of one asset, or of each asset.

        `now`, on the bars' clock and by default the present in UTC, decides whether the forecast is
        stale.
        """
        self.at(horizon)
        windows = self.windows(bars, symbol)
        dists = self.forecast(windows, moment_or_now(now), horizon=horizon)
        return dists if symbol is None else dists[self.symbol_of(symbol)]

    def joint(
        self, bars: Mapping[str, Any], *, horizon: int = 1, now: datetime | None = None
    ) -> JointDistribution:
        """Forecast the next returns of all assets jointly, zero returns included.

        The current dependence is estimated from some hundred common bars beyond the model's
        context.
        """
        self.at(horizon)
        assets = self._rows_of(bars, None)
        if not assets:
            raise ConfigError("there are no bars to forecast from", expected='{"EURUSD": frame}')
        windows = [cut_window(assets, self.reads, each, self.context) for each in assets]
        dists = self.forecast(windows, moment_or_now(now), horizon=horizon)
        fit = fitted_dependence(self)
        series = {}
        for symbol, rows in assets.items():
            series[symbol] = score_last_rows(self, symbol, rows, fit.memory)
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
        columns: dict[str, list[Any]] = {
            id_column: list(dists),
            timestamp_column: [dist.target_time for dist in dists.values()],
            "target_name": ["log_return"] * len(dists),
            "predictions": [dist.median() for dist in dists.values()],
        }
        for level in quantile_levels:
            columns[str(level)] = [dist.quantile(level) for dist in dists.values()]
        columns["notes"] = ["; ".join(dist.notes) for dist in dists.values()]
        return table_like(frame, columns)

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
        symbol = self.symbol_of(symbol) if symbol else None
        assets = self._rows_of(bars, symbol)
        histories = {}
        for each in [symbol] if symbol else assets:
            probs = self.probs_after_each(each, assets[each], horizon)
            first = MIN_BARS - 1
            histories[each] = History(
                forecaster=self,
                symbol=each,
                rows=assets[each],
                probs=probs[first:],
                absent=find_absent(assets, self.reads, each)[first:],
                horizon=horizon,
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
        """Sample `n` paths of the return bar by bar, distributed as forecast at each of `horizons`.

        A seed draws the same steps for every asset; dependence between assets is not modelled.
        """
        require_installed("scipy")
        windows = self.windows(bars, symbol)
        by_horizon = [self.forecast(windows, horizon=horizon) for horizon in self.horizons]
        paths = {}
        for window in windows:
            dists = [each[window.symbol] for each in by_horizon]
            paths[window.symbol] = sample_paths(dists, n, seed)
        return paths if symbol is None else paths[self.symbol_of(symbol)]

    def at(self, horizon: int) -> TargetFit:
        """Scale, buckets and shape of the sum of this many next bars; untrained horizons are
        refused.
        """
        if horizon not in self._targets:
            raise unknown_horizon(horizon, list(self.horizons[1:]), self._is_run)
        return self._targets[horizon]

    def symbol_of(self, name: str) -> str:
        """The model's symbol for an asset, however it is spelled: eurusd, EUR/USD, EURUSD=X."""
        return usual_symbol(name, self.symbols)

    def meta(self, symbol: str) -> Meta:
        """(3,) metadata of an asset: asset id, class id, timeframe id."""
        return self._metas[symbol] if symbol in self._metas else self.tokenizer.meta(symbol)

    def inputs(self, symbol: str, columns: RowColumns) -> Events:
        """(rows, fields) inputs of the model from stored columns of an asset."""
        return inputs_of(self.config, columns, self.meta(symbol))

    def probs_after_each(self, symbol: str, columns: RowColumns, horizon: int = 1) -> Probabilities:
        """(rows, 16) probabilities after each row, from it and at most a context of rows so far."""
        inputs = self.inputs(symbol, columns)
        return self.backend.probs_after_each(inputs, self.meta(symbol), self.context, horizon)

    def online(self) -> OnlineForecaster:
        """A forecaster for live bars; give it the bars so far with `extend_many`."""
        from vaiom.forecast.stream import OnlineForecaster

        return OnlineForecaster(self)

    def windows(self, bars: Any, symbol: str | None = None) -> list[Window]:
        """The windows of many assets, or of one of them, with the cross fields that the model
        reads.
        """
        symbol = self.symbol_of(symbol) if symbol else None
        assets = self._rows_of(bars, symbol)
        wanted = [symbol] if symbol else assets
        return [cut_window(assets, self.reads, each, self.context) for each in wanted]

    def forecast(
        self, windows: Sequence[Window], now: datetime | None = None, *, horizon: int = 1
    ) -> dict[str, ReturnDistribution]:
        """Forecasts by symbol, in the order of the windows; windows of equal length are batched."""
        self.at(horizon)
        by_length: dict[int, list[Window]] = {}
        for window in windows:
            window.require_scale()
            by_length.setdefault(len(window), []).append(window)
        probs: dict[str, Probabilities] = {}
        for alike in by_length.values():
            for start in range(0, len(alike), BATCH):
                batch = alike[start : start + BATCH]
                symbols = [window.symbol for window in batch]
                inputs = [self.inputs(window.symbol, window.columns) for window in batch]
                metas = [self.meta(symbol) for symbol in symbols]
                found = self.backend.probs(np.stack(inputs), np.stack(metas), horizon)
                probs |= zip(symbols, found, strict=True)
        dists = {}
        for window in windows:
            own = probs[window.symbol]
            dists[window.symbol] = self.distribution(window, own, now, horizon=horizon)
        return dists

    def distribution(
        self,
        window: Window,
        probs: Probabilities,
        now: datetime | None = None,
        *,
        horizon: int = 1,
    ) -> ReturnDistribution:
        """The forecast with these probabilities (16,) after the last row of a window.

        Without `now` nothing is said about the age of the last bar.
        """
        target = self.at(horizon)
        asset = int(self.meta(window.symbol)[0])
        last = {name: window.columns[name][-1:] for name in ("timestamp", "sigma20")}
        stamps = window.columns["timestamp"][-self.context :]
        as_of = moment_of(int(stamps[-1]))
        next_bar = moment_of(next_stamp(stamps, self.rows.step))
        target_time = next_bar
        if target.bars > 1:
            target_time = moment_of(next_stamp(stamps, self.rows.step, target.bars))
        stale_since = next_bar + self.timeframe  # when the next bar has closed
        notes = cautions.mask_notes(int(window.columns["flags"][-1]))
        masked = bool(notes)
        now = now and moment_or_now(now)
        if now is not None:
            notes += cautions.clock_notes(as_of, next_bar, self.timeframe, now)
        if asset == UNKNOWN_ASSET:
            notes.append(cautions.unknown_asset_note(window.symbol, self.symbols))
        notes += cautions.input_notes(
            window.columns, self.rows.own_fields, self.rows.step, self.context
        )
        notes += cautions.context_notes(window.missing_assets, as_of, len(stamps), self.context)
        return ReturnDistribution(
            symbol=window.symbol,
            probs=np.broadcast_to(probs, len(probs)),  # read-only: a cache may hold the same array
            edges=target.edges,
            sigma=float(target.scale(last, asset)[0]) or np.nan,
            shape=target.shape,
            prob_zero=target.zero_share[asset],
            as_of=as_of,
            target_time=target_time,
            stale_since=stale_since,
            horizon=target.bars,
            context=len(stamps),
            stale=masked or (now is not None and now > stale_since),
            masked=masked,
            unknown_asset=asset == UNKNOWN_ASSET,
            missing_assets=window.missing_assets,
            notes=tuple(notes),
        )

    def _rows_of(self, bars: Any, symbol: str | None) -> dict[str, RowColumns]:
        """The rows of whole histories by symbol; only of one asset if no other is read."""
        frames = frames_by_symbol(bars, symbol, self.symbols)
        assets = {}
        for each in [symbol] if symbol and not self.reads_other_assets else frames:
            min_bars = MIN_BARS if symbol in (None, each) else 1
            frame = prepare_bars(frames[each], each, self.tokenizer.timeframe, min_bars)
            assets[each], _ = self.rows(bars_of(frame, f"bars of {each}"))
        if self.reads_other_assets and assets:
            for each, fields in cross_columns(assets, self.symbols).items():
                assets[each] |= fields
        return assets
