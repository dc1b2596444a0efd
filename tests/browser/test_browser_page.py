"""The page as people have it: in a real browser."""

import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from playwright.async_api import Browser, expect
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.observability.page.rendering import NAVIGATION
from tests.browser.browser_scene import BRAKE, LONG, PHONE, reclaimed, signed_in, violations
from tests.testkit.serving import Served, serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

SMALL_PHONE = {"viewport": {"width": 320, "height": 568}, "is_mobile": True, "has_touch": True}


async def test_it_follows_what_happens_without_being_loaded_again(browser: Browser, served: Served) -> None:
    page = await signed_in(browser, served)
    await expect(page.get_by_role("status")).to_have_text("Nothing is being reclaimed, every worker is covered.")
    await page.evaluate("window.opened = 'once'")
    await reclaimed(served)
    await expect(page.get_by_role("status")).to_contain_text("2 reclaims under way")
    await expect(page.get_by_role("row", name="small Suspended")).to_contain_text("min 2")
    await expect(page.get_by_text("saved at step 41")).to_be_visible()
    assert await page.evaluate("window.opened") == "once"


async def test_countdowns_run_by_the_browsers_own_clock(browser: Browser, served: Served) -> None:
    """Also while the supervisor is silent, and whatever time the browser thinks it is."""
    await reclaimed(served)
    page = await signed_in(browser, served)
    left = page.locator("#content section[aria-labelledby=reclaims] [data-left]").first
    await expect(left).to_have_text(re.compile(r"1 min|\d+ s"))
    await page.route("**/status/stream", lambda route: route.abort())
    await page.clock.install(time=0)
    await page.clock.pause_at(1_000)  # It stands still but for what this test adds, however long that takes.
    await page.reload()
    said = float(await left.get_attribute("data-left") or "")
    await page.clock.fast_forward(10_000)
    await page.clock.run_for(1_000)
    text = await left.inner_text()
    assert abs(said - 11 - seconds(text)) <= 1
    assert float(await left.get_attribute("data-left") or "") == said
    await page.clock.fast_forward(round(1000 * (said - 11)))
    await page.clock.run_for(1_000)
    await expect(left).to_have_text("now")
    await page.clock.fast_forward(200_000)
    await page.clock.run_for(1_000)
    await expect(left).to_have_text(re.compile(r"was due 3 min \d\d s ago"))


async def test_what_is_over_is_called_as_the_supervisor_calls_it(browser: Browser, served: Served) -> None:
    """Only what has a time of its own can be overdue: a node is drained once the time for that is over."""
    machine = wire.Machine(zone="z", instance_type="t", protected_seconds=60.0)
    for node in ("n1", "n2"):
        await served.peers.agent(node, machine=machine)
    await served.peers.running("train", ["n1", "n2"], min_workers=1)
    asked = {"node": "n2", "lead_seconds": 60}
    assert (await served.peers.post("/v1/drains", served.peers.tokens.operator("ann"), asked)).status == 200
    page = await signed_in(browser, served)
    row = page.get_by_role("row", name="node n2")
    await expect(row.locator("[data-left]").first).to_have_text(re.compile(r"\d+ s"))
    # The supervisor falls silent once a page is loaded.
    await page.route("**", lambda asked: asked.abort() if asked.request.resource_type == "fetch" else asked.continue_())
    await page.clock.install(time=0)
    await page.clock.pause_at(1_000)
    for path, shown in (
        ("", ["drained", "now"]),
        ("status/nodes", ["drained"]),
        ("status/nodes/n2", ["0 s", "drained"]),
    ):
        await page.goto(f"{served.peers.http}/{path}")
        await page.clock.fast_forward(120_000)
        await page.clock.run_for(1_000)
        assert await page.locator("[data-left]").all_inner_texts() == shown


def seconds(text: str) -> int:
    """Of `1 min 05 s` or `42 s`."""
    minutes, rest = re.fullmatch(r"(?:(\d+) min )?(\d+) s", text).groups()  # type: ignore[union-attr]  # Then it fails.
    return int(minutes or 0) * 60 + int(rest)


async def test_it_can_be_read_without_scripts(browser: Browser, served: Served) -> None:
    page = await signed_in(browser, served, java_script_enabled=False)
    await expect(page.get_by_text("No reclaim notices.")).to_be_visible()
    await reclaimed(served)
    await expect(page.get_by_role("status")).to_contain_text("2 reclaims under way")


