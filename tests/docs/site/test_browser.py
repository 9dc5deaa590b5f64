"""The built site in a real browser: nothing cut or broken on any screen, readable by everybody, found by its search."""

import asyncio
import functools
import http.server
import threading
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect
from playwright.async_api import Page as Tab

from tests.docs.site.pages import Page
from tests.servers.chromium import Chromium

# One loop for all tests of the module, because they share a browser.
pytestmark = pytest.mark.asyncio(loop_scope="module")

AXE = files("axe_playwright_python").joinpath("axe.min.js")
# A desktop, a tablet, two phones: from wide to narrow, because the menu slides out of sight while a screen grows.
WIDTHS = (1280, 768, 390, 360)
# One test for so many pages would take longer than a test may; so many tabs load side by side.
PARTS = 4
TABS = 3
# One page of each kind: the landing page, code, tables of sentences and of figures, pictures, the reference, no page.
KINDS = (
    *("index.html", "subscribing.html", "proof.html", "soak.html", "how-it-works.html", "404.html"),
    *("reference/subscriber.html", "tutorial/index.html"),
)
# What readers of other systems search for, and the page that they need.
SEARCHES = {
    "replay": "dead-letters.html",
    "requeue": "dead-letters.html",
    "redrive": "dead-letters.html",
    "unblock": "operating-keys.html",
    "stuck": "on-call.html",
    "lag": "on-call.html",
    "poison": "dead-letters.html",
    "dlq": "dead-letters.html",
    "exactly once": "exactly-once.html",
    "cron": "timers.html",
}
# What is wrong with what a browser shows: a page that scrolls sideways, code that does so on a desktop, text or
# pictures that are not seen, a heading of many lines, a name in a heading or a first column that is broken, a title in
# the bar of a phone that ends in "…". Entries of the menu may end so, and the title of the first page.
FAULTS = r"""() => {
  const found = []
  const whole = document.documentElement
  if (whole.scrollWidth > whole.clientWidth) found.push(`the page is ${whole.scrollWidth} wide`)
  for (const each of document.images)
    if (!each.complete || !each.naturalWidth) found.push(`no picture: ${each.src}`)
  for (const each of document.querySelectorAll(".md-content *")) {
    const hidden = getComputedStyle(each).overflowX === "hidden" && each.clientWidth > 1
    if (hidden && each.scrollWidth > each.clientWidth + 1) found.push(`cut: ${each.textContent.trim().slice(0, 60)}`)
  }
  if (innerWidth >= 1280)
    for (const each of document.querySelectorAll(".md-content pre > code"))
      if (each.scrollWidth > each.clientWidth + 1) found.push(`scrolls: ${each.textContent.trim().slice(0, 60)}`)
  for (const each of document.querySelectorAll(".md-header__topic:not(:first-child) .md-ellipsis"))
    if (!document.querySelector(".hero") && each.scrollWidth > each.clientWidth) found.push(`cut: ${each.textContent}`)
  for (const each of document.querySelectorAll(".md-content :is(h1, h2, h3, h4)"))
    if (each.clientHeight > 3.5 * parseFloat(getComputedStyle(each).lineHeight)) found.push(`long: ${each.textContent}`)
  for (const each of document.querySelectorAll(".md-content :is(th, td):first-child code"))
    if (/^\w{1,24}$/.test(each.textContent) && each.getClientRects().length > 1)
      found.push(`broken: ${each.textContent}`)
  for (const each of document.querySelectorAll(".md-content .doc-object-name"))
    if (each.getClientRects().length > 1) found.push(`broken: ${each.textContent}`)
  return found
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the library gives it
        """Log nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on a server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def launched() -> AsyncIterator[Browser | None]:
    """One browser for all tests; None on a machine without one, where each test is skipped by itself."""
    if Chromium.lacks():
        yield None
        return
    async with async_playwright() as playwright:
        path = str(Chromium.path())
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: str, launched: Browser | None) -> AsyncIterator[Browser]:
    """The browser, whose tabs are closed after each test."""
    assert launched is not None, chromium
    yield launched
    for context in launched.contexts:
        await context.close()


@pytest.mark.parametrize("part", range(PARTS))
async def test_every_page_fits_and_is_quiet(browser: Browser, address: str, pages: dict[str, Page], part: int) -> None:
    left, found = sorted(pages)[part::PARTS], list[str]()

    async def visit() -> None:
        tab = await browser.new_page()
        tab.on("console", lambda message: found.append(f"{tab.url}: {message.text}"))
        tab.on("pageerror", lambda error: found.append(f"{tab.url}: {error}"))
        while left:
            name = left.pop()
            for width in WIDTHS:
                await tab.set_viewport_size({"width": width, "height": 900})
                if width == WIDTHS[0]:
                    await tab.goto(f"{address}{name}")
                found.extend(f"{tab.url}, {width} wide: {each}" for each in await tab.evaluate(FAULTS))

    await asyncio.gather(*(visit() for _ in range(TABS)))
    assert found == []


@pytest.mark.parametrize("name", KINDS)
async def test_axe_finds_nothing_in_both_themes(browser: Browser, address: str, name: str) -> None:
    tab = await browser.new_page(color_scheme="light")
    await tab.goto(f"{address}{name}")
    await tab.evaluate(AXE.read_text())
    assert await violations(tab, "default") == []
    await tab.emulate_media(color_scheme="dark")
    assert await violations(tab, "slate") == []


async def violations(tab: Tab, scheme: str) -> list[str]:
    """Return what axe-core finds, when the colours of the scheme are there and none fades into another."""
    await expect(tab.locator(f"body[data-md-color-scheme={scheme}]:not([data-md-color-switching])")).to_be_attached()
    await tab.evaluate("Promise.all(document.getAnimations().map(each => each.finished))")
    # The theme's script puts the button that copies code into a landmark without a name.
    result = await tab.evaluate("axe.run({rules: {'landmark-unique': {enabled: false}}})")
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in result["violations"]]


async def test_a_page_that_is_not_there_leads_on(browser: Browser, address: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{address}404.html")
    await page.get_by_role("link", name="list of pages by task").click()
    await expect(page.get_by_role("heading", name="Find a page by task")).to_be_in_viewport()


async def test_the_search_leads_to_the_page_among_its_first_three(browser: Browser, address: str) -> None:
    tab = await browser.new_page()
    await tab.goto(f"{address}index.html?q=anything")
    box, results = tab.get_by_role("textbox", name="Search"), tab.locator(".md-search-result__item > a")
    found = {}
    for words in SEARCHES:
        await box.fill("")
        await box.press("End")  # the theme reads the words when a key is released
        await expect(results).to_have_count(0, timeout=60_000)
        await box.fill(words)
        await box.press("End")
        await expect(results.first).to_be_visible(timeout=60_000)
        found[words] = [await each.get_attribute("href") or "" for each in (await results.all())[:3]]
    missed = {
        words: found[words] for words, page in SEARCHES.items() if not any(f"/{page}" in each for each in found[words])
    }
    assert missed == {}
