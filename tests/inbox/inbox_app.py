"""A consumer with an inbox on a real broker, and a table with the effects of its handler."""

from typing import Any

from faststream import AckPolicy
from sqlalchemy import Column, Integer, MetaData, Table, Text
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox import ConstantRetry, Inbox, OutboxBroker, make_inbox_table
from faststream_outbox.envelope import OUTBOX_ID
from faststream_outbox.subscriber.usecase import OutboxSubscriber
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.waiting import until

# A message that failed comes again at once, a few times.
AT_ONCE = ConstantRetry(delay_seconds=0.0, max_attempts=5)


class InboxApp:
    """An application whose messages come twice: the tests publish them with the same id, as a relay may."""

    def __init__(self, postgres: PostgresBackend) -> None:
        self.postgres = postgres
        self.engine = postgres.engine
        self.records = Records()
        self.metadata = MetaData()
        self.inbox_table = make_inbox_table(self.metadata)
        self.effects = Table("effects", self.metadata, Column("id", Integer, primary_key=True), Column("what", Text))

    async def create(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(self.metadata.create_all)

    def inbox(self, consumer: str | None = "billing", **options: Any) -> Inbox:
        return Inbox(**{"engine": self.engine, "table": self.inbox_table, "consumer": consumer, **options})

    def broker(self, **options: Any) -> OutboxBroker:
        return broker_on(self.postgres, self.records, **options)

    def subscriber(self, broker: OutboxBroker, inbox: Inbox, queue: str = "q", **options: Any) -> OutboxSubscriber:
        if options.get("ack_policy") is not AckPolicy.REJECT_ON_ERROR:
            options["retry_strategy"] = AT_ONCE
        return broker.subscriber(queue, middlewares=[inbox], **options)

    async def send(self, broker: OutboxBroker, body: str, *, message_id: str | None, queue: str = "q") -> None:
        headers = None if message_id is None else {OUTBOX_ID: message_id}
        async with self.postgres.transaction() as session:
            await broker.publish(body, queue=queue, session=session, headers=headers)

    async def write(self, session: AsyncSession, what: str) -> None:
        await session.execute(self.effects.insert().values(what=what))

    async def written(self) -> list[str]:
        return [str(what) for [what] in await self.postgres.run("SELECT what FROM effects ORDER BY id")]

    async def seen(self) -> list[tuple[object, ...]]:
        rows = await self.postgres.run("SELECT consumer, message_id FROM outbox_inbox ORDER BY consumer, message_id")
        return [tuple(row) for row in rows]

    async def age(self, **interval: float) -> None:
        """Make all records older."""
        seconds = sum({"days": 86400.0, "seconds": 1.0}[unit] * number for unit, number in interval.items())
        await self.postgres.run("UPDATE outbox_inbox SET seen_at = seen_at - make_interval(secs => :s)", s=seconds)

    async def waits_for_another(self) -> None:
        """Wait until a statement waits for another transaction to end."""
        await until(
            lambda: self.postgres.one(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event = 'transactionid'"
            )
        )
