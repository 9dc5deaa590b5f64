"""What Postgres makes of the statements about keys: probes of an index, however many rows and keys there are."""

import pytest
from sqlalchemy import text

from faststream_outbox.storage.postgres.drivers import LANE_SETTINGS
from faststream_outbox.storage.postgres.statements import Statements
from faststream_outbox.storage.postgres.statements.runs import RunKind
from tests.backends import PostgresBackend
from tests.storage.postgres.statements.test_statements import (
    FAILED,
    GROUPS,
    IDS,
    LEASES,
    NUMBERS,
    OUTPUTS,
    TOKEN,
    attempts,
    check_probes_only,
    explain,
    failures,
)

ARGUMENTS = {
    "retry": {"queue": "'q'", "key": "'k7'", "head": "NULL"},
    "release": {"queue": "'q'", "key": "'k7'", "head": "NULL"},
    "park": {"queue": "'q'", "key": "'k8'", "head": "NULL", "reason": "'because'"},
    "skip": {"queue": "'q'", "key": "'k7'", "head": "NULL", "reason": "'because'"},
}


def of_run(batch: str) -> dict[str, str]:
    return {f"{batch}_id": IDS, f"{batch}_head": IDS}


SETTLE = {
    **LEASES,
    **of_run("done"),
    **of_run("retried"),
    "retried_delay": NUMBERS,
    **FAILED,
    **attempts("retried"),
    **of_run("buried"),
    **failures("buried"),
    **of_run("parked"),
    **failures("parked"),
}
SETTLE_OUTPUTS = {"output_of": f"{GROUPS}::bigint[]", **OUTPUTS}
SETTLE_NEXT = of_run("next")


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
    statements = Statements(postgres.outbox_table, postgres.dlq_table).operators
    async with postgres.engine.connect() as connection:
        for name, arguments in ARGUMENTS.items():
            plan = await explain(connection, getattr(statements, name), arguments, mode=mode)
            check_probes_only(plan)


@pytest.mark.parametrize("rows", [0, 30, 20_000])
async def test_a_settle_that_parks(postgres: PostgresBackend, rows: int) -> None:
    await fill(postgres, rows, keys=1_000)
    await postgres.run(f"UPDATE outbox SET acquired_token = '{TOKEN}', lease_expires_at = now() WHERE id <= 500")
    settle = Statements(postgres.outbox_table, postgres.dlq_table).runs.settles[RunKind(outputs=False, passes=False)]
    async with postgres.engine.connect() as connection:
        for name, value in LANE_SETTINGS.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        check_probes_only(await explain(connection, settle, SETTLE, mode="generic"))


@pytest.mark.parametrize("mode", ["custom", "generic"])
async def test_queues_that_nobody_reads_are_found_by_probes(postgres: PostgresBackend, mode: str) -> None:
    await fill(postgres, 50_000, keys=500)
    for queue in ("known", "unknown"):
        await postgres.fill(50_000, queue=queue, payload_bytes=10)
    await postgres.run("ANALYZE outbox")
    statement = Statements(postgres.outbox_table).operators.unserved
    async with postgres.engine.connect() as connection:
        for settings in ({}, LANE_SETTINGS):
            for name, value in settings.items():
                await connection.execute(text(f"SET {name} = '{value}'"))
            plan = await explain(connection, statement, {"known": "ARRAY['known']"}, mode=mode)
            check_probes_only(plan)
            scans = [node for node in plan if node.get("Relation Name") == "outbox"]
            assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) < 3 * 1000
