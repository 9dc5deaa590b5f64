"""What Postgres makes of a replay: probes of indexes of both tables, however many rows and dead letters there are."""

from typing import Any

import pytest
from sqlalchemy import text

from faststream_outbox.storage.postgres.drivers import LANE_SETTINGS
from faststream_outbox.storage.postgres.statements.replay import ReplayStatements
from tests.backends import PostgresBackend
from tests.storage.postgres.statements.test_statements import IDS, check_probes_only, driver, explain

__all__ = ["driver"]  # a fixture: one driver will do here, too

LETTERS = 500
# A table that small is scanned, if the user's settings allow it.
CASES = [
    (LETTERS, 5, LANE_SETTINGS),
    *((200_000, per_key, each) for per_key in (5, 150_000) for each in (LANE_SETTINGS, {})),
]


async def fill(postgres: PostgresBackend, rows: int, per_key: int) -> None:
    """Put in keys with dead letters and rows that wait behind them, and dead timers."""
    await postgres.run("SELECT setval(pg_get_serial_sequence('outbox', 'id'), 1000000)")
    await postgres.run(
        "INSERT INTO outbox_dlq (original_id, queue, entity_key, timer_id, payload, created_at, failure_reason) "
        f"SELECT n, 'q', CASE WHEN n % 3 > 0 THEN 'k' || n / {per_key} END, CASE WHEN n % 3 = 0 THEN 't' || n END, "
        f"'x', now(), 'rejected' FROM generate_series(1, {rows}) AS n"
    )
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload) "
        f"SELECT 'q', 'k' || n / {per_key}, 'x' FROM generate_series(1, {rows}) AS n"
    )
    if rows > LETTERS:
        await postgres.run("ANALYZE outbox, outbox_dlq")


def touched(plan: list[dict[str, Any]]) -> int:
    return sum(int(node["Actual Rows"] * node["Actual Loops"]) for node in plan if "Index Name" in node)


@pytest.mark.parametrize(("rows", "per_key", "settings"), CASES)
@pytest.mark.parametrize("mode", ["custom", "generic"])
async def test_a_replay_probes_for_its_letters_and_their_heads(
    postgres: PostgresBackend, rows: int, per_key: int, settings: dict[str, str], mode: str
) -> None:
    await fill(postgres, rows, per_key)
    assert postgres.dlq_table is not None
    statements = ReplayStatements(postgres.outbox_table, postgres.dlq_table)
    async with postgres.engine.connect() as connection:
        for name, value in settings.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        for statement in (statements.lock, statements.replay):
            plan = await explain(connection, statement, {"ids": IDS}, mode=mode)
            scans = [node for node in plan if node.get("Relation Name") == "outbox_dlq" and "Scan" in node["Node Type"]]
            assert scans
            assert all("Index Cond" in node for node in scans), scans
            assert touched(plan) <= 6 * LETTERS
        check_probes_only(plan)
        assert not [node for node in plan if node["Node Type"] == "Nested Loop"]
