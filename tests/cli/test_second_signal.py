"""A drain, or a start, that takes too long for somebody."""

import asyncio
import signal
import socket
from pathlib import Path

from tests.cli.programs import relaying
from tests.cli.relay_setup import World
from tests.cli.rows import publish


async def test_a_second_signal_ends_it_at_once(world: World) -> None:
    with world.relaying("--graceful-timeout", "300") as program:
        await program.until("/health/ready", 200)
        world.redis.pause()
        await publish(world.outbox, range(20))
        await program.claimed(world.outbox)
        program.process.send_signal(signal.SIGTERM)
        await program.heard("relay_stopping")
        assert program.process.poll() is None, program.said
        assert await program.stop(signal.SIGTERM) == -signal.SIGTERM, program.said
        assert program.lines("relay_stopped") == []
    world.redis.resume()


async def test_a_first_signal_is_enough_while_the_database_is_silent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/shop"
        with relaying("--to", "redis://127.0.0.1:1", "--route", "q=s", folder=tmp_path, OUTBOX_DSN=dsn) as program:
            await program.heard("health_served")
            async with asyncio.timeout(15):
                assert await program.stop() == 0, program.said
