"""What Postgres makes of the statements for keys: a probe for each head, however many rows there are."""

import pytest
from sqlalchemy import text

from faststream_outbox.storage.postgres.drivers import LANE_SETTINGS
from faststream_outbox.storage.postgres.statements import Statements
from tests.backends import PostgresBackend
from tests.storage.postgres.statements.test_operators import SETTLE, SETTLE_NEXT, SETTLE_OUTPUTS
from tests.storage.postgres.statements.test_statements import (
    DEATHS,
    IDS,
    LEASE,
    OVER,
    check_probes_only,
    driver,
    explain,
)

__all__ = ["driver"]  # a fixture: one driver will do here, too

VISITS = 500
PLACE = {"queue": "'q'", "after_key": "''", "after_id": "-1", "visits": str(VISITS)}
WALK = {**PLACE, **OVER, "keys": "100", "suspects": "false"}
BOUNDS = {"rows_per_key": "10", "max_rows": "1000", "max_bytes": "8000000"}
ARGUMENTS = {
    "claim": {**LEASE, **WALK, **BOUNDS},
    "claim_shards": {**LEASE, **WALK, **BOUNDS, "shard_mask": "15", "shards": "ARRAY[1, 2, 3]"},
    "lock_keys": WALK,
    "recover": {**PLACE, **DEATHS, "keys": str(VISITS), "rows_per_key": "10"},
    "give_back": {**WALK, "keys": str(2 * VISITS), "visits": str(2 * VISITS), "token": LEASE["token"]},
    "queues_with_keys": {"queues": "ARRAY['q', 'other', 'q3', 'q4']"},
    "claim_locked": {**LEASE, "queue": "'q'", "suspects": "false", **BOUNDS, "heads": IDS},
}
# How many index entries one execution may touch: a few for each visit, and the rows that are handed out.
MOST_TOUCHED = 4 * VISITS + VISITS * 10


async def fill_keys(postgres: PostgresBackend, rows: int, *, per_key: int) -> None:
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload) "
        f"SELECT 'q', 'k' || (n / {per_key}), 'x' FROM generate_series(1, {rows}) AS n"
    )


@pytest.mark.parametrize(
    ("rows", "per_key"), [(0, 1), (30, 3), (300_000, 1), (300_000, 5), (300_000, 200_000)], ids=str
)
@pytest.mark.parametrize("analyzed", [False, True])
async def test_heads_are_probed_for_however_many_rows_there_are(
    postgres: PostgresBackend, rows: int, per_key: int, analyzed: bool
) -> None:
    await fill_keys(postgres, rows, per_key=per_key)
    if analyzed:
        await postgres.run("ANALYZE outbox")
    statements = Statements(postgres.outbox_table, postgres.dlq_table).runs
    async with postgres.engine.connect() as connection:
        for name, value in LANE_SETTINGS.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        for name, arguments in ARGUMENTS.items():
            plan = await explain(connection, getattr(statements, name), arguments, mode="generic")
            check_probes_only(plan)
            touched = sum(node["Actual Rows"] * node["Actual Loops"] for node in plan if "Index Name" in node)
            assert touched <= MOST_TOUCHED, name
        for (outputs, passes), statement in statements.settles.items():
            arguments = SETTLE | (SETTLE_OUTPUTS if outputs else {}) | (SETTLE_NEXT if passes else {})
            check_probes_only(await explain(connection, statement, arguments, mode="generic"))


async def test_a_claim_among_parked_keys_touches_no_more(postgres: PostgresBackend) -> None:
    # Keys of two rows each: the first is parked, the second waits behind it.
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, next_attempt_at) SELECT 'q', 'k' || n / 2, 'x', "
        "CASE WHEN n % 2 = 0 THEN 'infinity' ELSE now() END FROM generate_series(0, 199999) AS n"
    )
    await fill_keys(postgres, 10, per_key=1)
    statements = Statements(postgres.outbox_table, postgres.dlq_table).runs
    async with postgres.engine.connect() as connection:
        for name, value in LANE_SETTINGS.items():
            await connection.execute(text(f"SET {name} = '{value}'"))
        for name in ("claim", "claim_shards", "lock_keys"):
            plan = await explain(connection, getattr(statements, name), ARGUMENTS[name], mode="generic")
            check_probes_only(plan)
            touched = sum(node["Actual Rows"] * node["Actual Loops"] for node in plan if "Index Name" in node)
            assert 0 < touched <= MOST_TOUCHED, name
