"""ASGI middleware: host check, API keys, rate limits, size and time limits, security headers,
request counts.

Enters: any request. Leaves: to the application, requests that are allowed, with their whole body;
to the client, refusals as JSON, and security headers on every response.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from ipaddress import ip_address
from socket import gethostname

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vaiom.errors import UserError
from vaiom.serve.metrics import Metrics
from vaiom.serve.refusals import RefusalError, error_response
from vaiom.serve.server import ServeConfig

GUARDED = ("/v1/", "/metrics")
"""Paths that need an API key, if keys are configured; the dashboard's files hold no data."""

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
MAX_CLIENTS = 10_000
"""Clients whose requests are counted at once."""
WRONG_KEYS = 60
"""Wrong API keys a minute and address."""
ROUNDING = 1e-9
"""A client that waited as long as told must not be refused for rounding."""
_log = logging.getLogger("vaiom.serve")


class RateLimit:
    """A token bucket per client with a burst of a tenth of a minute's requests, at least one."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        self.per_second = per_minute / 60
        self.burst = max(1.0, per_minute / 10)
        self.clock = clock
        self.clients: dict[str, tuple[float, float]] = {}
        """Tokens left, and when, by client; the one that asked last is last."""

    def take(
        self,
        client: str,
        problem: str = "too many requests",
        advice: str = "push bars of one asset in one request",
    ) -> None:
        """Take a token for one request of a client, or refuse it."""
        now = self.clock()
        tokens, then = self.clients.pop(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - then) * self.per_second)
        refused = tokens < 1 - ROUNDING
        self.clients[client] = (tokens if refused else tokens - 1, now)
        if len(self.clients) > MAX_CLIENTS:
            idle_longest = next(iter(self.clients))
            del self.clients[idle_longest]
        if refused:
            wait = int((1 - tokens) / self.per_second) + 1
            raise RefusalError(
                429,
                problem,
                expected=f"{round(60 * self.per_second)} a minute",
                retry_after=wait,
                fix=f"wait {wait} s; {advice}",
            )


class LimitMiddleware:
    """Authorises requests, receives their bodies and counts responses."""

    def __init__(self, app: ASGIApp, config: ServeConfig, metrics: Metrics) -> None:
        """Wrap an application in the limits of a configuration."""
        self.app = app
        self.config = config
        self.metrics = metrics
        self.rate = RateLimit(config.rate_limit) if config.rate_limit else None
        self.wrong_keys = RateLimit(WRONG_KEYS)
        self.hosts = {
            "localhost",
            gethostname().lower(),
            *(name.lower() for name in config.hosts or ()),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through to the application, or refuse it; count it either way."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0

        async def respond(message: Message) -> None:
            """Send a message of the response, the first with security headers."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        try:
            self._require_own_host(scope)
            if scope["path"].startswith(GUARDED):
                self._admit(scope)
                receive = await self._receive_body(scope, receive)
            await self.app(scope, receive, respond)
        except UserError as error:
            await error_response(error)(scope, receive, respond)
        except Exception:
            _log.exception("a request failed: %s %s", scope["method"], scope["path"])
            if not status:
                failure = RefusalError(
                    500, "an error of the service, not of the request; it was logged"
                )
                await error_response(failure)(scope, receive, respond)
        route = getattr(scope.get("route"), "path", "none")
        self.metrics.requests.labels(route, status).inc()
        self.metrics.seconds.labels(route).observe(time.perf_counter() - start)

    def _require_own_host(self, scope: Scope) -> None:
        """Refuse foreign host names: a browser sends the host of its page (DNS rebinding)."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) > 1:
            problem = "the request has more than one Host header"
            raise RefusalError(400, problem, expected="one", got=", ".join(hosts))
        host = hosts[0] if hosts else ""
        name, bracket, _ = host.lower().removeprefix("[").partition("]")
        name = name if bracket else name.partition(":")[0]
        if self.config.hosts is None or not host or name in self.hosts:
            return
        try:
            ip_address(name)
        except ValueError:
            raise RefusalError(
                421,
                "the request is for another host",
                expected="an address, or " + ", ".join(sorted(self.hosts)),
                got=host,
                fix="start the service with --allow-host and this name, if it is the service's own",
            ) from None

    def _admit(self, scope: Scope) -> None:
        """Refuse a client without a key, or with too many requests."""
        client = (scope.get("client") or ("",))[0]
        if self.config.api_keys:
            headers = dict(scope["headers"])
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            given = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
            # A valid key is served whatever others sent from this address: a proxy's is shared.
            if not any(hmac.compare_digest(given, key.encode()) for key in self.config.api_keys):
                if given:
                    self.wrong_keys.take(client, "too many wrong keys", "send a valid one")
                raise RefusalError(
                    401,
                    "a valid API key is needed",
                    expected="the header Authorization: Bearer KEY, or X-API-Key: KEY",
                    got="another key" if given else "no key",
                )
            client = given.decode()
        if self.rate:
            self.rate.take(client)

    async def _receive_body(self, scope: Scope, receive: Receive) -> Receive:
        """Receive the whole body within the limits; the application then gets it at once."""
        declared = dict(scope["headers"]).get(b"content-length", b"")
        self._require_size(int(declared[:18]) if declared.isdigit() else 0)
        body = bytearray()
        last: Message | None = None
        try:
            async with asyncio.timeout(self.config.body_seconds):
                while last is None or last.get("more_body", False):
                    last = await receive()
                    body += last.get("body", b"")
                    self._require_size(len(body))
        except TimeoutError:
            raise RefusalError(
                408,
                "the request did not arrive in time",
                expected=f"within {self.config.body_seconds:g} s",
            ) from None
        waiting = [{**last, "body": bytes(body)}]

        async def receive_at_once() -> Message:
            return waiting.pop() if waiting else await receive()

        return receive_at_once

    def _require_size(self, size: int) -> None:
        """Refuse a body of more bytes than are allowed."""
        if size > self.config.max_body:
            raise RefusalError(
                413,
                "the request is too large",
                expected=f"{self.config.max_body} bytes at most",
                got=f"{size} bytes or more",
                fix="send fewer bars; a forecast needs no more than the model's context and some "
                "for its scales",
            )
