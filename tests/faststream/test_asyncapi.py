"""The AsyncAPI document: what is in it, what is not, and the programs that show it."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from faststream.asgi import AsgiFastStream, AsyncAPIRoute
from faststream.specification import AsyncAPI
from pydantic import BaseModel
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import OutboxBroker, OutboxRouter, make_outbox_table
from faststream_outbox.embedded import Database
from faststream_outbox.fastapi import OutboxRouter as FastAPIRouter
from tests.faststream.environments import MemoryEnvironment, PostgresEnvironment, Received
from tests.faststream.programs import copy_example_app, faststream, program_environment
from tests.waiting import until

SECRET_URL = "postgresql+asyncpg://scott:tiger@db.example:5433/shop?ssl=require"  # noqa: S105 - the point
PATIENCE = 60.0


class Order(BaseModel):
    number: int


def document_of(broker: OutboxBroker) -> dict[str, Any]:
    document: dict[str, Any] = AsyncAPI(broker).to_specification().to_jsonable()
    return document


def addresses(document: dict[str, Any]) -> dict[str, str]:
    return {key: channel["address"] for key, channel in document["channels"].items()}


def test_one_channel_per_queue(memory: MemoryEnvironment) -> None:
    broker, router = memory.broker(), OutboxRouter("shop.")

    @router.subscriber(["orders", "returns"])
    async def handle(order: Order) -> None:
        """Handle an order."""

    @broker.subscriber("hidden", include_in_schema=False)
    async def handle_hidden(order: Order) -> None: ...

    @broker.subscriber("titled", title="Titled", description="Described.")
    @broker.publisher("confirmations")
    async def confirm(order: Order) -> Order:
        return order

    publishers = [
        broker.publisher("audit", schema=Order, title="Audit"),
        broker.publisher("x", include_in_schema=False),
    ]
    broker.include_router(router)
    document = document_of(broker)
    assert publishers
    assert addresses(document) == {
        "shop.orders:Handle": "shop.orders",
        "shop.returns:Handle": "shop.returns",
        "Titled": "titled",
        "confirmations:Publisher": "confirmations",
        "Audit": "audit",
    }
    assert document["channels"]["Titled"]["description"] == "Described."
    assert document["channels"]["shop.orders:Handle"]["description"] == "Handle an order."
    actions = sorted(operation["action"] for operation in document["operations"].values())
    assert actions == ["receive"] * 3 + ["send"] * 2
    assert "Order" in document["components"]["schemas"]


@pytest.mark.parametrize("kind", [OutboxBroker, FastAPIRouter])
def test_nothing_secret_is_in_the_document(kind: Any) -> None:
    made = kind(create_async_engine(SECRET_URL), outbox_table=make_outbox_table(MetaData()), description="Rows.")
    document = document_of(made if isinstance(made, OutboxBroker) else made.broker)
    text = json.dumps(document)
    assert "scott" not in text
    assert "tiger" not in text
    server = document["servers"]["development"]
    assert (server["host"], server["pathname"], server["protocol"]) == ("db.example:5433", "/shop", "postgresql")


def test_the_server_may_be_named_otherwise() -> None:
    broker = OutboxBroker(
        create_async_engine(SECRET_URL),
        outbox_table=make_outbox_table(MetaData()),
        specification_url="postgresql://public.example/shop",
        protocol_version="17",
    )
    server = document_of(broker)["servers"]["development"]
    assert (server["host"], server["protocolVersion"]) == ("public.example", "17")


def test_docs_gen(tmp_path: Path) -> None:
    copy_example_app(tmp_path)
    command = [sys.executable, "-m", "faststream", "docs", "gen", "shop:app", "--out", "document.json"]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env=program_environment(SECRET_URL),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "document.json").read_text()
    assert "tiger" not in text
    assert "scott" not in text
    assert set(addresses(json.loads(text)).values()) == {"orders", "returns", "confirmations", "shop.slow"}


async def get(url: str, process: subprocess.Popen[str]) -> httpx.Response:
    """Ask a server that is just starting."""
    async with asyncio.timeout(PATIENCE), httpx.AsyncClient(trust_env=False) as client:
        while True:
            assert process.poll() is None, "it ended by itself"
            try:
                return await client.get(url)
            except httpx.TransportError:
                await asyncio.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


async def test_docs_serve(tmp_path: Path) -> None:
    copy_example_app(tmp_path)
    port = free_port()
    arguments = ("docs", "serve", "shop:app", "--host", "127.0.0.1", "--port", str(port))
    with faststream(*arguments, folder=tmp_path, database=SECRET_URL) as process:
        page = await get(f"http://127.0.0.1:{port}", process)
    assert page.status_code == 200
    assert "shop.slow" in page.text
    assert "tiger" not in page.text


async def test_an_asgi_application_has_health_and_document(tmp_path: Path, outbox_postgres: Database) -> None:
    copy_example_app(tmp_path)
    port = free_port()
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    metadata = MetaData()
    make_outbox_table(metadata)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    arguments = ("run", "shop:asgi", "--host", "127.0.0.1", "--port", str(port))
    with faststream(*arguments, folder=tmp_path, database=outbox_postgres.url("asyncpg")) as process:
        # Healthy as soon as it has claimed; until then it is not.
        await until(
            lambda: get(f"http://127.0.0.1:{port}/health", process),
            lambda found: found.status_code == 204,
            seconds=PATIENCE,
        )
        page = await get(f"http://127.0.0.1:{port}/docs", process)
    assert page.status_code == 200
    assert "shop.slow" in page.text
    await engine.dispose()


@pytest.mark.parametrize(
    ("is_real", "reason"),
    [(True, "a transaction of the application"), (False, "would be lost")],
    ids=["to the database", "as a dry run"],
)
async def test_trying_out_from_the_page_is_refused_with_the_reason_and_harms_nothing(
    real: PostgresEnvironment, received: Received, *, is_real: bool, reason: str
) -> None:
    broker = real.broker()

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        received.put(body)

    app = AsgiFastStream(broker, asyncapi_path="/docs")
    form = {"channelName": "orders:Handle", "message": {"message": "tried"}, "options": {"sendToRealBroker": is_real}}
    async with (
        real.running(broker),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as page,
    ):
        answer = await page.post("/docs/try", json=form)
        assert answer.status_code == 500
        assert reason in answer.json()["details"]
        assert "session=" not in answer.json()["details"]  # nobody can give one in the page
        assert all(each.running for each in broker.subscribers)
        await real.publish(broker.publish, "a", queue="orders")
        assert await received.next() == "a"
        await real.drained()


async def test_the_page_can_be_served_without_trying_out(memory: MemoryEnvironment) -> None:
    app = AsgiFastStream(memory.broker(), asyncapi_path=AsyncAPIRoute("/docs", try_it_out_path=None))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as page:
        assert (await page.get("/docs")).status_code == 200
        assert (await page.post("/docs/try", json={})).status_code == 404
