"""The outbox in a FastAPI application: lifespan, document, publishing in a request's transaction."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox._installation import needs_extra
from tests.fastapi.applications import router_in, serving
from tests.faststream.environments import PostgresEnvironment, Received


async def test_the_broker_lives_as_long_as_the_application(real: PostgresEnvironment, received: Received) -> None:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, str]]:
        received.put("user's begins")
        yield {"mine": "state"}
        received.put("user's ends")

    router = router_in(real, lifespan=lifespan)
    app = FastAPI(title="Shop", version="7")
    app.include_router(router)

    @router.after_startup
    async def started(_app: Any) -> dict[str, str]:
        received.put(f"running: {router.broker.running}")
        return {"hook": "state"}

    @router.on_broker_shutdown
    async def stopping(_app: Any) -> None:
        received.put(f"still running: {router.broker.running}")

    @router.subscriber("orders")
    async def handle(body: str) -> None:
        received.put(body)

    @router.get("/state")
    async def state(request: Request) -> list[str]:
        return [request.state.mine, request.state.hook, type(request.state.broker).__name__]

    for number in ("a", "b"):  # and again
        async with serving(app) as client:
            assert await received.take(2) == ["user's begins", "running: True"]
            assert (await client.get("/state")).json() == ["state", "state", "OutboxBroker"]
            await real.publish(router.broker.publish, number, queue="orders")
            assert await received.next() == number
            document = (await client.get("/asyncapi.json")).json()
            assert (document["info"]["title"], document["info"]["version"]) == ("Shop", "7")
            assert document["channels"]["orders:Handle"]["address"] == "orders"
            assert "orders" in (await client.get("/asyncapi")).text
            assert "/state" in (await client.get("/openapi.json")).json()["paths"]
        assert await received.take(2) == ["still running: True", "user's ends"]
        assert not router.broker.running
        assert await real.rows() == []


async def test_a_startup_that_fails_leaves_nothing_running(real: PostgresEnvironment) -> None:
    router = router_in(real)
    app = FastAPI()
    app.include_router(router)

    @router.after_startup
    def fail(_app: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with serving(app):
            pass
    assert not router.broker.running


async def test_a_request_publishes_in_its_own_transaction(real: PostgresEnvironment, received: Received) -> None:
    router = router_in(real)

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with real.backend.sessions() as session, session.begin():
            yield session

    @router.post("/orders")
    async def place(number: int, session: Annotated[AsyncSession, Depends(get_session)]) -> int | None:
        await session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        row_id = await router.broker.publish(number, queue="orders", session=session)
        if number < 0:
            raise HTTPException(422)
        return row_id

    @router.subscriber("orders")
    async def confirm(number: int) -> None:
        received.put(number)

    await real.backend.run("CREATE TABLE orders (number int)")
    app = FastAPI()
    app.include_router(router)
    async with serving(app) as client:
        assert (await client.post("/orders?number=-1")).status_code == 422
        assert (await client.post("/orders?number=1")).json() > 0
        assert await received.next() == 1
        await real.drained()
    assert received.empty
    assert await real.backend.run("SELECT number FROM orders") == [(1,)]


async def test_an_id_generator_makes_correlation_ids(real: PostgresEnvironment) -> None:
    router = router_in(real, id_generator=lambda: "made")
    await real.publish(router.broker.publish, 1, "orders")
    await real.publish(router.publisher("orders").publish, 2)
    assert [(row.headers or {})["correlation_id"] for row in await real.rows()] == ["made", "made"]


async def test_trying_out_from_the_document_is_refused_and_harms_nothing(
    real: PostgresEnvironment, received: Received
) -> None:
    router = router_in(real)

    @router.subscriber("orders")
    async def handle(body: str) -> None:
        received.put(body)

    app = FastAPI()
    app.include_router(router)
    async with serving(app) as client:
        for real_one in (True, False):
            form = {
                "channelName": "orders:Handle",
                "message": {"message": "tried"},
                "options": {"sendToRealBroker": real_one},
            }
            answer = await client.post("/asyncapi/try", json=form)
            assert answer.status_code == 500
            assert ("inside a transaction" if real_one else "would be lost") in answer.json()["details"]
            assert all(each.running for each in router.broker.subscribers)
        await real.publish(router.broker.publish, "a", queue="orders")
        assert await received.next() == "a"
        await real.drained()


def test_without_fastapi_the_import_says_what_to_install() -> None:
    script = "import sys; sys.modules['fastapi'] = None; import faststream_outbox.fastapi"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr.strip().endswith(f"ImportError: {needs_extra('faststream_outbox.fastapi', 'fastapi')}")


def test_the_import_warns_of_nothing() -> None:
    script = "import faststream_outbox.fastapi"
    command = [sys.executable, "-W", "error", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
