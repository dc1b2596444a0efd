"""Facts about the cluster's jobs are stored as their kinds observe them."""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.ids import JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.ingest.cluster.jobs import JobReconciler
from supervisor.jobs.cache import ClusterJobs, ConnectedKind
from supervisor.jobs.kind import Admission, JobKind, JobState
from supervisor.jobs.mpijob.kind import MPIJOB
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from supervisor.jobs.trainingjob.objects import TrainingJob
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.jobs.mpijob import mpijob_objects as mpi
from tests.supervisor.jobs.trainingjob.trainingjob_objects import OPTED_IN, job, state
from tests.supervisor.store.store_behaviour import opened
from tests.testkit.waiting import until

_NAME = JobName("team/trainingjob.bert")


class _Cache:
    """The jobs of one kind, as the test says."""

    def __init__(self, kind: JobKind[Any]) -> None:
        self.kind = kind
        self.listed = False
        # Nobody is told here: the test adds what it has changed.
        self.listeners: list[object] = []
        self.states: dict[JobName, JobState[Any]] = {}

    @property
    def names(self) -> Collection[JobName]:
        return self.states.keys()

    def state(self, name: JobName) -> JobState[Any] | None:
        return self.states.get(name)


class _Scene:
    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.cache, self.mpi_jobs = _Cache(TRAININGJOB), _Cache(MPIJOB)
        caches = (self.cache, self.mpi_jobs)
        jobs = ClusterJobs([ConnectedKind(cast("Any", cache), cast("Any", None)) for cache in caches])
        self.bulkhead = Bulkhead(Clock())
        self.reconciler = JobReconciler(jobs, store, Clock(), self.bulkhead)

    @property
    def known(self) -> SupervisedJob | None:
        return self.store.snapshot().jobs.get(_NAME)

    @property
    def asked(self) -> tuple[str, str, str] | None:
        """What a person asks of the job, as it is stored."""
        request = None if self.known is None else self.known.observed.request
        return None if request is None else (request.kind, request.by, request.reason)

    def shows(self, one: TrainingJob | None, admission: Admission | None = None) -> None:
        self.cache.listed = True
        if one is None:
            del self.cache.states[_NAME]
        else:
            self.cache.states[_NAME] = replace(state(one), admission=admission)
        self.reconciler.add([_NAME])


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[_Scene]:
    async with opened(lambda: SqliteStore.open(tmp_path / "store.sqlite")) as store:
        scene = _Scene(store)
        task = asyncio.create_task(scene.reconciler.run())
        yield scene
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_job_is_stored_and_forgotten_with_its_object(scene: _Scene) -> None:
    scene.shows(job())
    await until(lambda: scene.known is not None, "the job is stored")
    scene.shows(None)
    await until(lambda: scene.known is None, "the job is forgotten")


async def test_the_end_of_a_job_is_when_it_is_first_seen_as_ended(scene: _Scene) -> None:
    scene.shows(job())
    await until(lambda: scene.known is not None, "the job is stored")
    scene.shows(job(status={"phase": "Succeeded"}))
    await until(lambda: scene.known is not None and scene.known.over, "the job is over")
    assert (over := scene.known) is not None
    assert over.observed.ended_at is not None
    await scene.reconciler._reconcile(_NAME)
    assert scene.known == over


async def test_nothing_is_forgotten_before_the_jobs_were_listed(scene: _Scene) -> None:
    scene.shows(job())
    await until(lambda: scene.known is not None, "the job is stored")
    scene.cache.listed = False
    del scene.cache.states[_NAME]
    await scene.reconciler._reconcile(_NAME)
    assert scene.known is not None


async def test_what_its_queue_says_is_a_fact_of_a_job(scene: _Scene) -> None:
    scene.shows(job(), Admission("It waits in its queue."))
    await until(lambda: scene.known is not None and scene.known.observed.queue == "It waits in its queue.")
    scene.shows(job())
    await until(lambda: scene.known is not None and not scene.known.observed.queue, "the job is admitted")


async def test_what_a_person_asks_by_an_annotation_is_stored_and_taken_back(scene: _Scene) -> None:
    """Of a job of whatever kind: the kind need not know of it."""
    scene.shows(job(annotations={**OPTED_IN, "job-supervisor.kube-ai.io/suspend": "ann: power cut"}))
    await until(lambda: scene.asked == ("suspend", "ann", "power cut"))
    scene.shows(job(annotations=OPTED_IN))
    await until(lambda: scene.known is not None and scene.asked is None)


