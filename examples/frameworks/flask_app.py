"""Flask: synchronous views publish through a synchronous session; another process handles the messages."""

from flask import Flask, request
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from examples.frameworks.shop import Order, outbox_table
from faststream_outbox import OutboxBroker

# It publishes through sessions of the views, and needs no engine and no event loop.
broker = OutboxBroker(outbox_table=outbox_table)


def create_app(engine: Engine) -> Flask:
    """Return the application."""
    app = Flask(__name__)

    @app.post("/orders")
    def place_order() -> tuple[dict[str, int], int]:
        with Session(engine) as session, session.begin():
            order = Order(product=request.get_json()["product"])
            session.add(order)
            session.flush()  # assigns the id
            broker.publish_sync(order.id, queue="orders", session=session)
            return {"id": order.id}, 201

    return app
