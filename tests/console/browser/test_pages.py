"""Every page in a real browser: quiet, accessible, in both themes, on a phone, and without JavaScript."""

import pytest
from playwright.async_api import Browser, ViewportSize, expect
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from faststream_outbox.console.access import TokenAccess
from faststream_outbox.storage import NewRow
from tests.console.browser.conftest import DESKTOP, PHONE, Viewer, violations
from tests.console.outbox import ConsoleOutbox, serving

PAGES = (
    *("", "queue?name=orders", "queue?name=orders&state=expired", "messages/4", "search?q=c-dead", "keys"),
    *("key?queue=customers&key=ada", "dead-letters", "dead-letters/rows", "dead-letters/1", "dead-letters/1/edit"),
    *("messages/4?body=raw", "messages/6?body=hex", "messages/6", "messages/9", "queue?name=none"),
    *("timers", "nodes", "audit", "audit/1", "doctor", "acts/one/pause?queue=orders", "acts/one/hold_key"),
)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_on_any_page(viewer: Viewer, theme: str) -> None:
    page = await viewer.open(color_scheme=theme)
    found: list[str] = []
    for path in PAGES:
        await page.goto(f"/{path}")
        found += await violations(page)
    await page.goto("/dead-letters/rows")
    await page.check("[name=ids] >> nth=0")
    await page.click("text=Purge…")
    found += await violations(page)
    await page.fill("#reason", "old")
    await page.click("text=Purge for good")
    await expect(page.get_by_text("Done")).to_be_visible()
    found += await violations(page)
    assert found == []


async def test_a_phone_shows_every_page_without_scrolling_sideways(viewer: Viewer) -> None:
    page = await viewer.open(viewport=PHONE)
    for path in PAGES:
        await page.goto(f"/{path}")
        assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
    assert await violations(page) == []
    # Three acts do not break a word of the title.
    await page.goto("/messages/5")
    await expect(page.get_by_role("button", name="…")).to_have_count(3)
    title = await page.get_by_role("heading", level=1).bounding_box()
    assert title is not None
    assert title["height"] <= 28


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desk", "phone"])
async def test_long_names_and_reasons_fit_the_screen(
    browser: Browser, outbox: ConsoleOutbox, screen: ViewportSize
) -> None:
    name, key = "q" * 255, "k" * 255
    await outbox.bury(b"1", queue=name, exception=f"{'m' * 200}.{'E' * 200}: no")
    [row] = await outbox.backend.insert(NewRow(name, b"1", key=key))
    await outbox.operations.park_key(name, key, reason="r" * 490, by="b" * 200)
    paths = (f"queue?name={name}", f"messages/{row}", f"messages/{row}?body=hex", f"key?queue={name}&key={key}")
    async with serving(outbox.app(title="T" * 60)) as client:
        page = await Viewer(browser, str(client.base_url)).open(viewport=screen)
        for path in ("", "keys", "dead-letters", "dead-letters/rows", "dead-letters/1", "audit", "audit/1", *paths):
            await page.goto(f"/{path}")
            for box in (
                "document.documentElement",
                *(["document.querySelector('.scroll')"] if path == "audit" else []),
            ):
                assert await page.evaluate(f"{box}.scrollWidth <= {box}.clientWidth"), path
        await page.goto("/keys")
        for text in (name, key):
            shown = await page.get_by_role("link", name=text).bounding_box()
            assert shown is not None
            assert shown["height"] < 5 * 20
        brand, themes = await page.locator(".brand").bounding_box(), await page.locator(".themes").bounding_box()
        assert brand is not None
        assert themes is not None
        assert brand["x"] + brand["width"] <= themes["x"] or brand["y"] + brand["height"] <= themes["y"]


async def test_a_finger_hits_boxes_and_links_of_rows(viewer: Viewer) -> None:
    page = await viewer.open("queue?name=orders", viewport=PHONE)
    for shown in (page.locator("label.tick").last, page.locator("td.id a").first):
        box = await shown.bounding_box()
        assert box is not None
        assert box["height"] >= 34
        assert box["width"] >= 24
    await page.locator("label.tick").last.click(position={"x": 3, "y": 3})
    await expect(page.locator("[name=ids]").last).to_be_checked()


