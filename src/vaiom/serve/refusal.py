"""What a client is told when a request cannot be served.

Enters: an error. Leaves: a status and a JSON body that says what to change; never a traceback.
"""

from __future__ import annotations

from typing import Any

from vaiom.errors import UserError


class RefusalError(UserError):
    """A request that cannot be served, and the status that says so."""

    def __init__(self, status: int, problem: str, *, retry_after: int | None = None, **details: Any) -> None:
        super().__init__(problem, **details)
        self.status = status
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after is not None else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def status_of(error: UserError) -> int:
    """What the bars or options themselves make impossible is unprocessable."""
    return error.status if isinstance(error, RefusalError) else 422


def error_body(error: UserError) -> dict[str, Any]:
    details = {name: getattr(error, name) for name in ("expected", "got", "where", "fix")}
    return {
        "error": {
            "problem": error.problem,
            **{name: None if value is None else str(value) for name, value in details.items()},
        }
    }
