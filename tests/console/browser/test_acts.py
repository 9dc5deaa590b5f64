"""Every act in a real browser, by mouse, by keyboard alone, and without JavaScript."""

import asyncio
import json
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from faststream_outbox.operations import DeadLetterFilter
from faststream_outbox.storage import NewRow
from tests.console.browser.conftest import Viewer
from tests.console.outbox import ConsoleOutbox
from tests.waiting import until


async def confirm(page: Page, button: str, *, done: str = "Done", **fields: str) -> None:
    for name, value in fields.items():
        await page.fill(f"#{name}", value)
    await page.fill("#reason", "a good reason")
    await page.get_by_role("button", name=button).click()
    await expect(page.locator(".count")).to_have_text(done)
    await page.get_by_role("link", name="Audit entry").click()
    await expect(page.get_by_text("a good reason").first).to_be_visible()


async def choose(page: Page, path: str, *, act: str, rows: int = 1) -> None:
    await page.goto(f"/{path}")
    for number in range(rows):
        await page.locator("[name=ids]").nth(number).check()
    await page.get_by_role("button", name=act).click()


async def test_acts_on_rows(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open()
    await choose(page, "queue?name=orders&state=delayed", act="Deliver now…")
    await confirm(page, "Deliver now")
    await choose(page, "queue?name=orders", act="Move…")
    await confirm(page, "Move", queue="mails")
    await choose(page, "queue?name=orders", act="Discard…", rows=2)
    await confirm(page, "Discard for good", done="2 messages")
    await page.goto("/dead-letters")
    await page.get_by_role("link", name="PayError").click()
    await page.get_by_label("Choose all rows of this page").check()
    await page.get_by_role("button", name="Replay…").click()
    await confirm(page, "Replay", done="2 dead letters", rate="1000")
    await choose(page, "dead-letters/rows", act="Purge…")
    await confirm(page, "Purge for good")
    assert not (await outbox.operations.dead_letters()).items


async def test_acts_on_queues_keys_and_timers(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open()
    await page.get_by_role("link", name="Pause orders").click()
    await page.select_option("#seconds", "3600")
    await confirm(page, "Pause")
    await page.goto("/")
    await page.get_by_role("link", name="Resume orders").click()
    await confirm(page, "Resume")
    for act in ("Release", "Park", "Retry", "Hold", "Skip"):
        await page.goto("/key?queue=customers&key=ada")
        await page.get_by_role("link", name=f"{act}…").click()
        await confirm(page, act)
    await page.goto("/keys")
    await page.get_by_role("link", name="Hold a key").click()
    await page.fill("#queue", "customers")
    await page.fill("#subject", "grace")
    await confirm(page, "Hold")
    await page.goto("/timers")
    await page.get_by_role("link", name="Fire invoice-7").click()
    await confirm(page, "Fire now")
    await page.goto("/timers")
    await page.get_by_role("link", name="Cancel invoice-7").click()
    await confirm(page, "Cancel")
    actions = [entry.action for entry in (await outbox.operations.audit()).items]
    assert actions == [
        *("cancel_timer", "fire_timer", "hold_key", "skip_key", "hold_key", "retry_key", "park_key", "release_key"),
        *("resume", "pause", "park_key"),
    ]


async def test_a_double_click_on_skip_skips_one_message(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open("acts/one/skip_key?queue=customers&key=ada")
    sent, clicked = list[Route](), asyncio.Event()

    async def hold(route: Route) -> None:
        sent.append(route)
        await clicked.wait()
        await route.continue_()

    await page.route("**/acts/one/*", hold)
    await page.fill("#reason", "a good reason")
    box = await page.get_by_role("button", name="Skip").bounding_box()
    assert box is not None
    for _ in range(2):  # the mouse does not wait for the page that a click leads to
        await page.mouse.click(box["x"] + 5, box["y"] + 5)
        await until(lambda: sent)
    clicked.set()
    await expect(page.locator(".count")).to_have_text("Done")
    assert len(sent) == 1
    letters = (await outbox.operations.dead_letters(DeadLetterFilter(queue="customers"))).items
    assert len(letters) == 1


async def test_a_dead_letter_is_edited_and_its_json_checked_while_typing(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open("dead-letters/1")
    await page.get_by_role("link", name="Edit and replay…").click()
    await page.fill("#body", '{"order": ')
    await expect(page.locator("#body-hint")).to_contain_text("Not JSON")
    await page.fill("#reason", "a good reason")
    await page.get_by_role("button", name="Replay with these changes").click()
    assert page.url.endswith("/edit")  # the browser does not send it
    await page.fill("#body", '{"order": 7}')
    await expect(page.locator("#body-hint")).to_have_text("Valid JSON.")
    await confirm(page, "Replay with these changes")
    [found] = [each for each in (await outbox.operations.messages()).items if each.body.data == {"order": 7}]
    assert found.queue == "orders"


async def test_dead_letters_are_downloaded(viewer: Viewer, tmp_path: Path) -> None:
    page = await viewer.open("dead-letters/rows?queue=orders")
    await page.select_option("#scope", "all")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export").click()
    await (await download.value).save_as(tmp_path / "letters.jsonl")
    lines = (tmp_path / "letters.jsonl").read_text().splitlines()
    assert [json.loads(line)["queue"] for line in lines] == ["orders", "orders"]


async def test_a_replay_by_keyboard_alone(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open()
    await page.keyboard.press("/")
    await page.keyboard.type("c-dead")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Found")).to_be_visible()
    await _tab_to(page, "a[href='/dead-letters/1']")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Dead letter 1")).to_be_visible()
    await _tab_to(page, "button[value=replay]")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Replay")).to_be_visible()
    await _tab_to(page, "#reason")
    await page.keyboard.type("by hand")
    await page.keyboard.press("Enter")
    await expect(page.locator(".count")).to_have_text("Done")
    letters = (await outbox.operations.dead_letters(DeadLetterFilter(queue="orders"))).items
    assert [letter.id for letter in letters] == [2]


async def test_the_skip_link_leads_past_the_menu(viewer: Viewer) -> None:
    page = await viewer.open()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.closest('main') !== null")


async def test_rows_queues_and_keys_by_keyboard_alone(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open("queue?name=orders&state=delayed")
    await _tab_to(page, "[name=ids]")
    await page.keyboard.press("Space")
    await _tab_to(page, "button[value=deliver_now]")
    await _confirm_by_keyboard(page)
    await page.goto("/dead-letters/rows?queue=mails")
    await _tab_to(page, "#scope")
    await page.keyboard.press("ArrowDown")
    await _tab_to(page, "button[value=purge]")
    await _confirm_by_keyboard(page)
    await page.goto("/")
    await _tab_to(page, "a[href='/acts/one/pause?queue=orders']")
    await _confirm_by_keyboard(page)
    await page.goto("/key?queue=customers&key=ada")
    await _tab_to(page, "a[href^='/acts/one/release_key']")
    await _confirm_by_keyboard(page)
    await page.goto("/timers")
    await _tab_to(page, "a[href^='/acts/one/cancel_timer']")
    await _confirm_by_keyboard(page)
    await page.goto("/dead-letters/1/edit")
    await _tab_to(page, "#body")
    await page.keyboard.press("Control+a")
    await page.keyboard.type('{"order": 7}')
    await _confirm_by_keyboard(page, opened=True)
    actions = [entry.action for entry in (await outbox.operations.audit()).items]
    assert actions == ["edit_and_replay", "cancel_timer", "release_key", "pause", "purge", "deliver_now", "park_key"]


KEY = "key?queue=customers&key="


@pytest.mark.parametrize(
    ("act", "path", "control", "fields"),
    [
        ("move", "queue?name=orders&state=delayed", "button[value=move]", {"queue": "mails"}),
        ("discard", "queue?name=orders&state=delayed", "button[value=discard]", {}),
        ("retry_key", f"{KEY}ada", "a[href^='/acts/one/retry_key']", {}),
        ("skip_key", f"{KEY}ada", "a[href^='/acts/one/skip_key']", {}),
        ("park_key", f"{KEY}grace", "a[href^='/acts/one/park_key']", {}),
        ("hold_key", "keys", "a[href='/acts/one/hold_key']", {"queue": "customers", "subject": "new"}),
        ("resume", "", "a[href='/acts/one/resume?queue=mails']", {}),
        ("fire_timer", "timers", "a[href^='/acts/one/fire_timer']", {}),
    ],
)
async def test_an_act_by_keyboard_alone(
    viewer: Viewer, outbox: ConsoleOutbox, *, act: str, path: str, control: str, fields: dict[str, str]
) -> None:
    await outbox.backend.insert(NewRow("customers", b"1", key="grace"))
    await outbox.operations.pause("mails", reason="to be resumed")
    page = await viewer.open(path)
    if control.startswith("button"):
        await _tab_to(page, "[name=ids]")
        await page.keyboard.press("Space")
    await _tab_to(page, control)
    await _confirm_by_keyboard(page, fields)
    done = (await outbox.operations.audit()).items[0]
    assert (done.action, done.reason, done.count) == (act, "by hand", 1)


async def test_an_export_by_keyboard_alone(viewer: Viewer) -> None:
    page = await viewer.open("dead-letters/rows?queue=orders")
    await _tab_to(page, "[name=ids]")
    await page.keyboard.press("Space")
    await _tab_to(page, "button[formaction$='/acts/export']")
    async with page.expect_download() as download:
        await page.keyboard.press("Enter")
    [line] = (await (await download.value).path()).read_text().splitlines()
    assert json.loads(line)["queue"] == "orders"


async def _confirm_by_keyboard(page: Page, fields: dict[str, str] | None = None, *, opened: bool = False) -> None:
    if not opened:
        await page.keyboard.press("Enter")
    await expect(page.locator("#reason")).to_be_visible()
    for name, value in (fields or {}).items():
        await _tab_to(page, f"#{name}")
        await page.keyboard.type(value)
    await _tab_to(page, "#reason")
    await page.keyboard.type("by hand")
    await page.keyboard.press("Enter")
    await expect(page.locator(".count")).to_have_text("Done")


async def _tab_to(page: Page, selector: str) -> None:
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("selector => document.activeElement.matches(selector)", selector):
            # What is focused can be seen.
            assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"{selector} is not reached by Tab")


async def test_everything_but_liveness_works_without_javascript(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    page = await viewer.open(java_script_enabled=False)
    await page.get_by_role("link", name="Dead letters").click()
    await page.get_by_role("link", name="PayError").click()
    await page.select_option("#scope", "all")
    await page.get_by_role("button", name="Purge…").click()
    await confirm(page, "Purge for good", done="2 dead letters")
    assert len((await outbox.operations.dead_letters()).items) == 1


async def test_the_progress_of_a_long_act_is_shown_while_it_runs(viewer: Viewer, outbox: ConsoleOutbox) -> None:
    await outbox.bury(*[b"1"] * 12, queue="slow")
    page = await viewer.open("dead-letters/rows?queue=slow")
    await page.select_option("#scope", "all")
    await page.get_by_role("button", name="Replay…").click()
    await page.fill("#rate", "3")
    await page.fill("#reason", "slowly")
    await page.get_by_role("button", name="Replay: 12 dead letters").click()
    await expect(page.get_by_text("of 12 dead letters")).to_be_visible()
    await expect(page.locator(".count")).to_have_text("12 dead letters")
    await expect(page.get_by_role("link", name="Audit entry")).to_be_visible()
