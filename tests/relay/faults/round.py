"""A relay round: rows are relayed to a server, and then its messages are read."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import psycopg

from faststream_outbox.embedded import Database
from tests.relay.endpoints import KafkaEndpoint
from tests.relay.faults.arrivals import arrivals_of
from tests.relay.faults.faults import RelayFaults
from tests.relay.faults.rules import count_repeats
from tests.relay.faults.settings import ENDPOINTS, RelayRoundSettings
from tests.servers.server import Server
from tests.soak.checker import FinalState
from tests.soak.history import Arrived, Event, HistoryWriter
from tests.soak.process_group import ProcessGroup
from tests.soak.round import Enough, Result, Round, run_round
from tests.soak.row_histories import assemble

# For reading all messages of a round at its end, and for reading new ones while it runs.
READ_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0


class RelayRound(Round):
    """One round on an empty outbox, with an endpoint that has no messages yet."""

    _settings: RelayRoundSettings

    def __init__(
        self, settings: RelayRoundSettings, database: Database, *, server: Server, enough: Enough, **options: Any
    ) -> None:
        super().__init__(settings, database, enough=self._look_for(enough), **options)
        self._server = server
        self._reader_of_arrivals = arrivals_of(settings.endpoint)
        self._arrivals = HistoryWriter(settings.directory, "arrivals")
        self._numbers = 0

    def run(self, seconds: float) -> Result:
        """Run it, and count what arrived again."""
        result = super().run(seconds)
        self._arrivals.close()
        return replace(result, counts=result.counts + count_repeats(assemble(self._reader.events)))

    def make_faults(self, processes: ProcessGroup) -> RelayFaults:
        """Let the server fail, too."""
        return RelayFaults(self._settings, self._dsn, processes, self._restart, self._server)

    def look_around(self) -> None:
        """Read the messages on the server."""
        asyncio.run(self._read(READ_SECONDS))

    def final_state(self) -> FinalState:
        """Read as well which rows were blamed."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            burnt = [bytes(payload).decode() for (payload,) in connection.execute("SELECT payload FROM burnt")]
        return replace(super().final_state(), burnt=burnt)

    def _look_for(self, enough: Enough) -> Enough:
        def seen(_: Sequence[Event]) -> bool:
            with suppress(Exception):  # the server may be away
                asyncio.run(self._read(LOOK_SECONDS))
            self._poll()
            return enough(self._reader.events)

        return enough if enough is _never else seen

    async def _read(self, seconds: float) -> None:
        zero = time.time() - time.monotonic()
        async with asyncio.timeout(seconds):
            async for item in self._reader_of_arrivals.read():
                self._numbers += 1
                sequence = item.headers.get("outbox_sequence")
                self._arrivals.write(
                    Arrived,
                    self._numbers,
                    item.epoch - zero,
                    item.partition,
                    item.body.decode(),
                    item.headers.get("outbox_id"),
                    item.headers.get("outbox_key"),
                    None if sequence is None else int(sequence),
                )


def _never(_: Sequence[Event]) -> bool:
    return False


@contextmanager
def relay_rounds(to: str) -> Iterator[Callable[..., Result]]:
    """Start a server for some rounds; give the function that runs one."""
    server = ENDPOINTS[to].server()
    if lacks := server.lacks():
        raise SystemExit(f"{server.name}: {lacks}. To have it: {server.how}")
    try:
        asyncio.run(server.start())
        yield partial(run_relay_round, server=server)
    finally:
        server.end()


def run_relay_round(
    settings: RelayRoundSettings,
    database: Database,
    seconds: float,
    server: Any,
    *,
    make: Callable[..., Round] = RelayRound,
    **options: Any,
) -> Result:
    """Make tables and an endpoint, and run a round."""
    endpoint = ENDPOINTS[settings.to](server)
    asyncio.run(endpoint.prepare())
    address = server.bootstrap_servers if isinstance(endpoint, KafkaEndpoint) else server.url
    settings = replace(settings, address=address, name=endpoint.name)
    return run_round(settings, database, seconds, **{"enough": _never, **options}, make=partial(make, server=server))