@pytest.mark.parametrize("phone", [PHONE, SMALL_PHONE], ids=["phone", "small phone"])
async def test_a_phone_shows_all_of_it_without_scrolling_sideways(
    browser: Browser, served: Served, phone: dict[str, Any]
) -> None:
    """Names of any length are broken, and each cell says what it is."""
    await reclaimed(served)
    page = await signed_in(browser, served, **phone)
    await expect(page.get_by_role("rowheader", name=LONG).first).to_be_visible()
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(width) == 0
    label = "getComputedStyle(document.querySelector('td.reason'), '::before').content"
    assert "Why" in await page.evaluate(label)


@pytest.mark.parametrize("phone", [PHONE, SMALL_PHONE], ids=["phone", "small phone"])
async def test_a_phone_shows_captions_in_lines(browser: Browser, served: Served, phone: dict[str, Any]) -> None:
    """While workers are not covered and something was refused: a caption is as wide as its table."""
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("small", ["n1", "n2"])
    await served.peers.post("/v1/launchers/stream", "forged", {})
    page = await signed_in(browser, served, **phone)
    for text in ("Workers that a reclaim would not reach in time", "Refused messages since the start"):
        caption = page.get_by_text(text)
        await expect(caption).to_be_visible()
        width, height, line = await caption.evaluate(
            "caption => [caption.offsetWidth / caption.parentElement.offsetWidth, caption.offsetHeight,"
            " parseFloat(getComputedStyle(caption).lineHeight)]"
        )
        assert width > 0.9
        assert height < 3 * line


async def test_rows_can_be_filtered(browser: Browser, served: Served) -> None:
    """Also those that come later; without scripts there is no filter."""
    await reclaimed(served)
    page = await signed_in(browser, served)
    await page.get_by_label("Filter rows").fill("Small SUSPENDED (min")
    await expect(page.get_by_role("row", name="small Suspended")).to_be_visible()
    await expect(page.get_by_role("rowheader", name=LONG)).to_have_count(0)
    await expect(page.get_by_text(re.compile(r"^1 of the \d+ rows on this page$"))).to_be_visible()
    agents = await served.peers.agents(["n9"])
    await agents["n9"].notices("n9", left=90.0)
    await expect(page.get_by_role("status")).to_contain_text("3 reclaims under way")
    await expect(page.get_by_text(re.compile(r"^1 of the \d+ rows on this page$"))).to_be_visible()
    assert await violations(page) == []
    await page.get_by_label("Filter rows").fill("")
    await expect(page.get_by_role("rowheader", name="node n9")).to_be_visible()
    plain = await signed_in(browser, served, java_script_enabled=False)
    await expect(plain.get_by_label("Filter rows")).to_be_hidden()


@pytest.mark.parametrize("screen", [{}, PHONE, {"color_scheme": "dark"}], ids=["desk", "phone", "dark"])
async def test_a_job_has_a_page(browser: Browser, served: Served, screen: dict[str, Any]) -> None:
    """The overview leads to it and it leads back; it follows what happens, and axe finds nothing on it."""
    await reclaimed(served)
    page = await signed_in(browser, served, **screen)
    await page.get_by_role("link", name="small").first.click()
    await expect(page.get_by_role("heading", name="Job small")).to_be_visible()
    await expect(page.get_by_role("status")).to_contain_text("Suspended")
    await expect(page.get_by_role("rowheader", name="n3").first).to_be_visible()
    await expect(page.get_by_text("Rank 0 saved a checkpoint at step 41.")).to_be_visible()
    wraps = await page.eval_on_selector_all("td.what", "cells => cells.map(each => getComputedStyle(each).whiteSpace)")
    assert set(wraps) == {"nowrap"}  # A word of the timeline is never broken.
    assert await violations(page) == []
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(width) == 0
    await page.evaluate("window.opened = 'once'")
    agents = await served.peers.agents(["n2"])
    await agents["n2"].notices("n2", left=90.0)
    await expect(page.get_by_role("rowheader", name="node n2")).to_be_visible()
    assert await page.evaluate("window.opened") == "once"
    await page.get_by_role("link", name="Now", exact=True).click()
    await expect(page.get_by_role("heading", name="Reclaims under way")).to_be_visible()


