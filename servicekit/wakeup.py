"""Level-triggered loops: sleep until something changed or a time has come."""

import asyncio


class Wakeup:
    """Remembers that there is something to look at; setting it twice is setting it once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        """Whether the next `wait` returns at once."""
        return self._event.is_set()

    def set(self) -> None:
        """Wakes the loop that waits, or keeps it from waiting the next time."""
        self._event.set()

    def clear(self) -> None:
        """Forgets that it was set."""
        self._event.clear()

    async def wait(self, seconds: float | None = None) -> None:
        """Returns once set, or after that many seconds (None = only when set), and is unset again."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            pass
        self.clear()


class Notifier:
    """Wakes all loops that depend on the same facts, without their writers knowing the loops."""

    def __init__(self) -> None:
        self._wakeups: list[Wakeup] = []

    def subscribe(self) -> Wakeup:
        """Returns a wakeup that is set with every change from now on."""
        wakeup = Wakeup()
        self._wakeups.append(wakeup)
        return wakeup

    def notify(self) -> None:
        """Wakes all loops: a fact has changed."""
        for wakeup in self._wakeups:
            wakeup.set()
