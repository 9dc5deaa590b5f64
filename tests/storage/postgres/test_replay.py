"""Claims that began before a replay and go on after it: none of them gets a row that has another one before it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sqlalchemy import Column, MetaData, Text, text

from faststream_outbox.storage import PostgresStore, make_dlq_table, make_outbox_table
from faststream_outbox.storage.ordering import RunClaim
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import PostgresBackend
from tests.storage.contract.test_replay import DEAD, bury, replay
from tests.storage.contract.test_runs import begun, claim, fill, payloads, settle, strategy
from tests.waiting import until

__all__ = ["strategy"]  # so that every test here runs with each of them, too

GATE = 4711
# Waits at the gate when the heads are found, before they are locked.
_WAIT = f"(SELECT pg_advisory_xact_lock_shared({GATE}) IS NOT NULL)"


def wait_before_locking(store: PostgresStore) -> None:
    """Have claims wait at the gate between their snapshot and their locks, or between their two statements."""
    runs = store._statements.runs
    for name in ("claim", "claim_shards"):
        found = "SELECT w.id FROM walk w WHERE w.wanted)"
        setattr(runs, name, _spoiled(getattr(runs, name), found, f"{found[:-1]} AND {_WAIT})"))
    runs.lock_keys = Statement(f"{runs.lock_keys.sql} WHERE {_WAIT}")


def _spoiled(statement: Statement, old: str, new: str) -> Statement:
    assert old in statement.sql
    return Statement(statement.sql.replace(old, new, 1))


@asynccontextmanager
async def closed_gate(postgres: PostgresBackend) -> AsyncIterator[None]:
    async with postgres.engine.connect() as connection:
        await connection.execute(text(f"SELECT pg_advisory_lock({GATE})"))
        yield
        await connection.execute(text(f"SELECT pg_advisory_unlock({GATE})"))


async def claim_across(postgres: PostgresBackend, act: Callable[[], Awaitable[None]]) -> RunClaim:
    """Begin a claim, act while it stands between its snapshot and its locks, and return what it brought."""
    wait_before_locking(postgres.store)
    async with closed_gate(postgres):
        claiming = asyncio.create_task(claim(postgres, keys=1, cursor=begun()))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await until(lambda: postgres.one(waiting), lambda count: count == 1)
        await act()
    return await claiming


async def test_a_claim_with_an_older_snapshot_takes_nothing_of_the_key(postgres: PostgresBackend) -> None:
    await fill(postgres, *"aaa")
    await bury(postgres)

    async def act() -> None:
        assert (await replay(postgres, [1])).back == [1]

    claimed = await claim_across(postgres, act)
    # It looks a second time if the first brought nothing; then it sees the row that went back.
    assert payloads(claimed) in ({}, {"a": [b"0", b"1", b"2"]})


async def test_a_claim_with_a_snapshot_without_the_key_takes_nothing_of_it(postgres: PostgresBackend) -> None:
    await fill(postgres, *"ab")
    await bury(postgres)

    async def act() -> None:
        assert (await replay(postgres, [1])).back == [1]
        await fill(postgres, "a")

    assert payloads(await claim_across(postgres, act)) == {"b": [b"1"]}
    assert payloads(await claim(postgres, cursor=begun())) == {"a": [b"0", b"0"]}


async def test_a_head_that_was_settled_meanwhile_leaves_the_key_for_the_next_replay(postgres: PostgresBackend) -> None:
    await fill(postgres, *"aaa")
    await bury(postgres)
    [run] = (await claim(postgres, rows_per_key=1, cursor=begun())).runs
    async with postgres.transaction() as session:
        connection = await session.connection()
        await connection.exec_driver_sql(f"DELETE FROM outbox WHERE id = {run.rows[0].id}")
        assert (await replay(postgres, [1])).skipped == {1: "in_flight"}
    assert (await replay(postgres, [1])).back == [1]
    assert payloads(await claim(postgres, cursor=begun())) == {"a": [b"0", b"2"]}


async def test_columns_of_the_users_own_stay(postgres: PostgresBackend) -> None:
    metadata = MetaData()
    outbox, dlq = make_outbox_table(metadata, "own"), make_dlq_table(metadata, "own_dlq")
    outbox.append_column(Column("Tenant's", Text))
    async with postgres.engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    postgres.store = PostgresStore(postgres.engine, outbox, dlq_table=dlq)
    await fill(postgres, *"aa")
    [run] = (await claim(postgres, rows_per_key=1, cursor=begun())).runs
    await settle(postgres, run, DEAD)
    await postgres.run("""UPDATE own SET "Tenant's" = 'x'""")
    await replay(postgres, [1])
    assert await postgres.run("""SELECT payload, "Tenant's" FROM own ORDER BY id""") == [(b"0", None), (b"1", "x")]


async def test_a_claim_and_a_replay_at_once_never_share_a_key(postgres: PostgresBackend) -> None:
    for _ in range(10):
        await fill(postgres, *"aaa")
        await bury(postgres)
        letter = int(str(await postgres.one("SELECT id FROM outbox_dlq")))
        claiming = asyncio.create_task(claim(postgres, cursor=begun()))
        replayed = await replay(postgres, [letter])
        got = payloads(await claiming)
        if replayed.back:
            assert got in ({}, {"a": [b"0", b"1", b"2"]})
        else:
            assert got == {"a": [b"1", b"2"]}
        await postgres.run("TRUNCATE outbox, outbox_dlq")
