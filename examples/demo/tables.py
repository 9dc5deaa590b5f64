"""The tables of the shop and of the app; the outbox and its dead letters are two more of them."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Identity, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import make_dlq_table, make_outbox_table


class Base(DeclarativeBase):
    """The `MetaData` that holds them all."""


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)


class Order(Base):
    """A committed order. The check compares all other tables with this one."""

    __tablename__ = "orders"
    __table_args__ = (CheckConstraint("cents > 0", name="orders_cost_something"),)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cents: Mapped[int]
    fate: Mapped[str]
    paid: Mapped[bool] = mapped_column(default=False)
    # Of a regular customer: who it is, and which charge on the account.
    customer: Mapped[int | None]
    entry: Mapped[int | None]


class Customer(Base):
    """A regular customer, and how often the shop has charged the account."""

    __tablename__ = "customers"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    charges: Mapped[int]


class Account(Base):
    """The account of a regular customer, as the app keeps it: the last charge that was booked, and the sum of all."""

    __tablename__ = "accounts"

    customer: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    booked: Mapped[int]
    cents: Mapped[int] = mapped_column(BigInteger)


class Confirmation(Base):
    """A customer was notified. The message's id is the key: a second delivery changes nothing."""

    __tablename__ = "confirmations"

    message_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    order_number: Mapped[int]


class Reminder(Base):
    """A customer was reminded; once per message as well."""

    __tablename__ = "reminders"

    message_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    order_number: Mapped[int]


class Parcel(Base):
    """A parcel was packed. Nothing in this table prevents a second parcel for a second delivery."""

    __tablename__ = "parcels"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    order_number: Mapped[int]


class Statement(Base):
    """Another service has read a charge from Kafka. Rows are in the order of arrival, repeats included."""

    __tablename__ = "statements"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    customer: Mapped[int]
    entry: Mapped[int]
    order_number: Mapped[int]
    # The `outbox_id` of its message, the same each time that the relay sends it.
    outbox_id: Mapped[str]


class Delivery(Base):
    """A message was given to a handler: which one, for which attempt, by which worker; and when, by one clock."""

    __tablename__ = "deliveries"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    queue: Mapped[str]
    message_id: Mapped[int] = mapped_column(BigInteger)
    order_number: Mapped[int]
    attempt: Mapped[int]
    worker: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.clock_timestamp())
    # Of charges: when the handler had returned or raised.
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    # When the worker was killed, if the message was not settled by then.
    cut_off_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
