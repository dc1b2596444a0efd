"""The keyed work queue, and the loop for work without keys: what is done when, and what a failure costs."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead, ProcessFault
from servicekit.clock import Clock
from servicekit.faults import Fault, RetryPolicy
from servicekit.reconcile import KeyedWorkQueue, Wakeup, reconcile

PATIENCE = 30.0
LONG = 3600.0


class AwayError(Exception):
    """A dependency is away."""


@asynccontextmanager
async def running(task: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    started = asyncio.create_task(task)
    try:
        async with asyncio.timeout(PATIENCE):
            yield started
    finally:
        started.cancel()
        await asyncio.gather(started, return_exceptions=True)


def retry(seconds: float = 0.0) -> RetryPolicy:
    return RetryPolicy(errors=AwayError, fault=Fault("dependency", Clock()), first_seconds=seconds, max_seconds=seconds)


@dataclass
class Reconciler:
    """Answers each call with what the test gives it, in any order of keys; an exception is raised."""

    begun: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    answers: dict[str, asyncio.Queue[float | Exception | None]] = field(default_factory=dict)

    async def __call__(self, key: str) -> float | None:
        answers = self.answers.setdefault(key, asyncio.Queue())
        self.begun.put_nowait(key)
        answer = await answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, key: str, answer: float | Exception | None = None) -> None:
        self.answers[key].put_nowait(answer)


async def settled() -> None:
    """Lets everything run that is ready to."""
    for _ in range(10):
        await asyncio.sleep(0)


def reported(logs: list[MutableMapping[str, Any]]) -> list[tuple[str, str | None]]:
    """What an operator sees: events and their reasons."""
    return [(each["event"], each.get("reason")) for each in logs if each["log_level"] != "debug"]


async def test_a_key_is_reconciled_once_however_often_it_was_added() -> None:
    """Also what was added before the queue runs, in order."""
    work = Reconciler()
    queue = KeyedWorkQueue("test", work, Bulkhead(Clock()))
    for key in ("b", "a", "b"):
        queue.add(key)
    async with running(queue.run()):
        assert [await work.begun.get(), await work.begun.get()] == ["b", "a"]
        work.answer("a")
        work.answer("b")
        await settled()
        for key in ("b", "a", "b"):
            queue.add(key)
        assert [await work.begun.get(), await work.begun.get()] == ["b", "a"]
        work.answer("a")
        work.answer("b")
        await settled()
        assert work.begun.empty()


async def test_one_key_is_never_reconciled_twice_at_once_and_others_do_not_wait() -> None:
    work = Reconciler()
    queue = KeyedWorkQueue("test", work, Bulkhead(Clock()))
    async with running(queue.run()):
        queue.add("a")
        assert await work.begun.get() == "a"
        queue.add("a")
        queue.add("a")
        queue.add("b")
        assert await work.begun.get() == "b"
        await settled()
        assert work.begun.empty()
        work.answer("a")
        assert await work.begun.get() == "a"  # Once for both times.
        work.answer("a")
        work.answer("b")
        await settled()
        assert work.begun.empty()


async def test_a_key_that_was_done_is_reconciled_anew_when_it_is_added_anew() -> None:
    work = Reconciler()
    queue = KeyedWorkQueue("test", work, Bulkhead(Clock()))
    async with running(queue.run()):
        for _ in range(3):
            queue.add("a")
            assert await work.begun.get() == "a"
            work.answer("a")
            await settled()


async def test_a_key_is_due_again_after_the_seconds_it_asks_for() -> None:
    work = Reconciler()
    queue = KeyedWorkQueue("test", work, Bulkhead(Clock()))
    async with running(queue.run()):
        queue.add("a")
        for _ in range(3):
            assert await work.begun.get() == "a"
            work.answer("a", 0.0)
        assert await work.begun.get() == "a"


async def test_a_key_that_is_added_does_not_wait_for_its_time() -> None:
    """And what was added while it was reconciled is served by the next call: there is no third one."""
    work = Reconciler()
    queue = KeyedWorkQueue("test", work, Bulkhead(Clock()))
    async with running(queue.run()):
        queue.add("a")
        assert await work.begun.get() == "a"
        queue.add("a")
        work.answer("a", LONG)
        assert await work.begun.get() == "a"
        work.answer("a", LONG)
        await settled()
        assert work.begun.empty()
        queue.add("a")
        assert await work.begun.get() == "a"


async def test_a_key_that_fails_is_tried_again_and_reported_once() -> None:
    """The dependency is back when no key fails any more."""
    work = Reconciler()
    queue = KeyedWorkQueue("test", work, Bulkhead(Clock()), retry())
    with capture_logs() as logs:
        async with running(queue.run()):
            queue.add("a")
            queue.add("b")
            assert {await work.begun.get(), await work.begun.get()} == {"a", "b"}
            for key in ("a", "b", "a"):
                work.answer(key, AwayError("away"))
                assert await work.begun.get() == key
            work.answer("a")
            await settled()
            assert reported(logs) == [("dependency.failing", "a: away")]
            work.answer("b")
            await settled()
    assert reported(logs) == [("dependency.failing", "a: away"), ("dependency.recovered", None)]


async def test_a_key_that_fails_and_is_added_is_tried_at_once() -> None:
    work = Reconciler()
    queue = KeyedWorkQueue("test", work, Bulkhead(Clock()), retry(LONG))
    async with running(queue.run()):
        queue.add("a")
        assert await work.begun.get() == "a"
        work.answer("a", AwayError("away"))
        await settled()
        queue.add("a")
        assert await work.begun.get() == "a"


@pytest.mark.parametrize("policy", [None, retry()], ids=["no retries", "retries of another error"])
async def test_a_key_that_raises_leaves_the_others_served(policy: RetryPolicy | None) -> None:
    """It is tried again after a pause until it succeeds, and is shown as failing until then."""
    work, bulkhead = Reconciler(), Bulkhead(Clock())
    queue = KeyedWorkQueue("test", work, bulkhead, policy)
    with capture_logs() as logs:
        async with running(queue.run()):
            queue.add("a")
            queue.add("b")
            assert {await work.begun.get(), await work.begun.get()} == {"a", "b"}
            work.answer("a", LookupError("a defect"))
            work.answer("b")
            await settled()
            queue.add("b")
            assert await work.begun.get() == "b"
            assert bulkhead.about("a") == {"test": "LookupError: a defect"}
            assert await work.begun.get() == "a"
            work.answer("a")
            await settled()
            assert bulkhead.about("a") == {}
    assert bulkhead.counts == {"test": 1}
    assert [(line["event"], line["key"]) for line in logs] == [("internal.fault", "a"), ("internal.recovered", "a")]


async def test_a_fault_of_the_process_ends_the_queue() -> None:
    work = Reconciler()
    queue = KeyedWorkQueue("test", work, Bulkhead(Clock()))
    async with running(queue.run()) as task:
        queue.add("a")
        assert await work.begun.get() == "a"
        work.answer("a", ProcessFault("another one leads"))
        with pytest.raises(ExceptionGroup) as raised:
            await task
    assert [str(error) for error in raised.value.exceptions] == ["another one leads"]


async def test_a_key_that_is_added_while_the_queue_ends_is_not_reconciled() -> None:
    """One that is being reconciled is cancelled, may add keys as it ends, and has ended when the queue has."""
    begun, ended = asyncio.Event(), list[tuple[str, bool]]()

    async def work(key: str) -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            queue.add("late")
            ended.append((key, queue.shutting_down))

    queue = KeyedWorkQueue[str]("test", work, Bulkhead(Clock()))
    async with running(queue.run()):
        queue.add("a")
        await begun.wait()
        assert not queue.shutting_down
    assert ended == [("a", True)]


@dataclass
class Once:
    """Answers each call with the next of the answers; then it is never due again."""

    answers: list[float | Exception | None]
    called: asyncio.Queue[int] = field(default_factory=asyncio.Queue)

    async def __call__(self) -> float | None:
        self.called.put_nowait(len(self.answers))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_loop_goes_on_after_the_seconds_it_asks_for_or_when_it_is_woken() -> None:
    once, wakeup = Once([0.0, LONG, None]), Wakeup()
    async with running(reconcile("test", once, Bulkhead(Clock()), wakeup=wakeup)):
        assert [await once.called.get(), await once.called.get()] == [3, 2]
        for left in (1, 0):
            await settled()
            assert once.called.empty()
            wakeup.set()
            assert await once.called.get() == left


async def test_a_loop_survives_the_errors_of_its_policy() -> None:
    once = Once([AwayError("away"), AwayError("far away"), 0.0, AwayError("away again"), 0.0])
    with capture_logs() as logs:
        async with running(reconcile("test", once, Bulkhead(Clock()), retry=retry())):
            while await once.called.get():
                pass
    events = [event for event, _ in reported(logs)]
    assert events == ["dependency.failing", "dependency.recovered"] * 2


@pytest.mark.parametrize("policy", [None, retry()], ids=["no retries", "retries of another error"])
async def test_a_loop_that_raises_goes_on(policy: RetryPolicy | None) -> None:
    once, bulkhead = Once([LookupError("a defect"), LONG]), Bulkhead(Clock())
    async with running(reconcile("test", once, bulkhead, retry=policy)):
        assert [await once.called.get(), await once.called.get()] == [2, 1]
    assert bulkhead.counts == {"test": 1}


async def test_a_fault_of_the_process_ends_a_loop() -> None:
    with pytest.raises(ProcessFault, match="another one leads"):
        await reconcile("test", Once([ProcessFault("another one leads")]), Bulkhead(Clock()))
