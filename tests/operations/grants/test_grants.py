"""Roles with what `grants_sql` gives them: each can do its work, nothing else, and needs every right of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest
from sqlalchemy import MetaData
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox import make_dlq_table, make_outbox_table
from faststream_outbox.embedded import Database
from faststream_outbox.operations import RoleKind, grants_sql
from faststream_outbox.operations import acts as runner
from faststream_outbox.storage.schema.tables import quoted_name
from tests.operations.grants import work
from tests.operations.grants.shop import SCHEMA, Shop, every_grant, logging_in

WORK: Final[dict[RoleKind, Callable[[Shop, Shop], Awaitable[None]]]] = {
    "producer": work.produce,
    "consumer": work.consume,
    "operator": work.operate,
    "viewer": work.view,
}
READ_ONLY: Final = {"connect_args": {"server_settings": {"default_transaction_read_only": "on"}}}

# Not one of these is the work of the role; `{}` is a table.
FORBIDDEN: Final[dict[RoleKind, list[tuple[str, str]]]] = {
    "producer": [
        ("outbox", "SELECT payload FROM {}"),
        ("outbox", "UPDATE {} SET queue = 'x'"),
        ("outbox", "DELETE FROM {}"),
        ("outbox", "INSERT INTO {} (id, queue, payload) OVERRIDING SYSTEM VALUE VALUES (1000000, 'x', '1')"),
        ("outbox", "INSERT INTO {} (queue, payload, deliveries_count) VALUES ('x', '1', 7)"),
        ("dlq", "SELECT id FROM {}"),
        ("control", "SELECT queue FROM {}"),
    ],
    "consumer": [
        ("dlq", "DELETE FROM {}"),
        ("dlq", "UPDATE {} SET queue = 'x'"),
        ("control", "DELETE FROM {}"),
        ("audit", "SELECT id FROM {}"),
        ("outbox", "TRUNCATE {}"),
        ("inbox", "UPDATE {} SET consumer = 'x'"),
    ],
    "operator": [
        ("dlq", "UPDATE {} SET queue = 'x'"),
        ("audit", "DELETE FROM {}"),
        ("audit", "UPDATE {} SET reason = 'x'"),
        ("inbox", "SELECT consumer FROM {}"),
        ("shards", "SELECT queue FROM {}"),
        ("outbox", "TRUNCATE {}"),
        ("outbox", "DROP TABLE {}"),
    ],
    "viewer": [
        ("outbox", "DELETE FROM {}"),
        ("outbox", "UPDATE {} SET queue = 'x'"),
        ("outbox", "SELECT id FROM {} FOR UPDATE"),
        ("dlq", "DELETE FROM {}"),
        ("control", "DELETE FROM {}"),
        ("audit", """INSERT INTO {} ("by", action, reason) VALUES ('x', 'x', 'x')"""),
    ],
}


@pytest.fixture
def driver() -> str:
    """One driver: rights are the server's."""
    return "asyncpg"


@pytest.fixture
async def shop(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    monkeypatch.setattr(runner, "SLICE", 2)
    shop = Shop(engine)
    await shop.create()
    yield shop
    await shop.run(f"DROP SCHEMA {quoted_name(SCHEMA)} CASCADE")


@pytest.mark.parametrize("kind", WORK)
async def test_a_role_can_do_its_work_and_nothing_else(shop: Shop, outbox_postgres: Database, kind: RoleKind) -> None:
    options: Any = READ_ONLY if kind == "viewer" else {}
    async with logging_in(shop, outbox_postgres, kind, **options) as role:
        await WORK[kind](role.shop, shop)
    async with logging_in(shop, outbox_postgres, kind) as role:
        for name, statement in FORBIDDEN[kind]:
            table = shop.tables[name]
            assert table is not None
            with pytest.raises(DBAPIError, match=r"permission denied|must be owner"):
                await role.shop.run(statement.format(quoted_name(table.name, table.schema)))


@pytest.mark.parametrize("kind", WORK)
async def test_a_role_needs_every_right(shop: Shop, outbox_postgres: Database, kind: RoleKind) -> None:
    needless = []
    async with logging_in(shop, outbox_postgres, kind) as role:
        for grant in every_grant(shop, kind):
            await role.revoke(grant)
            try:
                await WORK[kind](role.shop, shop)
            except (AssertionError, DBAPIError):
                pass
            except Exception as error:  # noqa: BLE001 - drivers and schema checks have errors of their own
                assert "permission denied" in str(error)  # noqa: PT017 - any class of error
            else:
                needless.append(f"{grant} ON {grant.target}")
            await role.grant(grant)
        await WORK[kind](role.shop, shop)
    assert needless == []


def test_grants_are_the_same_each_time_and_one_on_each_line() -> None:
    metadata = MetaData()
    tables: dict[str, Any] = {
        "outbox_table": make_outbox_table(metadata, schema="shop"),
        "dlq_table": make_dlq_table(metadata),
    }
    assert grants_sql("it's me", "consumer", **tables) == (
        'GRANT USAGE ON SCHEMA "shop" TO "it\'s me";\n'
        'GRANT SELECT, INSERT, UPDATE, DELETE ON "shop"."outbox" TO "it\'s me";\n'
        'GRANT SELECT, INSERT ON "outbox_dlq" TO "it\'s me";\n'
    )
    assert grants_sql("shop", "producer", outbox_table=make_outbox_table(MetaData())) == (
        'GRANT INSERT ("queue", "entity_key", "payload", "headers", "timer_id", "next_attempt_at"), '
        'SELECT ("id", "queue", "timer_id") ON "outbox" TO "shop";\n'
    )


@pytest.mark.parametrize("kind", WORK)
def test_tables_that_are_not_given_are_not_granted(kind: RoleKind) -> None:
    lines = grants_sql("me", kind, outbox_table=make_outbox_table(MetaData())).splitlines()
    assert sum(line.startswith("GRANT ") for line in lines) == 1


def test_the_right_to_see_all_sessions_is_a_comment() -> None:
    *_, last = grants_sql('the "me"', "operator", outbox_table=make_outbox_table(MetaData())).splitlines()
    assert last == '-- Shows the doctor the sessions of other roles: GRANT pg_read_all_stats TO "the ""me""";'


def test_another_kind_is_refused() -> None:
    wrong: Any = "reader"
    with pytest.raises(ValueError, match="producer, consumer, operator, viewer, not 'reader'"):
        grants_sql("me", wrong, outbox_table=make_outbox_table(MetaData()))
    with pytest.raises(ValueError, match="name of a role"):
        grants_sql("", "viewer", outbox_table=make_outbox_table(MetaData()))
