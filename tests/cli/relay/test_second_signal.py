"""Signals during a drain or a start that takes long."""

import asyncio
import signal
import socket
from pathlib import Path

from tests.cli.programs import relaying
from tests.cli.relay.relay_setup import RelaySetup
from tests.cli.relay.rows import publish


async def test_a_second_signal_ends_it_at_once(setup: RelaySetup) -> None:
    with setup.relaying("--graceful-timeout", "300") as program:
        await program.wait_for_answer("/health/ready", 200)
        setup.redis.pause()
        await publish(setup.outbox, range(20))
        await program.wait_for_claims(setup.outbox)
        program.process.send_signal(signal.SIGTERM)
        await program.wait_for_line("relay_stopping")
        assert program.process.poll() is None, program.output
        assert await program.stop(signal.SIGTERM) == -signal.SIGTERM, program.output
        assert program.lines("relay_stopped") == []
    setup.redis.resume()


async def test_a_first_signal_is_enough_while_the_database_is_silent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/shop"
        with relaying("--to", "redis://127.0.0.1:1", "--route", "q=s", folder=tmp_path, OUTBOX_DSN=dsn) as program:
            await program.wait_for_line("health_served")
            async with asyncio.timeout(15):
                assert await program.stop() == 0, program.output
