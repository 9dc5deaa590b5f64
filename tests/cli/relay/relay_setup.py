"""An outbox, a stream of Redis, and relays between them."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.cli.programs import Program, relaying
from tests.cli.relay.redis_stream import RedisStream
from tests.servers.redis import Redis


@dataclass(frozen=True)
class RelaySetup:
    outbox: PostgresBackend
    database: Database
    redis: Redis
    stream: RedisStream
    folder: Path

    @property
    def route(self) -> tuple[str, ...]:
        """Where the rows of the queue `orders` go."""
        return ("--to", self.redis.url, "--route", f"orders={self.stream.name}")

    def relaying(self, *arguments: str, name: str = "relay") -> AbstractContextManager[Program]:
        """Run a relay that knows its database from the environment."""
        return relaying(*self.route, *arguments, folder=self.folder, name=name, OUTBOX_DSN=self.database.dsn)
