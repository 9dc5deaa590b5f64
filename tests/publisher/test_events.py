"""Events that mapped objects record: taken at a flush, dropped with a rollback, published at the commit."""

import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import OutboxEvent, RecordsEvents
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on


class Base(DeclarativeBase):
    pass


class Order(RecordsEvents, Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    paid: Mapped[bool] = mapped_column(default=False)

    def place(self) -> None:
        self.events.append(lambda: OutboxEvent({"placed": self.id}, queue="q", key=str(self.id)))

    def pay(self) -> None:
        self.paid = True
        self.events.append(OutboxEvent({"paid": self.id}, queue="q", headers={"a": "b"}))


@pytest.fixture
async def orders(postgres: PostgresBackend) -> AsyncIterator[PostgresBackend]:
    async with postgres.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield postgres
    async with postgres.engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)


async def bodies(postgres: PostgresBackend) -> list[Any]:
    return [json.loads(row.payload) for row in await postgres.rows()]


async def test_events_are_published_with_the_changes(orders: PostgresBackend) -> None:
    broker = broker_on(orders)
    async with orders.transaction() as session:
        broker.collect(session, events=True)
        order = Order()
        order.place()
        session.add(order)
        await session.flush()
        order.pay()
        await session.execute(select(Order))  # flushes
        del order
        gc.collect()
    assert await bodies(orders) == [{"placed": 1}, {"paid": 1}]
    first, second = await orders.rows()
    assert first.entity_key == "1"
    assert second.headers == {"a": "b", "content-type": "application/json"}


async def test_an_object_that_only_recorded_is_kept_until_the_commit(orders: PostgresBackend) -> None:
    broker = broker_on(orders)
    async with orders.transaction() as session:
        session.add(Order())
    async with orders.transaction() as session:
        broker.collect(session, events=True)
        (await session.get_one(Order, 1)).place()
        gc.collect()
    assert await bodies(orders) == [{"placed": 1}]


async def test_a_deleted_object_publishes_what_it_recorded(orders: PostgresBackend) -> None:
    broker = broker_on(orders)
    async with orders.transaction() as session:
        session.add(Order())
    async with orders.transaction() as session:
        broker.collect(session, events=True)
        order = await session.get_one(Order, 1)
        order.events.append(OutboxEvent("deleted", queue="q"))
        await session.delete(order)
    assert [row.payload for row in await orders.rows()] == [b"deleted"]


async def test_a_rollback_drops_events_flushed_or_not(orders: PostgresBackend) -> None:
    broker = broker_on(orders)
    async with orders.transaction() as session:
        session.add(Order())
    async with orders.sessions() as session:
        broker.collect(session, events=True)
        order = await session.get_one(Order, 1)
        order.pay()
        await session.flush()
        order.place()
        await session.rollback()
        await session.refresh(order)
        async with session.begin_nested() as savepoint:
            order.pay()
            await savepoint.rollback()
        order.events.append(OutboxEvent("kept", queue="q"))
        await session.commit()
    assert [row.payload for row in await orders.rows()] == [b"kept"]


@pytest.mark.parametrize("discard", ["expire", "refresh"])
async def test_changes_that_are_discarded_take_their_events_with_them(orders: PostgresBackend, discard: str) -> None:
    broker = broker_on(orders)
    async with orders.transaction() as session:
        session.add(Order())
    async with orders.sessions() as session:
        broker.collect(session, events=True)
        order = await session.get_one(Order, 1)
        order.pay()
        if discard == "expire":
            session.expire(order)
        else:
            await session.refresh(order)
        await session.commit()
        await session.refresh(order)
        assert not order.paid
        order.place()
        await session.commit()
    assert await bodies(orders) == [{"placed": 1}]


async def test_a_column_that_is_read_again_leaves_the_events(orders: PostgresBackend) -> None:
    broker = broker_on(orders)
    async with orders.transaction() as session:
        session.add(Order())
    async with orders.transaction() as session:
        broker.collect(session, events=True)
        order = await session.get_one(Order, 1)
        order.pay()
        await session.refresh(order, ["id"])
    assert await bodies(orders) == [{"paid": 1}]


async def test_a_new_object_that_is_added_again_after_a_rollback_publishes_its_events(orders: PostgresBackend) -> None:
    broker, order = broker_on(orders), Order()
    order.place()
    for attempt in range(2):
        async with orders.sessions() as session:
            broker.collect(session, events=True)
            session.add(order)
            await session.flush()
            if attempt == 0:
                order.pay()
                await session.rollback()
                assert order.paid
            else:
                await session.commit()
    assert await bodies(orders) == [{"placed": 1}, {"paid": 1}]


