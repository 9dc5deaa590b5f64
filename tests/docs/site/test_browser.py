"""The built site in a real browser: nothing cut or broken on any screen, readable by everybody, found by its search."""

import functools
import http.server
import threading
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, async_playwright, expect

from tests.docs.site.pages import Page

AXE = files("axe_playwright_python").joinpath("axe.min.js")
# A desktop, a tablet, two phones: from wide to narrow, because the menu slides out of sight while a screen grows.
WIDTHS = (1280, 768, 390, 360)
# One test for so many pages would take longer than a test may.
PARTS = 8
# One page of each kind: the landing page, code, tables of sentences and of figures, pictures, the reference, no page.
KINDS = (
    *("index.html", "subscribing.html", "proof.html", "soak.html", "how-it-works.html", "404.html"),
    *("reference/subscriber.html", "tutorial/index.html"),
)
# What is wrong with what a browser shows: a page that scrolls sideways, text or pictures that are not seen, a heading
# of many lines, a name in a heading or a first column that is broken. Entries of the menu may end in "…".
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


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        await browser.close()


@pytest.mark.parametrize("part", range(PARTS))
async def test_every_page_fits_and_is_quiet(browser: Browser, address: str, pages: dict[str, Page], part: int) -> None:
    tab = await browser.new_page()
    found: list[str] = []
    tab.on("console", lambda message: found.append(f"{tab.url}: {message.text}"))
    tab.on("pageerror", lambda error: found.append(f"{tab.url}: {error}"))
    for name in sorted(pages)[part::PARTS]:
        for width in WIDTHS:
            await tab.set_viewport_size({"width": width, "height": 900})
            if width == WIDTHS[0]:
                await tab.goto(f"{address}{name}")
            found += [f"{tab.url}, {width} wide: {each}" for each in await tab.evaluate(FAULTS)]
    assert found == []


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing(browser: Browser, address: str, theme: Literal["light", "dark"]) -> None:
    context = await browser.new_context(color_scheme=theme)
    page = await context.new_page()
    found: list[str] = []
    for name in KINDS:
        await page.goto(f"{address}{name}")
        await page.evaluate(AXE.read_text())
        # The theme's script puts the button that copies code into a landmark without a name.
        result = await page.evaluate("axe.run({rules: {'landmark-unique': {enabled: false}}})")
        found += [f"{name}: {each['id']}: {each['nodes'][0]['html']}" for each in result["violations"]]
    assert found == []


async def test_a_page_that_is_not_there_leads_on(browser: Browser, address: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{address}404.html")
    await page.get_by_role("link", name="list of pages by task").click()
    await expect(page.get_by_role("heading", name="Find a page by task")).to_be_in_viewport()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("replay", "dead-letters.html"),
        ("requeue", "dead-letters.html"),
        ("redrive", "dead-letters.html"),
        ("unblock", "operating-keys.html"),
        ("stuck", "on-call.html"),
        ("lag", "on-call.html"),
        ("poison", "dead-letters.html"),
        ("dlq", "dead-letters.html"),
        ("exactly once", "exactly-once.html"),
        ("cron", "timers.html"),
    ],
)
async def test_the_search_leads_to_the_page_among_its_first_three(
    browser: Browser, address: str, words: str, page: str
) -> None:
    tab = await browser.new_page()
    await tab.goto(f"{address}index.html?q={words.replace(' ', '%20')}")
    results = tab.locator(".md-search-result__item > a")
    await expect(results.first).to_be_visible(timeout=60_000)
    first = [await each.get_attribute("href") or "" for each in (await results.all())[:3]]
    assert any(f"/{page}" in each for each in first), first
