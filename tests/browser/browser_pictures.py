"""Pictures of the status page for docs/images/, from a real replay: real services, agents and two training jobs.

Run as a module: writes them, and prints their sizes.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, expect

from simulator.cloud.schedule import SchedulePace, plan
from simulator.cloud.trace import DEFAULT_TRACE, cut, load
from simulator.demo import DEFAULT_FROM_SECONDS, DEFAULT_TO_SECONDS
from simulator.harness import ReplayWorld, world
from simulator.services import ServedJobPlan
from simulator.status import ReadStatus
from supervisor.identity.tokens import Operator
from tests.browser.browser_chromium import browsing, chromium
from tests.testkit.pictures import DIRECTORY, small

MAX_BYTES = 200_000

_DESK: Mapping[str, Any] = {"viewport": {"width": 1120, "height": 900}}
_PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
_PICTURES: Mapping[str, Mapping[str, Any]] = {
    "status-page-light.png": {**_DESK, "color_scheme": "light"},
    "status-page-dark.png": {**_DESK, "color_scheme": "dark"},
    "status-page-phone.png": {**_PHONE, "color_scheme": "light"},
}
_PAGES: Mapping[str, str] = {
    "status-page-job.png": "status/jobs/llm",
    "status-page-node.png": "status/nodes/{node}",
    "status-page-report.png": "status/report?span=24h",
    "status-page-drain.png": "status/actions/drain?node={node}",
}
"""Further pages, as somebody sees them who may ask for something; `{node}` has a notice."""

_LONG_STEPS = 100_000
# Of the 24 nodes of that cut ten are lost, in three groups: one of these two jobs is left with too few.
# They report their checkpoints, as scripts should.
_JOBS = (
    ServedJobPlan(name="resnet", min_workers=6, max_workers=14, steps=_LONG_STEPS, job_arguments=("--say-steps",)),
    ServedJobPlan(name="llm", min_workers=8, max_workers=10, steps=_LONG_STEPS, job_arguments=("--say-steps",)),
)
_DECISIONS = "section[aria-labelledby=groups]"
"""The last section in the pictures of a wide window."""

_GROUPS = 4
"""Both jobs have lost hosts twice by then."""

_PATIENCE_SECONDS = 180.0


async def take(directory: Path) -> list[Path]:
    """Takes all pictures within a moment, when one job was suspended and the other goes on with fewer hosts."""
    schedule = plan(cut(load(DEFAULT_TRACE), DEFAULT_FROM_SECONDS, DEFAULT_TO_SECONDS), SchedulePace(withdrawal=False))
    with tempfile.TemporaryDirectory(prefix="pictures-") as root:
        async with world(Path(root), schedule.present) as one, browsing(chromium()) as browser:
            for job in _JOBS:
                await _trains(one, job)
            pages = {name: await _opened(browser, one, look) for name, look in _PICTURES.items()}
            replay = asyncio.create_task(one.replay(schedule), name="replay")
            try:
                await one.until(_worth_it, "a job that was suspended", _PATIENCE_SECONDS)
                for page in pages.values():
                    await expect(page.locator(f"{_DECISIONS} tbody tr")).to_have_count(_GROUPS, timeout=20_000)
                taken = [await _pictured(page, directory / name) for name, page in pages.items()]
                return taken + await _others(browser, one, directory)
            finally:
                replay.cancel()
                with suppress(asyncio.CancelledError):
                    await replay


async def _trains(one: ReplayWorld, job: ServedJobPlan) -> None:
    await one.until_training(one.start_job(job), job.max_workers, _PATIENCE_SECONDS)


def _worth_it(status: ReadStatus) -> bool:
    suspended = any(job.phase == "Suspended" for job in status.jobs)
    return suspended and any(notice.state == "active" for notice in status.notices)


async def _opened(browser: Browser, one: ReplayWorld, look: Mapping[str, Any]) -> Page:
    page = await (await browser.new_context(**look)).new_page()
    await page.goto(one.supervisor.endpoints.http + "/")
    await page.get_by_label("Viewer token").fill(one.supervisor.tokens().viewer())
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("#content")).to_be_attached()
    return page


async def _others(browser: Browser, one: ReplayWorld, directory: Path) -> list[Path]:
    """Takes the further pages, as far as a window shows them."""
    node = next(notice.subject for notice in (await one.status()).notices if notice.state == "active")
    page = await (await browser.new_context(**_DESK)).new_page()
    url = one.supervisor.endpoints.http
    await page.goto(one.supervisor.tokens().link(Operator(name="ann"), url, time.time(), 60.0))
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("#content")).to_be_attached()
    taken = []
    for name, address in _PAGES.items():
        await page.goto(f"{url}/{address.format(node=node)}")
        png = await page.screenshot()
        await asyncio.to_thread((directory / name).write_bytes, small(png))
        taken.append(directory / name)
    return taken


async def _pictured(page: Page, path: Path) -> Path:
    """Takes what a phone shows at once, but of a wide window all down to the recent decisions."""
    wide, high = await page.evaluate("[window.innerWidth, window.innerHeight]")
    if wide == _DESK["viewport"]["width"]:
        high = await page.locator(_DECISIONS).evaluate("it => it.getBoundingClientRect().bottom + 16")
    png = await page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": wide, "height": high})
    await asyncio.to_thread(path.write_bytes, small(png))
    return path


def main() -> int:
    """Writes them; fails where one is too large for a repository."""
    DIRECTORY.mkdir(exist_ok=True)
    taken = asyncio.run(take(DIRECTORY))
    for path in taken:
        sys.stdout.write(f"{path.name} {path.stat().st_size} bytes\n")
    return int(any(path.stat().st_size > MAX_BYTES for path in taken))


if __name__ == "__main__":
    sys.exit(main())