@pytest.mark.parametrize(
    "screen",
    [{}, PHONE, {"color_scheme": "dark"}, {"java_script_enabled": False}],
    ids=["desk", "phone", "dark", "plain"],
)
async def test_the_history_has_a_page(browser: Browser, served: Served, screen: dict[str, Any]) -> None:
    """The overview leads to it, its form asks for one subject, and it stays as it is while it is read."""
    await reclaimed(served)
    page = await signed_in(browser, served, **screen)
    has_scripts = screen.get("java_script_enabled", True)
    if has_scripts:
        await page.clock.install()
    await page.get_by_role("link", name="What happened").click()
    await expect(page.get_by_role("heading", name="What happened")).to_be_visible()
    await page.get_by_label("named").fill("small")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_text("Rank 0 saved a checkpoint at step 41.")).to_be_visible()
    await expect(page.get_by_role("link", name=LONG)).to_have_count(0)
    await page.get_by_role("link", name="node n3").first.click()
    await expect(page.get_by_label("Of the")).to_have_value("node")
    await expect(page.get_by_label("named")).to_have_value("n3")
    await expect(page.get_by_role("row").filter(has_text="noticed")).to_have_count(1)
    if has_scripts:
        assert await violations(page) == []
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(width) == 0
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.clock.run_for(60_000)
        assert asked == []
        await expect(page.get_by_role("alert")).to_be_hidden()
    await page.get_by_role("link", name="Now", exact=True).click()
    await expect(page.get_by_role("heading", name="Reclaims under way")).to_be_visible()


@pytest.mark.parametrize(
    "screen",
    [{}, PHONE, {"color_scheme": "dark"}, {"java_script_enabled": False}],
    ids=["desk", "phone", "dark", "plain"],
)
async def test_the_report_has_a_page(browser: Browser, served: Served, screen: dict[str, Any]) -> None:
    """It shows where the hours of all jobs went; a job leads to its own, and that to the history and the job."""
    await reclaimed(served)
    page = await signed_in(browser, served, **screen)
    await page.get_by_role("link", name="Where hours went").click()
    await expect(page.get_by_role("status")).to_contain_text("In the last 7 days, jobs wanted")
    await expect(page.get_by_role("rowheader", name=LONG)).to_be_visible()
    await expect(page.get_by_role("rowheader", name="unmeasured")).to_be_visible()
    if screen.get("java_script_enabled", True):
        assert await violations(page) == []
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(width) == 0
        parts = "bar => [...bar.children].reduce((sum, each) => sum + each.getBoundingClientRect().width, 0)"
        drawn = await page.locator("svg.bar").first.evaluate(parts)
        assert drawn == pytest.approx((await page.locator("svg.bar").first.bounding_box())["width"], rel=0.02)  # type: ignore[index]  # It is visible.
    await page.get_by_role("link", name="small", exact=True).click()
    await expect(page.get_by_label("Of the job")).to_have_value("small")
    await expect(page.get_by_role("rowheader", name=LONG)).to_have_count(0)
    await expect(page.get_by_role("rowheader", name="n3")).to_be_visible()
    if screen.get("java_script_enabled", True):
        assert await violations(page) == []
    await page.get_by_role("link", name="what happened to it").click()
    await expect(page.get_by_text("Rank 0 saved a checkpoint at step 41.")).to_be_visible()


