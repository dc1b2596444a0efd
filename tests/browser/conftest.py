from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.browser_chromium import browsing, chromium
from tests.testkit.packages import PackageUnavailable
from tests.testkit.serving import Served, serving


@pytest.fixture(scope="session")
def program() -> str:
    try:
        return chromium()
    except PackageUnavailable as reason:
        pytest.skip(str(reason))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running_browser(program: str) -> AsyncIterator[Browser]:
    """One Chromium for all tests of a process, as its start costs more than most of them."""
    async with browsing(program) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def browser(running_browser: Browser) -> AsyncIterator[Browser]:
    """The browser, without windows or cookies of other tests."""
    yield running_browser
    for context in running_browser.contexts:
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A supervisor that serves in the browser's event loop."""
    async with serving(tmp_path) as supervisor:
        yield supervisor
