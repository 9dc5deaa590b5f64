"""An importer: lines are messages, and the handler stores many in one call."""

from collections.abc import Callable, Sequence

from pydantic import BaseModel
from sqlalchemy import CheckConstraint, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import NoRetry, OutboxBroker, OutboxSession, make_dlq_table, make_outbox_table

LINES = "lines"
MOST = 1000


class Line(BaseModel):
    """A line of a file."""

    number: int
    celsius: float


class Base(DeclarativeBase):
    """The metadata of all tables."""


class Measurement(Base):
    """A line that was stored; a constraint refuses impossible temperatures."""

    __tablename__ = "measurements"
    __table_args__ = (CheckConstraint("celsius >= -273.15"),)

    number: Mapped[int] = mapped_column(primary_key=True)
    celsius: Mapped[float]


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)


class Importer:
    """Stores each line once: the transaction that inserts lines also deletes their messages."""

    def __init__(self, engine: AsyncEngine, say: Callable[[str], None]) -> None:
        self.broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table, logger=None)
        self.sessions = async_sessionmaker(engine)
        self._say = say
        # No retry for a line that fails alone. Lines that fail together are retried, in smaller batches.
        self.broker.subscriber(
            LINES, batch=True, max_records=MOST, retry_strategy=NoRetry(), retry_flush_interval_ms=0
        )(self.store)

    async def read(self, lines: Sequence[Line]) -> None:
        """Publish all lines of a file in one transaction."""
        async with self.sessions() as session, session.begin():
            await self.broker.publish_batch(*lines, queue=LINES, session=session)

    async def store(self, lines: list[Line], session: OutboxSession) -> None:
        """Store lines with one statement. If the database refuses one, all fail and are retried in halves."""
        try:
            await session.execute(insert(Measurement).values([line.model_dump() for line in lines]))
        except IntegrityError:
            self._say(f"{len(lines):5} refused")
            raise
        self._say(f"{len(lines):5} stored")

    async def waiting(self) -> int:
        """Count the lines that are neither stored nor dead."""
        async with self.sessions() as session:
            return await session.scalar(select(func.count()).select_from(outbox_table)) or 0

    async def stored(self) -> int:
        """Count the lines that were stored."""
        async with self.sessions() as session:
            return await session.scalar(select(func.count()).select_from(Measurement)) or 0

    async def dead(self) -> list[Line]:
        """Return the lines that cannot be stored."""
        async with self.sessions() as session:
            return [Line.model_validate_json(payload) for payload in await session.scalars(select(dlq_table.c.payload))]
