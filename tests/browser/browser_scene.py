"""A supervisor with jobs and notices, and a browser that signs in to its status page."""

from typing import Any

from axe_playwright_python.base import AXE_FILE_PATH  # type: ignore[import-untyped]  # It has no stubs.
from playwright.async_api import Browser, Page, expect
from reclaim.v1 import reclaim_pb2 as wire

from tests.testkit.serving import AgentPeer, Served
from tests.testkit.waiting import PATIENCE, until

BRAKE = '<img/src=x/onerror="document.title=1">'
LONG = "a-job-of-a-very-long-name-" * 8 + "x"
NODES = ["n1", "n2", "n3"]
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
POOL = "aliyun/zone-h/gn7"
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


async def reclaimed(served: Served, **hello: Any) -> dict[str, AgentPeer]:
    """Two jobs; one loses a host of an ugly name and goes on, the other is stopped, saved and suspended.

    `hello` are fields of the agents' hellos; returns the agents.
    """
    agents = {node: await served.peers.agent(node, **hello) for node in [*NODES, BRAKE]}
    await served.peers.running(LONG, ["n1", BRAKE], min_workers=1)
    _, order = await served.peers.running("small", ["n2", "n3"])
    process = await served.peers.process(order["token"], "n2", rank=0)
    await agents[BRAKE].notices(BRAKE, left=90.0)
    await agents["n3"].notices("n3", left=120.0)
    await process.reports("saved", await process.lines.matching(directive="STOP"), step=41)
    await until(lambda: served.job("small").decision.phase == "Suspended" and served.job(LONG).decision.exclusions)
    return agents


async def pooled(served: Served) -> None:
    """As `reclaimed`, with the machines of all nodes in one pool, and another node that falls silent."""
    machine = wire.Machine(cloud="aliyun", zone="zone-h", instance_type="gn7", price_class=wire.PRICE_CLASS_SPOT)
    await reclaimed(served, machine=machine)
    silent = await served.peers.agent("silent", machine=machine)
    silent.call.cancel()
    await served.agent_is("silent", connected=False)
    operator = served.peers.tokens.operator("ann")
    assert (await served.peers.post("/v1/drills", operator, {"node": "n1", "lead_seconds": 600})).status == 200

    await until(lambda: served.job(LONG).decision.phase == "Stopping")

    async def recorded() -> bool:
        address = f"{served.peers.http}/v1/history?source=simulated"
        viewer = {"Authorization": f"Bearer {served.peers.tokens.viewer()}"}
        async with served.peers.session.get(address, headers=viewer) as answer:
            return bool((await answer.json())["entries"])

    # The pages of the past do not follow what happens, and the record is written a moment later.
    await until(recorded, "the record has all of that")


async def violations(page: Page) -> list[str]:
    """What axe finds, of the rules of WCAG 2.2 AA and of good practice."""
    # In the page's own world a policy forbids foreign scripts; this is no script of the page.
    await page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8") + "; null")
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"{each['id']}: {[node['html'] for node in each['nodes']]}" for each in found["violations"]]
