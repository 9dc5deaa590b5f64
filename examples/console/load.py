"""The load of the shop: what was there before, and customers who keep coming."""

import asyncio
import random
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from examples.console.shop import EMAILS, LEDGER, ORDERS, PAYMENTS, REMINDERS, SHIPMENTS
from faststream_outbox import OutboxBroker

CUSTOMERS = ("ada", "alan", "barbara", "donald", "edsger", "grace", "john", "margaret")
CITIES = ("Berlin", "Lisbon", "Oslo", "Porto", "Turin", "Vienna")
# Orders per second.
PACE = 25.0


class Customers:
    """They order, pay, and get mail; each order is one transaction."""

    def __init__(self, engine: AsyncEngine, broker: OutboxBroker, seed: int = 7) -> None:
        self._sessions = async_sessionmaker(engine)
        self._broker = broker
        self._random = random.Random(seed)  # noqa: S311 - a load, no secret
        self._order = 4000

    async def begin(self) -> None:
        """Publish what a shop has after a bad day: failed payments, dead parcels, timers, a paused queue."""
        async with self._sessions.begin() as session:
            for name in ("edsger", "grace"):
                await self._pay(session, name, card="expired")
                for _ in range(self._random.randrange(3, 9)):
                    await self._pay(session, name)
            for number in range(9):
                parcel = {"order": 3900 + number, "city": "Atlantis", "boxes": 1 + number % 3}
                await self._broker.publish(
                    parcel,
                    SHIPMENTS,
                    session=session,
                    correlation_id=f"order-{3900 + number}",
                    headers={"tenant": "acme"},
                )
            for number in range(3):
                email = {"to": f"c{number}@example.invalid", "subject": "Your order"}
                await self._broker.publish(email, EMAILS, session=session)
            for number in range(12):
                await self._broker.publish(
                    {"invoice": 700 + number, "step": "first reminder"},
                    REMINDERS,
                    session=session,
                    timer_id=f"invoice-{700 + number}",
                    activate_in=timedelta(hours=1 + 5 * number),
                )
        operations = self._broker.operations
        await operations.pause("newsletter", reason="the template has a wrong link", by="ann")

    async def keep_ordering(self) -> None:
        """Order for ever, sometimes in a rush."""
        while True:
            for _ in range(self._random.choice((1, 1, 1, 2, 3, 12))):
                async with self._sessions.begin() as session:
                    await self._place(session)
            await asyncio.sleep(self._random.expovariate(PACE / 3))

    async def _place(self, session: AsyncSession) -> None:
        self._order += 1
        customer = self._random.choice(CUSTOMERS)
        order = {"order": self._order, "customer": customer, "cents": self._random.randrange(500, 20_000)}
        trace = f"order-{self._order}"
        await self._broker.publish(order, ORDERS, session=session, correlation_id=trace, headers={"tenant": "acme"})
        await self._broker.publish(order, LEDGER, session=session, key=customer, correlation_id=trace)
        if self._random.random() < 0.4:  # noqa: PLR2004
            await self._pay(session, customer)
        city = "Atlantis" if self._random.random() < 0.005 else self._random.choice(CITIES)  # noqa: PLR2004
        await self._broker.publish(
            {"order": self._order, "city": city, "boxes": 1}, SHIPMENTS, session=session, correlation_id=trace
        )

    async def _pay(self, session: AsyncSession, customer: str, card: str = "valid") -> None:
        payment = {"customer": customer, "cents": self._random.randrange(500, 20_000), "card": card}
        await self._broker.publish(payment, PAYMENTS, session=session, key=customer)
