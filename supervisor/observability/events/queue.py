"""The bounded queue of Events, which keeps the latest draft of each topic, and the rate limit."""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from supervisor.observability.events.event import EventDraft, Priority, Topic


class SendResult(StrEnum):
    """What happened to a draft.

    Attributes:
        SENT: A new Event was created.
        AGGREGATED: It incremented the count of an existing Event, or a later draft replaced it.
        DROPPED: It was never sent, because the queue was full or it had waited too long.
        FAILED: The API server refused it.
    """

    SENT = "sent"
    AGGREGATED = "aggregated"
    DROPPED = "dropped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """A draft that is to be sent, and how often it was repeated."""

    draft: EventDraft
    times: int = 1


class EventQueue:
    """Returns drafts by priority, and within a priority in the order in which their topics arrived.

    Args:
        max_length: The most topics that wait in each priority; beyond it the oldest is dropped.
    """

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._queues: dict[Priority, OrderedDict[Topic, PendingEvent]] = {
            priority: OrderedDict() for priority in sorted(Priority)
        }

    def put(self, draft: EventDraft) -> SendResult | None:
        """Adds a draft, in place of an earlier one of its topic; returns the result of a draft that is not sent."""
        priority = self._queues[draft.priority]
        before = priority.get(draft.topic)
        if before is not None:
            again = before.draft.aggregation_key == draft.aggregation_key
            priority[draft.topic] = PendingEvent(draft, before.times + 1 if again else 1)
            return SendResult.AGGREGATED
        priority[draft.topic] = PendingEvent(draft)
        if len(priority) <= self._max_length:
            return None
        # The oldest is dropped: people ask about what happens now.
        priority.popitem(last=False)
        return SendResult.DROPPED

    def take(self) -> PendingEvent | None:
        """Removes and returns the next draft."""
        priority = next((priority for priority in self._queues.values() if priority), None)
        return None if priority is None else priority.popitem(last=False)[1]

    def give_back(self, pending: PendingEvent) -> SendResult | None:
        """Puts back a draft that could not be sent, as the first; returns its result if a later one has replaced it."""
        priority, topic = self._queues[pending.draft.priority], pending.draft.topic
        latest = priority.get(topic)
        if latest is None:
            priority[topic] = pending
            priority.move_to_end(topic, last=False)
            return None
        if latest.draft.aggregation_key == pending.draft.aggregation_key:
            priority[topic] = PendingEvent(latest.draft, latest.times + pending.times)
        return SendResult.AGGREGATED

    def __bool__(self) -> bool:
        return any(self._queues.values())


class TokenBucket:
    """A rate limit: `burst` tokens at first, and `rate` more each second."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at: float | None = None

    def take(self, now: float) -> float:
        """Takes a token and returns 0, or returns the seconds until the next token; `now` must be monotonic."""
        self._left = min(self._burst, self._left + (0.0 if self._at is None else now - self._at) * self._rate)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate
