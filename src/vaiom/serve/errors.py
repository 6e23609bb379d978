"""What a client is told when a request cannot be served.

Enters: an error. Leaves: a status, and a JSON body that says what to change; never a traceback.
"""

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


class ErrorDetails(BaseModel):
    problem: str
    expected: str | None
    got: str | None
    where: str | None
    fix: str | None


class ErrorAnswer(BaseModel):
    error: ErrorDetails


class RefusalError(UserError):
    """A request that cannot be served, and the status that says so; all other errors of users are 422."""

    def __init__(self, status: int, problem: str, *, retry_after: int | None = None, **details: Any) -> None:
        super().__init__(problem, **details)
        self.status, self.retry_after = status, retry_after
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"


def details_of(error: UserError) -> dict[str, Any]:
    """What an error says, by the names that its constructor takes."""
    return {name: getattr(error, name) for name in ("problem", "expected", "got", "where", "fix")}


def error_response(error: UserError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    details = {name: None if value is None else str(value) for name, value in details_of(error).items()}
    status = error.status if isinstance(error, RefusalError) else 422
    return JSONResponse({"error": details}, status, headers or getattr(error, "headers", None))
