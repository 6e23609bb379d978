"""HTTP/1.1 with a limit on the size of request lines, headers and trailers."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 1 << 20
"""Bytes of a request besides its body."""


class BoundedProtocol(HttpToolsProtocol):
    """The protocol of uvicorn, which keeps any number of headers, of any size."""

    _num_bytes = 0
    """Bytes of the current request besides its body."""

    def data_received(self, data: bytes) -> None:
        """Take bytes of requests, or refuse the one whose head is too large."""
        self._num_bytes += len(data)
        if self._num_bytes > MAX_HEAD:
            self.send_400_response("The headers are too large.")
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """A new request begins."""
        self._num_bytes = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Bytes of a body do not count: the middleware limits those."""
        self._num_bytes -= len(body)
        super().on_body(body)
