"""Asking a file server politely: one rate for all threads, and patience where asking again can help."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from time import monotonic, time
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from vaiom import __version__
from vaiom.errors import ConfigError, DataError

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LONGEST_RETRY_AFTER_S = 120.0
LARGEST_BODY_BYTES = 1 << 20
# The feed is known to send an empty body for a day that it has, now and then; two in a row are believed.
EMPTY_ANSWERS_BELIEVED = 2

_WORTH_RETRYING = {408, 425, 429}

Body = tuple[bytes, int]
"""A file that was checked, and the number of its rows; no bytes where the server has no such file."""


class UnavailableError(Exception):
    """No usable answer this time; asking again later may help."""


class StoppedError(Exception):
    """The run is ending: whatever was being waited for is no longer wanted."""


class RateLimit:
    """Spaces the starts of requests evenly over all threads; a pause holds every thread back."""

    def __init__(self, per_second: float, stop: threading.Event) -> None:
        self._interval_s = 1.0 / per_second
        self._stop = stop
        self._lock = threading.Lock()
        self._next_start = monotonic()

    def wait(self) -> None:
        while True:
            with self._lock:
                now = monotonic()
                wait_s = self._next_start - now
                if wait_s <= 0:
                    self._next_start = now + self._interval_s
                    return
            self.sleep(wait_s)

    def pause(self, seconds: float) -> None:
        with self._lock:
            self._next_start = max(self._next_start, monotonic() + seconds)

    def sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StoppedError


@dataclass(kw_only=True)
class FileServer:
    """Files below one address, fetched with patience; safe to share among threads."""

    base_url: str
    limit: RateLimit
    attempts: int
    timeout_s: float

    def __post_init__(self) -> None:
        self._base_url = _web_address(self.base_url)
        self._opener = build_opener(_NoRedirect)

    def fetch(self, path: str, check: Callable[[bytes], Body]) -> Body:
        """What `check` makes of the body, empty where the server has none; it raises where the body is damaged."""
        reason, empty_answers = "", 0
        for attempt in range(self.attempts):
            if attempt:
                # Doubling; the jitter keeps threads that failed together from returning together.
                pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (attempt - 1))
                self.limit.sleep(pause_s * random.uniform(0.5, 1.0))
            self.limit.wait()
            try:
                body = self._get(f"{self._base_url}/{path}")
                if body:
                    return check(body)
                empty_answers += 1
                if body is None or empty_answers >= min(EMPTY_ANSWERS_BELIEVED, self.attempts):
                    return b"", 0
                reason = "an empty body that did not come twice"
            except UnavailableError as error:
                reason = str(error)
        raise UnavailableError(reason)

    def _get(self, url: str) -> bytes | None:
        """A whole body, or None where there is no such file."""
        request = Request(url, headers={"User-Agent": f"vaiom/{__version__}", "Accept-Encoding": "identity"})
        body = b""
        try:
            with self._opener.open(request, timeout=self.timeout_s) as response:
                status, reason, headers = response.status, response.reason, response.headers
                body = response.read(LARGEST_BODY_BYTES + 1)
        except HTTPError as error:
            error.close()
            status, reason, headers = error.code, error.reason, error.headers
        except (OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, URLError) else error
            raise UnavailableError(str(cause) or type(cause).__name__) from error
        if status == 404:
            return None
        if status in _WORTH_RETRYING or status >= 500:
            self.limit.pause(min(_retry_after_s(headers) or 0.0, LONGEST_RETRY_AFTER_S))
            raise UnavailableError(f"HTTP {status}")
        if status != 200:
            moved = headers.get("Location")
            raise DataError(
                "the server refuses the download",
                where=url,
                expected="HTTP 200, or 404 for a day without bars",
                got=f"HTTP {status} {reason}" + (f", moved to {moved}" if moved else ""),
                fix="open the address in a browser to see why; days that were fetched are kept",
            )
        if len(body) > LARGEST_BODY_BYTES:
            raise UnavailableError(f"a body of more than {LARGEST_BODY_BYTES} bytes")
        # A bounded read does not notice a connection that closed early, so the count is compared here.
        announced = headers.get("Content-Length")
        if announced is not None and announced != str(len(body)):
            raise UnavailableError(f"a truncated body: {len(body)} of {announced} bytes")
        return body


class _NoRedirect(HTTPRedirectHandler):
    """Data is taken from the address the user named and from no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _web_address(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError("not an address to download from", expected="http://... or https://...", got=repr(text))
    return text.rstrip("/")


def _retry_after_s(headers: Message) -> float | None:
    """The header is a number of seconds or a date."""
    text = headers.get("Retry-After")
    if text is None:
        return None
    try:
        return max(0.0, float(text) if text.isdigit() else parsedate_to_datetime(text).timestamp() - time())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None  # not a date; the parser of the standard library says so in several ways