@pytest.mark.parametrize("screen", [{}, PHONE, {"java_script_enabled": False}], ids=["desk", "phone", "no scripts"])
async def test_the_report_compares_a_job_with_other_policies(
    browser: Browser, served: Served, screen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page that waits for the comparison shows it by itself, and then stays as it is."""
    # Beside other tests, a process of the lowest priority would get no processor for minutes.
    monkeypatch.setattr(os, "setpriority", lambda *_: None)
    await reclaimed(served)
    page = await signed_in(browser, served, **screen)
    await page.goto(served.peers.http + "/status/report?job=small&span=24h")
    await page.get_by_role("button", name="Compare with other policies").click()
    await expect(page.get_by_text("The policies are being simulated")).to_be_visible()
    if screen.get("java_script_enabled", True):
        assert await violations(page) == []
    await expect(page.get_by_role("rowheader", name="a termination handler with SIGTERM")).to_be_visible()
    await expect(page.get_by_role("row", name="all on demand")).to_contain_text("100.0 %")
    await expect(page.get_by_text("Of what it wanted")).to_be_visible()
    if screen.get("java_script_enabled", True):
        await expect(page.locator("#content")).not_to_have_attribute("data-poll", "")
        assert await violations(page) == []
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(width) == 0


async def test_the_command_can_be_copied(browser: Browser, served: Served) -> None:
    await reclaimed(served)
    page = await signed_in(browser, served, permissions=["clipboard-read", "clipboard-write"])
    await page.goto(served.peers.http + "/status/jobs/small")
    await page.get_by_role("button", name="Copy").click()
    await expect(page.get_by_text("Copied.")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == "job-supervisor explain small"


async def test_it_is_light_or_dark_as_the_system_is(browser: Browser, served: Served) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = await signed_in(browser, served, color_scheme=scheme)
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        grounds.append(sum(int(part) for part in re.findall(r"\d+", ground)))
    light, dark = grounds
    assert light > 600
    assert dark < 150


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", [{}, PHONE], ids=["desk", "phone"])
async def test_axe_finds_nothing_on_the_page(
    browser: Browser, served: Served, scheme: str, screen: dict[str, Any]
) -> None:
    await reclaimed(served)
    page = await signed_in(browser, served, color_scheme=scheme, **screen)
    await expect(page.get_by_text("saved at step 41")).to_be_visible()
    assert await violations(page) == []
    await page.evaluate("document.getElementById('lost').hidden = false")
    assert await violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_on_the_form(browser: Browser, served: Served, scheme: str) -> None:
    page = await (await browser.new_context(color_scheme=scheme)).new_page()  # type: ignore[arg-type]  # It is one.
    await page.goto(served.peers.http + "/")
    assert await violations(page) == []
    await page.get_by_label("Viewer token").fill("nonsense")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("not issued by this supervisor")
    assert await violations(page) == []


async def test_the_keyboard_is_enough(browser: Browser, served: Served) -> None:
    page = await signed_in(browser, served)
    for name in NAVIGATION.values():
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name=name, exact=True)).to_be_focused()
    await page.keyboard.press("Tab")
    button = page.get_by_role("button", name="Sign out")
    await expect(button).to_be_focused()
    assert await button.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Viewer token")).to_be_focused()
    await page.goto(served.peers.http + "/")
    await expect(page.get_by_label("Viewer token")).to_be_visible()


async def test_nothing_is_asked_of_anybody_else(browser: Browser, served: Served) -> None:
    context = await browser.new_context()
    asked: list[str] = []
    said: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    context.on("console", lambda message: said.append(message.text))
    page = await context.new_page()
    await page.goto(served.peers.http + "/")
    await page.get_by_label("Viewer token").fill(served.peers.tokens.viewer())
    await page.get_by_role("button", name="Sign in").click()
    await reclaimed(served)
    await expect(page.get_by_role("status")).to_contain_text("2 reclaims under way")
    assert {url for url in asked if not url.startswith(served.peers.http + "/")} == set()
    assert any(url.endswith("/status/stream") for url in asked)
    # Chromium writes down that the first answer, the form, is a 401.
    assert [text for text in said if "401" not in text] == []


async def test_a_name_is_never_markup(browser: Browser, served: Served) -> None:
    """A host that calls itself a script is text, in what is loaded and in what is pushed."""
    page = await signed_in(browser, served)
    await reclaimed(served)
    for _ in range(2):
        await expect(page.get_by_role("rowheader", name=BRAKE).first).to_be_visible()
        assert await page.locator("img").count() == 0
        assert await page.title() == "Elastic job supervisor"
        await page.reload()


async def test_a_session_that_is_over_leads_back_to_the_form(browser: Browser, served: Served) -> None:
    # A busy machine needs some of it to sign in.
    page = await signed_in(browser, served, served.peers.tokens.viewer(time.time() + 15))
    await expect(page.get_by_label("Viewer token")).to_be_visible()


async def test_a_supervisor_that_is_away_is_said_to_be(browser: Browser, tmp_path: Path) -> None:
    """And when it is back the page goes on, without being loaded again."""
    async with serving(tmp_path) as served:
        address = served.peers.http.removeprefix("http://")
        page = await signed_in(browser, served)
        await page.evaluate("window.opened = 'once'")
        lost = page.get_by_text("The supervisor does not answer")
        # Only the script shows the field: without it, it would never look.
        await expect(page.get_by_label("Filter rows")).to_be_visible()
        await expect(lost).to_be_hidden()
    await expect(lost).to_be_visible()
    async with serving(tmp_path, http_address=address):
        await expect(lost).to_be_hidden()
    assert await page.evaluate("window.opened") == "once"


@asynccontextmanager
async def elsewhere(html: str) -> AsyncIterator[str]:
    app = web.Application()

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=html, content_type="text/html")

    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def test_another_origins_page_cannot_read_it_or_put_a_frame_around_it(browser: Browser, served: Served) -> None:
    page = await signed_in(browser, served)
    address = served.peers.http
    async with elsewhere(f'<iframe src="{address}/"></iframe>') as other:
        await page.goto(other)
        read = f"fetch('{address}/', {{credentials: 'include'}}).then(() => 'read', () => 'refused')"
        assert await page.evaluate(read) == "refused"
        (frame,) = [each for each in page.frames if each != page.main_frame]
        await frame.wait_for_load_state()
        assert frame.url == "chrome-error://chromewebdata/"
