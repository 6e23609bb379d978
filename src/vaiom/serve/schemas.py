"""Request and response schemas of the service, where a missing price is null, and its errors as
status and body.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import distributions
from typing import Annotated, Any, Self

from fastapi.responses import JSONResponse
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    PrivateAttr,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError, core_schema

from vaiom.codec import to_json
from vaiom.distribution.returns import ReturnDistribution
from vaiom.errors import UserError
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.forecaster import Forecaster
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

_PACKAGES = ("vaiom", "torch", "numpy", "polars", "onnxruntime", "fastapi", "uvicorn")
_BAR: JsonDict = {
    "datetime": "2025-06-30T22:00:00",
    "open": 1.1782,
    "high": 1.1791,
    "low": 1.1779,
    "close": 1.1787,
    "volume": 1520,
}


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Bar(_Request):
    model_config = ConfigDict(json_schema_extra={"examples": [_BAR]})

    datetime: Stamp
    open: Price
    high: Price
    low: Price
    close: Price
    volume: Price = None


Bars = Annotated[
    list[BarRow],
    GetPydanticSchema(lambda _source, handler: handler(list[Bar])),
    Field(min_length=1, max_length=MAX_BARS, description="Oldest first."),
    AfterValidator(lambda bars: [BarRow(*vars(bar).values()) for bar in bars]),
]


class ForecastRequest(_Request):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"symbol": "EURUSD", "bars": [_BAR]}]}
    )

    symbol: Symbol
    bars: Bars
    others: Annotated[dict[Symbol, Bars], Field(max_length=64)] = Field(
        {},
        description="Bars of other assets, for a model that reads them; without them the forecast "
        "says so.",
    )
    now: Now = None
    beyond: Beyond = None


class PushRequest(_Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"bars": [_BAR]}]})

    bars: Bars


Amount = Annotated[float, Field(allow_inf_nan=False)]
Sides = dict[str, dict[str, float]]


class PortfolioRequest(_Request):
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
        tails = dist.shape.lower, dist.shape.upper
        lower, upper = (
            TailAnswer(scale=tail.scale * dist.sigma, shape=tail.shape) for tail in tails
        )
        knots = (dist.shape.knots * dist.sigma).tolist()
        return cls(knots=knots, cumulative=dist.cumulative.tolist(), lower=lower, upper=upper)


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

    def set_timing(self, seconds: Mapping[str, float]) -> None:
        """Note how long each part of the push took."""
        parts = [f"{name};dur={1e3 * each:.3f}" for name, each in seconds.items()]
        self._timing = ", ".join(parts)


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
    symbol: str
    known: bool
    ready: bool
    num_bars: int
    as_of: Moment | None
    close: float | None
    prob_up: float | None
    drift: Drift


class AssetsAnswer(BaseModel):
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
    masks: list[str]


class Calibration(BaseModel):
    """PITs of realised returns in ten even bins, and coverages."""

    scored: int
    pit_counts: list[int]
    coverage: dict[str, float | None]


class Quality(BaseModel):
    bars: int
    masked: int
    by_mask: dict[str, int]


class HistoryAnswer(BaseModel):
    symbol: str
    bars: list[MaskedBar]
    forecasts: list[SettledForecast]
    calibration: Calibration
    quality: Quality


class HealthAnswer(BaseModel):
    status: str


class ReadyAnswer(HealthAnswer):
    feeds: dict[str, FeedHealth]
    """State of each followed asset's feed."""


class ModelCard(BaseModel):
    """The model card: identity, training data and limits."""

    model_config = ConfigDict(extra="allow")

    engine: str
    sha256: str
    tokenizer_sha256: str
    corpus_sha256: str
    experiment: str
    seed: int
    step: int
    validation_bits: float | None
    train_end: str | None
    splits: dict[str, Any]
    timeframe: str
    context: int
    horizons: list[int]
    has_joint: bool
    """Whether it has a fitted dependence between assets."""
    symbols: list[str]
    versions: dict[str, str]
    limits: list[str]

    @classmethod
    def of(cls, forecaster: Forecaster) -> Self:
        origin = forecaster.card.provenance
        versions = {
            name: package.version for name in _PACKAGES for package in distributions(name=name)
        }
        more = {
            "trained_with": origin.vaiom_version,
            "train": origin.train,
            "inputs": origin.inputs,
        }
        return cls(
            **forecaster.describe() | more | {"model": to_json(forecaster.config)},
            train_end=origin.splits.get("train_end"),
            horizons=list(forecaster.horizons),
            has_joint=forecaster.dependence is not None,
            versions={"python": platform.python_version(), **versions},
            limits=_limits(forecaster),
        )


def _limits(forecaster: Forecaster) -> list[str]:
    """Limits in plain words, for users who act on a forecast."""
    end = str(forecaster.card.provenance.splits.get("train_end", "an unknown date")).removesuffix(
        "T00:00:00"
    )
    reads = forecaster.reads_other_assets
    seen = (
        "the bars of its assets, and says when some are missing"
        if reads
        else "one asset's bars at a time"
    )
    ahead = " or ".join(map(str, forecaster.horizons))
    return [
        f"It has learned from bars before {end} and knows nothing of what changed since.",
        "Every figure but prob_zero is given that the next close differs from the last one.",
        f"Horizons, in bars of {forecaster.tokenizer.timeframe}: {ahead}, whenever those bars "
        f"come; "
        "where the market closes in between, the scale is still that of ordinary bars.",
        f"It sees {seen}: no news, no calendar of events, no order book.",
        f"Fewer than {forecaster.context} bars make a forecast worse, fewer than {MIN_BARS} make "
        f"it impossible.",
        "An asset that it was not trained on is treated as an average one, and the forecast says "
        "so.",
        "What lies inside a bucket and beyond the outermost edges follows one pooled Train rule, "
        "whatever the asset.",
        "A distribution is not advice: costs, spreads and the size of a position are yours.",
    ]


STATUSES = {
    400: "The request is not readable.",
    401: "The API key is missing or wrong.",
    404: "No such asset.",
    408: "The request did not arrive in time.",
    409: "A bar is there already, or goes back in time.",
    413: "The request is too large.",
    422: "The values cannot be used; too few bars, for one.",
    429: "Too many requests.",
    503: "Not ready, or too busy.",
}


class ErrorDetails(BaseModel):
    problem: str
    expected: str | None
    got: str | None
    where: str | None
    fix: str | None


class ErrorAnswer(BaseModel):
    error: ErrorDetails


class RefusalError(UserError):
    """A request that cannot be served, with its HTTP status; other user errors are 422."""

    def __init__(
        self, status: int, problem: str, *, retry_after: int | None = None, **details: Any
    ) -> None:
        super().__init__(problem, **details)
        self.status, self.retry_after = status, retry_after
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"


def details_of(error: UserError) -> dict[str, Any]:
    """The parts of an error, named as in its constructor."""
    return {name: getattr(error, name) for name in ("problem", "expected", "got", "where", "fix")}


def error_response(error: UserError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    details = {
        name: None if value is None else str(value) for name, value in details_of(error).items()
    }
    status = error.status if isinstance(error, RefusalError) else 422
    return JSONResponse({"error": details}, status, headers or getattr(error, "headers", None))
