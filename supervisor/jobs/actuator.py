"""Carries out decisions about the jobs of a cluster: the latest decision of each job, until it is in place."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from servicekit.bounds import nearest_seconds
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.errors import ApiError, NotFoundError
from servicekit.workqueue import KeyedWorkQueue
from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.order import (
    Action,
    AddHosts,
    DirectiveKind,
    EndJob,
    LeaveHosts,
    RemoveHosts,
    SetHostList,
    StartRun,
    StopProcesses,
    SuspendRun,
)
from supervisor.jobs import stop_request
from supervisor.jobs.cluster import ClusterJobs
from supervisor.jobs.kind import JobActions, JobState, Progress
from supervisor.jobs.pods import PodDirective, annotate
from supervisor.store.interface import Store, StoreUnavailableError, decided_since

_RETRY_SECONDS = 0.5
"""The pause after a failure, and between checks of how a controller reacts to a change."""

_STOP_SECONDS = 1.0
"""The pause between two requests to stop: a process that loads its data does not listen yet."""

_SETTLED_SECONDS = 5.0
"""A younger pod has replaced another one on a machine that is about to go. Deleting it would have it replaced there
again, several times within the remaining two seconds, each time with another host list."""

_ACTION_GROUPS: Mapping[str, tuple[type[Action], ...]] = {
    # Growth must not be requested for a job that is about to resume.
    "run": (SuspendRun, EndJob, StartRun, AddHosts),
    "hosts": (SetHostList, RemoveHosts),
    "processes": (StopProcesses, LeaveHosts),
}
"""Actions of one group are executed in order, groups concurrently: a launcher that does not answer must not delay a
suspension."""

_Key = tuple[str, JobName]
"""A group and a job."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActuatorDependencies:
    """The dependencies of the actuator.

    Attributes:
        jobs: The cluster's jobs, and the actions of their kinds.
        pods: Changes pods.
        store: Shows whether a decision is still valid.
        report: Called when everything that a job's decision asks for is in place.
        may_act: Called before each change.
        connected: Returns the hosts of a job from which processes have a stream.
        clock: For instants.
        cluster_now: Returns the time by the API server's clock (Unix seconds).
        bulkhead: Keeps what nobody foresaw with its job.
        stop_port: The port on which processes with the first SDK accept requests.
    """

    jobs: ClusterJobs
    pods: ResourceClient[Pod]
    store: Store
    report: Callable[[SupervisedJob], Awaitable[None]]
    may_act: Callable[[], bool]
    connected: Callable[[JobId], Collection[Host]]
    clock: Clock
    cluster_now: Callable[[], float]
    bulkhead: Bulkhead
    stop_port: int = stop_request.PORT


@dataclass(frozen=True, slots=True)
class _Order:
    """A decision and its outstanding actions."""

    job: SupervisedJob
    actions: Sequence[Action]


