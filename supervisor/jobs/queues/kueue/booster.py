"""Writes the boosts of Workloads, so that of several jobs Kueue preempts the one that loses least.

There may be one such controller in a cluster. A boost that somebody else has written is left alone.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError
from servicekit.reconcile import RetryPolicy
from servicekit.workqueue import KeyedWorkQueue
from supervisor.decide.situation import RankZero
from supervisor.domain.ids import JobId, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.fanout.saves import Saves
from supervisor.jobs.cluster import ClusterJobs
from supervisor.jobs.kind import JobState
from supervisor.jobs.queues.kueue.boosts import Boost, BoostPolicy, Exposure, first_boost, next_boost
from supervisor.jobs.queues.kueue.workload import Workload
from supervisor.jobs.queues.kueue.workloads import Workloads
from supervisor.store.interface import Store

_LOOK_SECONDS = 10.0
"""Nothing tells of a checkpoint, of a rank 0 that has gone, and of what was stored about a job meanwhile."""

_RETRY_SECONDS = 0.5
_FIRST_PAUSE = 0.5
_MAX_PAUSE = 30.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoosterDependencies:
    """The dependencies of the booster.

    Attributes:
        jobs: The cluster's jobs.
        workloads: Their Workloads.
        store: Shows which jobs are supervised.
        saves: The last checkpoints.
        rank_zero: Returns whether rank 0 of a job's run is connected.
        may_act: Called before each change.
        policy: The bounds.
        clock: For instants.
    """

    jobs: ClusterJobs
    workloads: Workloads
    store: Store
    saves: Saves
    rank_zero: Callable[[JobId, int], RankZero]
    may_act: Callable[[], bool]
    policy: BoostPolicy
    clock: Clock
    bulkhead: Bulkhead


class Booster:
    """Keeps the boosts of all admitted Workloads of running jobs; `run` is a root task of the leader."""

    def __init__(self, deps: BoosterDependencies) -> None:
        self._deps = deps
        self._boosts: dict[JobName, tuple[str, Boost]] = {}
        """With the uid of the Workload."""
        self._foreign: dict[JobName, str] = {}
        """The uids of the Workloads with a boost of somebody else."""
        retry = RetryPolicy(
            errors=ApiError,
            fault=Fault("boosts of Workloads", deps.clock),
            first_seconds=_FIRST_PAUSE,
            max_seconds=_MAX_PAUSE,
        )
        self._queue: KeyedWorkQueue[JobName] = KeyedWorkQueue("boost", self._reconcile, deps.bulkhead, retry)
        deps.jobs.subscribe(self.add)

    def add(self, names: Collection[JobName]) -> None:
        """Enqueues these jobs, if Kueue manages any."""
        if not self._deps.workloads.empty:
            for name in names:
                self._queue.add(name)

    async def run(self) -> None:
        """Root task: keeps the boosts; without a maximum it removes those that were written before."""
        for kind in self._deps.jobs:
            self.add(kind.cache.names)
        await self._queue.run()

    async def _reconcile(self, name: JobName) -> float | None:
        state = self._deps.jobs.state(name)
        workload = None if state is None else self._deps.workloads.of(state)
        if state is None or workload is None:
            self._forget(name)
            return None
        if workload.boost_of_another:
            self._note_foreign(name, workload)
            return None
        exposure = self._exposure(state, workload)
        if exposure is None:
            self._forget(name)
        value = 0 if exposure is None else self._boost(name, workload, exposure).value
        pause = await self._write(workload, value)
        return self._pause(workload) if pause is None else pause

    def _pause(self, workload: Workload) -> float | None:
        policy = self._deps.policy
        return min(_LOOK_SECONDS, policy.step_seconds) if policy.maximum and _may_run(workload) else None

    def _exposure(self, state: JobState[Any], workload: Workload) -> Exposure | None:
        """None for a Workload that gets no boost: that of one that waits would change its place in the queue."""
        job, uid = self._deps.store.snapshot().jobs.get(state.name), state.job.metadata.uid
        if not self._deps.policy.maximum or job is None or job.uid != uid or not _runs(job, workload):
            return None
        run = job.observed.run
        return Exposure(
            run=run,
            save=self._deps.saves.of(job.id),
            grace=min((pod.grace for pod in state.pods if not pod.over), default=0.0),
            attended=self._deps.rank_zero(job.id, run).connected,
        )

    def _boost(self, name: JobName, workload: Workload, exposure: Exposure) -> Boost:
        now, policy = self._deps.clock.now(), self._deps.policy
        uid, before = self._boosts.get(name, ("", None))
        if before is None or uid != workload.metadata.uid:
            before = first_boost(workload.boost, exposure, policy, now)
        boost = next_boost(before, exposure, policy, now)
        self._boosts[name] = workload.metadata.uid, boost
        return boost

    async def _write(self, workload: Workload, boost: int) -> float | None:
        """Returns after how many seconds to try again; None if there is nothing to do."""
        if workload.boost == boost and workload.boost_marked is bool(boost):
            return None
        if not self._deps.may_act():
            return _RETRY_SECONDS
        try:
            await self._deps.workloads.boost(workload, boost)
        except (ConflictError, NotFoundError) as error:
            _log.debug("workload.changed", workload=str(workload.metadata.key), why=str(error))
            return _RETRY_SECONDS
        _log.info("workload.boosted", job=workload.job, boost=boost, before=workload.boost)
        return None

    def _note_foreign(self, name: JobName, workload: Workload) -> None:
        self._boosts.pop(name, None)
        if self._foreign.get(name) != workload.metadata.uid:
            self._foreign[name] = workload.metadata.uid
            _log.warning("workload.boosted_by_other", job=name, boost=workload.boost_of_another)

    def _forget(self, name: JobName) -> None:
        self._boosts.pop(name, None)
        self._foreign.pop(name, None)


def _may_run(workload: Workload) -> bool:
    return workload.admitted and workload.active and not workload.finished


def _runs(job: SupervisedJob, workload: Workload) -> bool:
    return _may_run(workload) and job.observed.running and not job.over
