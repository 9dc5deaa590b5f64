"""Which names the notifier sends: those that no transaction has notified of by itself."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from faststream_outbox.embedded import Database
from faststream_outbox.storage import NewRow, PostgresStore
from faststream_outbox.wakeup import notifier as notifiers
from faststream_outbox.wakeup import wakeup as wakeups
from faststream_outbox.wakeup.notifier import Notifier
from faststream_outbox.wakeup.wakeup import Wakeup
from tests.backends import PostgresBackend
from tests.observers import Reports
from tests.waiting import until

HOUR = 3600.0


@asynccontextmanager
async def sending() -> AsyncIterator[tuple[Notifier, list[str]]]:
    """Run a notifier that has just sent a name."""
    sent = list[str]()

    async def send(queues: Iterable[str]) -> None:
        sent.extend(queues)

    notifier = Notifier(send, Reports())
    notifier.start()
    notifier.put(["first"])
    await until(lambda: sent == ["first"])
    yield notifier, sent
    await notifier.finish(10)


async def test_a_name_waits_for_a_transaction_that_notifies_and_is_not_sent_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifiers, "_WAIT", HOUR)
    monkeypatch.setattr(notifiers, "_LOAN", 0.001)
    monkeypatch.setattr(notifiers, "_QUIET", HOUR)
    async with sending() as (notifier, sent):
        notifier.put(["q", "r"])
        assert not notifier.lend("other")
        assert notifier.lend("q")
        notifier.repay("q")
        assert not notifier.lend("q")
        notifier.put(["end"], now=True)
        await until(lambda: "end" in sent)
    assert sent == ["first", "end", "r"]


@pytest.mark.parametrize("new", [False, True])
async def test_a_name_that_was_lent_for_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, *, new: bool) -> None:
    monkeypatch.setattr(notifiers, "_WAIT", HOUR)
    monkeypatch.setattr(notifiers, "_LOAN", 0.001)
    monkeypatch.setattr(notifiers, "_QUIET", HOUR)
    async with sending() as (notifier, sent):
        if not new:
            notifier.put(["q"])
        assert notifier.lend("q", new=new)
        await until(lambda: sent == ["first", "q"])


async def test_a_name_is_lent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifiers, "_LOAN", HOUR)
    async with sending() as (notifier, sent):
        assert notifier.lend("q", new=True)
        notifier._end_loans(all_of_them=True)  # as its timer does when they are due
        assert not notifier.lend("q")
        await until(lambda: sent == ["first", "q"])


async def test_in_a_steady_stream_no_name_is_sent_although_some_transaction_is_always_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifiers, "_WAIT", HOUR)
    monkeypatch.setattr(notifiers, "_QUIET", HOUR)
    async with sending() as (notifier, sent):
        for _ in range(3):
            notifier.put(["q"])
            assert notifier.lend("q")
            notifier._end_loans()  # its timer, which a loan of long ago has set
            notifier.repay("q")
    assert sent == ["first"]


async def test_who_stops_sends_what_was_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifiers, "_LOAN", HOUR)
    async with sending() as (notifier, sent):
        notifier.put(["q"])
        notifier.lend("q")
    assert sent == ["first", "q"]


class Sending(PostgresStore):
    """Records what is sent by statements of the broker's own."""

    sent: list[str]

    async def notify(self, queues: Iterable[str]) -> None:
        self.sent.extend(queues)


@asynccontextmanager
async def with_a_row_to_announce(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Wakeup, Sending]]:
    """Commit a row of "q" that nobody has announced yet; in the block, transactions notify by themselves."""
    for name in ("_WAIT", "_QUIET", "_LOAN"):
        monkeypatch.setattr(notifiers, name, HOUR)
    monkeypatch.setattr(wakeups, "SPACING", HOUR)
    store = Sending(postgres.engine, postgres.outbox_table)
    store.sent = []
    wakeup = Wakeup(store, Reports())
    wakeup.start(listen=False)
    wakeup.announce(["first"])
    await until(lambda: store.sent == ["first"])
    async with postgres.transaction() as session:
        assert not wakeup.defer(session, "first"), "after a quiet time it notifies by itself"
    async with postgres.transaction() as session:
        assert wakeup.defer(session, "q")
        await store.insert(session, NewRow("q", b""))
    monkeypatch.setattr(wakeups, "SPACING", 0)
    yield wakeup, store
    await wakeup.stop()


async def test_a_transaction_that_notifies_does_it_for_those_before(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_a_row_to_announce(postgres, monkeypatch) as (wakeup, store), postgres.transaction() as session:
        assert not wakeup.defer(session, "q", inserts=True)
        await store.insert(session, NewRow("q", b""), notify=True)
    assert store.sent == ["first"]


@pytest.mark.parametrize("how", ["rolled back", "savepoint", "timer"])
async def test_one_that_may_not_notify_takes_nothing_from_those_before(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    timer = NewRow("q", b"", timer_id="t", activate_in=timedelta(hours=1))
    await postgres.insert(timer)
    async with with_a_row_to_announce(postgres, monkeypatch) as (wakeup, store), postgres.sessions() as session:
        if how == "savepoint":
            await session.connection()
            savepoint: Any = await session.begin_nested()
        row = timer if how == "timer" else NewRow("q", b"")
        assert not wakeup.defer(session, "q", inserts=row.timer_id is None)
        await store.insert(session, row, notify=True)
        if how == "savepoint":
            await savepoint.rollback()
        await (session.rollback() if how == "rolled back" else session.commit())
    assert store.sent == ["first", "q"]


async def test_a_drivers_connection_is_not_trusted_to_have_notified(
    postgres: PostgresBackend, outbox_postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_a_row_to_announce(postgres, monkeypatch) as (wakeup, store):
        connection = await asyncpg.connect(outbox_postgres.dsn)
        transaction = connection.transaction()
        await transaction.start()
        assert not wakeup.defer(connection, "q", inserts=True)
        await store.insert(connection, NewRow("q", b""), notify=True)
        await transaction.rollback()
        await connection.close()
        await asyncio.sleep(0)
        assert store.sent == ["first"]
    assert store.sent == ["first", "q"]