# How far the colour of a border is from the colour around it, by the rule of WCAG.
CONTRAST = """([selector, property]) => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((each) => each / 255);
    const [r, g, b] = parts.map((each) => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const shown = document.querySelector(selector);
  const pair = [getComputedStyle(shown)[property], getComputedStyle(document.documentElement).backgroundColor];
  const [low, high] = pair.map(light).sort((a, b) => a - b);
  return high / low;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_fields_and_what_is_chosen_stand_out(viewer: Viewer, theme: str) -> None:
    page = await viewer.open("keys", color_scheme=theme)
    for selector, of in (
        ("#search", "borderTopColor"),
        ("nav [aria-current]", "boxShadow"),
        (".themes [aria-pressed=true]", "boxShadow"),
    ):
        assert await page.locator(selector).evaluate(f"each => getComputedStyle(each).{of}") != "none"
        assert await page.evaluate(CONTRAST, [selector, of]) >= 3, selector


async def test_a_phone_shows_on_the_overview_what_is_blocked_or_expired(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    await outbox.backend.insert(NewRow("late", b"1"))
    await outbox.backend.claim("late", lease_seconds=1)
    await outbox.backend.pass_time(2)
    page = await viewer.open(viewport=PHONE)
    row = page.get_by_role("row", name="customers")
    await expect(row.get_by_text("1 blocked key")).to_be_visible()
    await expect(row.locator(".caution")).to_be_visible()
    await expect(page.get_by_role("row", name="late").get_by_text("1 expired").first).to_be_visible()


async def test_what_is_read_only_or_wrong_is_accessible_and_on_the_screen(
    browser: Browser, outbox: ConsoleOutbox
) -> None:
    await outbox.fill()
    async with serving(outbox.app(read_only=True)) as client:
        viewer = Viewer(browser, str(client.base_url))
        page = await viewer.open(color_scheme="dark")
        found = await violations(page)
        for path in ("queue?name=orders", "dead-letters/1", "acts/one/pause?queue=orders", "no/page"):
            await page.goto(f"/{path}")
            found += await violations(page)
            # An error is read without scrolling.
            box = await page.get_by_role("heading", level=1).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] < DESKTOP["height"]
        assert found == []


async def test_a_theme_is_chosen_without_a_script(viewer: Viewer) -> None:
    page = await viewer.open("keys?state=parked", color_scheme="light", java_script_enabled=False)
    await page.click("text=Dark")
    await expect(page).to_have_url(f"{viewer.address}/keys?state=parked")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await expect(page.locator("body")).to_have_css("color", "rgb(228, 230, 234)")


async def test_what_is_published_appears_by_itself(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open()
    await expect(page.get_by_role("status")).to_have_text("Live")
    await outbox.backend.insert(NewRow("surprises", b"1"))
    await expect(page.get_by_role("link", name="surprises", exact=True)).to_be_visible()


async def test_rows_stay_where_they_are_while_one_is_ticked(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open("queue?name=orders")
    await page.check("[name=ids] >> nth=0")
    [new] = await outbox.backend.insert(NewRow("orders", b"1"))
    await expect(page.get_by_role("status")).to_have_text("Held while you choose")
    await expect(page.get_by_label(f"Choose message {new}")).to_have_count(0)
    await page.uncheck("[name=ids] >> nth=0")
    await expect(page.get_by_label(f"Choose message {new}")).to_be_visible()


async def test_a_focused_link_keeps_its_focus_when_the_page_changes(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open()
    link = page.get_by_role("link", name="orders", exact=True)
    await link.focus()
    await outbox.backend.insert(NewRow("surprises", b"1"))
    await expect(page.get_by_role("link", name="surprises", exact=True)).to_be_visible()
    await expect(link).to_be_focused()


async def test_text_that_is_selected_stays(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open()
    link = page.get_by_role("link", name="orders", exact=True)
    await link.select_text()
    await outbox.backend.insert(NewRow("surprises", b"1"))
    await expect(page.get_by_role("status")).to_have_text("Held while you choose")
    assert await page.evaluate("getSelection().toString()") == "orders"
    await page.evaluate("getSelection().removeAllRanges()")
    await expect(page.get_by_role("link", name="surprises", exact=True)).to_be_visible()


async def test_a_page_is_live_again_after_its_proxy_had_no_application(browser: Browser, outbox: ConsoleOutbox) -> None:
    console, away = outbox.app(), [False]

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        answer = PlainTextResponse("Bad Gateway", 502) if away[0] and scope["path"] == "/live" else console
        await answer(scope, receive, send)

    async with serving(proxy) as client:
        page = await Viewer(browser, str(client.base_url)).open()
        mark = page.get_by_role("status")
        await expect(mark).to_have_text("Live")
        away[0] = True
        # As a page that comes back from the background opens its stream anew.
        await page.evaluate(
            "dispatchEvent(new Event('pagehide')); document.dispatchEvent(new Event('visibilitychange'))"
        )
        await expect(mark).to_have_text("Connection lost, trying again")
        away[0] = False
        await expect(mark).to_have_text("Live")


async def test_the_planned_end_of_a_stream_is_not_said(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faststream_outbox.console.live._STREAM_SECONDS", 0)
    page = await viewer.open()
    await page.evaluate(
        "window.said = []; new MutationObserver(() => said.push(document.querySelector('.live-mark').textContent))"
        ".observe(document.querySelector('.live-mark'), {childList: true})"
    )
    await expect(page.get_by_role("status")).to_have_text("Live")
    await page.wait_for_function("said.length > 3")
    assert set(await page.evaluate("said")) == {"Live"}


async def test_a_body_that_is_a_script_does_not_run(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    evil = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
    [row] = await outbox.backend.insert(NewRow(evil, evil.encode(), {evil: evil}, key=evil))
    page = await viewer.open()
    for path in ("", f"messages/{row}", f"messages/{row}?body=raw", "keys?state=in_flight"):
        await page.goto(f"/{path}")
        assert "hacked" not in await page.title()
    await page.goto("/")
    # Through the stream, too.
    await outbox.backend.insert(NewRow(f"{evil}2", b"1"))
    await expect(page.get_by_role("link", name=f"{evil}2", exact=True)).to_be_visible()
    assert "hacked" not in await page.title()


async def test_a_token_lets_a_browser_in(outbox: ConsoleOutbox, browser: Browser) -> None:
    token = TokenAccess()
    async with serving(outbox.app(access=token)) as client:
        viewer = Viewer(browser, str(client.base_url))
        page = await viewer.open()
        assert await violations(page) == []
        box = await page.locator("#token").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < DESKTOP["height"]
        await page.fill("#token", token.token)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        assert token.token not in page.url
        assert viewer.messages == []
