"""The tables of the service, the outbox among them."""

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faststream_outbox import make_dlq_table, make_outbox_table


class Base(DeclarativeBase):
    """What the migrations look at."""


class Order(Base):
    """An order: placed by a request, confirmed by a handler."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]
    status: Mapped[str] = mapped_column(default="placed")


outbox_table = make_outbox_table(Base.metadata)
dlq_table = make_dlq_table(Base.metadata)
