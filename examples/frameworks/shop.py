"""What the programs share: the order and the tables."""

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import make_dlq_table, make_outbox_table


class Base(DeclarativeBase):
    """The metadata of all tables; Alembic would migrate it."""


class Order(Base):
    """One order of a customer."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)
