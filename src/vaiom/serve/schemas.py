"""Requests and answers of the service as schemas, from which its OpenAPI document is made.

Enters: JSON. Leaves: checked requests, whose bars are `BarRow`s from here on, and answers. Prices
are finite or null, log returns are per horizon, stamps are left edges on the model's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    GetPydanticSchema,
    PlainSerializer,
    PrivateAttr,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError, core_schema

from vaiom.distribution.returns import ReturnDistribution
from vaiom.serve.follow import BarRow, FeedHealth

MAX_BARS = 5_000
STAMP = (
    r"^(19[7-9]\d|20\d\d)-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d$"
)
SYMBOL = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$"


def _parse_stamp(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError("stamp", "no such day of the calendar") from None


_ISO = PlainSerializer(datetime.isoformat, return_type=str)
_STAMP = core_schema.no_info_after_validator_function(
    _parse_stamp, core_schema.str_schema(pattern=STAMP, strict=True)
)
Moment = Annotated[datetime, _ISO]
Stamp = Annotated[
    datetime,
    GetPydanticSchema(lambda _source, _handler: _STAMP),
    _ISO,
    Field(
        description="Left edge of the bar, on the clock that the model was trained on, without a "
        "zone."
    ),
]
Symbol = Annotated[str, Field(pattern=SYMBOL, description="An asset, as in EURUSD.")]
Now = Annotated[
    Stamp | None,
    Field(description="Time that decides what is stale, on the clock of the bars; by default now."),
]
Beyond = Annotated[
    float | None, Field(allow_inf_nan=False, description="Also P(|log return| > this).")
]
Horizon = Annotated[
    int,
    Field(description="Number of bars that the return spans, one of the horizons of `/v1/model`."),
]
Price = Annotated[float | None, Field(allow_inf_nan=False, description="Null where it is missing.")]

_BAR: JsonDict = {
    "datetime": "2025-06-30T22:00:00",
    "open": 1.1782,
    "high": 1.1791,
    "low": 1.1779,
    "close": 1.1787,
    "volume": 1520,
}


class _Request(BaseModel):
    """A body without unknown fields, whose types are not converted."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Bar(_Request):
    """One bar, as clients send it; a price that is missing is null."""

    model_config = ConfigDict(json_schema_extra={"examples": [_BAR]})

    datetime: Stamp
    open: Price
    high: Price
    low: Price
    close: Price
    volume: Price = None


BarList = Annotated[
    list[BarRow],
    GetPydanticSchema(lambda _source, handler: handler(list[Bar])),
    Field(min_length=1, max_length=MAX_BARS, description="Oldest first."),
    AfterValidator(lambda bars: [BarRow(*vars(bar).values()) for bar in bars]),
]


class ForecastRequest(_Request):
    """Bars to forecast from."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"symbol": "EURUSD", "bars": [_BAR]}]}
    )

    symbol: Symbol
    bars: BarList
    others: Annotated[dict[Symbol, BarList], Field(max_length=64)] = Field(
        {},
        description="Bars of other assets, for a model that reads them; without them the forecast "
        "says so.",
    )
    now: Now = None
    beyond: Beyond = None


class PushRequest(_Request):
    """The next bars of a live asset, or one bar alone."""

    bars: BarList

    @model_validator(mode="before")
    @classmethod
    def _wrap_single(cls, body: Any) -> Any:
        """A bar alone is a list of one."""
        return {"bars": [body]} if isinstance(body, dict) and "datetime" in body else body

    @classmethod
    def __get_pydantic_json_schema__(
        cls, own: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Either form, each with an example."""
        listed = handler.resolve_ref_schema(handler(own))
        single = handler(Bar.__pydantic_core_schema__)
        return {"anyOf": [listed, single], "examples": [{"bars": [_BAR]}, _BAR]}


Amount = Annotated[float, Field(allow_inf_nan=False)]
Sides = dict[str, dict[str, float]]


