"""What probes are told: whether the relay lives, whether it can work, and how far it is."""

import asyncio
import time
from http import HTTPStatus
from typing import Final

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.json_server import Answer, JsonServer
from faststream_outbox.cli.settings import split_address
from faststream_outbox.cli.status import Status
from faststream_outbox.relay import Relay

# An answer about others is this old at most, however many ask.
_FRESH_SECONDS: Final = 1.0
_PING_SECONDS: Final = 3.0
_DEFAULT_HOST: Final = "127.0.0.1"


class Health:
    """`/health/live`, `/health/ready` and `/status`."""

    def __init__(self, status: Status, outbox: OutboxBroker, relay: Relay) -> None:
        self._status, self._outbox, self._relay = status, outbox, relay
        self._asking = asyncio.Lock()
        self._reason: str | None = None
        self._asked_at = float("-inf")

    async def live(self) -> Answer:
        """Tell whether the loops run; a relay that waits for its broker lives."""
        alive = self._status.alive
        return HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE, {"live": alive}

    async def ready(self) -> Answer:
        """Tell whether both ends answer."""
        if (reason := await self._not_ready()) is None:
            return HTTPStatus.OK, {"ready": True}
        return HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reason": reason}

    async def status(self) -> Answer:
        """Tell the figures; the rows of the tables as they were when last counted."""
        ago = self._status.figures.counted_ago
        return HTTPStatus.OK, {**self._status.as_dict(), "counted_seconds_ago": None if ago is None else round(ago, 1)}

    async def _not_ready(self) -> str | None:
        if self._status.state != "running":
            return self._status.in_words
        async with self._asking:
            if time.monotonic() - self._asked_at > _FRESH_SECONDS:
                self._reason = await self._ask()
                self._asked_at = time.monotonic()
        return self._reason

    async def _ask(self) -> str | None:
        if not await self._outbox.ping(_PING_SECONDS):
            return "the database does not answer"
        return None if await self._relay.ping(_PING_SECONDS) else "the broker does not answer"


async def serve(health: Health, address: str) -> JsonServer:
    """Listen at `host:port`, or at a port of the loopback interface."""
    host, port = split_address(address)
    paths = {"/health/live": health.live, "/health/ready": health.ready, "/status": health.status}
    server = JsonServer(host or _DEFAULT_HOST, port, paths)
    try:
        await server.start()
    except (OSError, OverflowError) as error:
        raise ProgramError(f"--health cannot listen at {address}: {error}") from error
    return server
