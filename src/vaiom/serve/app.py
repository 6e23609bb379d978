"""The routes.

Enters: a `Service`. Leaves: an ASGI application with its OpenAPI page. Every answer that is not a success is an
`ErrorAnswer`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from vaiom import __version__
from vaiom.errors import DataError, UserError
from vaiom.serve.errors import STATUSES, RefusalError, error_response
from vaiom.serve.middleware import LimitMiddleware
from vaiom.serve.schemas import (
    MAX_BARS,
    SYMBOL,
    AssetsAnswer,
    ErrorAnswer,
    ForecastAnswer,
    ForecastRequest,
    HealthAnswer,
    HistoryAnswer,
    ModelAnswer,
    PushAnswer,
    PushRequest,
    Stamp,
)
from vaiom.serve.service import Service

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript"}

Symbol = Annotated[str, Path(pattern=SYMBOL, description="An asset, as in EURUSD.")]


def _refusals(*statuses: int, guarded: tuple[int, ...] = (401, 429)) -> dict[int | str, dict[str, Any]]:
    """The statuses of a route on the OpenAPI page, those of keys and rates among them."""
    return {status: {"model": ErrorAnswer, "description": STATUSES[status]} for status in sorted({*guarded, *statuses})}


_READ = _refusals(404, 422, 503)
_WRITE = _refusals(400, 408, 413, 422, 503)


def make_app(service: Service) -> FastAPI:
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
    app.add_middleware(LimitMiddleware, config=service.config, metrics=service.metrics)
    _add_errors(app)
    _add_forecasts(app, service)
    _add_facts(app, service)
    _add_dashboard(app)
    return app


def _add_forecasts(app: FastAPI, service: Service) -> None:
    @app.post("/v1/forecast", responses=_WRITE, tags=["forecasts"])
    async def forecast(body: ForecastRequest) -> ForecastAnswer:
        """Forecast the bar after the last of the bars in the body."""
        dist = await service.forecast(body.symbol, {**body.others, body.symbol: body.bars}, body.now)
        return ForecastAnswer.of(dist, body.beyond)

    @app.post("/v1/assets/{symbol}/bars", responses=_WRITE | _refusals(404, 409), tags=["live assets"])
    async def push(symbol: Symbol, body: PushRequest, response: Response) -> PushAnswer:
        """Take the next bars of a live asset; they are on the disk before the answer, which has the new forecast."""
        answer, seconds = await service.push(symbol, body.bars)
        timing = ", ".join(f"{name};dur={1e3 * taken:.3f}" for name, taken in seconds.items())
        response.headers["Server-Timing"] = timing
        return answer

    @app.get("/v1/assets/{symbol}/forecast", responses=_READ, tags=["live assets"])
    async def current(
        symbol: Symbol,
        now: Annotated[Stamp | None, Query(description="A moment of the bars' clock, to be called stale by.")] = None,
        beyond: Annotated[float | None, Query(allow_inf_nan=False, description="Also P(|log return| > this).")] = None,
        law: Annotated[bool, Query(description="Also the whole distribution function.")] = False,
    ) -> ForecastAnswer:
        """The forecast after the last bar of a live asset."""
        return ForecastAnswer.of(await service.current(symbol, now), beyond, whole=law)


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/v1/assets", responses=_refusals(), tags=["live assets"])
    async def assets() -> AssetsAnswer:
        """Where every live asset stands, and how the model does on it."""
        return service.live.describe()

    @app.get("/v1/assets/{symbol}/history", responses=_READ, tags=["live assets"])
    async def history(symbol: Symbol, last: Annotated[int, Query(ge=1, le=MAX_BARS)] = 96) -> HistoryAnswer:
        """The last bars with their masks, the forecasts that they settled, calibration and data quality."""
        return service.live.history(symbol, last)

    @app.get("/v1/model", responses=_refusals(), tags=["model"])
    async def model() -> ModelAnswer:
        """The model card: provenance, versions, and limits in plain words."""
        return service.model_card

    @app.get("/healthz", tags=["operation"])
    async def health() -> HealthAnswer:
        """The process answers."""
        return HealthAnswer(status="alive")

    @app.get("/readyz", responses=_refusals(503, guarded=()), tags=["operation"])
    async def ready() -> HealthAnswer:
        """The service can forecast."""
        service.require_ready()
        return HealthAnswer(status="ready")

    @app.get("/metrics", response_class=PlainTextResponse, responses=_refusals(), tags=["operation"])
    async def page() -> Response:
        """Counts, times and drift for Prometheus."""
        return Response(service.metrics_page(), media_type=_METRICS_TYPE)


def _add_dashboard(app: FastAPI) -> None:
    pages = {page.name: page.read_bytes() for page in (files("vaiom.serve") / "dashboard").iterdir() if page.is_file()}

    @app.get("/{name}", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page(name: str = "index.html") -> Response:
        if name not in pages:
            raise HTTPException(404)
        return Response(pages[name], media_type=_PAGE_TYPES[PurePath(name).suffix])


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(UserError)
    async def users(_: Request, error: UserError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        unit = "character" if first["type"] == "json_invalid" else "row"
        where = ", ".join(part if isinstance(part, str) else f"{unit} {part + 1}" for part in first["loc"])
        got = repr(first.get("input"))[:200]
        return error_response(DataError(first["msg"], where=where, got=got, fix="see the schema at /openapi.json"))

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        problem, where = str(error.detail), request.url.path
        refusal = RefusalError(error.status_code, problem, where=where, fix="see the routes at /openapi.json")
        return error_response(refusal, error.headers)
