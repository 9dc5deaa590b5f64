"""The tables of the bank; the outbox and its dead letters are two more of them."""

from sqlalchemy import BigInteger, Identity
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import make_dlq_table, make_outbox_table


class Base(DeclarativeBase):
    """The `MetaData` that holds them all."""


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)


class Account(Base):
    """The money of an account, now and when it was opened."""

    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    opening_cents: Mapped[int] = mapped_column(BigInteger)
    cents: Mapped[int] = mapped_column(BigInteger)


class Transfer(Base):
    """A transfer that the bank has accepted. The check compares all other tables with this one."""

    __tablename__ = "transfers"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    source: Mapped[int]
    target: Mapped[int]
    cents: Mapped[int]


class LedgerLine(Base):
    """Money was moved. No constraint prevents a second line for a transfer: the transaction does."""

    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    transfer_id: Mapped[int]
    source: Mapped[int]
    target: Mapped[int]
    cents: Mapped[int]


class Notification(Base):
    """The owner of an account was notified. Nothing in this table prevents a second notification."""

    __tablename__ = "notifications"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    transfer_id: Mapped[int]
    account_id: Mapped[int]
    text: Mapped[str]
