"""`make screenshots`: the pictures of docs/console.md, taken in Chromium over the shop of examples/console."""

import asyncio
import shutil
import sys
from pathlib import Path

import uvicorn
from playwright.async_api import Page, ViewportSize, async_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from examples.console.__main__ import running_shop  # noqa: E402 - beside this folder
from faststream_outbox.console import Access, make_console  # noqa: E402

IMAGES = ROOT / "docs" / "images"
SIZE = ViewportSize(width=1240, height=700)
# Until the sparklines are worth looking at.
WATCHED_SECONDS = 60
STARTED_SECONDS = 30


async def main() -> None:
    """Start the shop and a console, and take the pictures."""
    browser_path = shutil.which("chromium")
    if browser_path is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    async with running_shop() as broker:
        app = make_console(broker, access=lambda _request: Access("ann@example.com"), title="Shop")
        server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="warning"))
        serving = asyncio.create_task(server.serve())
        try:
            async with asyncio.timeout(STARTED_SECONDS):
                while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.05)
            address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
                for theme in ("light", "dark"):
                    context = await browser.new_context(viewport=SIZE, color_scheme=theme)
                    await _take(await context.new_page(), address, theme)
                await browser.close()
        finally:
            server.should_exit = True
            await serving


async def _take(page: Page, address: str, theme: str) -> None:
    await page.goto(f"{address}/")
    await page.wait_for_timeout(1000 * WATCHED_SECONDS if theme == "light" else 1000 * WATCHED_SECONDS // 3)
    # At the end, so that the overview repeats what is wrong by now.
    await page.goto(f"{address}/doctor?again=1")
    await page.goto(f"{address}/")
    await page.get_by_text("Live", exact=True).wait_for()
    suffix = "" if theme == "light" else "-dark"
    await page.screenshot(path=IMAGES / f"console-overview{suffix}.png")
    if theme == "dark":
        return
    await page.goto(f"{address}/dead-letters")
    await page.screenshot(
        path=IMAGES / "console-dead-letters.png", clip={"x": 0, "y": 0, "width": SIZE["width"], "height": 330}
    )
    await page.goto(f"{address}/dead-letters/rows?queue=shipments")
    await page.select_option("#scope", "all")
    await page.click("text=Replay…")
    await page.fill("#reason", "Atlantis has a carrier again")
    await page.screenshot(path=IMAGES / "console-replay.png")


if __name__ == "__main__":
    asyncio.run(main())
