"""What agents announce while nothing can be made durable: shown to the processes concerned, and never decided on.

Known from the streams alone, and gone with the stream that said it: its agent says it again in its next hello.
"""

import asyncio
from collections.abc import Callable, Collection

from servicekit.clock import Clock
from supervisor.domain.ids import NoticeId
from supervisor.domain.notice import NoticeState, ReclaimNotice


class UnconfirmedNotices:
    """The notices that wait to be made durable, as they would be.

    Args:
        on_change: Called after every change.
        clock: The supervisor's.

    Attributes:
        version: Grows with every change.
        caught_up_at: When the last one that had waited became durable (Unix seconds; 0 = none has yet).
    """

    def __init__(self, on_change: Callable[[], None], clock: Clock) -> None:
        self._notices: dict[NoticeId, tuple[object, ReclaimNotice]] = {}
        self._on_change = on_change
        self._clock = clock
        self._next_durable = asyncio.Event()
        self.version = 0
        self.caught_up_at = 0.0

    def all(self) -> Collection[ReclaimNotice]:
        """All that are announced."""
        return [notice for _, notice in self._notices.values()]

    def __contains__(self, key: object) -> bool:
        return key in self._notices

    def put(self, stream: object, key: NoticeId, notice: ReclaimNotice | None) -> None:
        """What a stream's last word on a subject would make of its notice; only an announcement is anything to show."""
        if notice is not None and notice.state is NoticeState.ACTIVE:
            self._notices[key] = (stream, notice)
            self._moved()
        else:
            self.drop(stream, key)

    def durable(self, stream: object, key: NoticeId) -> None:
        """What waited is durable: so can be what else waits, and it belongs together."""
        self.caught_up_at = self._clock.now()
        self.drop(stream, key)
        self._next_durable.set()
        self._next_durable = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Returns once anything that waited has become durable, or after so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._next_durable.wait()
        except TimeoutError:
            pass

    def drop(self, stream: object, key: NoticeId) -> None:
        """It is not so any more."""
        if key in self._notices and self._notices[key][0] is stream:
            del self._notices[key]
            self._moved()

    def end(self, stream: object) -> None:
        """The stream has ended."""
        for key in [key for key, (said_by, _) in self._notices.items() if said_by is stream]:
            self.drop(stream, key)

    def _moved(self) -> None:
        self.version += 1
        self._on_change()
