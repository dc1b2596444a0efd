"""What waits to be sent: bounded, the latest of each topic, and no more of it at once than a rate allows."""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from supervisor.observability.events.event import EventDraft, Priority, Topic


class SendResult(StrEnum):
    """What became of something to say.

    An Event of its own; counted into one that is there, or replaced by what was to be said later; never sent because
    there was too much, or it had waited for too long; refused by the API server.
    """

    SENT = "sent"
    AGGREGATED = "aggregated"
    DROPPED = "dropped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """Something to say, `times` over."""

    draft: EventDraft
    times: int = 1


class EventQueue:
    """By rank, in the order in which their topics came.

    Args:
        most: Of each rank.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ranks: dict[Priority, OrderedDict[Topic, PendingEvent]] = {
            rank: OrderedDict() for rank in sorted(Priority)
        }

    def put(self, draft: EventDraft) -> SendResult | None:
        """Takes it in, in the place of what was to be said of its topic; what became of one that is not sent for it."""
        rank = self._ranks[draft.rank]
        before = rank.get(draft.topic)
        if before is not None:
            again = before.draft.aggregation_key == draft.aggregation_key
            rank[draft.topic] = PendingEvent(draft, before.times + 1 if again else 1)
            return SendResult.AGGREGATED
        rank[draft.topic] = PendingEvent(draft)
        if len(rank) <= self._most:
            return None
        # The oldest: what happens now is what people ask about.
        rank.popitem(last=False)
        return SendResult.DROPPED

    def take(self) -> PendingEvent | None:
        """What is to be said next."""
        rank = next((rank for rank in self._ranks.values() if rank), None)
        return None if rank is None else rank.popitem(last=False)[1]

    def give_back(self, due: PendingEvent) -> SendResult | None:
        """It could not be said, and comes first again; what became of it where something later waits in its place."""
        rank, topic = self._ranks[due.draft.rank], due.draft.topic
        latest = rank.get(topic)
        if latest is None:
            rank[topic] = due
            rank.move_to_end(topic, last=False)
            return None
        if latest.draft.aggregation_key == due.draft.aggregation_key:
            rank[topic] = PendingEvent(latest.draft, latest.times + due.times)
        return SendResult.AGGREGATED

    def __bool__(self) -> bool:
        return any(self._ranks.values())


class TokenBucket:
    """Tokens, of which there are `burst` at first and `rate` more each second."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at: float | None = None

    def take(self, now: float) -> float:
        """Takes one and returns 0, or returns the seconds until there is one; `now` never goes back."""
        self._left = min(self._burst, self._left + (0.0 if self._at is None else now - self._at) * self._rate)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate
