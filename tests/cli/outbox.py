"""An outbox to operate on, for tests that are not coroutines: the program runs a loop of its own."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import psycopg
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from faststream_outbox import OutboxBroker, make_dlq_table, make_operations_tables, make_outbox_table
from faststream_outbox.embedded import Database

T = TypeVar("T")
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Done:
    """What a command wrote, and its exit code."""

    code: object
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Outbox:
    """The tables of an outbox, and what is in them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.metadata = MetaData()
        self.table = make_outbox_table(self.metadata)
        self.dlq = make_dlq_table(self.metadata)
        self.tables = make_operations_tables(self.metadata)
        self._engine = create_async_engine(database.url("psycopg"), poolclass=NullPool)

    @property
    def dsn(self) -> str:
        return self.database.dsn

    def __enter__(self) -> Self:
        engine = create_engine(self.database.url("psycopg"), poolclass=NullPool)
        self.metadata.create_all(engine)
        self._connection = psycopg.connect(self.dsn, autocommit=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, statement: str, *values: object) -> Any:
        return self.run(statement, *values)[0][0]

    def broker(self) -> OutboxBroker:
        return OutboxBroker(
            self._engine,
            outbox_table=self.table,
            dlq_table=self.dlq,
            control_table=self.tables.control,
            audit_table=self.tables.audit,
            nodes_table=self.tables.nodes,
            logger=None,
        )

    def publish(self, body: object, queue: str = "orders", **options: Any) -> int:
        """Publish a message, and return its id."""
        return self.wait(self.publishing(body, queue, **options))

    async def publishing(self, body: object, queue: str = "orders", **options: Any) -> int:
        """Publish a message inside a running loop, and return its id."""
        async with async_sessionmaker(self._engine)() as session, session.begin():
            return int(await self.broker().publish(body, queue=queue, session=session, **options) or 0)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(coroutine)

    def dead_letter(self, body: object = 1, queue: str = "orders", **values: object) -> int:
        """Insert a dead letter, and return its id."""
        columns = {
            "original_id": 1000,
            "queue": queue,
            "payload": json.dumps(body).encode(),
            "headers": json.dumps({"content-type": "application/json"}),
            "created_at": "2026-01-01T00:00Z",
            "failure_reason": "retry_terminal",
            "last_exception": "ValueError: no such order\n\nTraceback (most recent call last):\n  …",
        } | values
        names, places = ", ".join(columns), ", ".join(["%s"] * len(columns))
        inserted = f"INSERT INTO outbox_dlq ({names}) VALUES ({places}) RETURNING id"
        return int(self.one(inserted, *columns.values()))

    def audit(self) -> list[tuple[Any, ...]]:
        """Return action, by, reason and count of all acts."""
        return self.run("SELECT action, by, reason, count FROM outbox_audit ORDER BY id")
