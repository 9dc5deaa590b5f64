"""Serve a console that stands alone: on this machine, with a token; on another address only with an access hook."""

from collections.abc import Callable
from socket import socket
from types import FrameType

import uvicorn

from faststream_outbox.broker import OutboxBroker
from faststream_outbox.console.access import AccessHook, TokenAccess, is_loopback
from faststream_outbox.console.application import make_console
from faststream_outbox.operations import OutboxOperations


async def serve_console(
    outbox: OutboxBroker | OutboxOperations,
    *,
    host: str,
    port: int,
    say: Callable[[str], None],
    access: AccessHook | None = None,
    read_only: bool = False,
    title: str = "Outbox",
) -> None:
    """Serve until a signal asks to stop; `say` gets the address, and the token if there is no hook."""
    if access is None and not is_loopback(host):
        raise ValueError(
            f"{host} can be reached from other machines, and nothing says who may use the console: listen on "
            "127.0.0.1, or name an access hook."
        )
    token = TokenAccess() if access is None else None
    app = make_console(outbox, access=access or token, read_only=read_only, title=title)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        lifespan="off",
        log_level="warning",
        server_header=False,
        # Streams of watchers last for minutes; they need not be waited for.
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    server.started_with = lambda bound: say(
        f"The console is at http://{f'[{host}]' if ':' in host else host}:{bound}/"
        + ("" if token is None else f"\nIts token, asked for once: {token.token}")
    )
    await server.serve()


class _Server(uvicorn.Server):
    """A server that tells its port once it listens, and that ends at a signal as if its work were done.

    uvicorn raises the signal again after its end, which would cancel what the caller has to close.
    """

    started_with: Callable[[int], None]

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.started_with(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        # The second signal does not wait for requests.
        self.should_exit, self.force_exit = True, self.should_exit
