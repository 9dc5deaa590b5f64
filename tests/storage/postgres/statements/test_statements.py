"""What Postgres makes of the statements: a probe of an index for each element, whatever its statistics say."""

import asyncio
import json
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from faststream_outbox.storage import Ack, Settlement
from faststream_outbox.storage.postgres.drivers import LANE_SETTINGS
from faststream_outbox.storage.postgres.statements import Statements
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import PostgresBackend

TOKEN = "11111111-1111-1111-1111-111111111111"  # noqa: S105 - a lease, no password
IDS = f"ARRAY{list(range(1, 501))}::bigint[]"
TOKENS = f"array_fill('{TOKEN}'::uuid, ARRAY[500])"
NUMBERS = "array_fill(1::float8, ARRAY[500])"
GROUPS, SIZES = "array_fill(1, ARRAY[500])", "array_fill(500, ARRAY[500])"
COUNTS = "array_fill(1::bigint, ARRAY[500])"
TEXTS = "array_fill('x'::text, ARRAY[500])"
PAYLOADS = "array_fill('x'::bytea, ARRAY[500])"
HEADERS = "array_fill('{}'::text, ARRAY[500])"
OUTPUTS = {
    "output_queue": TEXTS,
    "output_key": TEXTS,
    "output_payload": PAYLOADS,
    "output_headers": HEADERS,
    "output_timer_id": TEXTS,
    "output_delay": NUMBERS,
    "output_due": NUMBERS,
}
LEASE = {"token": f"'{TOKEN}'", "lease_seconds": "60"}
LEASES = {"lease_id": IDS, "lease_token": TOKENS}
POSITIONS = {
    "position_queue": "ARRAY['q', 'other']",
    "position_at": "ARRAY['-infinity', 0]::float8[]",
    "position_id": "ARRAY[0, 0]::bigint[]",
}
# What a node concluded from its looks at the locks of the others.
OVER = {"claimed_before": "date_part('epoch', now())", "alive": "ARRAY['01234567-89ab']"}
DEATHS = {**OVER, "max_deliveries": "9223372036854775807"}


def attempts(batch: str) -> dict[str, str]:
    return {f"{batch}_attempts": COUNTS, f"{batch}_first_at": NUMBERS, f"{batch}_last_at": NUMBERS}


def failures(batch: str) -> dict[str, str]:
    return {f"{batch}_reason": TEXTS, f"{batch}_exception": TEXTS, **attempts(batch)}


FAILED = {"retried_failure": TEXTS}


# By the name of the group of statements and of the statement.
ARGUMENTS = {
    "claim.claim": {
        **LEASE,
        "claim_queue": POSITIONS["position_queue"],
        "claim_quota": "ARRAY[50, 50]",
        "claim_at": POSITIONS["position_at"],
        "claim_id": POSITIONS["position_id"],
        "limit": "100",
        "max_bytes": "8000000",
    },
    "claim.claim_suspect": {**LEASE, **POSITIONS},
    "claim.recover": {**POSITIONS, **DEATHS},
    "claim.renew": {**LEASES, "lease_seconds": "60"},
    "claim.leave_running": LEASES,
    "claim.release": {
        "released_id": IDS,
        "released_token": TOKENS,
        "released_suspect": "array_fill(false, ARRAY[500])",
        "delay": "0",
    },
    "claim.give_back": {"token": f"'{TOKEN}'", "suspects": "false", **POSITIONS},
    "settle.delete": LEASES,
    "settle.delete_batch": LEASES,
    "settle.delete_and_insert": {
        "grouped_id": IDS,
        "grouped_token": TOKENS,
        "grouped_grp": GROUPS,
        "grouped_size": SIZES,
        "output_of": GROUPS,
        **OUTPUTS,
    },
    "settle.retry": {
        "retried_id": IDS,
        "retried_token": TOKENS,
        "retried_delay": NUMBERS,
        **FAILED,
        **attempts("retried"),
    },
    "settle.bury": {"buried_id": IDS, "buried_token": TOKENS, **failures("buried")},
    "claim.next_due": POSITIONS,
    "insert.cancel_timer": {"queue": "'q'", "timer_id": "'t'"},
}
IN_CALLERS_TRANSACTION = {"insert.cancel_timer"}  # where the settings are the user's


