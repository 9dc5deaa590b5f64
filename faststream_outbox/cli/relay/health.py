"""The health endpoint: `/health/live`, `/health/ready`, `/status` as JSON and `/metrics` as text, over plain HTTP.

It is a server of its own, and not uvicorn, because uvicorn waits for the rest of a request without limit: half-open
connections would fill its limit, or the process' file descriptors, and no probe would be answered.
"""

import asyncio
import json
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, Protocol

from faststream_outbox._installation import needs_extra
from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.cli.addresses import split_address
from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.relay.logs import LOGGER
from faststream_outbox.cli.relay.status import Status
from faststream_outbox.cli.secrets import hide_all

# Database and broker are asked at most this often, however many probes arrive.
_FRESH_SECONDS: Final = 1.0
_PING_SECONDS: Final = 3.0
# The request of a probe has a few hundred bytes and arrives at once; a client that sends more, or slower, is cut off.
_LONGEST_REQUEST: Final = 8192
_REQUEST_SECONDS: Final = 5.0
# Probes arrive one by one. At this number of connections a new one takes the place of the oldest.
_MOST_CONNECTIONS: Final = 32

# A text has its type beside it; all else is sent as JSON.
Answer = tuple[HTTPStatus, dict[str, Any] | tuple[str, bytes]]


class Metrics(Protocol):
    """What answers a scrape; without waiting, so that it asks no database."""

    content_type: str

    def render(self) -> bytes:
        """Return all metrics as text."""


class _Connection:
    """The connection of one client, which has a few seconds to send its request and to read the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.has_request = False

    async def read(self) -> bytes:
        """Return the request; raise `TimeoutError` if it is not complete in time, however it arrives."""
        async with asyncio.timeout(_REQUEST_SECONDS):
            request = await self._reader.readuntil(b"\r\n\r\n")
        self.has_request = True
        return request

    async def write(self, response: bytes) -> None:
        """Send the response, and wait until the client has it or closes the connection."""
        async with asyncio.timeout(_REQUEST_SECONDS):
            self._writer.write(response)
            self._writer.close()
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Close the connection at once, and free what it holds."""
        self._writer.transport.abort()


class HealthServer:
    """Answers GET for four paths, one request per connection."""

    def __init__(self, status: Status, outbox: OutboxBroker, metrics: Metrics | None) -> None:
        self._status, self._outbox, self._metrics = status, outbox, metrics
        self._paths = {
            "/health/live": self._live,
            "/health/ready": self._ready,
            "/status": self._figures,
            "/metrics": self._scraped,
        }
        self._server: asyncio.Server | None = None
        # In the order in which they were opened.
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._ping_lock = asyncio.Lock()
        self._failure: str | None = None
        self._pinged_at = float("-inf")

    async def start(self, address: str) -> str:
        """Listen on `host:port`, or on a port of 127.0.0.1; return the address, port 0 replaced by a free one."""
        host, port = split_address(address)
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=_LONGEST_REQUEST)
        except OSError as error:
            raise ProgramError(f"The health endpoint cannot listen on {address}: {error}") from error
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def stop(self) -> None:
        """Stop listening, and cut off open connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            self._drop_oldest()
        connection = _Connection(reader, writer)
        task = asyncio.create_task(self._serve(connection))
        self._connections[task] = connection
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    def _drop_oldest(self) -> None:
        """Close the oldest connection that has not sent its request, or else the oldest of all."""
        waiting = (task for task, connection in self._connections.items() if not connection.has_request)
        oldest = next(waiting, next(iter(self._connections)))
        self._connections.pop(oldest).abort()
        oldest.cancel()

    async def _serve(self, connection: "_Connection") -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                request = await connection.read()
                status, body = await self._answer(request.partition(b"\r\n")[0].decode("latin-1"))
                await connection.write(_response(status, body, with_body=not request.startswith(b"HEAD ")))
            finally:
                connection.abort()

    async def _answer(self, request_line: str) -> Answer:
        match request_line.split(" "):
            case [("GET" | "HEAD"), target, version] if version.startswith("HTTP/1."):
                handler = self._paths.get(target.partition("?")[0])
            case [_, _, version] if version.startswith("HTTP/1."):
                return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "Only GET and HEAD are allowed."}
            case _:
                return HTTPStatus.BAD_REQUEST, {"error": "This is not a request of HTTP/1."}
        if handler is None:
            return HTTPStatus.NOT_FOUND, {"error": f"The paths are {', '.join(self._paths)}."}
        try:
            return await handler()
        except Exception:  # noqa: BLE001 - a probe gets an answer, and the next one may be right
            LOGGER.exception("The health endpoint could not answer %s.", target, extra={"event": "health_failed"})
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "The answer could not be made; the log says why."}

    async def _live(self) -> Answer:
        """Answer whether all loops of a started relay run; a relay that is paused is alive."""
        alive = self._status.phase != "running" or self._status.relay.alive
        return HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE, {"live": alive}

    async def _ready(self) -> Answer:
        """Answer whether the database and the broker answer."""
        reason = await self._ping() if self._status.state == "running" else self._status.description
        if reason is None:
            return HTTPStatus.OK, {"ready": True}
        return HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reason": reason}

    async def _figures(self) -> Answer:
        """Answer with the figures; rows are as they were when last counted."""
        counted_at = self._status.counted_at
        ago = None if counted_at is None else round(time.monotonic() - counted_at, 1)
        return HTTPStatus.OK, {
            **self._status.as_dict(),
            "counted_seconds_ago": ago,
            "settings": self._status.settings,
        }

    async def _scraped(self) -> Answer:
        """Answer with the metrics for Prometheus; rows are as they were when last counted."""
        if self._metrics is None:
            return HTTPStatus.NOT_IMPLEMENTED, {"error": f"{needs_extra('/metrics', 'prometheus')}."}
        return HTTPStatus.OK, (self._metrics.content_type, self._metrics.render())

    async def _ping(self) -> str | None:
        """Return what does not answer, or None."""
        async with self._ping_lock:
            if time.monotonic() - self._pinged_at > _FRESH_SECONDS:
                if not await self._outbox.ping(_PING_SECONDS):
                    self._failure = "the database does not answer"
                else:
                    answers = await self._status.relay.ping(_PING_SECONDS)
                    self._failure = None if answers else "the broker does not answer"
                self._pinged_at = time.monotonic()
        return self._failure


def _response(status: HTTPStatus, body: dict[str, Any] | tuple[str, bytes], *, with_body: bool) -> bytes:
    if isinstance(body, tuple):
        content_type, content = body
    else:
        content_type, content = "application/json", json.dumps(hide_all(body)).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(content)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (content if with_body else b"")
