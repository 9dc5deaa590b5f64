"""The worker process: subscribers, and a port for probes. `uvicorn shop.worker:app`."""

from faststream.asgi import AsgiFastStream, AsgiResponse, get, make_ping_asgi
from faststream.asgi.types import Scope

from faststream_outbox import OutboxBroker, OutboxSession

from .settings import GRACEFUL_TIMEOUT, make_engine
from .tables import Order, dlq_table, outbox_table

MAX_WORKERS = 4

# Two connections of the subscriber, one for each running handler with a session, two for health and publishing.
engine = make_engine(pool_size=2 + MAX_WORKERS + 2)
broker = OutboxBroker(engine, outbox_table=outbox_table, dlq_table=dlq_table, graceful_timeout=GRACEFUL_TIMEOUT)


@broker.subscriber("orders", max_workers=MAX_WORKERS)
async def confirm(order_id: int, session: OutboxSession) -> None:
    """Confirm an order, and announce it to other services: all of it is committed, or nothing."""
    order = await session.get_one(Order, order_id)
    order.status = "confirmed"
    # The relay sends this queue to Kafka.
    await broker.publish(
        {"order_id": order.id, "product": order.product}, queue="confirmed", key=str(order.id), session=session
    )


@get
async def live(_: Scope) -> AsgiResponse:
    """Answer while the event loop runs; a database that is away is no reason to restart the process."""
    return AsgiResponse(b"", 204)


app = AsgiFastStream(
    broker,
    after_shutdown=[engine.dispose],
    asgi_routes=[("/health/live", live), ("/health/ready", make_ping_asgi(broker, timeout=5.0))],
)