@pytest.fixture
def driver() -> str:
    """Plans are the server's; one driver will do."""
    return "asyncpg"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def explain(
    connection: AsyncConnection, statement: Statement, arguments: dict[str, str], *, mode: str
) -> list[dict[str, Any]]:
    """Run a statement under EXPLAIN ANALYZE as a prepared one, and take its effects back."""
    await connection.execute(text(f"SET plan_cache_mode = force_{mode}_plan"))
    await connection.exec_driver_sql(f"PREPARE s AS {statement.text}")
    savepoint = await connection.begin_nested()
    values = f"({', '.join(statement.bind(arguments))})" if arguments else ""
    explained = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE s{values}"
    plan = (await connection.exec_driver_sql(explained)).scalar_one()
    await savepoint.rollback()
    await connection.execute(text("DEALLOCATE s"))
    return list(nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))


BATCH = 500


def check_probes_only(plan: list[dict[str, Any]]) -> None:
    scans = [node for node in plan if node.get("Relation Name") == "outbox" and "Scan" in node["Node Type"]]
    assert scans, "the table is read"
    for node in scans:
        assert node["Node Type"] in ("Index Scan", "Index Only Scan"), node
        assert "Index Cond" in node, "a range of the index, not all of it"
    for node in plan:
        if node["Node Type"] in ("Sort", "Incremental Sort"):
            assert node["Actual Rows"] <= BATCH, "the backlog is sorted"


@pytest.mark.parametrize("mode", ["custom", "generic"])
async def test_plans_at_300_000_rows(postgres: PostgresBackend, mode: str) -> None:
    await postgres.fill(300_000, due="now() - random() * interval '1 day'")
    await postgres.run(f"UPDATE outbox SET acquired_token = '{TOKEN}', lease_expires_at = now() WHERE id <= 500")
    await postgres.run("ANALYZE outbox")
    statements = Statements(postgres.outbox_table, postgres.dlq_table)
    async with postgres.engine.connect() as connection:
        for settings in ({}, LANE_SETTINGS):
            for name, value in settings.items():
                await connection.execute(text(f"SET {name} = '{value}'"))
            for name, arguments in ARGUMENTS.items():
                if name in ("claim.claim_suspect", "claim.recover", "claim.give_back") and not settings:
                    continue  # it may read its range, up to where claims have come, through a bitmap
                plan = await explain(connection, attrgetter(name)(statements), arguments, mode=mode)
                check_probes_only(plan)
        await connection.rollback()


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 30, 2000])
async def test_a_plan_made_while_the_table_was_small_suits_a_large_one(
    postgres: PostgresBackend, rows: int, analyzed: bool
) -> None:
    await postgres.fill(rows)
    if analyzed:
        await postgres.run("ANALYZE outbox")
    statements = Statements(postgres.outbox_table, postgres.dlq_table)
    async with postgres.engine.connect() as connection:
        for name, value in LANE_SETTINGS.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        for name in ARGUMENTS.keys() - IN_CALLERS_TRANSACTION:
            plan = await explain(connection, attrgetter(name)(statements), ARGUMENTS[name], mode="generic")
            check_probes_only(plan)


async def test_batches_lock_in_the_order_of_ids(postgres: PostgresBackend) -> None:
    """The index is probed with an array, which it visits in its own order, and nothing above disturbs that."""
    statements = Statements(postgres.outbox_table, postgres.dlq_table)
    await postgres.fill(50)
    async with postgres.engine.connect() as connection:
        for name, value in LANE_SETTINGS.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        for name in ("claim.renew", "claim.release", "settle.delete", "settle.retry", "settle.bury"):
            plan = await explain(connection, attrgetter(name)(statements), ARGUMENTS[name], mode="generic")
            kinds = [node["Node Type"] for node in plan if not node.get("Subplan Name", "").startswith("CTE kept")]
            join = next(node for node in plan if node["Node Type"] == "Hash Join")
            outer, hashed = join["Plans"]
            assert {outer["Node Type"], hashed["Plans"][0]["Node Type"]} == {"Index Scan", "Function Scan"}
            assert "Nested Loop" not in kinds
            assert "Sort" not in kinds
            if outer["Node Type"] == "Index Scan":
                assert outer["Index Name"] == "outbox_pkey"
                assert outer["Index Cond"].startswith("(id = ANY")


