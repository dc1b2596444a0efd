"""Debian's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright

from tests.testkit.packages import PackageUnavailable, require

_PROGRAM = "chromium"
_ARGUMENTS = (
    "--no-sandbox",  # Which root cannot have, and what it opens is our own.
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """Return Chromium's path; install it where it is missing and can be installed.

    Raises:
        PackageUnavailable: This machine has none.
    """
    if shutil.which(_PROGRAM) is None:
        if os.geteuid() != 0:
            raise PackageUnavailable("there is no chromium, and only root can install it")
        require({_PROGRAM: _PROGRAM})
    found = shutil.which(_PROGRAM)
    if found is None:
        raise PackageUnavailable("chromium was installed and cannot be found")
    return found


@asynccontextmanager
async def browsing(program: str) -> AsyncIterator[Browser]:
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()
