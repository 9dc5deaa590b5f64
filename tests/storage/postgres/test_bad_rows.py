"""Rows that others wrote, tables that somebody changed: the bad one is set apart, its neighbours go on."""

import json

import pytest
from sqlalchemy.exc import DBAPIError

from faststream_outbox.storage import Ack, ClaimCursor, Dead, NewRow, Retry, Settlement
from faststream_outbox.storage.clock import lease_now
from faststream_outbox.storage.errors import sqlstate
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import PostgresBackend

INSERT = "INSERT INTO outbox (queue, payload, headers, next_attempt_at, created_at) VALUES "


@pytest.mark.parametrize("instant", ["-infinity", "0044-03-15 12:00:00 BC", "4714-11-24 00:00:00+00 BC"])
async def test_instants_that_python_does_not_know(postgres: PostgresBackend, instant: str) -> None:
    await postgres.insert(NewRow("q", b"good"))
    await postgres.run(INSERT + f"('q', 'bad', NULL, '{instant}', '{instant}')")
    await postgres.run(f"UPDATE outbox SET first_attempt_at = '{instant}', last_attempt_at = 'infinity'")
    cursor = ClaimCursor(["q"])
    async with postgres.store.connect() as lane:
        rows = (await lane.claim(cursor, limit=1, lease_seconds=60)).rows
        cursor._sweep_at = float("inf")  # the next one starts at the bad row
        assert await lane.next_due(cursor) == 0
        rows += (await lane.claim(cursor, limit=1, lease_seconds=60)).rows
    assert [row.payload for row in rows] == [b"bad", b"good"]
    assert rows[0].next_attempt_at.year == rows[0].created_at.year == 1
    assert rows[0].last_attempt_at is not None
    assert rows[0].last_attempt_at.year == 9999
    assert len(await postgres.rows()) == 2
    async with postgres.store.connect() as lane:
        [stats] = await lane.stats()
        assert stats.in_flight == 2
        settled = await lane.settle([Settlement(rows[0].lease, Dead("rejected")), Settlement(rows[1].lease, Ack())])
    assert settled.held == {row.lease for row in rows}


async def test_a_row_due_at_the_end_of_time_is_never_due(postgres: PostgresBackend) -> None:
    await postgres.run(INSERT + "('q', '', NULL, 'infinity', now())")
    assert (await postgres.claim("q")).rows == []
    async with postgres.store.connect() as lane:
        assert await lane.next_due(ClaimCursor(["q"])) == float("inf")


@pytest.mark.parametrize("headers", ['["a"]', '"text"', "5", "true"])
async def test_headers_that_are_no_object(postgres: PostgresBackend, headers: str) -> None:
    await postgres.run(INSERT + f"('q', 'bad', '{headers}', now(), now()), ('q', 'good', '{{}}', now(), now())")
    bad, good = (await postgres.claim("q")).rows
    assert good.headers == {}
    with pytest.raises(ValueError, match=f"row {bad.id} are no JSON object"):
        _ = bad.headers


async def test_headers_that_are_null_either_way(postgres: PostgresBackend) -> None:
    await postgres.run(INSERT + "('q', '', NULL, now(), now()), ('q', '', 'null', now(), now())")
    assert [row.headers for row in (await postgres.claim("q")).rows] == [None, None]


async def test_a_payload_of_a_hundred_megabytes(postgres: PostgresBackend) -> None:
    await postgres.insert(NewRow("q", b"x" * 100_000_000), NewRow("q", b"small"))
    large = await postgres.claim("q")
    assert large.more
    small = await postgres.claim("q")
    rows = [*large.rows, *small.rows]
    assert [len(row.payload) for row in rows] == [100_000_000, 5]
    async with postgres.store.connect() as lane:
        settled = await lane.settle(Settlement(row.lease, Dead("rejected")) for row in rows)
    assert len(settled.held) == 2


async def test_a_row_that_cannot_be_buried_does_not_keep_the_others(postgres: PostgresBackend) -> None:
    await postgres.run("ALTER TABLE outbox_dlq ADD CHECK (payload <> 'poison')")
    await postgres.insert(*(NewRow("q", b"poison" if n == 37 else b"%d" % n) for n in range(100)))
    rows = (await postgres.claim("q")).rows
    async with postgres.store.connect() as lane:
        settled = await lane.settle(Settlement(row.lease, Dead("rejected")) for row in rows)
    [(lease, error)] = settled.failed.items()
    assert lease == rows[37].lease
    assert sqlstate(error) == "23514"
    assert len(settled.held) == 99
    assert [row.payload for row in await postgres.rows()] == [b"poison"], "kept, and still leased"


async def test_an_output_that_is_refused_fails_only_its_own_row(postgres: PostgresBackend) -> None:
    await postgres.run("ALTER TABLE outbox ADD CHECK (payload <> 'poison')")
    await postgres.insert(*(NewRow("q", b"%d" % n) for n in range(100)))
    rows = (await postgres.claim("q")).rows
    outputs = [(NewRow("out", b"a"), NewRow("out", b"poison" if n == 37 else b"b")) for n in range(100)]
    async with postgres.store.connect() as lane:
        settled = await lane.settle(Settlement(row.lease, Ack(new)) for row, new in zip(rows, outputs, strict=True))
    [(lease, error)] = settled.failed.items()
    assert lease == rows[37].lease
    assert sqlstate(error) == "23514"
    assert len(settled.held) == 99
    left = await postgres.rows()
    assert [row.id for row in left if row.queue == "q"] == [rows[37].id], "kept, and still leased"
    assert len(left) == 1 + 2 * 99, "of the one that failed, no output at all"


