"""Level-triggered loops: sleep until something changed or a time has come."""

import asyncio


class Wakeup:
    """Remembers that there is something to look at; setting it twice is setting it once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """There is something to look at."""
        self._event.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Returns once set, or after that many seconds (None = only when set), and is unset again."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()