class PortfolioRequest(_Request):
    """Positions in live assets, whose risk is asked for."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"positions": {"EURUSD": 1e6, "XAUUSD": -2e5}}]}
    )

    positions: Annotated[dict[Symbol, Amount], Field(min_length=1, max_length=64)] = Field(
        description="Amounts of money, short where negative."
    )
    horizon: Annotated[int, Field(ge=1)] = Field(
        1, description="Bars ahead, one of those that the model forecasts."
    )
    level: Annotated[float, Field(ge=0.5, le=0.999)] = 0.99
    given: dict[Symbol, Amount] = Field({}, description="What if: log returns of some assets.")
    seed: Annotated[int, Field(ge=0, le=2**32)] = Field(0, description="Of the draws.")


class PortfolioAnswer(BaseModel):
    """Loss of the positions over the horizon, in money, without those whose return is given."""

    as_of: Moment
    horizon: int
    level: float
    value_at_risk: float
    expected_shortfall: float
    standard_errors: dict[str, float]
    quantiles: dict[str, float]
    contributions: Sides
    notes: list[str]


class TailAnswer(BaseModel):
    """Generalised Pareto: P(excess > e) = (1 + shape e / scale)^(-1/shape), exponential where the
    shape is 0.
    """

    scale: float
    shape: float


class DistributionAnswer(BaseModel):
    """The distribution function: linear between knots (log returns), tails beyond them."""

    knots: list[float]
    cumulative: list[float]
    lower: TailAnswer
    upper: TailAnswer

    @classmethod
    def of(cls, dist: ReturnDistribution) -> Self:
        """The distribution of a forecast, in log returns."""
        shape = dist.shape
        return cls(
            knots=(shape.knots * dist.sigma).tolist(),
            cumulative=dist.cumulative.tolist(),
            lower=TailAnswer(scale=shape.lower.scale * dist.sigma, shape=shape.lower.shape),
            upper=TailAnswer(scale=shape.upper.scale * dist.sigma, shape=shape.upper.shape),
        )


class ForecastsAnswer(BaseModel):
    """The forecasts of all live assets that have enough bars."""

    forecasts: list[ForecastAnswer]


class ForecastAnswer(BaseModel):
    """The distribution of the log return over the horizon (default: the next bar), given that it is
    not zero, except `prob_zero`.
    """

    symbol: str
    as_of: str
    target_time: str
    horizon: int
    context: int
    stale: bool
    stale_since: str
    unknown_asset: bool
    missing_assets: list[str]
    notes: list[str]
    sigma: float
    probs: list[float]
    edges: list[float | None]
    return_edges: list[float | None]
    prob_zero: float
    prob_up: float
    mean: float
    quantiles: dict[str, float]
    value_at_risk: Sides
    expected_shortfall: Sides
    prob_beyond: float | None = None
    law: DistributionAnswer | None = None

    @classmethod
    def unchecked(cls, forecast: dict[str, Any] | None) -> Self | None:
        """The answer from `to_dicts`, which is known to fit."""
        return cls.model_construct(None, **forecast) if forecast else None

    @classmethod
    def of(cls, dist: ReturnDistribution, beyond: float | None = None, whole: bool = False) -> Self:
        """A forecast, optionally with the probability of a larger move, or with all parameters of
        the distribution.
        """
        prob_beyond = None if beyond is None else dist.prob_beyond(beyond)
        return cls(
            **dist.to_dict(),
            prob_beyond=prob_beyond,
            law=DistributionAnswer.of(dist) if whole else None,
        )


class SettledForecast(BaseModel):
    """A forecast and the bar that settled it; no bits where the bar or the row before it
    is masked.
    """

    as_of: Moment
    target_time: Moment
    replayed: bool
    """Made from a history, not before the bar."""
    quantiles: dict[str, float]
    log_return: float | None
    bucket: int
    model_bits: float | None
    frequency_bits: float | None
    pit: float | None


class PushAnswer(BaseModel):
    """What became of pushed bars: the forecast that they settled, and the next one."""

    symbol: str
    accepted: int
    num_bars: int
    as_of: Moment
    scored: SettledForecast | None
    forecast: ForecastAnswer | None
    _timing: str = PrivateAttr("")

    @property
    def timing(self) -> str:
        """The value of the Server-Timing header."""
        return self._timing

    def set_timing(self, times: Sequence[float]) -> None:
        """Note when each part of the push began, in seconds, and when the last one ended."""
        spans = zip(("bar", "model", "disk"), pairwise(times), strict=True)
        self._timing = ", ".join(
            f"{name};dur={1e3 * (stop - start):.3f}" for name, (start, stop) in spans
        )


class CutAnswer(BaseModel):
    """An asset's state after bars were removed."""

    symbol: str
    removed: int
    num_bars: int
    as_of: Moment | None


class Drift(BaseModel):
    """Means over the last scored bars; a positive gain is good."""

    scored: int
    model_bits: float | None
    frequency_bits: float | None
    gain_bits: float | None
    gain_error: float | None = None
    """Standard error of the gain."""
    alert: bool


class AssetAnswer(BaseModel):
    """Where a live asset stands, its chance of a rise and the model's drift on it."""

    symbol: str
    known: bool
    ready: bool
    num_bars: int
    as_of: Moment | None
    close: float | None
    prob_up: float | None
    drift: Drift


class AssetsAnswer(BaseModel):
    """All live assets, and what their drift is measured against."""

    timeframe: str
    frequency: str
    alert_bits: float
    utc_offset_seconds: float
    """How far the clock of the bars is ahead of UTC."""
    window: int
    e_value: float | None = None
    """Evidence from recorded forecasts that the model is better than Frequency."""
    assets: list[AssetAnswer]


class MaskedBar(Bar):
    """A stored bar, and the data-quality masks of its row."""

    masks: list[str]


class LiveCalibration(BaseModel):
    """PITs of realised returns in ten even bins, and coverages."""

    scored: int
    pit_counts: list[int]
    coverage: dict[str, float | None]


class Quality(BaseModel):
    """How many of the last bars are masked, by mask."""

    bars: int
    masked: int
    by_mask: dict[str, int]


class HistoryAnswer(BaseModel):
    """The last bars of an asset, and how its forecasts did."""

    symbol: str
    bars: list[MaskedBar]
    forecasts: list[SettledForecast]
    calibration: LiveCalibration
    quality: Quality


class HealthAnswer(BaseModel):
    """That the service runs."""

    status: str


class ReadyAnswer(HealthAnswer):
    """That the service can forecast, and how its feeds do."""

    feeds: dict[str, FeedHealth]
    """State of each followed asset's feed."""
