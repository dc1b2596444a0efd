"""Listeners hear every change of a real store and cannot disturb it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeState
from supervisor.observability.hooks import MetricsHooks, TimedStore
from supervisor.observability.journal import (
    Change,
    ChangeListener,
    JobChanged,
    JobForgotten,
    Journal,
    NoticeChanged,
    changes,
)
from supervisor.store.interface import Snapshot, StoreUnavailableError
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.decide.decide_builders import T0, notice, running_job
from tests.supervisor.store.store_behaviour import opened, put_job, to
from tests.testkit.waiting import PATIENCE


class Diary:
    def __init__(self, failures: int = 0) -> None:
        self.name = "diary"
        self.heard_of: list[Change] = []
        self._failures = failures
        self._news = asyncio.Event()

    def on_change(self, change: Change) -> None:
        if self._failures:
            self._failures -= 1
            raise RuntimeError("no ink")
        self.heard_of.append(change)
        self._news.set()

    async def wrote(self, count: int) -> list[Change]:
        async with asyncio.timeout(PATIENCE):
            while len(self.heard_of) < count:
                self._news.clear()
                await self._news.wait()
        return self.heard_of


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(lambda: SqliteStore.open(tmp_path / "store.sqlite")) as store:
        yield store


async def told(store: SqliteStore, *listeners: ChangeListener) -> tuple[Journal, "asyncio.Task[None]"]:
    journal = Journal(store, listeners, Clock(), Bulkhead(Clock()))
    task = asyncio.create_task(journal.run())
    await asyncio.sleep(0)
    return journal, task


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_every_change_is_told_with_what_was_before(store: SqliteStore) -> None:
    """In the order in which they became durable; what was stored before is no news."""
    await put_job(store, running_job(name="old"))
    diary = Diary()
    _, task = await told(store, diary)
    active, job = notice(1), running_job()
    withdrawn = replace(active, state=NoticeState.WITHDRAWN, ended_at=T0 + 9)
    await store.put_notice(active.id, to(active))
    await put_job(store, job)
    decision = replace(job.decision, generation=job.decision.generation + 1, phase=Phase.SHRINKING)
    assert await store.decide(job, decision)
    await store.put_notice(active.id, to(withdrawn))
    changes = await diary.wrote(4)
    await ended(task)
    assert [replace(change, at=0.0) for change in changes] == [
        NoticeChanged(None, active, 0.0),
        JobChanged(None, job, 0.0),
        JobChanged(job, replace(job, decision=decision), 0.0),
        NoticeChanged(active, withdrawn, 0.0),
    ]


async def test_a_change_whose_maker_was_cancelled_is_told(store: SqliteStore) -> None:
    """The stream of an agent may end while its notice is being written."""
    diary = Diary()
    _, task = await told(store, diary)
    maker = asyncio.create_task(store.put_notice(notice(1).id, to(notice(1))))
    await asyncio.sleep(0)
    maker.cancel()
    changes = await diary.wrote(1)
    await ended(task)
    assert isinstance(changes[0], NoticeChanged)


async def test_a_listener_that_fails_harms_nobody(store: SqliteStore) -> None:
    """It is logged once and counted; the others hear everything, and it hears what comes later."""
    broken, diary = Diary(failures=2), Diary()
    with capture_logs() as logs:
        _, task = await told(store, broken, diary)
        for number in (1, 2, 3):
            await store.put_notice(notice(number).id, to(notice(number)))
            await diary.wrote(number)
        await ended(task)
    assert len(broken.heard_of) == 1
    assert [(line["event"], line["where"], line["key"]) for line in logs] == [("internal.fault", "journal", "diary")]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(replace(running_job(), uid="later"), id="another uid"),
        pytest.param(
            replace(running_job(), observed=replace(running_job().observed, registered_at=T0 + 60)),
            id="released and registered again",
        ),
    ],
)
def test_a_job_of_the_same_name_is_another_job(second: SupervisedJob) -> None:
    """The earlier one is forgotten first; so is one that is simply gone."""
    first, other = running_job(), running_job(name="other")
    before = Snapshot(1, {}, {first.name: first, other.name: other})
    found = list(changes(before, Snapshot(2, {}, {second.name: second}), T0))
    assert found == [JobForgotten(first, T0), JobChanged(None, second, T0), JobForgotten(other, T0)]


async def test_a_store_says_how_long_it_takes(store: SqliteStore) -> None:
    """By operation; what is not durable is said to be that, and a change that refuses itself is no measurement."""
    changes: list[tuple[str, bool]] = []

    class Timing(MetricsHooks):
        def on_store_write(self, operation: str, seconds: float, *, durable: bool) -> None:
            assert 0 <= seconds < 60
            changes.append((operation, durable))

    timed, job = TimedStore(store, Timing(), Clock()), running_job()
    await timed.put_notice(notice(1).id, to(notice(1)))
    await timed.put_job(job.name, lambda _known: job)
    await timed.decide(job, replace(job.decision, generation=job.decision.generation + 1))

    def refuse(_known: object) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await timed.put_notice(notice(2).id, refuse)

    class Away(SqliteStore):
        async def put_job(self, *_: object) -> None:
            raise StoreUnavailableError("away")

    away = Away.__new__(Away)
    with pytest.raises(StoreUnavailableError):
        await TimedStore(away, Timing(), Clock()).put_job(job.name, lambda _known: job)
    assert changes == [("put_notice", True), ("put_job", True), ("decide", True), ("put_job", False)]
