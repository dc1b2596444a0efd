"""Boosts the priority of Workloads, so that Kueue preempts the job that loses least.

There may be one such controller in a cluster. A boost that somebody else has written is left alone.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault, RetryPolicy
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError
from servicekit.reconcile import KeyedWorkQueue
from supervisor.decide.situation import RankZero
from supervisor.domain.ids import JobId, JobName
from supervisor.fanout.ranks import Save, Saves
from supervisor.jobs.cache import ClusterJobs
from supervisor.jobs.queues.kueue.workloads import Workload, Workloads
from supervisor.store.interface import Store

_LOOK_SECONDS = 10.0
"""The interval of checks: no event tells of a checkpoint, of a rank 0 that has gone, or of a stored change of a job."""

_RETRY_SECONDS = 0.5
_FIRST_PAUSE = 0.5
_MAX_PAUSE = 30.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostPolicy:
    """The bounds of boosts.

    Attributes:
        maximum: The largest boost; 0 means that there are none.
        step_seconds: Each of these seconds of work that would be lost adds one point in total.
        hold_seconds: A boost changes at most once in this time.
        margin_seconds: The part of a pod's grace that is not counted on for a checkpoint.
    """

    maximum: int
    step_seconds: float
    hold_seconds: float
    margin_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The facts that decide how much a running job would lose.

    Attributes:
        run: The number of its run.
        save: Its last checkpoint; None if none is known.
        grace: The shortest grace of its pods, in seconds.
        attended: Whether rank 0 is connected, so that it can be told to save.
    """

    run: int
    save: Save | None
    grace: float
    attended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Boost:
    """The boost of a job's Workload.

    `run` is the present run, `began` when its work began to count (Unix seconds), and `changed_at` when `value` was
    last changed.
    """

    run: int
    began: float
    value: int
    changed_at: float


def next_boost(before: Boost | int, exposure: Exposure, policy: BoostPolicy, now: float) -> Boost:
    """Computes the boost of a job: one point for each step of work that a preemption would cost it now.

    That work is 0 if the job can save within the grace of its pods, by the time that its last checkpoint took.
    `before` is the boost that is written in a Workload which this supervisor sees for the first time. An earlier leader
    has counted so many steps of work, so that nothing changes because another one leads.
    """
    if isinstance(before, int):
        began = now - before * policy.step_seconds
        before = Boost(run=exposure.run, began=began, value=before, changed_at=now)
    known = before if exposure.run == before.run else replace(before, run=exposure.run, began=now)
    save = exposure.save
    seconds = None if save is None or not exposure.attended else save.seconds
    if seconds is not None and seconds + policy.margin_seconds <= exposure.grace:
        unsaved = 0.0
    else:
        saved_at = save.at if save is not None and save.run == exposure.run else known.began
        unsaved = max(0.0, now - max(known.began, saved_at))
    value = min(policy.maximum, int(unsaved // policy.step_seconds))
    if value == known.value or now < known.changed_at + policy.hold_seconds:
        return known
    return replace(known, value=value, changed_at=now)


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
    """Keeps the boosts of all admitted Workloads of running jobs up to date; `run` is a root task of the leader."""

    def __init__(self, deps: BoosterDependencies) -> None:
        self._deps = deps
        self._boosts: dict[JobName, tuple[str, Boost]] = {}
        """The boost of each job, with the uid of its Workload."""
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
        """Enqueues these jobs if there are Workloads at all."""
        if self._deps.workloads.by_job:
            for name in names:
                self._queue.add(name)

    async def run(self) -> None:
        """Root task: keeps the boosts up to date. Without a maximum it removes the boosts that it wrote before."""
        for kind in self._deps.jobs:
            self.add(kind.cache.names)
        await self._queue.run()

    async def _reconcile(self, name: JobName) -> float | None:
        deps, state = self._deps, self._deps.jobs.state(name)
        workload = None if state is None else deps.workloads.of(state)
        if state is None or workload is None:
            self._boosts.pop(name, None)
            self._foreign.pop(name, None)
            return None
        if foreign := workload.boost_of_another:
            self._boosts.pop(name, None)
            if self._foreign.get(name) != workload.metadata.uid:
                self._foreign[name] = workload.metadata.uid
                _log.warning("workload.boosted_by_other", job=name, boost=foreign)
            return None
        value, job = 0, deps.store.snapshot().jobs.get(name)
        # The Workload of a job that waits gets no boost, which would change its place in the queue.
        runs = job is not None and workload.may_run and job.observed.running and not job.over
        if job is not None and runs and deps.policy.maximum and job.uid == state.job.metadata.uid:
            run = job.observed.run
            exposure = Exposure(
                run=run,
                save=deps.saves.last.get(job.id),
                grace=min((pod.grace for pod in state.pods if not pod.over), default=0.0),
                attended=deps.rank_zero(job.id, run).connected,
            )
            value = self._boost(name, workload, exposure)
        else:
            self._boosts.pop(name, None)
            self._foreign.pop(name, None)
        pause = await self._write(name, workload, value)
        if pause is None and deps.policy.maximum and workload.may_run:
            return min(_LOOK_SECONDS, deps.policy.step_seconds)
        return pause

    def _boost(self, name: JobName, workload: Workload, exposure: Exposure) -> int:
        now, policy = self._deps.clock.now(), self._deps.policy
        uid, before = self._boosts.get(name, ("", None))
        if uid != workload.metadata.uid:
            before = None
        boost = next_boost(workload.boost if before is None else before, exposure, policy, now)
        self._boosts[name] = workload.metadata.uid, boost
        return boost.value

    async def _write(self, name: JobName, workload: Workload, boost: int) -> float | None:
        """Writes the boost of a job; returns after how many seconds to try again, None if nothing is left to do."""
        if workload.boost == boost and workload.boost_marked is bool(boost):
            return None
        if not self._deps.may_act():
            return _RETRY_SECONDS
        try:
            await self._deps.workloads.boost(workload, boost)
        except (ConflictError, NotFoundError) as error:
            _log.debug("workload.changed", workload=str(workload.metadata.key), why=str(error))
            return _RETRY_SECONDS
        _log.info("workload.boosted", job=name, boost=boost, before=workload.boost)
        return None
