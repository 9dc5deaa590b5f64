"""What probes are told of a relay."""

import socket

import httpx

from tests.cli.programs import password_of, relaying, run
from tests.cli.relay_setup import World
from tests.cli.rows import publish
from tests.proxy import proxying
from tests.servers.process import ask


async def test_a_broker_that_is_down_and_comes_back(world: World) -> None:
    with world.relaying() as program:
        assert await program.until("/health/ready", 200) == {"ready": True}
        await world.redis.stop()
        # Nothing is sent yet, and still it is seen.
        assert await program.until("/health/ready", 503) == {"ready": False, "reason": "the broker does not answer"}
        await publish(world.outbox, range(20))
        line = await program.heard("relay_paused")
        assert (line["level"], line["subscriber"], line["queue"]) == ("WARNING", "relay", "orders")
        assert "Traceback" in line["exception"] or "OutageError" in line["exception"]
        _, answer = await program.get("/health/ready")
        assert answer["reason"].startswith("paused: the broker is down: ")
        assert len(answer["reason"]) > len("paused: the broker is down: ")
        _, status = await program.get("/status")
        assert (status["state"], status["relayed"]) == ("paused", 0)
        assert status["reason"]
        assert await program.get("/health/live") == (200, {"live": True})
        await world.redis.start()
        assert sorted(await world.stream.numbers(20)) == list(range(20))
        assert await program.until("/health/ready", 200) == {"ready": True}
        assert await program.stop() == 0, program.said


async def test_a_broker_that_is_down_at_the_start(world: World) -> None:
    await publish(world.outbox, range(20))
    await world.redis.stop()
    with world.relaying() as program:
        await program.heard("relay_paused")
        assert await program.until("/health/live", 200) == {"live": True}
        await program.until("/health/ready", 503)
        await world.redis.start()
        assert sorted(await world.stream.numbers(20)) == list(range(20))
        await program.until("/health/ready", 200)


async def test_a_database_that_falls_silent(world: World) -> None:
    async with proxying(world.database.dsn) as proxy:
        options = (*world.route, "--dsn", proxy.url(world.database.dsn))
        with relaying(*options, folder=world.folder) as program:
            await program.until("/health/ready", 200)
            proxy.freeze()
            answer = await program.until("/health/ready", 503)
            assert answer == {"ready": False, "reason": "the database does not answer"}
            assert await program.get("/health/live") == (200, {"live": True})
            proxy.thaw()
            await program.until("/health/ready", 200)
            await publish(world.outbox, range(20))
            assert sorted(await world.stream.numbers(20)) == list(range(20))


async def test_the_status_tells_the_figures(world: World) -> None:
    await publish(world.outbox, range(20))
    await publish(world.outbox, range(7), queue="others")
    with world.relaying("--route", "empty=nowhere") as program:
        await world.stream.numbers(20)
        status = await program.until("/status", 200)
        while status["counted_seconds_ago"] is None or status["relayed"] < 20:
            _, status = await program.get("/status")
        assert status["state"] == "running"
        assert status["to"] == world.redis.url
        assert status["queues"].keys() == {"orders", "empty"}
        assert status["queues"]["orders"]["relayed"] == 20
        assert status["queues"]["empty"]["ready"] == 0
        assert await program.get("/nothing") == (404, {"error": "The paths are /health/live, /health/ready, /status."})
        assert password_of(world.database) not in str(status)


async def test_who_is_no_probe_is_turned_away(world: World) -> None:
    with world.relaying() as program:
        await program.until("/health/live", 200)
        assert (await ask(program.health, b"POST /status HTTP/1.1\r\n\r\n", lines=1) or b"").split()[1] == b"405"
        assert (await ask(program.health, b"EHLO\r\n\r\n", lines=1) or b"").split()[1] == b"400"
        assert await ask(program.health, b"GET /" + b"a" * 100_000, lines=1) in (b"", None)
        async with httpx.AsyncClient() as client:
            answer = await client.head(f"http://127.0.0.1:{program.health}/health/live")
            assert (answer.status_code, answer.content) == (200, b"")
        assert await program.get("/health/live") == (200, {"live": True})


async def test_an_address_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ("--to", "redis://127.0.0.1:1", "--route", "orders=s", "--health", address)
        done = run("relay", *options, OUTBOX_DSN="postgresql://127.0.0.1:1/nowhere")
    assert done.returncode == 1
    assert f"Error: The health endpoint cannot listen on {address}" in done.stderr
    assert "Traceback" not in done.stderr
