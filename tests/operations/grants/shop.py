"""An outbox with all its tables, in a schema whose name needs quotes, and roles with what `grants_sql` gives them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from sqlalchemy import Table, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox import make_inbox_table, make_operations_tables
from faststream_outbox.embedded import Database
from faststream_outbox.operations import OutboxOperations, RoleKind, grants_sql
from faststream_outbox.storage import PostgresStore
from faststream_outbox.storage.schema.grants import Grant, grant_statements, grants_of
from faststream_outbox.storage.schema.tables import quoted_name
from tests.backends import PostgresBackend

SCHEMA = "Shop's"
NAME = 'Out "box"'


class Shop(PostgresBackend):
    """A backend with every table there is."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine, schema=SCHEMA, table_name=NAME)
        self.operations_tables = make_operations_tables(self.metadata, NAME, schema=SCHEMA)
        self.inbox_table = make_inbox_table(self.metadata, f"{NAME}_inbox", schema=SCHEMA)
        control, audit, nodes = self.operations_tables
        self.store = PostgresStore(
            engine,
            self.outbox_table,
            dlq_table=self.dlq_table,
            shards_table=self.shards_table,
            control_table=control,
            audit_table=audit,
            nodes_table=nodes,
        )

    @property
    def tables(self) -> dict[str, Table | None]:
        control, audit, nodes = self.operations_tables
        own = {"outbox": self.outbox_table, "dlq": self.dlq_table, "shards": self.shards_table}
        return {**own, "control": control, "audit": audit, "nodes": nodes, "inbox": self.inbox_table}

    @property
    def operations(self) -> OutboxOperations:
        control, audit, nodes = self.operations_tables
        return OutboxOperations(
            self.engine,
            outbox_table=self.outbox_table,
            dlq_table=self.dlq_table,
            control_table=control,
            audit_table=audit,
            nodes_table=nodes,
        )

    async def empty(self) -> None:
        """Delete all rows."""
        names = ", ".join(quoted_name(table.name, table.schema) for table in self.tables.values() if table is not None)
        await self.run(f"TRUNCATE {names}")


class Role:
    """A role that owns nothing; `shop` is the outbox, seen by it."""

    def __init__(self, owner: Shop, name: str, engine: AsyncEngine) -> None:
        self._owner = owner
        self.name = name
        self.shop = Shop(engine)

    async def grant(self, grant: Grant) -> None:
        [statement] = grant_statements([grant], self.name)
        await self._owner.run(statement)

    async def revoke(self, grant: Grant) -> None:
        [statement] = grant_statements([grant], self.name)
        await self._owner.run(statement.replace("GRANT ", "REVOKE ", 1).replace(" TO ", " FROM "))


@asynccontextmanager
async def logging_in(owner: Shop, database: Database, kind: RoleKind, **options: Any) -> AsyncIterator[Role]:
    """Log in as a role whose name needs quotes, with what its kind is granted and an empty search_path."""
    name = f'{kind} "{uuid4().hex}"'
    quoted = quoted_name(name)
    await owner.run(f"CREATE ROLE {quoted} LOGIN PASSWORD 'secret'")
    await owner.run(f"ALTER ROLE {quoted} SET search_path = ''")
    tables: Any = {f"{key}_table": table for key, table in owner.tables.items()}
    for statement in grants_sql(name, kind, **tables).splitlines():
        await owner.run(statement)
    url = make_url(database.url("asyncpg")).set(username=name, password="secret")  # noqa: S106 - of a role that the test drops
    engine = create_async_engine(url, pool_size=20, **options)
    try:
        yield Role(owner, name, engine)
    finally:
        await engine.dispose()
        await owner.run(f"DROP OWNED BY {quoted}")
        await owner.run(f"DROP ROLE {quoted}")


def every_grant(owner: Shop, kind: RoleKind) -> list[Grant]:
    """Return each single right of a kind."""
    return grants_of(kind, **owner.tables)
