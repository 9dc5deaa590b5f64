from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

import pytest
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from tests.console.outbox import ConsoleOutbox, serving

AXE = files("axe_playwright_python").joinpath("axe.min.js")
DESKTOP, PHONE = ViewportSize(width=1280, height=800), ViewportSize(width=390, height=844)


class Viewer:
    """Somebody at a browser; every message in its console is kept, and is a failure."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._browser = browser
        self.address = address
        self.messages: list[str] = []

    async def open(self, path: str = "", **options: Any) -> Page:
        context = await self._browser.new_context(base_url=self.address, **({"viewport": DESKTOP} | options))
        context.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        page = await context.new_page()
        page.on("console", lambda message: self.messages.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: self.messages.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: self.messages.append(f"{page.url}: a dialog: {dialog.message}"))
        await page.goto(f"/{path}")
        return page


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        await browser.close()


@pytest.fixture
async def viewer(browser: Browser, outbox: ConsoleOutbox) -> AsyncIterator[Viewer]:
    """A browser on a console over an outbox with rows in every state."""
    await outbox.fill()
    async with serving(outbox.app()) as client:
        viewer = Viewer(browser, str(client.base_url))
        yield viewer
        assert viewer.messages == []


async def violations(page: Page) -> list[str]:
    """Return what axe-core finds on a page."""
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("axe.run()")
    return [f"{page.url}: {each['id']}: {each['nodes'][0]['html']}" for each in found["violations"]]
