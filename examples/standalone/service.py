"""`faststream run examples.standalone.service:app`: packs orders, and ships what is packed."""

from faststream import FastStream

from examples.standalone.database import create_tables, dlq_table, engine, outbox_table
from examples.standalone.messages import ORDERS, SHIPMENTS, OrderPacked, OrderPlaced
from faststream_outbox import ExponentialRetry, OutboxBroker
from faststream_outbox.annotations import OutboxMessage

broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table)
app = FastStream(broker, on_startup=[create_tables], after_shutdown=[engine.dispose])


@broker.publisher(SHIPMENTS)  # the statement that deletes the order's message inserts it
@broker.subscriber(
    ORDERS,
    max_workers=4,
    retry_strategy=ExponentialRetry(initial_delay_seconds=0.1, max_attempts=3, jitter_factor=0.2),
)
async def pack(order: OrderPlaced, message: OutboxMessage) -> OrderPacked:
    """Pack an order. Glass breaks at the first attempt, and some products do not exist."""
    if order.product == "dragon":
        raise LookupError("there are no dragons")
    if order.product == "glass" and message.raw_message.attempts_count == 0:
        raise ConnectionError("the packing machine does not answer")
    print(f"packed order {order.order_id}", flush=True)
    return OrderPacked(order_id=order.order_id)


@broker.subscriber(SHIPMENTS)
async def ship(parcel: OrderPacked) -> None:
    """Ship a parcel."""
    print(f"shipped order {parcel.order_id}", flush=True)