async def test_rows_are_locked_in_the_order_of_ids(postgres: PostgresBackend) -> None:
    """The same, seen from outside: while one row is held, the rows after it are still free."""
    await postgres.fill(50)
    rows = (await postgres.claim("q")).rows
    held, ids = rows[20].id, sorted(row.id for row in rows)
    free = "SELECT id FROM outbox ORDER BY id FOR UPDATE SKIP LOCKED"
    async with postgres.engine.connect() as holder, postgres.engine.connect() as watcher:
        await holder.execute(text("SELECT 1 FROM outbox WHERE id = :id FOR UPDATE"), {"id": held})
        async with postgres.store.connect() as lane:
            work = asyncio.create_task(lane.settle(Settlement(row.lease, Ack()) for row in reversed(rows)))
            async with asyncio.timeout(30):
                while True:
                    unlocked = [row_id for (row_id,) in await watcher.execute(text(free))]
                    await watcher.rollback()
                    if unlocked == ids[21:]:
                        break
                    assert not work.done()
            await holder.rollback()
            await work
    assert await postgres.rows() == []


async def test_long_texts_do_not_spill_the_join_that_locks(postgres: PostgresBackend) -> None:
    """A hash that goes to disk is read back in parts, and the order of ids is gone."""
    await postgres.fill(1500)
    await postgres.run(f"UPDATE outbox SET acquired_token = '{TOKEN}'")
    statements = Statements(postgres.outbox_table, postgres.dlq_table)
    numbers = "array_fill(1::float8, ARRAY[1500])"
    arguments = {
        "buried_id": f"ARRAY{list(range(1, 1501))}::bigint[]",
        "buried_token": f"array_fill('{TOKEN}'::uuid, ARRAY[1500])",
        "buried_reason": "array_fill('x'::text, ARRAY[1500])",
        "buried_exception": "array_fill(repeat('x', 8192), ARRAY[1500])",
        "buried_attempts": "array_fill(1::bigint, ARRAY[1500])",
        "buried_first_at": numbers,
        "buried_last_at": numbers,
    }
    assert statements.settle.bury is not None
    async with postgres.engine.connect() as connection:
        for name, value in LANE_SETTINGS.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        plan = await explain(connection, statements.settle.bury, arguments, mode="generic")
    [deletion] = [node for node in plan if node.get("Operation") == "Delete"]
    [hashed] = [node for node in nodes(deletion) if node["Node Type"] == "Hash"]
    assert hashed["Hash Batches"] == 1


async def test_outputs_are_inserted_after_all_their_inputs_are_gone_and_all_stripes_are_locked(
    postgres: PostgresBackend,
) -> None:
    """The locks and the sort read all of what was deleted, and the insert reads the sort."""
    statements = Statements(postgres.outbox_table, postgres.dlq_table)
    await postgres.fill(500)
    await postgres.run(f"UPDATE outbox SET acquired_token = '{TOKEN}'")
    async with postgres.engine.connect() as connection:
        for name, value in LANE_SETTINGS.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        arguments = ARGUMENTS["settle.delete_and_insert"]
        plan = await explain(connection, statements.settle.delete_and_insert, arguments, mode="generic")
    deletions = [node for node in plan if node.get("Operation") == "Delete"]
    assert len(deletions) == 1
    hashes = [node for node in nodes(deletions[0]) if node["Node Type"] == "Hash"]
    assert {hashed["Hash Batches"] for hashed in hashes} == {1}
    [locking] = [node for node in plan if node["Node Type"] == "LockRows"]
    assert {node["Node Type"] for node in nodes(locking)} >= {"Hash Join", "Index Scan"}
    assert not {node["Node Type"] for node in nodes(locking)} & {"Nested Loop", "Sort"}
    assert {node["Node Type"] for node in nodes(deletions[0])} >= {"Hash Join", "Index Scan"}
    assert not {node["Node Type"] for node in nodes(deletions[0])} & {"Nested Loop", "Sort"}
    [insertion] = [node for node in plan if node.get("Operation") == "Insert"]
    sort = next(node for node in nodes(insertion) if node["Node Type"] == "Sort")
    assert {node.get("CTE Name") for node in nodes(sort)} >= {"locked", "input"}
