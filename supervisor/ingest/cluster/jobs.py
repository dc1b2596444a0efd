"""Stores the facts about the cluster's jobs: the observations of their kinds, and the decisions that are in place."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Fault, RetryPolicy
from servicekit.reconcile import KeyedWorkQueue
from supervisor.domain.ids import JobName
from supervisor.domain.job import SupervisedJob, with_end
from supervisor.failpoints import At
from supervisor.jobs.annotated import with_request
from supervisor.jobs.cache import ClusterJobs
from supervisor.jobs.kind import JobKind, JobState
from supervisor.jobs.observation import in_its_queue
from supervisor.store.interface import Store, StoreUnavailableError

_FIRST_PAUSE = 0.2
_MAX_PAUSE = 1.0

_QUEUED_SECONDS = 30.0
"""A job that its queue holds back is looked at again, although nothing has changed: one that runs must not be shown as
queued for ever, whatever was missed."""

_log = structlog.get_logger()


class JobReconciler:
    """Stores the kinds' observations of their objects and pods. `run` and `requeue` are root tasks of the leader."""

    def __init__(self, jobs: ClusterJobs, store: Store, clock: Clock, bulkhead: Bulkhead) -> None:
        self._jobs = jobs
        self._bulkhead = bulkhead
        self._store = store
        self._clock = clock
        fault = Fault("store of observed jobs", clock)
        retry = RetryPolicy(
            errors=StoreUnavailableError, fault=fault, first_seconds=_FIRST_PAUSE, max_seconds=_MAX_PAUSE
        )
        self._queue: KeyedWorkQueue[JobName] = KeyedWorkQueue("observe", self._reconcile, bulkhead, retry)
        jobs.subscribe(self.add)

    def add(self, names: Iterable[JobName]) -> None:
        """Enqueues these jobs."""
        for name in names:
            self._queue.add(name)

    async def run(self) -> None:
        """Root task: reconciles the enqueued jobs."""
        for kind in self._jobs:
            self.add(kind.cache.names)
        await self._queue.run()

    async def requeue(self) -> None:
        """Root task: enqueues jobs whose stored value has changed, or that were forgotten."""
        version, before = 0, dict[JobName, SupervisedJob]()
        while True:
            snapshot = await self._store.changed(version)
            version = snapshot.version
            with self._bulkhead.guard("observe", retried=False):
                jobs = {name: job for name, job in snapshot.jobs.items() if self._jobs.of(name) is not None}
                self.add(name for name in jobs.keys() | before.keys() if jobs.get(name) is not before.get(name))
                before = jobs

    async def in_place(self, job: SupervisedJob) -> None:
        """Stores that all actions of a job's decision are in place.

        Raises:
            StoreUnavailableError: It could not be stored.
        """
        generation = job.decision.generation

        def change(known: SupervisedJob | None) -> SupervisedJob | None:
            if known is None or known.id != job.id or known.observed.applied >= generation:
                return known
            return replace(known, observed=replace(known.observed, applied=generation))

        await self._store.put_job(job.name, change)
        failpoint(At.ORDER_APPLIED)

    async def _reconcile(self, name: JobName) -> float | None:
        connected = self._jobs.of(name)
        if connected is None:
            return None
        kind, cache = connected.cache.kind, connected.cache
        state, known = cache.state(name), self._store.snapshot().jobs.get(name)
        value = self._observed(kind, state, known)
        if known is not None and (value is None or known.uid != value.uid):
            if not cache.listed:
                return None
            # An ended job stays on record after its object is gone, as long as the cluster's own collector leaves it.
            _log.info("job.released", job=name, uid=known.uid)
            await self._store.forget_job(name, known.uid)
            known = self._store.snapshot().jobs.get(name)
        if value is None:
            return None
        if value != known:
            await self._store.put_job(name, lambda stored: self._observed(kind, cache.state(name), stored))
            failpoint(At.OBSERVED_STORED)
        return _QUEUED_SECONDS if value.observed.queue else None

    def _observed(
        self, kind: JobKind[Any], state: JobState[Any] | None, known: SupervisedJob | None
    ) -> SupervisedJob | None:
        if state is None or state.job.elsewhere:
            return None
        observed = kind.observe(state, known, self._clock.now())
        if observed is None:
            return None
        held = "" if state.admission is None else state.admission.held
        observed = replace(observed, observed=replace(observed.observed, queue=held))
        if known is None or known.uid != observed.uid:
            observed = in_its_queue(observed, state)
        return with_end(with_request(observed, state.job.annotations, self._clock.now()), self._clock.now())
