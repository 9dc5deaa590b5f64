"""FastAPI applications over the worlds, run as a server would."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from faststream_outbox.fastapi import (
    OutboxRouter,
)
from tests.faststream.environments import World


def router_in(world: World, **options: Any) -> OutboxRouter:
    """A router over the tables, and on Postgres the engine, of a world."""
    store: Any = world.broker().client.store
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
