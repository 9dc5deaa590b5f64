"""A TCP proxy on loopback that can fall silent without closing anything, as a network does, or close connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import make_url


class Proxy:
    def __init__(self, url: str) -> None:
        self.redirect(url)
        self._forwards = asyncio.Event()
        self._forwards.set()
        # Set when something arrived since the freeze, which is not forwarded.
        self.withheld = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        # Close a connection on which this is sent to the server.
        self.poison: bytes | None = None
        # How often that happened.
        self.poisoned = 0
        # How many bytes in a second reach the server, by all connections together; None for as many as there are.
        self.rate: float | None = None
        self._turn = asyncio.Lock()
        self.port = 0

    @property
    def connections(self) -> int:
        """How many connections are open; while nothing is forwarded, also those that the client has closed."""
        return len(self._connections)

    def freeze(self) -> None:
        """Forward nothing any more; connections, new ones too, stay open and say nothing."""
        self._forwards.clear()
        self.withheld.clear()

    def thaw(self) -> None:
        """Forward again, what came meanwhile first."""
        self._forwards.set()

    def cut(self) -> None:
        """Close all connections."""
        for connection in tuple(self._connections):
            connection.cancel()

    def redirect(self, url: str) -> None:
        """Lead new connections to another server, as a name or an address that moves does."""
        address = make_url(url)
        assert address.host is not None
        assert address.port is not None
        self._target = address.host, address.port

    def url(self, url: str) -> str:
        """The same address, by way of the proxy."""
        return make_url(url).set(host="127.0.0.1", port=self.port).render_as_string(hide_password=False)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._forwards.wait()
                upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
                there = asyncio.create_task(self._pump(reader, upstream_writer, to_server=True))
                back = asyncio.create_task(self._pump(upstream_reader, writer))
                try:
                    await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    there.cancel()
                    back.cancel()
                    await asyncio.gather(there, back, return_exceptions=True)
                    upstream_writer.transport.abort()
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool = False
    ) -> None:
        last = b""
        while data := await reader.read(16384 if self.rate is not None else 65536):
            if to_server and self.poison is not None:
                if self.poison in last + data:
                    self.poisoned += 1
                    return
                last = data[-len(self.poison) :]
            if not self._forwards.is_set():
                self.withheld.set()
            await self._forwards.wait()
            writer.write(data)
            await writer.drain()
            if to_server and self.rate is not None:
                async with self._turn:
                    await asyncio.sleep(len(data) / self.rate)
        await self._forwards.wait()  # an end is news too


@asynccontextmanager
async def proxying(url: str, port: int = 0, *, kind: type[Proxy] = Proxy) -> AsyncIterator[Proxy]:
    """Pass connections on to the server of this address, from any free port or a given one."""
    proxy = kind(url)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", port)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for connection in tuple(proxy._connections):
            connection.cancel()
        await asyncio.gather(*proxy._connections, return_exceptions=True)
