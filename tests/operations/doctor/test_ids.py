"""The sequences that ids are drawn from."""

import pytest

from faststream_outbox.storage import NewRow
from tests.backends import PostgresBackend
from tests.operations.doctor.visits import cured, named, visit
from tests.operations.letters import bury


@pytest.mark.parametrize("table", ["outbox", "outbox_dlq"])
async def test_ids_that_end_soon_are_named(postgres: PostgresBackend, table: str) -> None:
    await postgres.run(f"ALTER SEQUENCE {table}_id_seq MAXVALUE 1000 RESTART 950")
    finding = await named(postgres, "ids")
    assert (finding.severity, finding.what) == ("error", f'"public"."{table}" has 51 ids left.')
    assert await cured(postgres, finding)


async def test_a_bigint_at_its_end_is_named(postgres: PostgresBackend) -> None:
    await postgres.run("SELECT setval('outbox_id_seq', 9223372036854775807)")
    finding = await named(postgres, "ids")
    assert finding.what == '"public"."outbox" has 0 ids left.'
    assert await cured(postgres, finding)
    await postgres.fill(1)
    assert await postgres.one("SELECT max(id) FROM outbox") == 1


async def test_a_bigint_is_set_back_behind_rows_and_dead_letters(postgres: PostgresBackend) -> None:
    await bury(postgres, *(NewRow("q", b"") for _ in range(3)))
    await postgres.run("SELECT setval('outbox_id_seq', 9223372036854775807)")
    assert await cured(postgres, await named(postgres, "ids"))
    await postgres.fill(1)
    assert await postgres.one("SELECT max(id) FROM outbox") == 4


async def test_rows_with_the_last_ids_are_left_to_people(postgres: PostgresBackend) -> None:
    await postgres.run("SELECT setval('outbox_id_seq', 9223372036854775800)")
    await postgres.fill(1)
    finding = await named(postgres, "ids")
    assert (finding.sql, "move or delete them" in finding.cure) == (None, True)


async def test_an_integer_at_its_end_becomes_a_bigint(postgres: PostgresBackend) -> None:
    await postgres.run("ALTER TABLE outbox ALTER COLUMN id TYPE integer")
    await postgres.run("ALTER SEQUENCE outbox_id_seq AS integer")
    await postgres.run("SELECT setval('outbox_id_seq', 2147483000)")
    findings = {finding.check: finding for finding in await visit(postgres)}
    assert await cured(postgres, findings["ids"])


async def test_a_sequence_behind_its_rows_is_named(postgres: PostgresBackend) -> None:
    await postgres.fill(10)
    await postgres.run("SELECT setval('outbox_id_seq', 5)")
    finding = await named(postgres, "ids")
    assert "The next id" in finding.what
    assert " is 6, and a row with id 10 exists" in finding.what
    assert await cured(postgres, finding)
    await postgres.fill(1)
    assert await postgres.one("SELECT max(id) FROM outbox") == 11


async def test_ids_that_are_drawn_ahead_are_named(postgres: PostgresBackend) -> None:
    await postgres.run("ALTER SEQUENCE outbox_id_seq CACHE 20")
    finding = await named(postgres, "ids")
    assert "draws 20 ids" in finding.what
    assert await cured(postgres, finding)


async def test_a_new_table_has_ids(postgres: PostgresBackend) -> None:
    await postgres.run("ALTER SEQUENCE outbox_id_seq RESTART 7")
    await postgres.fill(1)
    assert await visit(postgres) == []
