"""Records changes as Kubernetes Events. Nothing waits for them, and an unavailable API server delays only them."""

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Backoff, Fault
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, NotFoundError
from servicekit.kubernetes.server import ApiServer
from servicekit.rate import TokenBucket
from servicekit.reconcile import Wakeup
from supervisor.observability.events.api import EventSender, PendingEvent, SendResult
from supervisor.observability.events.rules import EventDraft, Priority, ReferenceResolver, Topic, drafts
from supervisor.observability.journal import Change

_FIRST_PAUSE, _MAX_PAUSE = 0.5, 10.0
_ENDING = "being terminated"
"""A part of the API server's message if a namespace accepts no new objects; such a refusal is no fault of ours."""


class EventQueue:
    """Keeps the latest draft of each topic in a bounded queue.

    It returns drafts by priority, and within a priority in the order in which their topics arrived.

    Args:
        max_length: The most topics that wait in each priority; beyond it the oldest is dropped.
    """

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._queues: dict[Priority, OrderedDict[Topic, PendingEvent]] = {
            priority: OrderedDict() for priority in sorted(Priority)
        }

    def put(self, draft: EventDraft) -> SendResult | None:
        """Adds a draft, which replaces an earlier one of its topic; returns the result of a draft that is not sent."""
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
        """Puts back an unsent draft, as the first of the queue; returns its result if a later draft has replaced it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLimits:
    """The bounds of the queue and of its rate.

    Attributes:
        rate: Events per second in the long run. For comparison: 2,500 reclaims in a minute take 84 writes per second.
        burst: Events at once.
        max_pending: The length of the queue for jobs, pods and notices each; 60 nodes with eight pods need less.
        max_age_seconds: An Event that could not be sent for this long is dropped.
        aggregation_seconds: A repetition within this time increments the count of its Event, as in client-go.
    """

    rate: float = 20.0
    burst: float = 100.0
    max_pending: int = 1000
    max_age_seconds: float = 300.0
    aggregation_seconds: float = 360.0


_USUAL = EventLimits()


class EventRecorder:
    """Listens to the journal, and sends Events in a root task.

    Args:
        server: A connection of its own, so that a hanging one delays no other requests.
        objects: Finds the objects that Events regard.
        instance: The name of this supervisor.
        clock: For instants and pauses.
        bulkhead: Keeps an Event that cannot be built.
        limits: How many Events are sent.

    Attributes:
        name: See `supervisor.observability.journal.ChangeListener`.
        outcomes: Counts the drafts by their result.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - documented above
        self,
        server: ApiServer,
        objects: ReferenceResolver,
        instance: str,
        clock: Clock,
        bulkhead: Bulkhead,
        limits: EventLimits = _USUAL,
    ) -> None:
        self._bulkhead = bulkhead
        self.name = "kubernetes-events"
        self.outcomes: Counter[SendResult] = Counter(dict.fromkeys(SendResult, 0))
        self._server = server
        self._objects = objects
        self._clock = clock
        self._limits = limits
        self._events = EventSender(server, instance, limits.aggregation_seconds, 4 * limits.max_pending)
        self._waiting = EventQueue(limits.max_pending)
        self._bucket = TokenBucket(limits.rate, limits.burst)
        self._backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
        self._fault = Fault("Kubernetes Events", clock)
        self._wakeup = Wakeup()

    def on_change(self, change: Change) -> None:
        for draft in drafts(change, self._objects):
            self._count(self._waiting.put(draft))
        self._wakeup.set()

    async def run(self) -> None:
        """Root task: sends the queued Events, one after the other."""
        while True:
            if not self._waiting:
                await self._wakeup.wait()
            elif wait := self._bucket.take(self._clock.monotonic()):
                await asyncio.sleep(wait)
            else:
                await self._next()

    async def _next(self) -> None:
        # Taken after waiting for the rate limit: a later draft may have replaced it meanwhile.
        pending = self._waiting.take()
        if pending is None:
            return
        is_old = self._clock.now() - pending.draft.at > self._limits.max_age_seconds
        outcome = SendResult.DROPPED if is_old else await self._sent(pending)
        if outcome is not None:
            self._backoff.reset()
            self._count(outcome)
            return
        self._count(self._waiting.give_back(pending))
        await asyncio.sleep(self._backoff.next())

    async def _sent(self, pending: PendingEvent) -> SendResult | None:
        """Sends an Event and returns the result; None to try again."""
        outcome, key = SendResult.FAILED, str(pending.draft.regarding)
        try:
            with self._bulkhead.guard("events", key, passes=ApiError, retried=False) as attempt:
                outcome = await self._events.send(pending)
        except ApiUnavailableError as error:
            self._fault.failed(str(error))
            return None
        except NotFoundError:
            return SendResult.FAILED  # Its namespace is gone.
        except ApiError as error:
            if _ENDING not in str(error):
                self._fault.failed(str(error))
            return SendResult.FAILED
        if not attempt.failed:
            self._fault.recovered()
        return outcome

    def _count(self, outcome: SendResult | None) -> None:
        if outcome is not None:
            self.outcomes[outcome] += 1
