"""What every request passes: size and time limits, keys, rate, headers, counts, and no traceback on the way out.

Enters: an ASGI request. Leaves: the application's answer with security headers, or a refusal in its place.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from vaiom.serve.metrics import Metrics
from vaiom.serve.refusal import RefusalError, error_body
from vaiom.serve.settings import ServeConfig

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

GUARDED = ("/v1/", "/metrics")
"""Paths that need a key, where keys are in use; the dashboard's own files hold no data."""

_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
_MAX_CLIENTS = 10_000
# A client that waited as long as it was told must not be refused for the last bit of a token.
_ROUNDING = 1e-9
_log = logging.getLogger("vaiom.serve")


class RateLimit:
    """A token bucket for each client, which holds a tenth of a minute's requests at once, and one at least."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second, self.burst, self.clock = per_minute / 60, max(1.0, per_minute / 10), clock
        self.clients: dict[str, tuple[float, float]] = {}

    def take(self, client: str) -> None:
        """Let one request of a client through, or refuse it."""
        now = self.clock()
        tokens, then = self.clients.pop(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - then) * self.per_second)
        refused = tokens < 1 - _ROUNDING
        self.clients[client] = (tokens if refused else tokens - 1, now)
        if len(self.clients) > _MAX_CLIENTS:
            # The one that was longest away is forgotten.
            del self.clients[next(iter(self.clients))]
        if refused:
            wait = int((1 - tokens) / self.per_second) + 1
            raise RefusalError(
                429,
                "too many requests",
                expected=f"{round(60 * self.per_second)} a minute",
                retry_after=wait,
                fix=f"wait {wait} s; push bars of one asset in one request",
            )


class Gate:
    def __init__(self, app: App, config: ServeConfig, metrics: Metrics) -> None:
        self.app, self.config, self.metrics = app, config, metrics
        self.rate = RateLimit(config.rate_limit) if config.rate_limit else None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = _Request(scope, receive, send, self.config)
        start = time.perf_counter()
        try:
            self._admit(scope, request)
            await self.app(scope, request.receive, request.send)
        except RefusalError as refusal:
            await request.refuse(refusal)
        except Exception:
            _log.exception("a request failed: %s %s", scope["method"], scope["path"])
            await request.refuse(RefusalError(500, "an error of the service, not of the request; it was logged"))
        route = getattr(scope.get("route"), "path", "none")
        self.metrics.requests.add(route=route, status=str(request.status))
        self.metrics.seconds.observe(time.perf_counter() - start, route=route)

    def _admit(self, scope: MutableMapping[str, Any], request: _Request) -> None:
        if not scope["path"].startswith(GUARDED):
            return
        client = (scope.get("client") or ("",))[0]
        if self.config.api_keys:
            given = _given_key(request.headers)
            if not any(hmac.compare_digest(given, key.encode()) for key in self.config.api_keys):
                raise RefusalError(
                    401,
                    "a valid API key is needed",
                    expected="the header Authorization: Bearer KEY, or X-API-Key: KEY",
                    got="another key" if given else "no key",
                )
            client = given.decode()
        if self.rate:
            self.rate.take(client)
        length = request.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.config.max_body:
            raise request.too_large(int(length))


class _Request:
    """One request's way in and out."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send, config: ServeConfig) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.status = 0
        self._receive, self._send, self._config = receive, send, config
        self._deadline = time.monotonic() + config.body_seconds
        self._size, self._complete = 0, False
        self._refusal: RefusalError | None = None

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(self._deadline - time.monotonic(), 0))
        except TimeoutError:
            raise self._refused(
                RefusalError(
                    408, "the request did not arrive in time", expected=f"within {self._config.body_seconds:g} s"
                )
            ) from None
        self._size += len(message.get("body", b""))
        if self._size > self._config.max_body:
            raise self._refused(self.too_large(self._size))
        self._complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if self._refusal is not None:
            # The application saw a broken body and has its own words for it; the client is told why it broke.
            await self.refuse(self._refusal)
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await self._send(message)

    async def refuse(self, refusal: RefusalError) -> None:
        """Answer in the application's place, unless it has answered."""
        if self.status:
            return
        self.status = refusal.status
        body = json.dumps(error_body(refusal)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
        await self._send({"type": "http.response.start", "status": refusal.status, "headers": [*headers, *_HEADERS]})
        await self._send({"type": "http.response.body", "body": body})

    def too_large(self, size: int) -> RefusalError:
        return RefusalError(
            413,
            "the request is too large",
            expected=f"{self._config.max_body} bytes at most",
            got=f"{size} bytes or more",
            fix="send fewer bars; a forecast needs no more than the model's context and some for its scales",
        )

    def _refused(self, refusal: RefusalError) -> RefusalError:
        self._refusal = refusal
        return refusal


def _given_key(headers: dict[bytes, bytes]) -> bytes:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
