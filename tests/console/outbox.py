"""An outbox with all its tables, rows in every state, and a browser that is none: a client that posts forms."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import uvicorn
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.types import ASGIApp

from faststream_outbox import make_operations_tables
from faststream_outbox.console import make_console
from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import NewRow
from tests.backends import PostgresBackend
from tests.operations.letters import bury
from tests.waiting import until

SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
JSON = {"content-type": "application/json"}


class ConsoleOutbox:
    """What the tests of the console look at."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.backend = PostgresBackend(engine)
        tables = make_operations_tables(self.backend.metadata)
        self.operations = OutboxOperations(
            engine,
            outbox_table=self.backend.outbox_table,
            dlq_table=self.backend.dlq_table,
            control_table=tables.control,
            audit_table=tables.audit,
            nodes_table=tables.nodes,
        )

    async def bury(
        self, *bodies: bytes, queue: str = "orders", exception: str = "app.PayError: no", **row: Any
    ) -> None:
        """Make dead letters."""
        headers = row.pop("headers", JSON)
        rows = [NewRow(queue, body, headers, **row) for body in bodies]
        await bury(self.backend, *rows, exception=exception, reason="retry_terminal")

    async def fill(self) -> dict[str, int]:
        """Put a message in every state, and dead letters, and return their ids by names."""
        later = timedelta(hours=1)
        await self.bury(b'{"order": 1}', b'{"order": 2}', headers={**JSON, "correlation_id": "c-dead"})
        await self.bury(b"<script>alert(1)</script>", queue="mails", exception="ValueError: <b>bold</b>")
        ids = await self.backend.insert(
            NewRow("orders", b'{"order": 3}', {**JSON, "correlation_id": "c-1", "tenant": "acme"}),
            NewRow("orders", b'{"order": 4}', JSON, activate_in=later),
            NewRow("orders", b"\xff\x00\x10"),
            NewRow("customers", b'{"n": 1}', JSON, key="ada"),
            NewRow("customers", b'{"n": 2}', JSON, key="ada"),
            NewRow("reminders", b'{"invoice": 7}', JSON, timer_id="invoice-7", activate_in=later),
        )
        await self.operations.park_key("customers", "ada", reason="under <i>investigation</i>", by="eve")
        return dict(zip(("ready", "delayed", "binary", "head", "behind", "timer"), ids, strict=True))

    def app(self, **options: Any) -> ASGIApp:
        return make_console(self.operations, **options)

    @asynccontextmanager
    async def client(self, app: ASGIApp | None = None, root: str = "", **options: Any) -> AsyncIterator["Client"]:
        """A client of a console on this machine, as a browser of the same site."""
        transport = httpx.ASGITransport(app or self.app(**options), client=("127.0.0.1", 1234))
        async with Client(transport=transport, base_url=f"http://127.0.0.1{root}", headers=SAME_ORIGIN) as client:
            yield client


class Client(httpx.AsyncClient):
    """Reads pages as text, and fills in their forms."""

    async def text(self, path: str, status: int = 200) -> str:
        """Return the words of a page, without its tags."""
        response = await self.get(path)
        assert response.status_code == status, response.text
        return words(response.text)

    async def submit(self, path: str, **fields: Any) -> httpx.Response:
        """Post a form, and follow where it leads."""
        return await self.post(path, data=fields, follow_redirects=True)

    async def act(
        self, act: str, *, reason: str = "because", extra: dict[str, str] | None = None, **chosen: Any
    ) -> str:
        """Preview an act on rows and confirm it, with what the preview has frozen; return the words of the result."""
        preview = await self.submit("/acts/preview", act=act, **chosen)
        assert preview.status_code == 200, preview.text
        given = {"act": act, "selection": field(preview.text, "selection"), "reason": reason, **(extra or {})}
        response = await self.submit("/acts/run", **given)
        assert response.status_code == 200, response.text
        return words(response.text)

    async def act_on(self, act: str, *, reason: str = "because", **fields: str) -> str:
        """Do an act on one thing, and return the words of the result."""
        form = await self.get(f"/acts/one/{act}", params=fields)
        assert form.status_code == 200, form.text
        response = await self.submit(f"/acts/one/{act}", reason=reason, **(hidden_fields(form.text) | fields))
        assert response.status_code == 200, response.text
        return words(response.text)


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a console on a port of this machine."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        await task


def words(page: str) -> str:
    """Return the text of a page, as somebody reads it."""
    body = page.partition("<main")[2].partition(">")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def hidden_fields(page: str) -> dict[str, str]:
    """Return the hidden fields of a page, without the form of the theme."""
    found = re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', page.partition("<main")[2])
    return {name: html.unescape(value) for name, value in found}


def text_area(page: str, name: str) -> str:
    """Return the text of a field of several lines."""
    found = re.search(rf'<textarea id="{name}"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    assert found is not None, f"no field {name}"
    return html.unescape(found[1])


def field(page: str, name: str) -> str:
    """Return the value of a hidden field."""
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, f"no field {name}"
    return html.unescape(found[1])
