"""Errors of the service as HTTP status and body; other user errors are 422."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from vaiom.errors import UserError

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
"""What each status of a refused request means, for the schema of the service."""
UNREADABLE = 400
UNUSABLE_VALUES = 422
DISK_PAUSE_SECONDS = 10
"""When a client may ask again where the disk failed."""


class ErrorDetails(BaseModel):
    """What is wrong with a request, and a way out that works."""

    problem: str
    expected: str | None
    got: str | None
    where: str | None
    fix: str | None


class ErrorAnswer(BaseModel):
    """The body of every refusal."""

    error: ErrorDetails


class RefusalError(UserError):
    """A request that cannot be served, with its HTTP status."""

    def __init__(
        self, status: int, problem: str, *, retry_after: int | None = None, **details: Any
    ) -> None:
        """`retry_after` is in seconds; `details` are those of every `UserError`."""
        super().__init__(problem, **details)
        self.status = status
        self.retry_after = retry_after
        self.headers = {}
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"


def error_response(error: UserError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response to a request that ended in an error."""
    details = {name: getattr(error, name) for name in ErrorDetails.model_fields}
    body = {name: None if value is None else str(value) for name, value in details.items()}
    status = error.status if isinstance(error, RefusalError) else UNUSABLE_VALUES
    return JSONResponse({"error": body}, status, headers or getattr(error, "headers", None))
