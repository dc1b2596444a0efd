"""The messages that wait for one target, and the task that sends them."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Backoff, Fault
from servicekit.reconcile import Wakeup
from supervisor.observability.notifications.config import Target
from supervisor.observability.notifications.delivery import Attempt, Outcome, Poster
from supervisor.observability.notifications.message import Message
from supervisor.observability.notifications.templates import BadTemplateError

Outcomes = Counter[tuple[str, str]]
"""Counts messages by target and outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how many messages wait.

    Attributes:
        max_messages: Messages that wait for one target; beyond that the oldest is dropped.
        max_age_seconds: A message that could not be sent for this long is dropped: it would be news no more.
        first_pause: Bound of the first pause after a failed attempt, in seconds; it doubles.
        max_pause: The longest such pause.
    """

    max_messages: int = 100
    max_age_seconds: float = 900.0
    first_pause: float = 1.0
    max_pause: float = 60.0


class Outbox:
    """Sends the messages of one target in order. A failing target delays no other one.

    Args:
        target: The receiver.
        outcomes: Counts what became of each message.
        may_act: Whether this supervisor certainly leads; while it does not, nothing is sent.
        clock: For ages and pauses.
        limits: How long and how many messages wait.
        bulkhead: Keeps what a message raises with its target.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - documented above
        self,
        target: Target,
        outcomes: Outcomes,
        may_act: Callable[[], bool],
        clock: Clock,
        limits: Limits,
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self._target = target
        self._outcomes = outcomes
        self._may_act = may_act
        self._clock = clock
        self._limits = limits
        self._waiting: deque[tuple[Message, float]] = deque()
        self._wakeup = Wakeup()
        self._backoff = Backoff(limits.first_pause, limits.max_pause)
        self._fault = Fault(f"notifications to {target.name}", clock)
        for outcome in Outcome:
            outcomes[target.name, outcome] += 0

    @property
    def target(self) -> str:
        """The name of the receiver."""
        return self._target.name

    @property
    def waiting(self) -> int:
        """How many messages wait, without the one that is being sent."""
        return len(self._waiting)

    def put(self, message: Message) -> None:
        """Adds a message; never blocks."""
        self._waiting.append((message, self._clock.monotonic()))
        if len(self._waiting) > self._limits.max_messages:
            self._waiting.popleft()
            self._count(Outcome.DROPPED)
        self._wakeup.set()

    async def run(self, poster: Poster) -> None:
        """Sends for ever."""
        while True:
            if self._waiting:
                await self._send(*self._waiting.popleft(), poster)
            else:
                await self._wakeup.wait()

    async def _send(self, message: Message, since: float, poster: Poster) -> None:
        """Tries until the message is sent, refused, or too old."""
        while self._clock.monotonic() - since <= self._limits.max_age_seconds:
            attempt = await self._attempt(message, poster)
            if attempt.outcome is not None:
                self._count(attempt.outcome)
                return
            await asyncio.sleep(attempt.after + self._backoff.next())
        self._count(Outcome.DROPPED)

    async def _attempt(self, message: Message, poster: Poster) -> Attempt:
        if not self._may_act():
            return Attempt(None)
        attempt = await attempted(self._target, message, poster, self._bulkhead)
        if attempt.outcome is Outcome.SENT:
            self._backoff.reset()
            self._fault.recovered()
        else:
            self._fault.failed(attempt.reason)
        return attempt

    def _count(self, outcome: Outcome) -> None:
        self._outcomes[self._target.name, outcome] += 1


async def attempted(target: Target, message: Message, poster: Poster, bulkhead: Bulkhead) -> Attempt:
    """One attempt to send a message; never raises."""
    with bulkhead.guard("notifications", target.name, retried=False):
        try:
            # In a thread: a template may take its time.
            body = await asyncio.to_thread(target.renderer.body, message)
            return await poster.post(Path(target.url_file), body)
        except BadTemplateError as error:
            return Attempt(Outcome.FAILED, str(error))
    return Attempt(Outcome.FAILED, "an internal error; see the log")
