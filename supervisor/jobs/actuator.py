"""Carries out the latest decision about each job of a cluster, and repeats its actions until they are in place."""

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
from servicekit.reconcile import KeyedWorkQueue
from supervisor.cluster.annotations import DIRECTIVE
from supervisor.cluster.objects import Pod
from supervisor.domain import order
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.job import HubMarks, Phase, SupervisedJob
from supervisor.jobs.cache import ClusterJobs
from supervisor.jobs.kind import ActionProgress, JobActions, JobState
from supervisor.jobs.marks import write_marks
from supervisor.jobs.pods import STOP_PORT, delete_pods, request_stop, write_metadata
from supervisor.store.interface import Store, StoreUnavailableError, decided_since

_RETRY_SECONDS = 0.5
"""The pause after a failure, and between checks of how a controller reacts to a change."""

_STOP_SECONDS = 1.0
"""The pause between two requests to stop: a process that loads its data does not listen yet."""

_SETTLED_SECONDS = 5.0
"""A younger pod has replaced another one on a machine that is about to go. Deleting it would have it replaced there
again, several times within the remaining two seconds, each time with another host list."""

_ACTION_GROUPS: Mapping[str, tuple[type[order.Action], ...]] = {
    # Growth must not be requested for a job that is about to resume.
    "run": (order.SuspendRun, order.EndJob, order.StartRun, order.AddHosts, order.WriteHubMarks),
    "hosts": (order.SetHostList, order.RemoveHosts),
    "processes": (order.StopProcesses, order.LeaveHosts),
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
    stop_port: int = STOP_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class _PodDirective:
    """The directive in a pod's annotation, for its processes without a stream. docs/reference/wire.md has the form."""

    run: int
    generation: int
    kind: order.ProcessDirectiveKind
    reason: str


@dataclass(frozen=True, slots=True)
class _Outstanding:
    """A decision and its outstanding actions."""

    job: SupervisedJob
    actions: Sequence[order.Action]


class Actuator:
    """Accepts actions with `carry_out`, and executes them in the root task `run`."""

    def __init__(self, deps: ActuatorDependencies) -> None:
        self._deps = deps
        self._outstanding: dict[_Key, _Outstanding] = {}
        self._queue: KeyedWorkQueue[_Key] = KeyedWorkQueue("act", self._reconcile, deps.bulkhead)
        self._fault = Fault("changes of jobs", deps.clock)
        self._directives_fault = Fault("directives in annotations of pods", deps.clock)
        # Root task: executes the actions.
        self.run = self._queue.run

    async def carry_out(self, job: SupervisedJob, actions: Sequence[order.Action]) -> bool:
        """Enqueues actions without waiting for them: a slow launcher of one job must not delay other jobs.

        Actions that do not fit the present pods of the job are skipped until they are requested again.
        """
        if self._deps.jobs.of(job.name) is None:
            return True  # Its kind is not supported any more, so its actions cannot be executed.
        for group, kinds in _ACTION_GROUPS.items():
            if todo := [action for action in actions if isinstance(action, kinds)]:
                self._outstanding[group, job.name] = _Outstanding(job, todo)
                self._queue.add((group, job.name))
        return not actions

    async def _reconcile(self, key: _Key) -> float | None:
        """Executes the actions of a job; returns the seconds until they must be repeated, None if they need not be."""
        outstanding = self._outstanding[key]
        seconds = await self._carry_out(outstanding.job, outstanding.actions)
        if seconds is None and self._outstanding[key] is outstanding:
            # They are in place, or cannot be any more.
            del self._outstanding[key]
        return seconds

    async def _carry_out(self, job: SupervisedJob, actions: Sequence[order.Action]) -> float | None:
        """Executes actions while the job exists and the decision is valid."""
        stored, kind = self._deps.store.snapshot().jobs.get(job.name), self._deps.jobs.of(job.name)
        state = self._deps.jobs.state(job.name)
        if kind is None or stored is None or state is None or decided_since(job, stored) or stored.over:
            return None
        if state.job.deleted or state.job.metadata.uid != job.uid:
            return None
        if state.job.taken_back:
            return None  # Each further attempt would delete all of its pods, and the hub would have them made anew.
        if not self._deps.may_act():
            return _RETRY_SECONDS
        try:
            waits = [await self._do(kind.actions, state, job, action) for action in actions]
        except NotFoundError as error:
            _log.debug("job.gone", job=job.name, why=str(error))
            return _RETRY_SECONDS
        except (ApiError, StoreUnavailableError) as error:
            self._fault.failed(f"{job.name}: {error}")
            return _RETRY_SECONDS
        self._fault.recovered()
        return min((seconds for seconds in waits if seconds is not None), default=None)

    async def _do(
        self, actions: JobActions[Any], state: JobState[Any], job: SupervisedJob, action: order.Action
    ) -> float | None:
        """Executes one action; returns the seconds until it must be repeated, None if it need not be."""
        # The run that goes on is the decided one; a later one gets a decision of its own.
        runs = bool(state.run_id) and state.run_id == job.observed.instance
        # The processes of these pods learn of a directive from an annotation, or as those of the first SDK do.
        connected = self._deps.connected(job.id)
        silent = [pod for pod in state.workers if pod.running and pod.host not in connected]
        progress: ActionProgress | None = None
        match action:
            case order.SuspendRun():
                progress = await actions.suspend(state)
            case order.StartRun():
                progress = await actions.resume(state, len(job.decision.hosts), job.spec.requested_workers)
            case order.EndJob(result):
                await actions.end(state, result)
            case order.SetHostList() if runs and job.decision.phase is not Phase.RESUMING:
                progress = await actions.exclude(state, job.decision.exclusions)
            case order.AddHosts(run, workers, number, until) if runs and run == job.observed.run:
                # A growth is requested until another decision is made: the controller may be busy.
                if (left := until - self._deps.clock.now()) > 0:
                    await actions.grow(state, workers, number, left)
                    return _RETRY_SECONDS
            case order.RemoveHosts(run, hosts) if runs and run == job.observed.run:
                return await self._remove(state, hosts)
            case order.LeaveHosts(run, hosts) if run == job.observed.run:
                generation, reason = job.decision.excluded_at, job.decision.reason
                directive = _PodDirective(
                    run=run, generation=generation, kind=order.ProcessDirectiveKind.LEAVE, reason=reason
                )
                leaving = [pod for pod in silent if pod.host in hosts]
                return None if await self._annotate(leaving, directive) else _RETRY_SECONDS
            case order.StopProcesses():
                return await self._stop(job, silent)
            case order.WriteHubMarks(marks):
                return await self._mark(state, marks)
        if progress is None:
            return None
        if progress is not ActionProgress.PENDING:
            await self._deps.report(job)
        return None if progress is ActionProgress.IN_PLACE else _RETRY_SECONDS

    async def _remove(self, state: JobState[Any], hosts: Collection[Host]) -> float | None:
        """Deletes the pods of excluded hosts whose nodes will soon be gone."""
        leaving = [pod for pod in state.workers if pod.host in hosts and pod.deleted_at is None and not pod.over]
        made = [(pod, pod.metadata.creation_timestamp) for pod in leaving]
        latest = self._deps.cluster_now() - _SETTLED_SECONDS
        settled = [pod for pod, at in made if at is None or nearest_seconds(at) <= latest]
        await delete_pods(self._deps.pods, settled)
        return _RETRY_SECONDS if len(settled) < len(leaving) else None

    async def _mark(self, state: JobState[Any], marks: HubMarks) -> float | None:
        kind = self._deps.jobs.of(state.name)
        written = None if kind is None else await write_marks(kind.cache.client, state, marks)
        if kind is None or written is None:
            return _RETRY_SECONDS
        kind.cache.wrote(written)
        return None

    async def _stop(self, job: SupervisedJob, silent: Collection[Pod]) -> float | None:
        """Requests the stop again, because a process may still load its data, and a stream may break at any time."""
        stop = job.decision.stop
        if stop is None:
            return None
        directive = _PodDirective(
            run=stop.run, generation=stop.generation, kind=order.ProcessDirectiveKind.STOP, reason=job.decision.reason
        )
        addresses = [pod.ip for pod in silent if pod.ip]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._annotate(silent, directive))
            requests = group.create_task(request_stop(addresses, self._deps.stop_port))
        if accepted := requests.result():
            _log.info("job.stopped_by_request", job=job.name, pods=len(silent), accepted=accepted)
        return _STOP_SECONDS

    async def _annotate(self, silent: Collection[Pod], directive: _PodDirective) -> bool:
        """Writes a directive into annotations for processes without a stream; returns whether all their pods have it.

        It does not raise: the annotation is a second path.
        """
        text = f"{directive.run} {directive.generation} {directive.kind} {directive.reason}"
        annotation = {DIRECTIVE: text}
        others = [pod for pod in silent if not pod.annotations.items() >= annotation.items()]
        failures = await write_metadata(self._deps.pods, [(pod, {"annotations": annotation}) for pod in others])
        if failures:
            pod, error = failures[0]
            self._directives_fault.failed(f"{pod.key.name}: {error}")
        elif silent:
            self._directives_fault.recovered()
        return not failures
