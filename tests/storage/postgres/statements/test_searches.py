"""What Postgres makes of operators' reads: a bounded part of an index, whatever the table holds.

The session is a user's: its settings are the server's defaults, and a plan may be one that is kept for all values.
"""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from faststream_outbox.storage.operating.filters import COUNT_CAP, DeadLetterFilter, MessageFilter
from faststream_outbox.storage.operating.reads import MOST_KEYS_VISITED
from faststream_outbox.storage.postgres.drivers import LANE_SETTINGS
from faststream_outbox.storage.postgres.statements.dead_letters import DeadLetterStatements, LetterLeg
from faststream_outbox.storage.postgres.statements.nodes import count_held
from faststream_outbox.storage.postgres.statements.queues import QueueStatements
from faststream_outbox.storage.postgres.statements.search import Leg, SearchStatements
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import PostgresBackend
from tests.storage.postgres.statements.test_statements import explain

ROWS = 200_000
VALUES = {
    "queue": "'q'",
    "leg_queue": "'q'",
    "key": "'k7'",
    "state": "'ready'",
    "correlation_id": "'c-7'",
    "header_name": "'tenant'",
    "header_value": "'t'",
    "timer_id": "'t-7'",
    "node": "'01234567-89ab'",
    "after_queue": "''",
    "after_value": "''",
    "after_id": "0",
    "reason": "'rejected'",
    "exception_type": "'ValueError'",
    "failed_after": "0",
    "failed_before": "9999999999",
    "first": "''",
    "limit": "100",
}
MESSAGES: list[tuple[Leg, MessageFilter]] = [
    ("id", MessageFilter()),
    ("id", MessageFilter(correlation_id="c-7")),
    ("id", MessageFilter(header=("tenant", "t"))),
    ("timer", MessageFilter()),
    ("timer", MessageFilter(timer_id="t-7")),
    ("timer", MessageFilter(queue="q", timer_id="t-7")),
    ("key", MessageFilter(key="k7")),
    ("key", MessageFilter(queue="q", key="k7", correlation_id="c-7")),
    ("due", MessageFilter(queue="q")),
    ("due", MessageFilter(state="ready")),
    ("due", MessageFilter(state="delayed")),
    ("due", MessageFilter(node="01234567-89ab")),
    ("keyed", MessageFilter(queue="q")),
    ("keyed", MessageFilter(state="parked")),
    ("key", MessageFilter(key="k7", state="ready")),
    ("timer", MessageFilter(queue="q", state="ready")),
]
LETTERS: list[tuple[LetterLeg, DeadLetterFilter]] = [
    ("id", DeadLetterFilter()),
    ("id", DeadLetterFilter(exception_type="ValueError")),
    ("failed", DeadLetterFilter(queue="q")),
    ("failed", DeadLetterFilter(queue="q", reason="rejected", exception_type="ValueError")),
    ("correlation", DeadLetterFilter(correlation_id="c-7")),
    ("correlation", DeadLetterFilter(queue="q", correlation_id="c-7")),
]


@pytest.fixture
def driver() -> str:
    """Plans are the server's; one driver will do."""
    return "asyncpg"


@pytest.fixture
async def filled(postgres: PostgresBackend) -> PostgresBackend:
    """Half of the rows with keys, one key with many of them; a tenth of the others due later, some of them timers."""
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, headers, timer_id, next_attempt_at) SELECT 'q', "
        "CASE WHEN n % 2 = 0 THEN NULL WHEN n % 4 = 1 THEN 'k' || n % 5000 ELSE 'k7' END, '', "
        "jsonb_build_object('correlation_id', 'c-' || n), CASE WHEN n % 1000 = 0 THEN 't-' || n END, "
        "now() + CASE WHEN n % 20 = 0 THEN interval '1 h' ELSE make_interval(secs => -n) END "
        "FROM generate_series(1, :rows) AS n",
        rows=ROWS,
    )
    await postgres.run(
        "INSERT INTO outbox_dlq (original_id, queue, payload, headers, created_at, failed_at, failure_reason, "
        "last_exception) SELECT n, 'q', '', jsonb_build_object('correlation_id', 'c-' || n), now(), "
        "now() - make_interval(secs => n / 100), 'retry_terminal', 'KeyError: ' || n "
        "FROM generate_series(1, :rows) AS n",
        rows=ROWS,
    )
    await postgres.run("ANALYZE outbox, outbox_dlq")
    return postgres