async def test_what_is_in_place_is_a_fact_of_the_job_that_was_decided_about(scene: _Scene) -> None:
    """An older decision takes nothing back, and a later job of the same name is another one."""
    scene.shows(job())
    await until(lambda: scene.known is not None, "the job is stored")
    known = scene.known
    assert known is not None
    decided = replace(known, decision=replace(known.decision, generation=5))
    await scene.reconciler.in_place(decided)
    for other in (replace(decided, decision=known.decision), replace(decided, uid="other")):
        await scene.reconciler.in_place(other)
    assert (stored := scene.known) is not None
    assert stored.observed.applied == 5


async def test_a_job_that_cannot_be_read_leaves_the_others_read(scene: _Scene) -> None:
    """It is shown as failing, and read again once that is possible."""
    bad, observe, mended = JobName("team/trainingjob.bad"), scene.cache.kind.observe, False

    def raises(one: JobState[TrainingJob], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        if one.name == bad and not mended:
            raise ZeroDivisionError("a defect")
        return observe(one, known, now)

    scene.cache.kind = replace(scene.cache.kind, observe=raises)
    scene.cache.states[bad] = replace(state(job()), name=bad)
    scene.reconciler.add([bad])
    scene.shows(job())
    await until(lambda: scene.known is not None, "the other job is stored")
    assert scene.bulkhead.about(bad) == {"observe": "ZeroDivisionError: a defect"}
    mended = True
    await until(lambda: not scene.bulkhead.about(bad), "it is read again")


async def test_a_job_that_its_queue_starts_before_it_was_planned_keeps_its_registration(scene: _Scene) -> None:
    """It was released and registered again, and a decision about the first registration could be stored late."""

    def shows(held: str, *, suspended: bool) -> None:
        found = mpi.state(asked=mpi.spec(suspend=suspended))
        scene.mpi_jobs.listed, scene.mpi_jobs.states[mpi.NAME] = True, replace(found, admission=Admission(held))
        scene.reconciler.add([mpi.NAME])

    def known() -> SupervisedJob | None:
        return scene.store.snapshot().jobs.get(mpi.NAME)

    shows("It waits in its queue.", suspended=True)
    await until(lambda: known() is not None, "the job is stored")
    first = known()
    assert first is not None
    assert (first.decision.phase, first.decision.reason) == (Phase.QUEUED, "It waits in its queue.")
    with capture_logs() as logs:
        shows("", suspended=False)
        await until(lambda: known() != first, "the job is admitted")
    assert (now := known()) is not None
    assert (now.id, now.observed.queue, logs) == (first.id, "", [])


async def test_a_job_that_is_suspended_here_is_taken_up_as_that_although_a_queue_manages_it(scene: _Scene) -> None:
    """The supervisor has taken it out of its queue, and resumes it."""
    suspended = {**mpi.OPTED_IN, f"{mpi.PREFIX}suspended-by": "elastic-job-supervisor"}
    found = mpi.state(asked=mpi.spec(suspend=True), annotations=suspended)
    scene.mpi_jobs.listed, scene.mpi_jobs.states[mpi.NAME] = True, replace(found, admission=Admission())
    scene.reconciler.add([mpi.NAME])
    await until(lambda: mpi.NAME in scene.store.snapshot().jobs, "the job is stored")
    assert scene.store.snapshot().jobs[mpi.NAME].decision.phase is Phase.SUSPENDED


async def test_what_a_queue_says_is_looked_at_again_although_nobody_tells(
    scene: _Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wake-up that was missed leaves no job that runs in the phase Queued for ever."""
    monkeypatch.setattr("supervisor.ingest.cluster.jobs._QUEUED_SECONDS", 0.01)
    scene.shows(job(), Admission("It waits in its queue."))
    await until(lambda: scene.known is not None and scene.known.observed.queue == "It waits in its queue.")
    scene.cache.states[_NAME] = replace(state(job()), admission=Admission())
    await until(lambda: scene.known is not None and not scene.known.observed.queue, "nobody has told")
