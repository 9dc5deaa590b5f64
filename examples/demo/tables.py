"""The tables of the shop and of the app; the outbox and its dead letters are two more of them."""

from sqlalchemy import BigInteger, CheckConstraint, Identity
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import make_dlq_table, make_outbox_table


class Base(DeclarativeBase):
    """The `MetaData` that holds them all."""


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)


class Order(Base):
    """An order, once it is committed: the truth that everything else is measured by."""

    __tablename__ = "orders"
    __table_args__ = (CheckConstraint("cents > 0", name="orders_cost_something"),)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cents: Mapped[int]
    fate: Mapped[str]
    paid: Mapped[bool] = mapped_column(default=False)


class Confirmation(Base):
    """A customer was told. The message's id is the key, so that a second delivery changes nothing."""

    __tablename__ = "confirmations"

    message_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    order_number: Mapped[int]


class Reminder(Base):
    """A customer was reminded; once per message as well."""

    __tablename__ = "reminders"

    message_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    order_number: Mapped[int]


class Parcel(Base):
    """A parcel was packed. Nothing here keeps a second delivery from packing a second one."""

    __tablename__ = "parcels"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    order_number: Mapped[int]


class Delivery(Base):
    """A message was given to a handler: which one, for which attempt, in which life of the app."""

    __tablename__ = "deliveries"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    queue: Mapped[str]
    message_id: Mapped[int] = mapped_column(BigInteger)
    order_number: Mapped[int]
    attempt: Mapped[int]
    life: Mapped[int]
