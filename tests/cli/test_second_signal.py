"""A drain that takes too long for somebody."""

import signal
from pathlib import Path

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.cli.programs import relaying
from tests.cli.redis_stream import RedisStream
from tests.cli.rows import publish
from tests.servers.redis import Redis


async def test_a_second_signal_ends_it_at_once(
    outbox: PostgresBackend, outbox_postgres: Database, redis_server: Redis, stream: RedisStream, tmp_path: Path
) -> None:
    options = ("--to", redis_server.url, "--route", f"orders={stream.name}", "--graceful-timeout", "300")
    with relaying(*options, folder=tmp_path, OUTBOX_DSN=outbox_postgres.dsn) as program:
        await program.until("/health/ready", 200)
        redis_server.pause()
        await publish(outbox, range(20))
        await program.claimed(outbox)
        program.process.send_signal(signal.SIGTERM)
        await program.heard("relay_stopping")
        assert program.process.poll() is None, program.said
        assert await program.stop(signal.SIGTERM) == -signal.SIGTERM, program.said
        assert program.lines("relay_stopped") == []
    redis_server.resume()
