"""The web application: a table of routes, the dashboard, refusals as JSON.

Enters: a `Service`, whose methods answer the routes. Leaves: an ASGI application with its OpenAPI page. Every answer
that is not a success is an `ErrorAnswer`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from vaiom import __version__
from vaiom.errors import DataError
from vaiom.serve.errors import STATUSES, ErrorAnswer, RefusalError, error_response
from vaiom.serve.middleware import LimitMiddleware
from vaiom.serve.service import Service

_KEYS = (401, 429)
_READ = (*_KEYS, 404, 422, 503)
_WRITE = (*_KEYS, 400, 408, 413, 422, 503)
# Method, path, the service's method, the group on the OpenAPI page, the statuses of refusals.
_ROUTES = (
    ("POST", "/v1/forecast", "forecast", "forecasts", _WRITE),
    ("POST", "/v1/assets/{symbol}/bars", "push", "live assets", (*_WRITE, 404, 409)),
    ("GET", "/v1/assets/{symbol}/forecast", "current", "live assets", _READ),
    ("GET", "/v1/assets", "assets", "live assets", _KEYS),
    ("GET", "/v1/assets/{symbol}/history", "history", "live assets", _READ),
    ("GET", "/v1/model", "model", "model", _KEYS),
    ("GET", "/healthz", "health", "operation", ()),
    ("GET", "/readyz", "ready", "operation", (503,)),
    ("GET", "/metrics", "page", "operation", _KEYS),
)
_PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript"}


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
    for method, path, name, group, statuses in _ROUTES:
        kind: Any = {"response_class": PlainTextResponse} if path == "/metrics" else {}
        refusals: dict[int | str, Any] = {
            status: {"model": ErrorAnswer, "description": STATUSES[status]} for status in sorted(statuses)
        }
        app.add_api_route(path, getattr(service, name), methods=[method], tags=[group], responses=refusals, **kind)
    _add_dashboard(app)
    _add_errors(app)
    return app


def _add_dashboard(app: FastAPI) -> None:
    pages = {page.name: page.read_bytes() for page in (files("vaiom.serve") / "dashboard").iterdir() if page.is_file()}

    @app.get("/{name}", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page(name: str = "index.html") -> Response:
        if name not in pages:
            raise HTTPException(404)
        return Response(pages[name], media_type=_PAGE_TYPES[PurePath(name).suffix])


def _add_errors(app: FastAPI) -> None:
    """FastAPI's own refusals in our words; the middleware answers those that we raise."""

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
