"""One storm: a round in which rows are relayed to a server, and then what lies there is read."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import psycopg

from faststream_outbox.embedded import Database
from tests.relay.destinations import KafkaPlace
from tests.relay.storm.arrivals import shelf_of
from tests.relay.storm.faults import Weather
from tests.relay.storm.rules import count_repeats
from tests.relay.storm.settings import PLACES, StormSettings
from tests.servers.server import Server
from tests.soak.checker import FinalState
from tests.soak.history import Arrived, Event, HistoryWriter
from tests.soak.process_group import Crew
from tests.soak.round import Enough, Result, Round, run_round
from tests.soak.row_histories import assemble

# For reading all of a storm, and for a look at it while it lasts.
READ_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0


class Storm(Round):
    """One storm on an empty outbox, and on a place where nothing lies yet."""

    _settings: StormSettings

    def __init__(
        self, settings: StormSettings, database: Database, *, server: Server, enough: Enough, **options: Any
    ) -> None:
        super().__init__(settings, database, enough=self._look_for(enough), **options)
        self._server = server
        self._shelf = shelf_of(settings.place)
        self._arrivals = HistoryWriter(settings.directory, "arrivals")
        self._numbers = 0

    def run(self, seconds: float) -> Result:
        """Run it, and count what arrived again."""
        result = super().run(seconds)
        self._arrivals.close()
        return replace(result, counts=result.counts + count_repeats(assemble(self._reader.events)))

    def make_faults(self, crew: Crew) -> Weather:
        """Let the server fail, too."""
        return Weather(self._settings, self._dsn, crew, self._restart, self._server)

    def look_around(self) -> None:
        """Read what lies on the server."""
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
            async for item in self._shelf.read():
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
def storms(to: str) -> Iterator[Callable[..., Result]]:
    """Have a server for some storms; gives what runs one."""
    server = PLACES[to].server()
    if lacks := server.lacks():
        raise SystemExit(f"{server.name}: {lacks}. To have it: {server.how}")
    try:
        asyncio.run(server.start())
        yield partial(run_storm, server=server)
    finally:
        server.end()


def run_storm(settings: StormSettings, database: Database, seconds: float, server: Any, **options: Any) -> Result:
    """Make tables and a place, and run a storm."""
    place = PLACES[settings.to](server)
    asyncio.run(place.prepare())
    address = server.bootstrap_servers if isinstance(place, KafkaPlace) else server.url
    settings = replace(settings, address=address, name=place.name)
    make = partial(Storm, server=server)
    return run_round(settings, database, seconds, **{"enough": _never, **options}, make=make)
