from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.browser_chromium import browsing, chromium
from tests.testkit.packages import PackageUnavailable


@pytest.fixture(scope="session")
def program() -> str:
    try:
        return chromium()
    except PackageUnavailable as reason:
        pytest.skip(str(reason))


@pytest_asyncio.fixture
async def browser(program: str) -> AsyncIterator[Browser]:
    async with browsing(program) as one:
        yield one
