"""The console inside applications: under a prefix of FastAPI and Starlette, and behind a proxy."""

import re

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from tests.console.outbox import ConsoleOutbox, words


def in_fastapi(console: ASGIApp) -> ASGIApp:
    app = FastAPI()
    app.mount("/ops/outbox", console)
    return app


def in_starlette(console: ASGIApp) -> ASGIApp:
    return Starlette(routes=[Mount("/ops", routes=[Mount("/outbox", app=console)])])


@pytest.mark.parametrize("mount", [in_fastapi, in_starlette])
async def test_under_a_prefix_every_link_stays_below_it(outbox: ConsoleOutbox, mount: object) -> None:
    await outbox.fill()
    app = mount(outbox.app())  # type: ignore[operator]
    async with outbox.client(app, "/ops/outbox") as client:
        seen, left = set[str](), {"/ops/outbox/"}
        while left:
            path = left.pop()
            seen.add(path)
            response = await client.get(f"http://127.0.0.1{path}")
            assert response.status_code == 200, path
            found = re.findall(r'(?:href|src|action|formaction|data-live)="([^"#]+)"', response.text)
            assert all(each.startswith("/ops/outbox/") for each in found), path
            follow = {each.replace("&amp;", "&") for each in re.findall(r'href="([^"#]+)"', response.text)}
            left |= {each for each in follow if "doctor" not in each} - seen
        assert len(seen) > 30
        result = await client.submit("/acts/one/pause", queue="orders", reason="deploy")
        assert result.url.path.startswith("/ops/outbox/jobs/")
        assert "Done" in words(result.text)


async def test_the_address_without_a_slash_leads_to_the_console(outbox: ConsoleOutbox) -> None:
    async with outbox.client(in_fastapi(outbox.app())) as client:
        response = await client.get("/ops/outbox", follow_redirects=True)
    assert response.status_code == 200
    assert response.url.path == "/ops/outbox/"


async def test_a_proxy_that_strips_the_prefix_names_it_as_the_root_path(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    transport = httpx.ASGITransport(outbox.app(), root_path="/tools", client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        page = (await client.get("/")).text
    assert 'href="/tools/queue?name=orders"' in page
