"""The HTTP application of a service: its routes, the dashboard's files, and errors as responses.

Enters: a `Service`. Leaves: an ASGI application whose responses are JSON, or an `ErrorAnswer`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from vaiom import __version__
from vaiom.serve import schemas
from vaiom.serve.middleware import LimitMiddleware
from vaiom.serve.reference import describe_routes
from vaiom.serve.refusals import (
    STATUSES,
    UNREADABLE,
    UNUSABLE_VALUES,
    ErrorAnswer,
    RefusalError,
    error_response,
)
from vaiom.serve.service import Service

_KEYS = (401, 429)
_READ = (*_KEYS, 404, 422, 503)
_WRITE = (*_KEYS, 400, 408, 413, 422, 503)
# Method, path, method of the service, OpenAPI group, error statuses.
ROUTES = (
    ("POST", "/v1/forecast", "forecast", "forecasts", _WRITE),
    ("GET", "/v1/forecast", "every", "forecasts", _READ),
    ("POST", "/v1/assets/{symbol}/bars", "push", "live assets", (*_WRITE, 404, 409)),
    ("DELETE", "/v1/assets/{symbol}/bars", "cut", "live assets", _READ),
    ("GET", "/v1/assets/{symbol}/forecast", "current", "live assets", _READ),
    ("GET", "/v1/assets", "assets", "live assets", _KEYS),
    ("GET", "/v1/assets/{symbol}/history", "history", "live assets", _READ),
    ("POST", "/v1/portfolio", "portfolio", "forecasts", (*_WRITE, 404)),
    ("GET", "/v1/model", "model", "model", _KEYS),
    ("GET", "/healthz", "health", "operation", ()),
    ("GET", "/readyz", "ready", "operation", (503,)),
    ("GET", "/metrics", "page", "operation", _KEYS),
)
_NO_BODY = ("missing", ("body",))
"""Type and place of the error where a request has no body."""
_PAGE_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".js": "text/javascript",
}


def make_app(service: Service) -> FastAPI:
    """The routes, the dashboard's files, and those it shares with the report."""

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
        exception_handlers={
            RequestValidationError: _refuse_invalid,
            HTTPException: _refuse_routing,
        },
    )
    app.add_middleware(LimitMiddleware, config=service.config, metrics=service.metrics)
    for method, path, name, group, statuses in ROUTES:
        handler = getattr(service, name)
        refusals: dict[int | str, Any] = {
            status: {"model": ErrorAnswer, "description": STATUSES[status]}
            for status in sorted(statuses)
        }
        options: dict[str, Any] = {"methods": [method], "tags": [group], "responses": refusals}
        if path == "/metrics":
            app.router.add_api_route(path, handler, response_class=PlainTextResponse, **options)
        else:
            app.router.add_api_route(path, _as_json(handler), **options)
    shared = (files("vaiom.report") / "assets" / name for name in ("theme.css", "theme.js"))
    own = (each for each in (files("vaiom.serve") / "dashboard").iterdir() if each.is_file())
    pages = {each.name: each.read_bytes() for each in (*own, *shared)}

    @app.get("/docs", include_in_schema=False)
    async def reference(request: Request) -> Response:
        """The routes in words, each with a command; it holds no data and needs no key."""
        address = str(request.base_url).rstrip("/")
        return HTMLResponse(describe_routes(app.openapi(), address))

    @app.get("/{name}", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page(name: str = "index.html") -> Response:
        """A file of the dashboard, which holds no data and needs no key."""
        if name not in pages:
            raise HTTPException(404)
        return Response(pages[name], media_type=_PAGE_TYPES[PurePath(name).suffix])

    return app


def _as_json(handler: Callable[..., Awaitable[BaseModel]]) -> Callable[..., Awaitable[Response]]:
    """The same route without a second validation of its response."""

    @wraps(handler)
    async def respond(*inputs: Any, **named: Any) -> Response:
        """What the handler answers, as JSON; a push tells how long its parts took."""
        content = await handler(*inputs, **named)
        response = Response(content.model_dump_json(), media_type="application/json")
        if isinstance(content, schemas.PushAnswer):
            response.headers["Server-Timing"] = content.timing
        return response

    return respond


# FastAPI's own errors; the middleware handles those that we raise.
async def _refuse_invalid(request: Request, error: RequestValidationError) -> Response:
    """The response to a body, path or query that does not fit its schema."""
    first = error.errors()[0]
    if isinstance(first.get("input"), bytes):
        refusal = RefusalError(
            UNREADABLE,
            "the body is not sent as JSON",
            expected="JSON, with the header Content-Type: application/json",
            got=request.headers.get("content-type", "no such header"),
        )
        return error_response(refusal)
    is_json = first["type"] != "json_invalid" and (first["type"], first["loc"]) != _NO_BODY
    unit = "row" if is_json else "character"
    parts = [part if isinstance(part, str) else f"{unit} {part + 1}" for part in first["loc"]]
    problem = first["msg"]
    expected = None
    if first.get("ctx", {}).get("pattern") == schemas.STAMP:
        problem = "not a stamp of a bar"
        expected = "2026-01-01T00:00:00, on the model's clock, without a zone"
    refusal = RefusalError(
        UNUSABLE_VALUES if is_json else UNREADABLE,
        problem,
        where=", ".join(parts),
        expected=expected,
        got=repr(first.get("input"))[:200],
        fix="see the schema at /openapi.json",
    )
    return error_response(refusal)


async def _refuse_routing(request: Request, error: HTTPException) -> Response:
    """The response to an unknown path or method, or to a body that is no text."""
    problem = str(error.detail)
    if error.status_code == UNREADABLE:
        problem = "the body is no JSON in UTF-8; it must not be compressed"
    fix = "see the routes at /docs"
    refusal = RefusalError(error.status_code, problem, where=request.url.path, fix=fix)
    return error_response(refusal, error.headers)
