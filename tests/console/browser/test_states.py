"""Pages that are empty, refused, in the middle of an act or broken: accessible, in both themes, and on a phone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.console import Access, make_console
from faststream_outbox.console.access import TokenAccess
from faststream_outbox.operations import OutboxOperations
from tests.console.browser.conftest import DESKTOP, PHONE, Viewer, violations
from tests.console.outbox import ConsoleOutbox, serving

LISTS = ("", "keys", "dead-letters", "dead-letters/rows", "timers", "nodes", "audit", "queue?name=orders", "search?q=x")
NOWHERE = "postgresql+asyncpg://nobody@127.0.0.1:1/none"
VIEWS = pytest.mark.parametrize(
    ("theme", "screen"), [("light", DESKTOP), ("dark", PHONE)], ids=["light on a desk", "dark on a phone"]
)


@asynccontextmanager
async def viewing(browser: Browser, app: Any, theme: str, screen: ViewportSize) -> AsyncIterator[Page]:
    async with serving(app) as client:
        yield await Viewer(browser, str(client.base_url)).open(color_scheme=theme, viewport=screen)


async def check(page: Page, path: str | None = None) -> None:
    """Open a page, unless it is open already; look for what axe-core finds, and for what is beside the screen."""
    if path is not None:
        await page.goto(f"/{path}")
    # A click returns before the style sheet of the next page is there.
    await page.wait_for_load_state()
    assert await violations(page) == []
    assert page.viewport_size is not None
    assert await page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"], page.url


@VIEWS
async def test_an_empty_outbox(browser: Browser, outbox: ConsoleOutbox, theme: str, screen: ViewportSize) -> None:
    async with viewing(browser, outbox.app(), theme, screen) as page:
        for path in (*LISTS, "doctor", "key?queue=orders&key=k", ""):
            await check(page, path)
        await expect(page.get_by_text("The doctor found nothing wrong")).to_be_visible()


@VIEWS
async def test_a_user_of_some_queues(browser: Browser, outbox: ConsoleOutbox, theme: str, screen: ViewportSize) -> None:
    await outbox.fill()
    app = outbox.app(access=lambda _request: Access("ann", actions={"replay"}, queues={"orders"}))
    async with viewing(browser, app, theme, screen) as page:
        for path in (*LISTS, "doctor", "queue?name=mails"):
            await check(page, path)


@VIEWS
async def test_an_outbox_without_the_other_tables(
    browser: Browser, outbox: ConsoleOutbox, theme: str, screen: ViewportSize
) -> None:
    await outbox.fill()
    bare = OutboxOperations(outbox.backend.engine, outbox_table=outbox.backend.outbox_table)
    async with viewing(browser, make_console(bare), theme, screen) as page:
        for path in LISTS:
            await check(page, path)


@VIEWS
async def test_a_refusal_and_a_failure(
    browser: Browser, outbox: ConsoleOutbox, theme: str, screen: ViewportSize
) -> None:
    gone = OutboxOperations(create_async_engine(NOWHERE), outbox_table=outbox.backend.outbox_table)
    async with viewing(browser, make_console(gone), theme, screen) as page:
        await check(page)
        await expect(page.get_by_role("heading", name="The database did not answer")).to_be_visible()
        await check(page, "no/page")
    async with viewing(browser, outbox.app(access=lambda _request: None), theme, screen) as page:
        await check(page)
        # A page of another site posts a form.
        await page.goto(f"data:text/html,<form method=post action='{page.url}theme'><button>Win</button></form>")
        await page.get_by_role("button", name="Win").click()
        await expect(page.get_by_text("This came from another site")).to_be_visible()
        await check(page)
    async with viewing(browser, outbox.app(access=TokenAccess()), theme, screen) as page:
        await page.fill("#token", "wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_be_visible()
        await check(page)


@VIEWS
async def test_each_step_of_an_act(browser: Browser, outbox: ConsoleOutbox, theme: str, screen: ViewportSize) -> None:
    await outbox.fill()
    await outbox.bury(*[b"1"] * 12, queue="slow", exception=f"app.{'Long' * 30}Error: {'no' * 300}")
    async with viewing(browser, outbox.app(), theme, screen) as page:
        for path, act in (
            *(("queue?name=orders", act) for act in ("Deliver now…", "Move…", "Discard…")),
            *(("dead-letters/rows", act) for act in ("Replay…", "Purge…")),
        ):
            await page.goto(f"/{path}")
            await page.locator("[name=ids]").first.check()
            await page.get_by_role("button", name=act).click()
            await check(page)
        for act in ("retry_key", "release_key", "skip_key", "park_key", "hold_key"):
            await check(page, f"acts/one/{act}?queue=customers&key=ada")
        for act in ("cancel_timer", "fire_timer"):
            await check(page, f"acts/one/{act}?queue=reminders&timer_id=invoice-7")
        await check(page, "acts/one/resume?queue=orders")
        # What the core refuses is said with the name, however long.
        await page.goto(f"/acts/one/hold_key?queue=orders&key={'k' * 300}")
        await page.fill("#reason", "r")
        await page.get_by_role("button", name="Hold").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await check(page)
        # Nothing is ticked: the way back is offered.
        await page.goto("/dead-letters/rows?queue=slow")
        await page.get_by_role("button", name="Purge…").click()
        await check(page)
        await page.get_by_role("link", name="Back", exact=True).click()
        await page.select_option("#scope", "all")
        await page.get_by_role("button", name="Replay…").click()
        await page.fill("#rate", "0.5")
        await page.fill("#reason", "slowly")
        await page.get_by_role("button", name="Replay: 12").click()
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await check(page)
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_text("Stopped after")).to_be_visible()
        await check(page)


@VIEWS
async def test_a_wrong_edit_that_only_the_server_sees(
    browser: Browser, outbox: ConsoleOutbox, theme: str, screen: ViewportSize
) -> None:
    await outbox.fill()
    async with viewing(browser, outbox.app(), theme, screen) as page:
        await page.goto("/dead-letters/1/edit")
        await page.evaluate("document.querySelector('form.narrow').noValidate = true")
        await page.fill("#body", '{"order": ')
        await expect(page.locator("#body-hint")).to_contain_text("Not JSON")
        await check(page)
        await page.fill("#reason", "r")
        await page.get_by_role("button", name="Replay with these changes").click()
        await expect(page.get_by_role("alert")).to_contain_text("The body is not JSON")
        await check(page)