async def test_what_a_savepoint_took_back_is_not_returned_with_the_rollback_around_it(orders: PostgresBackend) -> None:
    broker, order = broker_on(orders), Order()
    order.events.append(OutboxEvent("before", queue="q"))
    async with orders.sessions() as session:
        broker.collect(session, events=True)
        session.add(order)
        savepoint = await session.begin_nested()
        order.events.append(OutboxEvent("of the savepoint", queue="q"))
        await session.flush()
        await savepoint.rollback()
        await session.rollback()
    [recorded] = order.events
    assert isinstance(recorded, OutboxEvent)
    assert recorded.body == "before"


async def test_a_new_object_whose_event_could_not_be_made_keeps_the_others(orders: PostgresBackend) -> None:
    broker, order = broker_on(orders), Order()
    order.events.append(OutboxEvent("first", queue="q"))
    order.events.append(lambda: OutboxEvent("last", queue="q" if order.paid else ""))
    async with orders.sessions() as session:
        broker.collect(session, events=True)
        session.add(order)
        with pytest.raises(ValueError, match="queue is empty"):
            await session.commit()
        await session.rollback()
        order.paid = True
        session.add(order)
        await session.commit()
    assert [row.payload for row in await orders.rows()] == [b"first", b"last"]


async def test_a_message_comes_after_the_events_that_were_recorded_before_for_its_key(orders: PostgresBackend) -> None:
    broker = broker_on(orders)
    async with orders.transaction() as session:
        outbox = broker.collect(session, events=True)
        order = Order(id=1)
        order.place()
        session.add(order)
        await broker.publish(2, queue="q", key="1", session=session)
        order.place()
        await session.flush()
        outbox.publish(3, queue="q", key="1")
    assert await bodies(orders) == [{"placed": 1}, 2, {"placed": 1}, 3]


@pytest.mark.parametrize("collects", [False, True])
async def test_a_session_that_takes_no_events_does_not_save_objects_that_have_some(
    orders: PostgresBackend, *, collects: bool
) -> None:
    broker = broker_on(orders)
    async with orders.transaction() as session:
        session.add_all([Order(), Order()])

    async def save(change: Callable[[AsyncSession], Awaitable[object]]) -> None:
        async with orders.transaction() as session:
            if collects:
                broker.collect(session).publish("without its order", queue="q")
            await change(session)

    async def new(session: AsyncSession) -> None:
        order = Order()
        order.place()
        session.add(order)

    async def changed(session: AsyncSession) -> None:
        (await session.get_one(Order, 1)).pay()

    async def only_recorded(session: AsyncSession) -> None:
        (await session.get_one(Order, 1)).place()

    async def deleted(session: AsyncSession) -> None:
        order = await session.get_one(Order, 2)
        order.place()
        await session.delete(order)

    for change in (new, changed, only_recorded, deleted):
        with pytest.raises(RuntimeError, match=r"An object of Order has recorded events.*broker\.collect"):
            await save(change)
    async with orders.sessions() as session:
        assert list(await session.scalars(select(Order.paid).order_by(Order.id))) == [False, False]
    assert await orders.rows() == []


async def test_an_event_that_a_listener_of_the_insert_records_is_not_lost(orders: PostgresBackend) -> None:
    def record(_mapper: object, _connection: object, order: Order) -> None:
        order.place()

    event.listen(Order, "after_insert", record)
    try:
        async with orders.sessions() as session:
            session.add(Order())
            with pytest.raises(RuntimeError, match="has recorded events"):
                await session.commit()
    finally:
        event.remove(Order, "after_insert", record)


async def test_a_session_that_takes_no_events_saves_objects_whose_events_were_cleared(orders: PostgresBackend) -> None:
    broker = broker_on(orders)
    async with orders.sessions() as session:
        order = Order()
        order.pay()
        order.events.clear()
        session.add_all([order, Order()])
        await session.commit()
        broker.collect(session, events=True)
        order.place()
        await session.commit()
    assert await bodies(orders) == [{"placed": 1}]


async def test_one_broker_takes_the_events_of_a_session(orders: PostgresBackend) -> None:
    broker, other = broker_on(orders), broker_on(orders)
    async with orders.sessions() as session:
        broker.collect(session, events=True)
        broker.collect(session, events=True)
        other.collect(session)
        with pytest.raises(ValueError, match="Another broker takes the events"):
            other.collect(session, events=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [("nonsense", "hold a str: append an OutboxEvent"), (lambda: None, "a function that returned a NoneType: append")],
    ids=["a value", "a function"],
)
async def test_what_is_no_event_is_named_at_the_flush(orders: PostgresBackend, wrong: Any, words: str) -> None:
    async with orders.sessions() as session:
        broker_on(orders).collect(session, events=True)
        order = Order()
        order.events.append(wrong)
        session.add(order)
        with pytest.raises(TypeError, match=words):
            await session.commit()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"queue": ""}, "queue is empty"),
    ({"key": "\x00"}, "NUL"),
    ({"timer_id": ""}, "timer_id is empty"),
    ({"activate_at": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is what is refused
    ({"timer_conflict": "replace"}, "timer_conflict"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_values_fail_where_the_event_is_made(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        OutboxEvent(1, **{"queue": "q", **wrong})
