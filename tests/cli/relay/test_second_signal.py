"""Signals during a drain or a start that takes long, and clients that do not end."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.cli.programs import TIMEOUT, environment, relaying
from tests.cli.relay.relay_setup import RelaySetup
from tests.cli.relay.rows import publish
from tests.proxy import proxying
from tests.servers.rabbitmq import RabbitMQ

# A client that swallows its cancellation.
STUBBORN = """
import asyncio
from faststream_outbox.cli.relay.command import run_to_end

async def insist():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def work():
    asyncio.create_task(insist())
    await asyncio.sleep(0)
    return 7

run_to_end(work())
"""


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


async def test_a_first_signal_is_enough_while_rabbitmq_is_silent_from_the_start(
    setup: RelaySetup, rabbitmq_server: RabbitMQ
) -> None:
    """Its client would try on without end, and survive its cancellation."""
    async with proxying(rabbitmq_server.url) as proxy:
        proxy.freeze()
        to = ("--to", proxy.url(rabbitmq_server.url), "--route", "orders=q")
        with relaying(*to, folder=setup.folder, OUTBOX_DSN=setup.database.dsn) as program:
            await program.wait_for_line("relay_paused")
            assert await program.stop() == 0, program.output
            assert program.lines("relay_not_closed") == []


async def test_a_client_that_does_not_end_does_not_hold_up_the_process() -> None:
    command = (sys.executable, "-c", STUBBORN)
    done = await asyncio.to_thread(subprocess.run, command, env=environment(), capture_output=True, timeout=TIMEOUT)
    assert done.returncode == 7
    assert b"did not end within 5 seconds" in done.stderr
