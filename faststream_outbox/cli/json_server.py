"""As much of HTTP as a probe speaks: one GET per connection, answered in JSON."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

# A probe's request has a few hundred bytes, and comes at once; whoever sends more, or slower, is none.
_LONGEST_REQUEST: Final = 8192
_SECONDS_FOR_A_REQUEST: Final = 5.0
# Probes come one by one; a crowd is turned away before it costs anything.
_MOST_CONNECTIONS: Final = 32

Answer = tuple[HTTPStatus, dict[str, Any]]
Handler = Callable[[], Awaitable[Answer]]


class JsonServer:
    """Answers GET for some paths."""

    def __init__(self, host: str, port: int, paths: Mapping[str, Handler]) -> None:
        self._host, self._port, self._paths = host, port, paths
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; `OSError` when the address is taken."""
        self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=_LONGEST_REQUEST)

    async def stop(self) -> None:
        """Listen no more, and break off what is being answered."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    @property
    def port(self) -> int:
        """The port that it listens on: another one than was asked for, when that was 0."""
        assert self._server is not None  # noqa: S101 - it was started
        return int(self._server.sockets[0].getsockname()[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.close()
            return
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                async with asyncio.timeout(_SECONDS_FOR_A_REQUEST):
                    request = await reader.readuntil(b"\r\n\r\n")
                status, body = await self._answer(request.partition(b"\r\n")[0].decode("latin-1"))
                async with asyncio.timeout(_SECONDS_FOR_A_REQUEST):
                    writer.write(_response(status, body, with_body=not request.startswith(b"HEAD ")))
                    await writer.drain()
            finally:
                writer.close()

    async def _answer(self, request_line: str) -> Answer:
        match request_line.split(" "):
            case [("GET" | "HEAD"), target, version] if version.startswith("HTTP/1."):
                handler = self._paths.get(target.partition("?")[0])
            case [_, _, version] if version.startswith("HTTP/1."):
                return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "Only GET is answered."}
            case _:
                return HTTPStatus.BAD_REQUEST, {"error": "This is no request of HTTP/1."}
        if handler is None:
            return HTTPStatus.NOT_FOUND, {"error": f"There are {', '.join(self._paths)}."}
        return await handler()


def _response(status: HTTPStatus, body: Mapping[str, Any], *, with_body: bool) -> bytes:
    content = json.dumps(body, default=str).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (content if with_body else b"")