def check_bounded(plan: list[dict[str, Any]], *, at_most: int) -> None:
    """Only ranges of indexes are read, and of all scans together at most so many rows."""
    scans = [
        node for node in plan if node.get("Relation Name", "").startswith("outbox") and "Scan" in node["Node Type"]
    ]
    assert scans, "the table is read"
    for node in scans:
        assert node["Node Type"] in ("Index Scan", "Index Only Scan"), node
        assert "Index Cond" in node, "a range of the index, not all of it"
    read = sum((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans)
    assert read <= at_most, "more rows than a page examines"


async def check(
    connection: AsyncConnection, statement: Statement, mode: str, *, at_most: int, **others: str
) -> list[dict[str, Any]]:
    arguments = {name: (VALUES | others)[name] for name in statement.parameters}
    plan = await explain(connection, statement, arguments, mode=mode)
    check_bounded(plan, at_most=at_most)
    return plan


@pytest.mark.parametrize("mode", ["custom", "generic"])
async def test_searches_read_no_more_than_a_part(filled: PostgresBackend, mode: str) -> None:
    search = SearchStatements(filled.outbox_table)
    async with filled.engine.connect() as connection:
        for leg, where in MESSAGES:
            after = {"after_value": "'-infinity'"} if leg == "due" else {}
            # Whether a row with a key is ready depends on the head of its key.
            heads = 2 if where.state is not None and leg != "due" else 1
            for size in (125, 1_000):
                await check(connection, search.part(leg, where, size), mode, at_most=heads * size, **after)
        await check(connection, search.queues, mode, at_most=10)
        await check(connection, search.find, mode, at_most=20_000)
        await check(connection, search.newest, mode, at_most=1_000)
        await check(connection, search.newer, mode, at_most=10_000, after_id=str(ROWS - 100))
        if mode == "custom":  # a plan for all values reads a twentieth of the table at once, if that is not much more
            await check(connection, search.count_key, mode, at_most=COUNT_CAP + 1)
        await check(connection, search.read, mode, at_most=3, ids="ARRAY[1, 2, 3]")
        # Rows with the same key: a head for each.
        await check(connection, search.read, mode, at_most=2 * 3, ids=f"ARRAY[{ROWS - 9}, {ROWS - 5}, {ROWS - 1}]")


@pytest.mark.parametrize("mode", ["custom", "generic"])
async def test_searches_of_dead_letters_read_no_more_than_a_part(filled: PostgresBackend, mode: str) -> None:
    assert filled.dlq_table is not None
    letters = DeadLetterStatements(filled.dlq_table)
    async with filled.engine.connect() as connection:
        for leg, where in LETTERS:
            after = {"after_value": "'infinity'", "after_id": str(2**63 - 1)}
            # Rows that failed at the same time are read together.
            await check(connection, letters.part(leg, where, 125), mode, at_most=125 + 200, **after)
        await check(connection, letters.groups, mode, at_most=COUNT_CAP + 10)


@pytest.mark.parametrize("settings", [{}, LANE_SETTINGS], ids=["of the server", "of a lane"])
@pytest.mark.parametrize("mode", ["custom", "generic"])
async def test_counts_and_keys_read_a_bounded_number_of_rows(
    filled: PostgresBackend, mode: str, settings: dict[str, str]
) -> None:
    queues = QueueStatements(filled.outbox_table, filled.dlq_table)
    async with filled.engine.connect() as connection:
        for name, value in settings.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        # Due rows, later rows, rows with keys, heads, dead letters; and the first rows of the table with their heads.
        await check(connection, queues.counts(1_000), mode, at_most=4 * 1_001 + 1_000 + 2_000 + 20)
        await check(connection, queues.counts_of_one(1_000), mode, at_most=4 * 1_001 + 1_000 + 2_000 + 20)
        # Of a queue without rows only the first rows of the table are read, whatever the others have.
        for queue in ("''", "'a'", "'z'"):
            await check(connection, queues.counts_of_one(1_000), mode, at_most=1_000 + 10, queue=queue)
        states = {"states": "ARRAY['parked']", "queue": "NULL", "after_key": "''"}
        await check(connection, queues.keys, mode, at_most=MOST_KEYS_VISITED + 10, **states)
        states = {"states": "ARRAY['in_flight', 'ready']", "queue": "'q'", "after_key": "''"}
        await check(connection, queues.keys, mode, at_most=100 * (1_001 + 3), **states)


@pytest.mark.parametrize("mode", ["custom", "generic"])
async def test_what_nodes_hold_is_read_from_the_beginning_of_queues_and_the_heads_of_keys(
    filled: PostgresBackend, mode: str
) -> None:
    [heads] = await filled.run("SELECT count(DISTINCT entity_key) FROM outbox")
    async with filled.engine.connect() as connection:
        await check(connection, count_held(filled.outbox_table), mode, at_most=COUNT_CAP + 1 + int(str(heads[0])) + 10)
