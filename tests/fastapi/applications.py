"""FastAPI applications in each environment, run as a server would run them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from faststream_outbox.fastapi import (
    OutboxRouter,
)
from tests.faststream.environments import Environment


def router_in(environment: Environment, **options: Any) -> OutboxRouter:
    """A router over the tables, and on Postgres the engine, of a environment."""
    store: Any = environment.broker().client.store
    return OutboxRouter(store.engine, outbox_table=store.outbox_table, dlq_table=store.dlq_table, **options)


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run an application as a server would, in this event loop."""
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(with_state)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            yield client
