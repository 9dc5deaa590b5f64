"""A drain that takes too long for somebody."""

import signal

from tests.cli.rows import publish
from tests.cli.world import World


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
