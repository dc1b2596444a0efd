"""Carries decisions about TrainingJobs out, by the API server: each job's latest, again until it is in place."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import structlog

from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Fault
from servicekit.kubernetes.errors import ApiError, NotFoundError
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import Pod
from supervisor.cluster.view import ClusterView
from supervisor.domain.directive import DirectiveKind
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.order import (
    Action,
    AddHosts,
    EndJob,
    LeaveHosts,
    RemoveHosts,
    SetHostList,
    StartRun,
    StopProcesses,
    SuspendRun,
)
from supervisor.failpoints import At
from supervisor.jobs.trainingjob import legacy
from supervisor.jobs.trainingjob.changes import SUSPENSION, TIMED_OUT, Changes
from supervisor.jobs.trainingjob.latest import Latest
from supervisor.jobs.trainingjob.objects import EXCLUDED, JobPhase
from supervisor.jobs.trainingjob.scaleouts import ScaleOuts
from supervisor.jobs.trainingjob.seen import ObservedJob
from supervisor.jobs.trainingjob.watch import TrainingJobWatch
from supervisor.store.interface import Store, StoreUnavailableError

_RETRY_SECONDS = 0.5
"""After something that did not work, and between two looks at what the operator makes of a change."""

_LEGACY_SECONDS = 1.0
"""A process that loads its data hears of a stop only once it listens."""

_SETTLED_SECONDS = 5.0
"""A pod that is younger has replaced one on a machine that is about to go: it would only be replaced there once more,
several times within the two seconds that are left, each time with another list of hosts."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the adapter works with.

    `may_act` is asked before each change; `hosts` says from which hosts of a job processes have a stream; `cluster_now`
    is the time by the API server's clock, Unix seconds.
    """

    server: ApiServer
    view: ClusterView
    watch: TrainingJobWatch
    scale_outs: ScaleOuts
    store: Store
    may_act: Callable[[], bool]
    hosts: Callable[[JobName], Collection[Host]]
    clock: Clock
    cluster_now: Callable[[], float]
    legacy_port: int = legacy.PORT


@dataclass(frozen=True, slots=True)
class _Order:
    """A decision and what is to be done for it."""

    job: SupervisedJob
    actions: Sequence[Action]


class TrainingJobs:
    """The adapter. `run` does what `carry_out` is asked for."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._changes = Changes(ports.server, ports.watch.collection, ports.view.pod_collection, ports.watch.wrote)
        # Apart: a launcher that does not answer must not hold up a suspension.
        self._lanes: tuple[tuple[tuple[type[Action], ...], Latest[_Order]], ...] = (
            # Nobody is to ask for more workers of a job that is about to resume.
            ((SuspendRun, EndJob, StartRun, AddHosts), Latest(self._obey)),
            ((SetHostList, RemoveHosts), Latest(self._obey)),
            ((StopProcesses, LeaveHosts), Latest(self._obey)),
        )
        self._fault = Fault("changes of TrainingJobs", ports.clock)
        self._directives_fault = Fault("directives in annotations of pods", ports.clock)
        self._left_out: dict[JobName, tuple[str, frozenset[Host]]] = {}

    async def run(self) -> None:
        """Root task."""
        async with asyncio.TaskGroup() as group:
            for _, lane in self._lanes:
                group.create_task(lane.run())

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Has it done, without waiting: one job's launcher may be slow to answer, and others are in a hurry.

        What cannot be done as the job's pods are now is left until somebody asks again.
        """
        for kinds, lane in self._lanes:
            if todo := [action for action in actions if isinstance(action, kinds)]:
                lane.put(job.name, _Order(job, todo))
        self._forget_others(self._ports.store.snapshot().jobs)
        return not actions

    def _forget_others(self, jobs: Collection[JobName]) -> None:
        if len(self._left_out) > len(jobs):
            self._left_out = {name: known for name, known in self._left_out.items() if name in jobs}

    async def _obey(self, order: _Order) -> float | None:
        seen = self._current(order.job)
        if seen is None:
            return None
        if not self._ports.may_act():
            return _RETRY_SECONDS
        try:
            waits = [await self._do(seen, order.job, action) for action in order.actions]
        except NotFoundError as error:
            _log.debug("trainingjob.gone", job=order.job.name, why=str(error))
            return _RETRY_SECONDS
        except (ApiError, StoreUnavailableError) as error:
            self._fault.failed(f"{order.job.name}: {error}")
            return _RETRY_SECONDS
        self._fault.recovered()
        return min((each for each in waits if each is not None), default=None)

    def _current(self, job: SupervisedJob) -> ObservedJob | None:
        """The job as it is now, if the decision still stands and it is still that job."""
        stored, seen = self._ports.store.snapshot().jobs.get(job.name), self._ports.watch.seen(job.name)
        if stored is None or seen is None or seen.job.deleted or seen.job.metadata.uid != job.uid:
            return None
        stands = (stored.uid, stored.decision.generation) == (job.uid, job.decision.generation)
        return seen if stands and not stored.over else None

    async def _do(self, seen: ObservedJob, job: SupervisedJob, action: Action) -> float | None:
        match action:
            case SuspendRun():
                return await self._suspend(seen, job)
            case EndJob():
                await self._changes.suspend(seen, TIMED_OUT)
                return None
            case StartRun():
                return await self._start(seen, job)
            case _:
                return await self._do_to_run(seen, job, action)

    async def _do_to_run(self, seen: ObservedJob, job: SupervisedJob, action: Action) -> float | None:
        match action:
            case SetHostList() if job.decision.phase is not Phase.RESUMING:
                return await self._leave_out(seen, job)
            case RemoveHosts(run, hosts):
                return await self._remove(seen, job, run, hosts)
            case AddHosts():
                return await self._add(seen, job, action)
            case LeaveHosts(run, hosts):
                return await self._have_leave(seen, job, run, hosts)
            case StopProcesses():
                return await self._stop_processes(seen, job)
        return None

    async def _suspend(self, seen: ObservedJob, job: SupervisedJob) -> float | None:
        """In place once the operator says so and nothing of the job is left that could run, or start."""
        if seen.job.phase is JobPhase.SUSPENDED and seen.job.suspended and not seen.pods:
            await self._in_place(job)
            return None
        await self._changes.suspend(seen, SUSPENSION)
        return _RETRY_SECONDS

    async def _start(self, seen: ObservedJob, job: SupervisedJob) -> float | None:
        """Looked at until the run is there: the operator may write its old status over ours."""
        if seen.job.phase is JobPhase.SUSPENDED:
            if not await self._ports.scale_outs.gone(job.uid):
                return _RETRY_SECONDS
            await self._changes.resume(seen, len(job.decision.hosts), job.spec.requested_workers)
        else:
            await self._in_place(job)
        return _RETRY_SECONDS

    async def _add(self, seen: ObservedJob, job: SupervisedJob, asked: AddHosts) -> float | None:
        """Tried until another thing is decided: the operator may be busy just now."""
        left = asked.until - self._ports.clock.now()
        if asked.run != job.observed.run or left <= 0 or not _runs(seen, job):
            return None
        await self._ports.scale_outs.ask(seen, asked.workers, asked.number, left)
        return _RETRY_SECONDS

    async def _leave_out(self, seen: ObservedJob, job: SupervisedJob) -> float | None:
        """In the launcher of the run that was decided about; the next one hears of it by its own decision."""
        launcher, wish = seen.launcher, seen.job.wish
        if launcher is None or wish is None or not _runs(seen, job):
            return None
        unlisted = _still_listed(seen, launcher)
        hosts = job.decision.exclusions | unlisted
        written = (launcher.metadata.uid, hosts)
        if self._left_out.get(job.name) != written:
            await self._changes.leave_out(launcher, wish.launcher.container, hosts)
            self._left_out[job.name] = written
        await self._in_place(job)
        return _RETRY_SECONDS if unlisted else None

    async def _remove(self, seen: ObservedJob, job: SupervisedJob, run: int, hosts: Collection[Host]) -> float | None:
        launcher = seen.launcher
        if run != job.observed.run or launcher is None or launcher.metadata.uid != job.observed.instance:
            return None
        doomed = [pod for pod in seen.workers if pod.key.name in hosts and pod.deleted_at is None and not pod.over]
        settled = [pod for pod in doomed if self._age(pod) >= _SETTLED_SECONDS]
        await self._changes.remove(settled)
        return _RETRY_SECONDS if len(settled) < len(doomed) else None

    def _age(self, pod: Pod) -> float:
        made = pod.metadata.creation_timestamp
        return _SETTLED_SECONDS if made is None else self._ports.cluster_now() - made.timestamp()

    async def _have_leave(
        self, seen: ObservedJob, job: SupervisedJob, run: int, hosts: Collection[Host]
    ) -> float | None:
        if run != job.observed.run:
            return None
        doomed = [pod for pod in self._silent(seen, job) if pod.key.name in hosts]
        text = directive(run, job.decision.excluded_at, DirectiveKind.LEAVE, job.decision.reason)
        return None if await self._told(doomed, text) else _RETRY_SECONDS

    async def _stop_processes(self, seen: ObservedJob, job: SupervisedJob) -> float | None:
        """Again and again: a process that loads its data is reached later, and a stream may be cut at any time."""
        stop, silent = job.decision.stop, self._silent(seen, job)
        if stop is None:
            return None
        async with asyncio.TaskGroup() as group:
            text = directive(stop.run, stop.generation, DirectiveKind.STOP, job.decision.reason)
            group.create_task(self._told(silent, text))
            asked = group.create_task(legacy.stop([pod.ip for pod in silent if pod.ip], self._ports.legacy_port))
        if taken := asked.result():
            _log.info("trainingjob.stopped_by_request", job=job.name, pods=len(silent), taken=taken)
        return _LEGACY_SECONDS

    def _silent(self, seen: ObservedJob, job: SupervisedJob) -> list[Pod]:
        """The workers from which no process has a stream."""
        hosts = self._ports.hosts(job.name)
        return [pod for pod in seen.workers if pod.running and Host(pod.key.name) not in hosts]

    async def _told(self, pods: Collection[Pod], text: str) -> bool:
        if failed := await self._changes.tell(pods, text):
            self._directives_fault.failed(failed)
        elif pods:
            self._directives_fault.recovered()
        return not failed

    async def _in_place(self, job: SupervisedJob) -> None:
        """Everything that the decision asks for is done."""
        generation = job.decision.generation

        def change(known: SupervisedJob | None) -> SupervisedJob | None:
            if known is None or known.uid != job.uid or known.observed.applied >= generation:
                return known
            return replace(known, observed=replace(known.observed, applied=generation))

        await self._ports.store.put_job(job.name, change)
        failpoint(At.ORDER_APPLIED)


def _runs(seen: ObservedJob, job: SupervisedJob) -> bool:
    """Whether the launcher is that of the run that was decided about."""
    launcher = seen.launcher
    return launcher is not None and launcher.running and launcher.metadata.uid == job.observed.instance


def _still_listed(seen: ObservedJob, launcher: Pod) -> frozenset[Host]:
    """Hosts that were left out, are gone, and that the operator has not taken off its own list yet.

    It does not look at its workers while it adds some; Horovod would start processes on a host that is gone.
    """
    there = {pod.key.name for pod in seen.workers}
    before = launcher.annotations.get(EXCLUDED, "").split()
    return frozenset(Host(name) for name in before if name in seen.job.current and name not in there)


def directive(run: int, generation: int, kind: DirectiveKind, reason: str) -> str:
    """As an annotation says it; docs/reference/wire.md has the form."""
    return f"{run} {generation} {kind} {reason}"
