"""The answers of the health endpoint."""

import asyncio
import socket
from contextlib import AsyncExitStack, suppress

import httpx
import psutil

from tests.cli.programs import password_of, relaying, run
from tests.cli.relay.relay_setup import RelaySetup
from tests.cli.relay.rows import publish
from tests.proxy import proxying
from tests.servers.process import ask
from tests.waiting import until

# What docs/relay-program.md gives the probes of Kubernetes.
PROBE_SECONDS = 10.0


async def test_a_broker_that_is_down_and_comes_back(setup: RelaySetup) -> None:
    with setup.relaying() as program:
        assert await program.wait_for_answer("/health/ready", 200) == {"ready": True}
        await setup.redis.stop()
        # The outage is reported before any message is sent.
        assert await program.wait_for_answer("/health/ready", 503) == {
            "ready": False,
            "reason": "the broker does not answer",
        }
        await publish(setup.outbox, range(20))
        line = await program.wait_for_line("relay_paused")
        assert (line["level"], line["subscriber"], line["queue"]) == ("WARNING", "relay", "orders")
        assert "Traceback" in line["exception"] or "OutageError" in line["exception"]
        _, answer = await program.get("/health/ready")
        assert answer["reason"].startswith("paused: the broker is down: ")
        assert len(answer["reason"]) > len("paused: the broker is down: ")
        _, status = await program.get("/status")
        assert (status["state"], status["relayed"]) == ("paused", 0)
        assert status["reason"]
        assert await program.get("/health/live") == (200, {"live": True})
        await setup.redis.start()
        assert sorted(await setup.stream.numbers(20)) == list(range(20))
        assert await program.wait_for_answer("/health/ready", 200) == {"ready": True}
        assert await program.stop() == 0, program.output


async def test_a_broker_that_is_down_at_the_start(setup: RelaySetup) -> None:
    await publish(setup.outbox, range(20))
    await setup.redis.stop()
    with setup.relaying() as program:
        await program.wait_for_line("relay_paused")
        assert await program.wait_for_answer("/health/live", 200) == {"live": True}
        await program.wait_for_answer("/health/ready", 503)
        await setup.redis.start()
        assert sorted(await setup.stream.numbers(20)) == list(range(20))
        await program.wait_for_answer("/health/ready", 200)


async def test_a_database_that_falls_silent(setup: RelaySetup) -> None:
    async with proxying(setup.database.dsn) as proxy:
        options = (*setup.route, "--dsn", proxy.url(setup.database.dsn))
        with relaying(*options, folder=setup.folder) as program:
            await program.wait_for_answer("/health/ready", 200)
            proxy.freeze()
            answer = await program.wait_for_answer("/health/ready", 503)
            assert answer == {"ready": False, "reason": "the database does not answer"}
            assert await program.get("/health/live") == (200, {"live": True})
            proxy.thaw()
            await program.wait_for_answer("/health/ready", 200)
            await publish(setup.outbox, range(20))
            assert sorted(await setup.stream.numbers(20)) == list(range(20))


async def test_the_status_has_the_figures(setup: RelaySetup) -> None:
    await publish(setup.outbox, range(20))
    await publish(setup.outbox, range(7), queue="others")
    with setup.relaying("--route", "empty=nowhere") as program:
        await setup.stream.numbers(20)
        await program.wait_for_answer("/status", 200)
        _, status = await until(
            lambda: program.get("/status"),
            lambda answer: answer[1]["counted_seconds_ago"] is not None and answer[1]["relayed"] == 20,
        )
        assert status["state"] == "running"
        assert status["to"] == setup.redis.url
        assert status["queues"].keys() == {"orders", "empty"}
        assert status["queues"]["orders"]["relayed"] == 20
        assert status["queues"]["empty"]["ready"] == 0
        assert await program.get("/nothing") == (
            404,
            {"error": "The paths are /health/live, /health/ready, /status, /metrics."},
        )
        assert password_of(setup.database) not in str(status)


async def test_the_status_has_the_settings_that_are_in_effect(setup: RelaySetup) -> None:
    options = ("--ordering", "hash-shards", "--shards", "4", "--own-shards", "1/2", "--max-workers", "7")
    with setup.relaying(*options, "--retry-strategy", "constant?delay_seconds=5") as program:
        settings = (await program.wait_for_answer("/status", 200))["settings"]
    assert settings == {
        "ordering": "hash-shards",
        "shards": 4,
        "own_shards": [1, 3],
        "max_workers": 7,
        "max_records": 100,
        "fetch_batch_size": 500,
        "min_fetch_interval": 0.5,
        "max_fetch_interval": 10.0,
        "lease_ttl_seconds": 60.0,
        "max_deliveries": None,
        "on_dead": "skip",
        "retry_strategy": "constant?delay_seconds=5",
        "terminal_batch_size": 500,
        "terminal_flush_interval_ms": 0.0,
        "retry_batch_size": 100,
        "retry_flush_interval_ms": 100.0,
    }


async def test_other_requests_are_refused(setup: RelaySetup) -> None:
    with setup.relaying() as program:
        await program.wait_for_answer("/health/live", 200)
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


async def test_probes_are_answered_among_hundreds_of_connections_that_stay_open(setup: RelaySetup) -> None:
    # Silent, in the middle of a request, and with a request whose answer is not read.
    sent = (b"", b"GET /health/live HTTP/1.1\r\nX-Slow: ", b"GET /health/ready HTTP/1.1\r\n\r\n")
    with setup.relaying() as program:
        await program.wait_for_answer("/health/ready", 200)
        process = psutil.Process(program.process.pid)

        def open_to_clients() -> int:
            found = process.net_connections(kind="tcp")
            return sum(each.laddr.port == program.health and each.status == psutil.CONN_ESTABLISHED for each in found)

        async with AsyncExitStack() as clients:
            slow: list[asyncio.StreamWriter] = []
            for number in range(201):
                _, writer = await asyncio.open_connection("127.0.0.1", program.health)
                clients.callback(writer.close)
                writer.write(sent[number % 3])
                slow += [writer] if number % 3 == 1 else []
            for path in ("/health/live", "/health/ready", "/status", "/metrics") * 3:
                for writer in slow:
                    writer.write(b"a")  # never a whole line
                async with httpx.AsyncClient() as client:
                    answer = await client.get(f"http://127.0.0.1:{program.health}{path}", timeout=PROBE_SECONDS)
                assert answer.status_code == 200
                assert open_to_clients() <= 40
        assert await program.stop() == 0, program.output


async def test_a_request_that_arrives_too_slowly_is_cut_off(setup: RelaySetup) -> None:
    with setup.relaying() as program:
        await program.wait_for_answer("/health/live", 200)
        reader, writer = await asyncio.open_connection("127.0.0.1", program.health)

        async def is_cut_off() -> bool:
            with suppress(OSError):
                writer.write(b"a")
            return reader.at_eof()

        # It is the only connection, and it is never quiet.
        await until(is_cut_off, seconds=30)
        writer.close()
