"""Runs the loops of controllers: one loop for work without keys, and a queue that does the work on many keys.

Both are level-triggered: a wake-up says that something changed, and the loop looks at what is so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.faults import Backoff, RetryPolicy

K = TypeVar("K", bound=Hashable)

Once = Callable[[], Awaitable[float | None]]
"""Compares what is with what should be and acts. Returns after how many seconds it is due again; None: when woken."""

Reconcile = Callable[[K], Awaitable[float | None]]
"""Brings one key up to date. Returns after how many seconds the key is due again; None: when it is added again."""


@dataclass(eq=False, slots=True)
class Wakeup:
    """Wakes one loop. Several calls of `set` before the loop runs count as one."""

    event: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self) -> None:
        """Wakes the loop that waits, or keeps it from waiting the next time."""
        self.event.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Waits until it is set, or for some seconds (None: for ever), and resets it."""
        try:
            async with asyncio.timeout(seconds):
                await self.event.wait()
        except TimeoutError:
            pass
        self.event.clear()


@dataclass(eq=False, slots=True)
class Notifier:
    """Wakes all loops that depend on the same facts. The writers of the facts need not know the loops."""

    _wakeups: list[Wakeup] = field(init=False, default_factory=list)

    def subscribe(self) -> Wakeup:
        """Returns a wakeup that is set with every change from now on."""
        wakeup = Wakeup()
        self._wakeups.append(wakeup)
        return wakeup

    def notify(self) -> None:
        """Wakes all loops, because a fact has changed."""
        for wakeup in self._wakeups:
            wakeup.set()


async def reconcile(
    where: str, once: Once, bulkhead: Bulkhead, *, wakeup: Wakeup | None = None, retry: RetryPolicy | None = None
) -> None:
    """Calls `once` for ever, the first time immediately.

    Args:
        where: The name of the loop in logs and metrics.
        once: See `Once`.
        bulkhead: Keeps what nobody foresaw; then `once` is called again after a pause.
        wakeup: Ends a pause early, also the one after a foreseen failure.
        retry: The errors that are foreseen.
    """
    attempt = once if retry is None else _retrying_once(once, retry)
    wakeup = wakeup or Wakeup()
    while True:
        seconds = None
        with bulkhead.guard(where) as guarded:
            seconds = await attempt()
        if guarded.retry_in is not None:
            await asyncio.sleep(guarded.retry_in)
        else:
            await wakeup.wait(seconds)


def _retrying_once(once: Once, retry: RetryPolicy) -> Once:
    backoff = Backoff(retry.first_seconds, retry.max_seconds)

    async def attempt() -> float | None:
        try:
            seconds = await once()
        except retry.errors as error:
            retry.fault.failed(str(error))
            return backoff.next()
        retry.fault.recovered()
        backoff.reset()
        return seconds

    return attempt


class KeyedWorkQueue(Generic[K]):
    """Reconciles every key that is added: once, however often it was added while it waited.

    Serial for one key, concurrent across keys, like a client-go work queue with its reconcilers. A key that is added
    while it is being reconciled is reconciled again afterwards. Keys that are added before `run` wait for it.

    Args:
        name: The name of the queue in logs and metrics, and prefix of the tasks' names.
        reconcile: See `Reconcile`.
        bulkhead: Keeps what nobody foresaw with its key, which is tried again after a pause, however often it is added.
        retry: The errors that are foreseen: the key is tried again after a pause, or earlier when it is added. The
            fault has recovered once no key fails any more.

    Attributes:
        shutting_down: Whether `run` has been cancelled. It ends when the keys that are being reconciled have ended;
            what is added from now on is not reconciled.
    """

    def __init__(
        self, name: str, reconcile: Reconcile[K], bulkhead: Bulkhead, retry: RetryPolicy | None = None
    ) -> None:
        self._name = name
        self._bulkhead = bulkhead
        self._reconcile = reconcile if retry is None else _retrying_key(reconcile, retry)
        self._waiting: dict[K, None] = {}  # In order, until `run` runs.
        self._workers: dict[K, Wakeup] = {}
        self._group: asyncio.TaskGroup | None = None
        self.shutting_down = False

    def add(self, key: K) -> None:
        """Enqueues the key, to be reconciled as soon as possible."""
        if (worker := self._workers.get(key)) is not None:
            worker.set()
        elif self._group is not None:
            self._workers[key] = wakeup = Wakeup()
            self._group.create_task(self._work(key, wakeup), name=f"{self._name} {key}")
        else:
            self._waiting[key] = None

    async def run(self) -> None:
        """Root task: reconciles until it is cancelled.

        Raises:
            ExceptionGroup: `reconcile` raised a fault of the whole process; see `servicekit.bulkhead`.
        """
        async with asyncio.TaskGroup() as group:
            self._group = group
            for key in self._waiting:
                self.add(key)
            self._waiting.clear()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.shutting_down, self._group = True, None

    async def _work(self, key: K, wakeup: Wakeup) -> None:
        wakeup.event.clear()  # What was added before this task began is served by the first call.
        try:
            while True:
                seconds = None
                with self._bulkhead.guard(self._name, key) as attempt:
                    seconds = await self._reconcile(key)
                if attempt.retry_in is not None:
                    await asyncio.sleep(attempt.retry_in)
                    continue
                if seconds is None and not wakeup.event.is_set():
                    return
                await wakeup.wait(seconds)
        finally:
            del self._workers[key]


def _retrying_key(reconcile: Reconcile[K], retry: RetryPolicy) -> Reconcile[K]:
    failing = dict[K, Backoff]()

    async def attempt(key: K) -> float | None:
        try:
            seconds = await reconcile(key)
        except retry.errors as error:
            retry.fault.failed(f"{key}: {error}")
            return failing.setdefault(key, Backoff(retry.first_seconds, retry.max_seconds)).next()
        failing.pop(key, None)
        if not failing:
            retry.fault.recovered()
        return seconds

    return attempt