class Actuator:
    """Accepts actions with `carry_out` and executes them in `run`."""

    def __init__(self, deps: ActuatorDependencies) -> None:
        self._deps = deps
        self._orders: dict[_Key, _Order] = {}
        self._queue: KeyedWorkQueue[_Key] = KeyedWorkQueue("act", self._reconcile, deps.bulkhead)
        self._fault = Fault("changes of jobs", deps.clock)
        self._directives_fault = Fault("directives in annotations of pods", deps.clock)

    async def run(self) -> None:
        """Root task: executes the actions."""
        await self._queue.run()

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Enqueues actions without waiting for them: a slow launcher of one job must not delay other jobs.

        Actions that do not fit the present pods of the job are skipped until they are requested again.
        """
        if self._deps.jobs.of(job.name) is None:
            return True  # Its kind is not supported any more, so its actions cannot be executed.
        for lane, kinds in _ACTION_GROUPS.items():
            if todo := [action for action in actions if isinstance(action, kinds)]:
                self._orders[lane, job.name] = _Order(job, todo)
                self._queue.add((lane, job.name))
        return not actions

    async def _reconcile(self, key: _Key) -> float | None:
        order = self._orders[key]
        seconds = await self._carry_out(order)
        if seconds is None and self._orders[key] is order:
            del self._orders[key]
        return seconds

    async def _carry_out(self, order: _Order) -> float | None:
        kind, state = self._deps.jobs.of(order.job.name), self._current(order.job)
        if kind is None or state is None:
            return None
        if not self._deps.may_act():
            return _RETRY_SECONDS
        try:
            waits = [await self._do(kind.actions, state, order.job, action) for action in order.actions]
        except NotFoundError as error:
            _log.debug("job.gone", job=order.job.name, why=str(error))
            return _RETRY_SECONDS
        except (ApiError, StoreUnavailableError) as error:
            self._fault.failed(f"{order.job.name}: {error}")
            return _RETRY_SECONDS
        self._fault.recovered()
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def _current(self, job: SupervisedJob) -> JobState[Any] | None:
        """The present state of the job, if it still exists and the decision is still valid."""
        stored, state = self._deps.store.snapshot().jobs.get(job.name), self._deps.jobs.state(job.name)
        if stored is None or state is None or state.job.deleted or state.job.metadata.uid != job.uid:
            return None
        return None if decided_since(job, stored) or stored.over else state

    async def _do(
        self, actions: JobActions[Any], state: JobState[Any], job: SupervisedJob, action: Action
    ) -> float | None:
        """Executes one action; returns the seconds until it must be repeated, None: only when it is requested again."""
        match action:
            case SuspendRun():
                return await self._reported(job, await actions.suspend(state))
            case StartRun():
                workers, requested = len(job.decision.hosts), job.spec.requested_workers
                return await self._reported(job, await actions.resume(state, workers, requested))
            case EndJob(result):
                await actions.end(state, result)
                return None
            case SetHostList() if job.decision.phase is not Phase.RESUMING and _runs(state, job):
                return await self._reported(job, await actions.exclude(state, job.decision.exclusions))
            case _:
                return await self._do_to_hosts(actions, state, job, action)

    async def _do_to_hosts(
        self, actions: JobActions[Any], state: JobState[Any], job: SupervisedJob, action: Action
    ) -> float | None:
        match action:
            case AddHosts():
                return await self._grow(actions, state, job, action)
            case RemoveHosts(run, hosts):
                return await self._remove(actions, state, job, run, hosts)
            case LeaveHosts(run, hosts) if run == job.observed.run:
                return await self._leave(state, job, run, hosts)
            case StopProcesses():
                return await self._stop(state, job)
        return None

    async def _reported(self, job: SupervisedJob, progress: Progress) -> float | None:
        if progress is not Progress.PENDING:
            await self._deps.report(job)
        return None if progress is Progress.IN_PLACE else _RETRY_SECONDS

    async def _grow(
        self, actions: JobActions[Any], state: JobState[Any], job: SupervisedJob, action: AddHosts
    ) -> float | None:
        """Requests a growth until another decision is made: the controller may be busy."""
        left = action.until - self._deps.clock.now()
        if action.run != job.observed.run or left <= 0 or not _runs(state, job):
            return None
        await actions.grow(state, action.workers, action.number, left)
        return _RETRY_SECONDS

    async def _remove(
        self, actions: JobActions[Any], state: JobState[Any], job: SupervisedJob, run: int, hosts: Collection[Host]
    ) -> float | None:
        if run != job.observed.run or not _runs(state, job):
            return None
        leaving = [pod for pod in state.workers if pod.host in hosts and pod.deleted_at is None and not pod.over]
        settled = [pod for pod in leaving if self._age(pod) >= _SETTLED_SECONDS]
        await actions.remove(state, settled)
        return _RETRY_SECONDS if len(settled) < len(leaving) else None

    def _age(self, pod: Pod) -> float:
        made = pod.metadata.creation_timestamp
        return _SETTLED_SECONDS if made is None else self._deps.cluster_now() - nearest_seconds(made)

    async def _leave(self, state: JobState[Any], job: SupervisedJob, run: int, hosts: Collection[Host]) -> float | None:
        silent = [pod for pod in self._without_stream(state, job) if pod.host in hosts]
        generation, reason = job.decision.excluded_at, job.decision.reason
        directive = PodDirective(run=run, generation=generation, kind=DirectiveKind.LEAVE, reason=reason)
        return None if await self._annotate(silent, directive) else _RETRY_SECONDS

    async def _stop(self, state: JobState[Any], job: SupervisedJob) -> float | None:
        """Repeats the stop: a process that loads its data is reached later, and a stream may break at any time."""
        stop, silent = job.decision.stop, self._without_stream(state, job)
        if stop is None:
            return None
        directive = PodDirective(
            run=stop.run, generation=stop.generation, kind=DirectiveKind.STOP, reason=job.decision.reason
        )
        addresses = [pod.ip for pod in silent if pod.ip]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._annotate(silent, directive))
            requests = group.create_task(stop_request.request_stop(addresses, self._deps.stop_port))
        if accepted := requests.result():
            _log.info("job.stopped_by_request", job=job.name, pods=len(silent), accepted=accepted)
        return _STOP_SECONDS

    def _without_stream(self, state: JobState[Any], job: SupervisedJob) -> list[Pod]:
        connected = self._deps.connected(job.id)
        return [pod for pod in state.workers if pod.running and pod.host not in connected]

    async def _annotate(self, pods: Collection[Pod], directive: PodDirective) -> bool:
        if failure := await annotate(self._deps.pods, pods, directive):
            self._directives_fault.failed(failure)
        elif pods:
            self._directives_fault.recovered()
        return not failure


def _runs(state: JobState[Any], job: SupervisedJob) -> bool:
    """Whether the run that goes on is the decided one; a later one gets a decision of its own."""
    return bool(state.run_id) and state.run_id == job.observed.instance
