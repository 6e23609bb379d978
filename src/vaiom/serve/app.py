"""The routes.

Enters: a `Service`. Leaves: an ASGI application with its OpenAPI page, behind the `Gate`. Every answer that is not a
success is an `ErrorAnswer`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from vaiom import __version__
from vaiom.errors import DataError, UserError
from vaiom.serve import metrics, schemas
from vaiom.serve.gate import Gate
from vaiom.serve.refusal import RefusalError, error_body, status_of
from vaiom.serve.service import Service
from vaiom.serve.store import Candle
from vaiom.serve.views import assets_view, forecast_view, history_view

_PAGES = {
    "": ("index.html", "text/html"),
    "style.css": ("style.css", "text/css"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    **{name: (name, "text/javascript") for name in ("app.js", "api.js", "charts.js", "law.js", "panels.js")},
}
_WORDS = {
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

Symbol = Annotated[str, Path(pattern=schemas.SYMBOL, description="An asset, as in EURUSD.")]


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    always = (401, 429)
    return {code: {"model": schemas.ErrorAnswer, "description": _WORDS[code]} for code in sorted({*always, *statuses})}


_READ = _refusals(404, 422, 503)
_WRITE = _refusals(400, 408, 413, 422, 503)


def make_app(service: Service) -> Gate:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="VAIOM",
        version=__version__,
        summary="The distribution of the next return, given that it is not zero.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_errors(app)
    _add_forecasts(app, service)
    _add_facts(app, service)
    _add_dashboard(app)
    return Gate(app, service.config, service.metrics)


def _add_forecasts(app: FastAPI, service: Service) -> None:
    @app.post("/v1/forecast", response_model=schemas.ForecastAnswer, responses=_WRITE, tags=["forecasts"])
    async def forecast(body: schemas.ForecastRequest) -> Response:
        """Forecast the bar after the last of the bars in the body."""
        now = _moment(body.now) if body.now else None
        frames = {symbol: _candles(bars) for symbol, bars in {**body.others, body.symbol: body.bars}.items()}
        dist = await service.forecast(body.symbol, frames, now)
        return JSONResponse(forecast_view(dist, beyond=body.beyond))

    @app.post(
        "/v1/assets/{symbol}/bars",
        response_model=schemas.PushAnswer,
        responses={**_WRITE, **_refusals(404, 409)},
        tags=["live assets"],
    )
    async def push(symbol: Symbol, body: schemas.PushRequest) -> Response:
        """Take the next bars of a live asset; they are on the disk before the answer, which has the new forecast."""
        answer, seconds = await service.push(symbol, _candles(body.bars))
        timing = ", ".join(f"{name};dur={1e3 * taken:.3f}" for name, taken in seconds.items())
        return JSONResponse(answer, headers={"Server-Timing": timing})

    @app.get(
        "/v1/assets/{symbol}/forecast", response_model=schemas.ForecastAnswer, responses=_READ, tags=["live assets"]
    )
    async def current(
        symbol: Symbol,
        now: Annotated[
            str | None, Query(pattern=schemas.STAMP, description="A moment of the bars' clock, to be called stale by.")
        ] = None,
        beyond: Annotated[float | None, Query(allow_inf_nan=False, description="Also P(|log return| > this).")] = None,
        law: Annotated[bool, Query(description="Also the whole distribution function.")] = False,
    ) -> Response:
        """The forecast after the last bar of a live asset."""
        dist = await service.current(symbol, _moment(now) if now else None)
        return JSONResponse(forecast_view(dist, beyond=beyond, law=law))


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/v1/assets", response_model=schemas.AssetsAnswer, responses=_refusals(), tags=["live assets"])
    async def assets() -> Response:
        """Where every live asset stands, and how the model does on it."""
        return JSONResponse(assets_view(service.live))

    @app.get("/v1/assets/{symbol}/history", response_model=schemas.HistoryAnswer, responses=_READ, tags=["live assets"])
    async def history(symbol: Symbol, last: Annotated[int, Query(ge=1, le=schemas.MAX_BARS)] = 96) -> Response:
        """The last bars with their masks, the forecasts that they settled, calibration and data quality."""
        return JSONResponse(history_view(service.live, symbol, last))

    @app.get("/v1/model", response_model=schemas.ModelAnswer, responses=_refusals(), tags=["model"])
    async def model() -> Response:
        """The model card: provenance, versions, and limits in plain words."""
        return JSONResponse(service.card)

    @app.get("/healthz", response_model=schemas.HealthAnswer, tags=["operation"])
    async def health() -> Response:
        """The process answers."""
        return JSONResponse({"status": "alive"})

    @app.get(
        "/readyz",
        response_model=schemas.HealthAnswer,
        responses={503: {"model": schemas.ErrorAnswer, "description": _WORDS[503]}},
        tags=["operation"],
    )
    async def ready() -> Response:
        """The service can forecast."""
        service.require_ready()
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", response_class=PlainTextResponse, responses=_refusals(), tags=["operation"])
    async def page() -> Response:
        """Counts, times and drift for Prometheus."""
        return PlainTextResponse(service.page_of_metrics(), media_type=metrics.CONTENT_TYPE)


def _add_dashboard(app: FastAPI) -> None:
    folder = files("vaiom.serve") / "dashboard"
    pages = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _PAGES.items()}

    @app.get("/{name}", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page(name: str = "") -> Response:
        if name not in pages:
            raise HTTPException(404)
        content, kind = pages[name]
        return Response(content, media_type=kind)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(UserError)
    async def users(_: Request, error: UserError) -> Response:
        headers = error.headers if isinstance(error, RefusalError) else None
        return JSONResponse(error_body(error), status_of(error), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = DataError(
            first["msg"], where=where, got=repr(first.get("input"))[:200], fix="see the schema at /openapi.json"
        )
        return JSONResponse(error_body(problem), 422)

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        problem = RefusalError(
            error.status_code, str(error.detail), where=request.url.path, fix="see the routes at /openapi.json"
        )
        return JSONResponse(error_body(problem), error.status_code, error.headers)


def _candles(bars: list[schemas.Bar]) -> list[Candle]:
    return [
        Candle(_moment(bar.datetime, number), bar.open, bar.high, bar.low, bar.close, bar.volume)
        for number, bar in enumerate(bars, start=1)
    ]


def _moment(text: str, row: int | None = None) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        where = None if row is None else f"bars, row {row}"
        raise DataError("no such day", where=where, expected="a day of the calendar", got=text) from error
