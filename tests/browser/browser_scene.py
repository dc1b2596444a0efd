"""A supervisor with jobs and notices, and a browser that signs in to its status page."""

from typing import Any

from playwright.async_api import Browser, Page, expect

from tests.testkit.serving import Served
from tests.testkit.waiting import PATIENCE, until

BRAKE = '<img/src=x/onerror="document.title=1">'
LONG = "a-job-of-a-very-long-name-" * 8 + "x"
NODES = ["n1", "n2", "n3"]
_MILLISECONDS = PATIENCE * 1000

expect.set_options(timeout=_MILLISECONDS)


async def signed_in(browser: Browser, served: Served, token: str | None = None, **context: Any) -> Page:
    """A page on which somebody has just signed in, with the keyboard alone."""
    page = await (await browser.new_context(**context)).new_page()
    page.set_default_timeout(_MILLISECONDS)
    await page.goto(served.peers.http + "/")
    # The browser puts the cursor there when it has drawn the page, a moment after it was loaded.
    await expect(page.get_by_label("Viewer token")).to_be_focused()
    await page.keyboard.insert_text(token or served.peers.tokens.viewer())
    await page.keyboard.press("Enter")
    await expect(page.locator("#content")).to_be_attached()
    return page


async def reclaimed(served: Served) -> None:
    """Two jobs; one loses a host of an ugly name and goes on, the other is stopped, saved and suspended."""
    agents = await served.peers.agents([*NODES, BRAKE])
    await served.peers.running(LONG, ["n1", BRAKE], min_workers=1)
    _, order = await served.peers.running("small", ["n2", "n3"])
    process = await served.peers.process(order["token"], "n2", rank=0)
    await agents[BRAKE].notices(BRAKE, left=90.0)
    await agents["n3"].notices("n3", left=120.0)
    await process.reports("saved", await process.lines.matching(directive="STOP"), step=41)
    await until(lambda: served.job("small").decision.phase == "Suspended" and served.job(LONG).decision.exclusions)
