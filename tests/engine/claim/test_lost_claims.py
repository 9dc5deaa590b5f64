"""Claims whose answer is lost on the way: their rows come again at once, and no delivery is counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.engine.claim import ledger_claims
from faststream_outbox.storage import Ack, NewRow, OutboxRow, Outcome
from faststream_outbox.storage.ordering import AdvisoryLocks, HashShards, HeadLease, Ordering
from tests.backends import PostgresBackend
from tests.engine.pipelines import Reports, running
from tests.proxy import Proxy, proxying
from tests.waiting import until, until_empty

P = TypeVar("P", bound=Proxy)

ORDERINGS = [HeadLease(), AdvisoryLocks(), HashShards(count=2, shards=[0, 1])]
# An answer of more bytes than this is lost.
LARGE = 30_000
# What comes before a connection is ready, without that end, is shorter.
SMALL = 1_500
# The end of an answer; one byte comes after it.
READY = b"Z\x00\x00\x00\x05"
GATE = 7_331


def before_each_claim(name: str, what: str) -> list[str]:
    """Return statements after which Postgres does something for each row that is leased, and none that is released."""
    body = f"BEGIN PERFORM {what}; RETURN NEW; END"
    leased = "WHEN (NEW.acquired_token IS NOT NULL)"
    return [
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        f"CREATE TRIGGER {name} BEFORE UPDATE ON outbox FOR EACH ROW {leased} EXECUTE FUNCTION {name}()",
    ]


# A claim waits, with its rows leased and not committed, until the gate is open.
WAITING_CLAIMS = before_each_claim("wait", f"pg_advisory_xact_lock_shared({GATE})")
SLOW_CLAIMS = before_each_claim("slow", "pg_sleep(1)")
AT_GATE = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"


class LosingProxy(Proxy):
    """Reads large answers to their end, and closes the connection in their place, a few times."""

    losses = 3

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool = False
    ) -> None:
        if to_server:
            await super()._pump(reader, writer, to_server=True)
            return
        while data := await reader.read(65536):
            # Postgres sends 8 KB at a time.
            while self.losses and len(data) > SMALL and data[-6:-1] != READY:
                data += await reader.read(65536)
            if self.losses and len(data) > LARGE:
                self.losses -= 1
                return
            writer.write(data)
            await writer.drain()


class DeafProxy(Proxy):
    """Closes connections to clients, and keeps those to the server until the end, as a NAT that forgot them does."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.clients: list[asyncio.StreamWriter] = []
        self.closed = asyncio.Event()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool = False
    ) -> None:
        if not to_server:
            self.clients.append(writer)
        await super()._pump(reader, writer, to_server=to_server)
        await self.closed.wait()

    def forget_clients(self) -> None:
        for client in self.clients:
            client.transport.abort()
        self.clients.clear()


@asynccontextmanager
async def behind(postgres: PostgresBackend, kind: type[P]) -> AsyncIterator[tuple[P, PostgresBackend]]:
    """Reach the same tables by way of a proxy."""
    async with proxying(postgres.engine.url.render_as_string(hide_password=False), kind=kind) as proxy:
        assert isinstance(proxy, kind)
        engine = create_async_engine(postgres.engine.url.set(host="127.0.0.1", port=proxy.port))
        try:
            yield proxy, PostgresBackend(engine)
        finally:
            if isinstance(proxy, DeafProxy):
                proxy.closed.set()
            await engine.dispose()


@pytest.mark.parametrize("ordering", [None, *ORDERINGS], ids=lambda each: type(each).__name__)
async def test_rows_of_lost_answers_come_again_at_once_and_uncounted(
    postgres: PostgresBackend, ordering: Ordering | None
) -> None:
    """A lease lasts for a minute, and three deliveries are allowed: without their rows back the test would end late."""
    await postgres.insert(
        *(NewRow("q", b"x" * 5_000, key=None if ordering is None else f"k{n % 10}") for n in range(30))
    )
    deliveries, reports = dict[int, list[int]](), Reports()

    async def handle(row: OutboxRow) -> Outcome:
        deliveries.setdefault(row.id, []).append(row.deliveries_count)
        return Ack()

    options = {"max_workers": 30, "max_deliveries": 3, **({} if ordering is None else {"ordering": ordering})}
    async with behind(postgres, LosingProxy) as (proxy, there), running(there, handle, reports=reports, **options):
        await until_empty(postgres, seconds=30)
        assert proxy.losses == 0
    assert list(deliveries.values()) == [[1]] * 30
    assert reports.named("claim_failed")


async def test_a_claim_that_commits_after_its_connection_was_lost_is_given_back(postgres: PostgresBackend) -> None:
    await postgres.insert(*(NewRow("q", b"", key=key) for key in (None, None, "a", "b")))
    for statement in WAITING_CLAIMS:
        await postgres.run(statement)
    deliveries, reports = list[int](), Reports()

    async def handle(row: OutboxRow) -> Outcome:
        deliveries.append(row.deliveries_count)
        return Ack()

    async with behind(postgres, DeafProxy) as (proxy, there), postgres.engine.connect() as gate:
        await gate.execute(text(f"SELECT pg_advisory_xact_lock({GATE})"))
        async with running(there, handle, reports=reports) as pipeline:
            await until(lambda: postgres.one(AT_GATE), lambda waiting: waiting == 1)
            proxy.forget_clients()
            await until(lambda: reports.named("claim_failed"))
            # The next claims skip its rows, which are locked, and wait for those of the keys.
            await until(lambda: postgres.one(AT_GATE), lambda waiting: waiting == 2)
            assert pipeline._claimer._claims._lost._lost, "the server still executes it"
            await gate.rollback()
            await until_empty(postgres, seconds=30)
            assert pipeline._claimer._claims._lost._lost == []
    assert deliveries == [1] * 4


async def test_a_row_that_needs_longer_than_a_claim_may_take_is_delivered(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_claims, "CLAIM_LIMIT", 0.3)
    monkeypatch.setattr("faststream_outbox.engine.context.CLAIM_LIMIT", 0.3)
    await postgres.insert(NewRow("q", b""))
    for statement in SLOW_CLAIMS:
        await postgres.run(statement)
    deliveries, reports = list[int](), Reports()

    async def handle(row: OutboxRow) -> Outcome:
        deliveries.append(row.deliveries_count)
        return Ack()

    async with running(postgres, handle, reports=reports, max_workers=2):
        await until_empty(postgres)
    assert deliveries == [1]
    messages = [each["message"] for each in reports.named("claim_failed")]
    assert any("the row may be too large for the connection" in each for each in messages), messages