async def test_a_triggers_veto_on_one_row_does_not_keep_the_others(postgres: PostgresBackend) -> None:
    await postgres.run(
        """CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF OLD.payload = 'kept' THEN RAISE 'not this one'; END IF; RETURN OLD; END $$"""
    )
    await postgres.run("CREATE TRIGGER veto BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION veto()")
    await postgres.insert(NewRow("q", b"1"), NewRow("q", b"kept"), NewRow("q", b"3"))
    rows = (await postgres.claim("q")).rows
    async with postgres.store.connect() as lane:
        settled = await lane.settle(Settlement(row.lease, Ack()) for row in rows)
    assert set(settled.failed) == {rows[1].lease}
    assert settled.held == {rows[0].lease, rows[2].lease}


@pytest.mark.parametrize(
    ("change", "state"),
    [("DROP TABLE outbox_dlq", "42P01"), ("ALTER TABLE outbox_dlq DROP COLUMN failure_reason", "42703")],
)
async def test_a_dead_letter_table_that_is_gone_or_drifted_keeps_the_rows(
    postgres: PostgresBackend, change: str, state: str
) -> None:
    await postgres.insert(NewRow("q", b"dead"), NewRow("q", b"acked"))
    dead, acked = (await postgres.claim("q")).rows
    await postgres.run(change)
    async with postgres.store.connect() as lane:
        settled = await lane.settle([Settlement(dead.lease, Dead("rejected")), Settlement(acked.lease, Ack())])
        assert settled.held == {acked.lease}
        assert {lease: sqlstate(error) for lease, error in settled.failed.items()} == {dead.lease: state}
    assert [row.payload for row in await postgres.rows()] == [b"dead"], "one kind's trouble is not another's"
    await postgres.run("DROP TABLE IF EXISTS outbox_dlq")
    await postgres.engine.dispose()
    async with postgres.engine.begin() as connection:
        await connection.run_sync(postgres.metadata.create_all)
    async with postgres.store.connect() as lane:
        assert (await lane.settle([Settlement(dead.lease, Dead("rejected"))])).held == {dead.lease}


async def test_a_missing_outbox_says_so(postgres: PostgresBackend) -> None:
    await postgres.run("DROP TABLE outbox")
    with pytest.raises(Exception, match='relation "outbox" does not exist'):
        await postgres.claim("q")
    async with postgres.transaction() as session:
        with pytest.raises(DBAPIError, match='relation "outbox" does not exist'):
            await postgres.store.insert(session, NewRow("q", b""))
        await session.rollback()


async def test_without_a_dead_letter_table_dead_rows_are_deleted(postgres: PostgresBackend) -> None:
    bare = PostgresBackend(postgres.engine, table_name="bare", keep_dead=False)
    await bare.create()
    await bare.insert(NewRow("q", b""))
    [row] = (await bare.claim("q")).rows
    async with bare.store.connect() as lane:
        assert (await lane.settle([Settlement(row.lease, Dead("rejected", "x"))])).held == {row.lease}
        assert await lane.stats() == []


async def test_columns_of_the_users_own_do_no_harm(postgres: PostgresBackend) -> None:
    for name in ("reason", "exception", "attempts", "token", "first_at", "delay"):
        await postgres.run(f"ALTER TABLE outbox ADD COLUMN {name} int DEFAULT 7")
        await postgres.run(f"ALTER TABLE outbox_dlq ADD COLUMN {name} int DEFAULT 7")
    await postgres.insert(NewRow("q", b"1"), NewRow("q", b"2"), NewRow("q", b"3"))
    one, two, three = (await postgres.claim("q")).rows
    async with postgres.store.connect() as lane:
        settled = await lane.settle(
            [
                Settlement(one.lease, Ack()),
                Settlement(two.lease, Retry(1, 1)),
                Settlement(three.lease, Dead("rejected", json.dumps({"a": 1}))),
            ]
        )
    assert len(settled.held) == 3


async def test_what_a_driver_cannot_send_does_not_keep_the_others(postgres: PostgresBackend) -> None:
    await postgres.insert(*(NewRow("q", b"%d" % n) for n in range(4)))
    rows = (await postgres.claim("q")).rows
    outcomes = [Retry(5, 1), Retry(2.5, 1), Retry(0, 2**70), Retry(0, 3)]
    async with postgres.store.connect() as lane:
        settled = await lane.settle(Settlement(row.lease, outcome) for row, outcome in zip(rows, outcomes, strict=True))
    assert settled.held == {rows[0].lease, rows[1].lease, rows[3].lease}
    assert set(settled.failed) == {rows[2].lease}


async def test_a_sweep_that_takes_too_long_does_not_stop_claiming(postgres: PostgresBackend) -> None:
    """A statement_timeout may end every sweep; ordinary claims, which read less, go on."""
    await postgres.fill(50)
    cursor = ClaimCursor(["q"])
    async with postgres.store.connect() as lane:
        await lane.claim(cursor, limit=5, lease_seconds=60)
        cursor.restart()
        lock = "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE"
        async with postgres.engine.begin() as connection:
            await connection.exec_driver_sql(lock)
            await lane._executor.fetch(Statement("SELECT set_config('statement_timeout', '50', false)"))  # type: ignore[attr-defined]
            with pytest.raises(Exception, match="timeout"):
                await lane.claim(cursor, limit=5, lease_seconds=60)
        assert not cursor.plan(5, lease_now()).sweep, "put off, not asked for again at once"
        await lane._executor.fetch(Statement("SELECT set_config('statement_timeout', '0', false)"))  # type: ignore[attr-defined]
        assert len((await lane.claim(cursor, limit=5, lease_seconds=60)).rows) == 5
