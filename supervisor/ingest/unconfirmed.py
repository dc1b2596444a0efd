"""Notices that cannot be stored at present. The affected processes are told about them, but no decision uses them.

They end with the stream that announced them: the agent repeats them in its next hello.
"""

import asyncio
from collections.abc import Callable, Collection

from servicekit.clock import Clock
from supervisor.domain.ids import NoticeId
from supervisor.domain.notice import NoticeState, ReclaimNotice


class UnconfirmedNotices:
    """The notices that wait to be stored, with the values that they will have.

    Args:
        on_change: Called after every change.
        clock: The supervisor's clock.

    Attributes:
        version: Grows with every change.
        caught_up_at: When a waiting notice was last stored (Unix seconds; 0: never).
    """

    def __init__(self, on_change: Callable[[], None], clock: Clock) -> None:
        self._notices: dict[NoticeId, tuple[object, ReclaimNotice]] = {}
        self._on_change = on_change
        self._clock = clock
        self._next_durable = asyncio.Event()
        self.version = 0
        self.caught_up_at = 0.0

    def all(self) -> Collection[ReclaimNotice]:
        """All waiting notices."""
        return [notice for _, notice in self._notices.values()]

    def __contains__(self, key: object) -> bool:
        return key in self._notices

    def put(self, stream: object, key: NoticeId, notice: ReclaimNotice | None) -> None:
        """Sets the value that a stream's last report gives a notice; only an active one is kept."""
        if notice is not None and notice.state is NoticeState.ACTIVE:
            self._notices[key] = (stream, notice)
            self._notify()
        else:
            self.drop(stream, key)

    def durable(self, stream: object, key: NoticeId) -> None:
        """Removes a notice that was stored; wakes `wait`, as the other notices can probably be stored as well."""
        self.caught_up_at = self._clock.now()
        self.drop(stream, key)
        self._next_durable.set()
        self._next_durable = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Waits until a waiting notice has been stored, or for that long."""
        try:
            async with asyncio.timeout(seconds):
                await self._next_durable.wait()
        except TimeoutError:
            pass

    def drop(self, stream: object, key: NoticeId) -> None:
        """Removes a notice of this stream."""
        if key in self._notices and self._notices[key][0] is stream:
            del self._notices[key]
            self._notify()

    def end(self, stream: object) -> None:
        """Removes all notices of a stream that has ended."""
        for key in [key for key, (owner, _) in self._notices.items() if owner is stream]:
            self.drop(stream, key)

    def _notify(self) -> None:
        self.version += 1
        self._on_change()
