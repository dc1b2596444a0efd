"""The pages of nodes, pools, jobs, decisions and drills, as people have them: in a real browser."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.browser_scene import BRAKE, LONG, PHONE, POOL, pooled, signed_in, violations
from tests.testkit.serving import Served

pytestmark = pytest.mark.asyncio(loop_scope="session")

_SCREENS: Mapping[str, Mapping[str, Any]] = {
    "desk": {},
    "phone": PHONE,
    "dark": {"color_scheme": "dark"},
    "dark phone": {**PHONE, "color_scheme": "dark"},
    "plain": {"java_script_enabled": False},
}
screens = pytest.mark.parametrize("screen", _SCREENS.values(), ids=_SCREENS.keys())


async def _is_sound(page: Page, screen: Mapping[str, Any]) -> None:
    """Nothing is found by axe, nothing sticks out at the side, and no name is markup."""
    if not screen.get("java_script_enabled", True):
        return
    assert await violations(page) == []
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(width) == 0
    assert await page.locator("img").count() == 0


async def _to(page: Page, name: str) -> None:
    await page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
    await expect(page.get_by_role("navigation").locator("[aria-current]")).to_have_text(name)


@screens
async def test_nodes_are_searched_sorted_and_lead_to_each(
    browser: Browser, served: Served, screen: Mapping[str, Any]
) -> None:
    await pooled(served)
    page = await signed_in(browser, served, **screen)
    await _to(page, "Nodes")
    await expect(page.get_by_role("rowheader")).to_have_count(5)
    await _is_sound(page, screen)
    await page.get_by_label("which are").select_option("silent")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("rowheader")).to_have_text("silent")
    await page.get_by_label("which are").select_option("noticed")
    await page.get_by_label("With the words").fill("N3 zone-h")
    await page.get_by_label("by", exact=True).select_option("left")
    await page.get_by_label("by", exact=True).press("Tab")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("rowheader")).to_have_text("n3")
    await page.get_by_role("link", name="n3", exact=True).click()
    await expect(page.get_by_role("heading", name="Node n3")).to_be_visible()
    await expect(page.get_by_role("status")).to_contain_text("1 notice is active.")
    await expect(page.get_by_role("cell", name="metadata").first).to_be_visible()
    await _is_sound(page, screen)
    await page.get_by_role("link", name=POOL).click()
    await expect(page.get_by_role("heading", name=f"Capacity pool {POOL}")).to_be_visible()


@screens
async def test_a_node_of_an_ugly_name_has_a_page(browser: Browser, served: Served, screen: Mapping[str, Any]) -> None:
    await pooled(served)
    page = await signed_in(browser, served, **screen)
    await page.goto(f"{served.peers.http}/status/nodes/{quote(BRAKE, safe='')}")
    await expect(page.get_by_role("heading", name=f"Node {BRAKE}")).to_be_visible()
    await expect(page.get_by_role("link", name=LONG).first).to_be_visible()
    await _is_sound(page, screen)
    await page.goto(f"{served.peers.http}/status/nodes/nobody")
    await expect(page.get_by_role("heading", name="No such node")).to_be_visible()
    await _is_sound(page, screen)


@screens
async def test_pools_have_a_chart_and_lead_to_nodes(
    browser: Browser, served: Served, screen: Mapping[str, Any]
) -> None:
    await pooled(served)
    page = await signed_in(browser, served, **screen)
    await _to(page, "Pools")
    await expect(page.get_by_role("rowheader", name=POOL)).to_be_visible()
    await _is_sound(page, screen)
    await page.get_by_role("link", name=POOL).click()
    await expect(page.get_by_role("status")).to_contain_text("2 notices in the last 48 hours")
    await expect(page.get_by_role("img", name="Notices of each day")).to_be_visible()
    await _is_sound(page, screen)
    await page.get_by_text("As a table").click()
    await expect(page.locator("details tbody tr").first).to_contain_text("2")
    await _is_sound(page, screen)
    await page.get_by_role("link", name="silent", exact=True).click()
    await expect(page.get_by_role("heading", name="Node silent")).to_be_visible()


@screens
async def test_jobs_are_searched_by_phase(browser: Browser, served: Served, screen: Mapping[str, Any]) -> None:
    await pooled(served)
    page = await signed_in(browser, served, **screen)
    await _to(page, "Jobs")
    await expect(page.get_by_role("rowheader")).to_have_count(2)
    await _is_sound(page, screen)
    await page.get_by_label("in the phase").select_option("Suspended")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("rowheader")).to_have_text("small")
    await page.get_by_label("in the namespace").fill("nobody")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_text("None of the jobs, out of 2.")).to_be_visible()
    await _is_sound(page, screen)


@screens
async def test_a_decision_has_a_page(browser: Browser, served: Served, screen: Mapping[str, Any]) -> None:
    await pooled(served)
    page = await signed_in(browser, served, **screen)
    section = page.locator("section[aria-labelledby=groups]")
    await expect(section.get_by_role("row")).to_have_count(4)  # Later ones would move the links.
    row = section.get_by_role("row").filter(has_text="saved at step 41")
    await row.get_by_role("link").last.click()
    await expect(page.get_by_role("heading", name="Decision about small")).to_be_visible()
    await expect(page.get_by_role("status")).to_contain_text("stopped")
    await expect(page.get_by_text(re.compile("Rank 0 saved a checkpoint at step 41")).first).to_be_visible()
    await expect(page.get_by_role("link", name="node n3").first).to_be_visible()
    await _is_sound(page, screen)
    await page.get_by_role("link", name="small", exact=True).click()
    await expect(page.get_by_role("heading", name="Job small")).to_be_visible()
    await page.get_by_role("link", name=re.compile("^stopped")).click()
    await expect(page.get_by_role("heading", name="Decision about small")).to_be_visible()


@screens
async def test_drills_have_a_page(browser: Browser, served: Served, screen: Mapping[str, Any]) -> None:
    await pooled(served)
    page = await signed_in(browser, served, **screen)
    await _to(page, "Drills")
    await expect(page.get_by_role("rowheader", name="node n1")).to_be_visible()
    await expect(page.get_by_text("job-supervisor simulate NODE --lead 120")).to_be_visible()
    await _is_sound(page, screen)


async def test_a_head_sorts_and_the_filter_of_the_page_helps_with_the_rows(browser: Browser, served: Served) -> None:
    await pooled(served)
    page = await signed_in(browser, served)
    await _to(page, "Nodes")
    head = page.get_by_role("columnheader", name="Node")
    await expect(head).to_have_attribute("aria-sort", "ascending")
    await head.get_by_role("link").click()
    await expect(head).to_have_attribute("aria-sort", "descending")
    await expect(page.get_by_role("rowheader").first).to_have_text("silent")
    await page.get_by_label("Filter rows").fill("n2")
    await expect(page.get_by_role("rowheader")).to_have_text("n2")


async def test_the_overview_says_what_each_job_does(browser: Browser, served: Served) -> None:
    await pooled(served)
    page = await signed_in(browser, served)
    row = page.get_by_role("row").filter(has_text="nothing to do: it is Suspended")
    await expect(row).to_have_count(1)
    await row.get_by_role("link", name="node n3").click()
    await expect(page.get_by_role("heading", name="Node n3")).to_be_visible()
