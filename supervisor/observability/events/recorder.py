"""Says what happens as Kubernetes Events: nothing waits for them, and an API server that is away costs nothing else."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from servicekit.backoff import Backoff
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, NotFoundError
from servicekit.kubernetes.server import ApiServer
from servicekit.wakeup import Wakeup
from supervisor.observability.events.api import Events
from supervisor.observability.events.event import EventDraft
from supervisor.observability.events.queue import EventQueue, PendingEvent, SendResult, TokenBucket
from supervisor.observability.events.rules import ReferenceResolver, drafts
from supervisor.observability.journal import Change

_FIRST_PAUSE, _MAX_PAUSE = 0.5, 10.0
_ENDING = "being terminated"
"""What the API server says of a namespace that takes nothing more: nothing is wrong with us then."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is said.

    Attributes:
        rate: Events a second in the long run; the line's own writes at 2,500 reclaims in a minute are 84 a second.
        burst: Events at once.
        most_waiting: Of jobs, of pods and of notices each; those of 60 nodes with eight pods are fewer.
        old_seconds: What could not be said for so long is not said any more.
        again_seconds: As long as this since the last time, what is said again counts its Event up; as client-go does.
    """

    rate: float = 20.0
    burst: float = 100.0
    max_pending: int = 1000
    max_age_seconds: float = 300.0
    aggregation_seconds: float = 360.0


_USUAL = Limits()


class Recorder:
    """A listener of the journal, and the root task that sends what it has heard.

    Args:
        server: Its own connection: one that hangs keeps nobody else's requests waiting.
        objects: What Events are about.
        instance: Which supervisor says so.
        clock: For instants and pauses.
        limits: How much.

    Attributes:
        name: See `supervisor.observability.journal.Listener`.
        outcomes: How often what has become of something to say.
    """

    def __init__(
        self, server: ApiServer, objects: ReferenceResolver, instance: str, clock: Clock, limits: Limits = _USUAL
    ) -> None:
        self.name = "kubernetes-events"
        self.outcomes: Counter[SendResult] = Counter(dict.fromkeys(SendResult, 0))
        self._server = server
        self._objects = objects
        self._clock = clock
        self._limits = limits
        self._events = Events(server, instance, limits.aggregation_seconds, 4 * limits.max_pending)
        self._waiting = EventQueue(limits.max_pending)
        self._bucket = TokenBucket(limits.rate, limits.burst)
        self._backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
        self._fault = Fault("Kubernetes Events", clock)
        self._wakeup = Wakeup()

    def lead(self, certain: Callable[[], bool]) -> None:
        """Says nothing while it is not certain that this supervisor leads."""
        self._server.guard = certain

    def on_change(self, change: Change) -> None:
        """See `supervisor.observability.journal.Listener`."""
        for draft in drafts(change, self._objects):
            self._count(self._waiting.put(draft))
        self._wakeup.set()

    async def run(self) -> None:
        """Root task: sends what is to be said, one after the other."""
        while True:
            if not self._waiting:
                await self._wakeup.wait()
            elif wait := self._bucket.take(self._clock.monotonic()):
                await asyncio.sleep(wait)
            else:
                await self._next()

    async def _next(self) -> None:
        # Taken only now: while it waited for its turn, something later may have taken its place.
        due = self._waiting.take()
        if due is None:
            return
        outcome = SendResult.DROPPED if self._is_old(due.draft) else await self._sent(due)
        if outcome is not None:
            self._backoff.reset()
            self._count(outcome)
            return
        self._count(self._waiting.give_back(due))
        await asyncio.sleep(self._backoff.next())

    async def _sent(self, due: PendingEvent) -> SendResult | None:
        """What became of it; None where it is to be tried again."""
        try:
            outcome = await self._events.send(due)
        except ApiUnavailableError as error:
            self._fault.failed(str(error))
            return None
        except NotFoundError:
            return SendResult.FAILED  # Its namespace is gone.
        except ApiError as error:
            if _ENDING not in str(error):
                self._fault.failed(str(error))
            return SendResult.FAILED
        except Exception:  # noqa: BLE001 - what no Event can hold costs that Event alone: a root task that raises ends us
            _log.exception("event.unfit", about=due.draft.regarding)
            return SendResult.FAILED
        self._fault.recovered()
        return outcome

    def _is_old(self, draft: EventDraft) -> bool:
        return self._clock.now() - draft.at > self._limits.max_age_seconds

    def _count(self, outcome: SendResult | None) -> None:
        if outcome is not None:
            self.outcomes[outcome] += 1
