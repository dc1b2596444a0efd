"""What agents announce while nothing can be made durable: shown to the processes concerned, and never decided on.

Known from the streams alone, and gone with the stream that said it: its agent says it again in its next hello.
"""

from collections.abc import Callable, Collection

from supervisor.domain.ids import NoticeId
from supervisor.domain.notice import NoticeState, ReclaimNotice


class Unconfirmed:
    """The notices that wait to be made durable, as they would be.

    Args:
        changed: Called after every change.

    Attributes:
        version: Grows with every change.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._notices: dict[NoticeId, tuple[object, ReclaimNotice]] = {}
        self._changed = changed
        self.version = 0

    def all(self) -> Collection[ReclaimNotice]:
        """All that are announced."""
        return [notice for _, notice in self._notices.values()]

    def put(self, stream: object, key: NoticeId, notice: ReclaimNotice | None) -> None:
        """What a stream's last word on a subject would make of its notice; only an announcement is anything to show."""
        if notice is not None and notice.state is NoticeState.ACTIVE:
            self._notices[key] = (stream, notice)
            self._moved()
        else:
            self.drop(stream, key)

    def drop(self, stream: object, key: NoticeId) -> None:
        """It is durable, or not so any more."""
        if key in self._notices and self._notices[key][0] is stream:
            del self._notices[key]
            self._moved()

    def end(self, stream: object) -> None:
        """The stream has ended."""
        for key in [key for key, (said_by, _) in self._notices.items() if said_by is stream]:
            self.drop(stream, key)

    def _moved(self) -> None:
        self.version += 1
        self._changed()
