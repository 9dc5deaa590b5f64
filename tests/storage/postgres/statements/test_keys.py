"""What Postgres makes of the statements about keys: probes of an index, however many rows and keys there are."""

import pytest
from sqlalchemy import text

from faststream_outbox.storage.postgres.statements.keys import KeyStatements
from faststream_outbox.storage.postgres.statements.rows import LANE_SETTINGS, Statements
from faststream_outbox.storage.postgres.statements.runs import RunStatements
from tests.backends import PostgresBackend
from tests.storage.postgres.statements.test_rows import (
    COUNTS,
    GROUPS,
    IDS,
    NUMBERS,
    OUTPUTS,
    TEXTS,
    TOKEN,
    TOKENS,
    check_probes_only,
    explain,
)

STATES = "ARRAY['delayed', 'expired', 'parked', 'retrying']"
ARGUMENTS = {
    "read": f"NULL, {STATES}, 20",
    "retry": "'q', 'k7'",
    "release": "'q', 'k7'",
    "park": "'q', 'k8', 'because'",
    "skip": "'q', 'k7', 'because'",
}
FAILURES = f"{IDS}, {IDS}, {TEXTS}, {TEXTS}, {COUNTS}, {NUMBERS}, {NUMBERS}"
SETTLE = (
    f"{IDS}, {TOKENS}, {IDS}, {IDS}, {IDS}, {IDS}, {NUMBERS}, {COUNTS}, {NUMBERS}, {NUMBERS}, "
    f"{GROUPS}::bigint[], {OUTPUTS}, {FAILURES}, {FAILURES}"
)


@pytest.fixture
def driver() -> str:
    """Plans are the server's; one driver will do."""
    return "asyncpg"


async def fill(postgres: PostgresBackend, rows: int, *, keys: int) -> None:
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, next_attempt_at) SELECT 'q', 'k' || n % :keys, 'x', "
        "CASE WHEN n % :keys = 7 THEN 'infinity' ELSE now() END FROM generate_series(1, :rows) AS n",
        rows=rows,
        keys=keys,
    )
    await postgres.run("ANALYZE outbox")


@pytest.mark.parametrize("mode", ["custom", "generic"])
async def test_what_operators_do_in_a_large_table(postgres: PostgresBackend, mode: str) -> None:
    await fill(postgres, 100_000, keys=5_000)
    statements = KeyStatements(postgres.outbox_table, postgres.dlq_table)
    async with postgres.engine.connect() as connection:
        for name, arguments in ARGUMENTS.items():
            plan = await explain(connection, getattr(statements, name), arguments, mode=mode)
            check_probes_only(plan)
        [walk] = [
            node
            for node in await explain(connection, statements.read, ARGUMENTS["read"], mode=mode)
            if node["Node Type"] == "Recursive Union"
        ]
        assert walk["Actual Rows"] == 5_000, "from head to head, not from row to row"
        few = "NULL, ARRAY['parked'], 1"
        read = await explain(connection, statements.read, few, mode=mode)
        [walk] = [node for node in read if node["Node Type"] == "Recursive Union"]
        assert walk["Actual Rows"] < 5_000, "and no further than to the last that is asked for"


@pytest.mark.parametrize("rows", [0, 30, 20_000])
async def test_a_settle_that_parks(postgres: PostgresBackend, rows: int) -> None:
    await fill(postgres, rows, keys=1_000)
    await postgres.run(f"UPDATE outbox SET acquired_token = '{TOKEN}', lease_expires_at = now() WHERE id <= 500")
    plain = Statements(postgres.outbox_table, postgres.dlq_table)
    settle = RunStatements(postgres.outbox_table, postgres.dlq_table, plain).settle
    async with postgres.engine.connect() as connection:
        for name, value in LANE_SETTINGS.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        check_probes_only(await explain(connection, settle, SETTLE, mode="generic"))
