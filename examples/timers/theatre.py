"""A theatre: customers reserve seats and pay for them; a timer frees a seat that is not paid."""

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import OutboxBroker, make_dlq_table, make_outbox_table

EXPIRED = "expired_reservations"


class Base(DeclarativeBase):
    """The metadata of all tables."""


class Seat(Base):
    """One seat: free, reserved for a while, or paid."""

    __tablename__ = "seats"

    id: Mapped[int] = mapped_column(primary_key=True)
    holder: Mapped[str | None]
    paid: Mapped[bool] = mapped_column(default=False)


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)


class Theatre:
    """The box office."""

    def __init__(self, engine: AsyncEngine, say: Callable[[str], None]) -> None:
        self.broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table, logger=None)
        self.sessions = async_sessionmaker(engine)
        self._say = say
        self.broker.subscriber(EXPIRED)(self.free)

    async def reserve(self, seat_id: int, holder: str, hold: timedelta) -> None:
        """Reserve a seat and publish its timer, in one transaction."""
        async with self.sessions() as session, session.begin():
            await self._change(session, seat_id, holder=holder)
            await self.broker.publish(
                seat_id, queue=EXPIRED, session=session, timer_id=f"seat-{seat_id}", activate_in=hold
            )
        self._say(f"seat {seat_id} is held for {holder}")

    async def hold_longer(self, seat_id: int, hold: timedelta) -> None:
        """Move the timer to a later time; an earlier one would change nothing."""
        async with self.sessions() as session, session.begin():
            await self.broker.publish(
                seat_id,
                queue=EXPIRED,
                session=session,
                timer_id=f"seat-{seat_id}",
                timer_conflict="extend",
                activate_in=hold,
            )
        self._say(f"seat {seat_id} is held longer")

    async def pay(self, seat_id: int) -> None:
        """Sell a seat, and cancel its timer."""
        async with self.sessions() as session, session.begin():
            await self._change(session, seat_id, paid=True)
            cancelled = await self.broker.cancel_timer(queue=EXPIRED, timer_id=f"seat-{seat_id}", session=session)
        self._say(f"seat {seat_id} is paid" + ("" if cancelled else ", at the last moment"))

    async def free(self, seat_id: int) -> None:
        """Free a seat whose time is over. The customer may have paid while its timer was being delivered."""
        async with self.sessions() as session, session.begin():
            unpaid = update(Seat).where(Seat.id == seat_id, Seat.paid.is_(False)).values(holder=None).returning(Seat.id)
            freed = (await session.execute(unpaid)).first()
        if freed:
            self._say(f"seat {seat_id} is free again")

    async def _change(self, session: AsyncSession, seat_id: int, **values: object) -> None:
        await session.execute(update(Seat).where(Seat.id == seat_id).values(**values))
