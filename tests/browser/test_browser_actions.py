"""People ask for something in a real browser: with and without scripts, at a desk and on a phone."""

import time
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from supervisor.identity.tokens import Operator
from tests.browser.browser_scene import violations
from tests.testkit.serving import Served
from tests.testkit.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
_WAYS: dict[str, dict[str, Any]] = {
    "desktop": {},
    "dark": {"color_scheme": "dark"},
    "phone": _PHONE,
    "no-scripts": {"java_script_enabled": False},
}


async def _by_link(browser: Browser, served: Served, **context: Any) -> Page:
    """A page on which `ann` has signed in by a link."""
    page = await (await browser.new_context(**context)).new_page()
    await page.goto(served.peers.tokens.link(Operator(name="ann"), served.peers.http, time.time(), 60))
    await expect(page.get_by_role("heading", name="Sign in as ann")).to_be_visible()
    if context.get("java_script_enabled", True):
        assert await violations(page) == []
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    return page


@pytest.mark.parametrize("context", _WAYS.values(), ids=_WAYS)
async def test_a_job_is_suspended(browser: Browser, served: Served, context: dict[str, Any]) -> None:
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("train", ["n1", "n2"])
    page = await _by_link(browser, served, **context)
    await page.get_by_role("link", name="train").first.click()
    await page.get_by_role("link", name="Suspend").click()
    await expect(page.get_by_text("stays suspended until somebody resumes it")).to_be_visible()
    await page.get_by_label("Why (for people)").fill("new data")
    await expect(page.get_by_label("Filter rows")).to_be_hidden()
    if context.get("java_script_enabled", True):
        assert await violations(page) == []
    await page.get_by_role("button", name="Suspend job").click()
    await expect(page.get_by_role("heading", name="Job train")).to_be_visible()
    await expect(page.get_by_text("ann has suspended the job: new data").first).to_be_visible()
    request = served.job("train").observed.request
    assert request is not None
    assert request.reason == "new data"


@pytest.mark.parametrize("context", _WAYS.values(), ids=_WAYS)
async def test_a_drill_is_held(browser: Browser, served: Served, context: dict[str, Any]) -> None:
    await served.peers.agents(["n1", "n2", "n3"])
    await served.peers.running("train", ["n1", "n2", "n3"], min_workers=1)
    page = await _by_link(browser, served, **context)
    await page.get_by_role("link", name="Hold a drill").click()
    await page.get_by_label("Node", exact=True).fill("n2")
    await page.get_by_label("Minutes").fill("3")
    await page.get_by_role("button", name="Hold a drill on node").click()
    await expect(page.get_by_text("ann began a drill on it, 3 minutes ahead on the page.")).to_be_visible()
    await until(lambda: served.job("train").decision.exclusions == {"n2"})


async def test_what_cannot_be_done_is_said_where_it_was_asked_for(browser: Browser, served: Served) -> None:
    page = await _by_link(browser, served)
    await page.get_by_role("link", name="Drain a node").click()
    await page.get_by_label("Node", exact=True).fill("n9")
    await page.get_by_label("Why (for people)").fill("disk")
    await page.get_by_role("button", name="Drain node").click()
    await expect(page.get_by_role("alert").filter(has_text="No agent of such a node is known.")).to_be_visible()
    await expect(page.get_by_label("Why (for people)")).to_have_value("disk")


async def test_a_link_signs_one_browser_in(browser: Browser, served: Served) -> None:
    link = served.peers.tokens.link(Operator(name="ann"), served.peers.http, time.time(), 60)
    first, second = [await (await browser.new_context()).new_page() for _ in range(2)]
    for page in (first, second):
        await page.goto(link)
    await first.get_by_role("button", name="Sign in").click()
    await expect(first.get_by_role("link", name="Drain a node")).to_be_visible()
    await second.get_by_role("button", name="Sign in").click()
    await expect(second.get_by_role("alert")).to_contain_text("a link that was used before")
