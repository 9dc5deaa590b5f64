"""The metrics of a relay: what a scrape of the program finds, and that it asks nothing of the database."""

import subprocess
import sys
from typing import Any

import httpx
import pytest

from faststream_outbox import make_operations_tables
from faststream_outbox.cli.relay.health import HealthServer
from faststream_outbox.cli.relay.status import Status
from faststream_outbox.operations import OutboxOperations
from tests.cli.programs import CHECKOUT, TIMEOUT, environment, password_of, relaying
from tests.cli.relay.relay_setup import RelaySetup
from tests.cli.relay.rows import publish
from tests.proxy import proxying
from tests.servers.process import free_port
from tests.waiting import until

RELAYED = "faststream_outbox_relay_rows_total"
BACKLOG = "faststream_outbox_backlog_rows"
LAG = "faststream_outbox_oldest_due_age_seconds"


async def test_a_scrape_finds_the_rows_of_each_route(setup: RelaySetup) -> None:
    await publish(setup.outbox, range(20))
    await publish(setup.outbox, range(3), queue="others")
    # A name that is no list: Redis refuses its messages.
    with setup.relaying("--route", f"refunds=list:{setup.stream.name}", "--dlq-table", "outbox_dlq") as program:
        await setup.stream.numbers(20)
        await publish(setup.outbox, range(2), queue="refunds")
        # Rows are counted every ten seconds; the dead letters are in a later count.
        found: dict[str, Any] = await until(
            program.scrape, lambda found: found.get(BACKLOG, {}).get(("refunds", "dead")) == 2, seconds=TIMEOUT
        )
        orders, refunds = ("orders", setup.stream.name), ("refunds", f"list:{setup.stream.name}")
        assert found[RELAYED] == {
            ("relayed", *orders): 20,
            ("retried", *orders): 0,
            ("refused", *orders): 0,
            ("relayed", *refunds): 0,
            ("retried", *refunds): 0,
            ("refused", *refunds): 2,
        }
        assert found["faststream_received_processed_messages_total"] == {("relay", "acked"): 20, ("relay", "nacked"): 2}
        assert found["faststream_outbox_dlq_written_total"] == {("relay", "rejected"): 2}
        assert found["faststream_outbox_relay_up"] == {(setup.redis.url,): 1}
        assert found["process_open_fds"][()] > 0
        # Other services handle the other queues of the table.
        assert {queue for queue, _ in found[BACKLOG]} == {"orders", "refunds"}
        assert found[LAG] == {("orders",): 0, ("refunds",): 0}
        assert found["faststream_outbox_blocked_keys"] == {("orders",): 0, ("refunds",): 0}


async def test_the_lag_grows_while_the_broker_is_down(setup: RelaySetup) -> None:
    with setup.relaying() as program:
        await program.wait_for_answer("/health/ready", 200)
        await setup.redis.stop()
        await publish(setup.outbox, range(20))
        found = await until(program.scrape, lambda found: found.get(LAG, {}).get(("orders",), 0) > 0, seconds=TIMEOUT)
        assert found["faststream_outbox_relay_up"] == {(setup.redis.url,): 0}
        rows = {state: number for (queue, state), number in found[BACKLOG].items() if queue == "orders"}
        assert rows["ready"] + rows["in_flight"] + rows["blocked"] == 20


async def test_a_scrape_needs_no_answer_of_the_database(setup: RelaySetup) -> None:
    async with proxying(setup.database.dsn) as proxy:
        options = (*setup.route, "--dsn", proxy.url(setup.database.dsn))
        with relaying(*options, folder=setup.folder) as program:
            await publish(setup.outbox, range(20))
            await program.wait_for_answer("/health/ready", 200)
            await until(program.scrape, lambda found: sum(found[RELAYED].values()) == 20, seconds=TIMEOUT)
            proxy.freeze()
            await program.wait_for_answer("/health/ready", 503)
            for _ in range(100):
                found = await program.scrape()
            assert found[RELAYED]["relayed", "orders", setup.stream.name] == 20
            proxy.thaw()


async def test_a_scrape_shows_no_password(setup: RelaySetup) -> None:
    with setup.relaying() as program:
        await program.wait_for_answer("/health/ready", 200)
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{program.health}/metrics")
        assert password_of(setup.database) not in answer.text


async def test_without_prometheus_client_a_scrape_is_answered_with_what_to_install(setup: RelaySetup) -> None:
    port = free_port()
    program = "import sys; sys.modules['prometheus_client'] = None; from faststream_outbox.cli import main; main()"
    arguments = ["relay", "--health", str(port), *setup.route]
    log = setup.folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
            [sys.executable, "-c", program, *arguments],
            env=environment(OUTBOX_DSN=setup.database.dsn),
            cwd=CHECKOUT,
            stdout=file,
            stderr=file,
        )
    try:

        async def get() -> httpx.Response | None:
            async with httpx.AsyncClient() as client:
                try:
                    return await client.get(f"http://127.0.0.1:{port}/metrics")
                except httpx.TransportError:  # it does not listen yet
                    return None

        answer = await until(get, seconds=TIMEOUT)
        assert answer is not None
        assert answer.status_code == 501, log.read_text()
        assert "needs the extra `prometheus` of this package: pip install" in answer.json()["error"]
        await publish(setup.outbox, range(5))
        assert len(await setup.stream.numbers(5)) == 5
    finally:
        process.kill()
        process.wait(TIMEOUT)


async def test_a_queue_that_an_operator_paused_is_in_the_status_and_the_metrics(setup: RelaySetup) -> None:
    tables = make_operations_tables(setup.outbox.metadata)
    async with setup.outbox.engine.begin() as connection:
        await connection.run_sync(setup.outbox.metadata.create_all)
    operator = OutboxOperations(
        setup.outbox.engine, outbox_table=setup.outbox.outbox_table, control_table=tables.control
    )
    paused = "faststream_outbox_relay_queue_paused"
    with setup.relaying("--route", "refunds=elsewhere", "--control-table", tables.control.name) as program:
        await program.wait_for_answer("/health/ready", 200)
        assert (await program.scrape())[paused] == {("orders",): 0, ("refunds",): 0}
        await operator.pause("orders", by="ann", reason="a migration")
        await until(program.scrape, lambda found: found[paused] == {("orders",): 1, ("refunds",): 0}, seconds=TIMEOUT)
        _, status = await program.get("/status")
        assert status["state"] == "running"
        assert status["queues"]["orders"]["paused"] == "by ann (a migration)"
        assert status["queues"]["refunds"]["paused"] is None
        await publish(setup.outbox, range(20))
        await operator.resume("orders", by="ann", reason="it is done")
        assert sorted(await setup.stream.numbers(20)) == list(range(20))
        assert (await program.get("/status"))[1]["queues"]["orders"]["paused"] is None


class BrokenMetrics:
    content_type = "text/plain"

    def render(self) -> bytes:
        raise RuntimeError("broken")


async def test_a_failure_of_the_metrics_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    status = Status({"orders": "s"}, "redis://127.0.0.1")
    outbox: Any = None
    server = HealthServer(status, outbox, BrokenMetrics())
    address = await server.start("0")
    try:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://{address}/metrics")
            assert answer.status_code == 500
            assert answer.json() == {"error": "The answer could not be made; the log says why."}
            assert (await client.get(f"http://{address}/health/live")).status_code == 200
    finally:
        await server.stop()
    [record] = [each for each in caplog.records if vars(each).get("event") == "health_failed"]
    assert record.getMessage() == "The health endpoint could not answer /metrics."
