"""Jobs that consist of replicas by role: how they are read, observed, suspended, resumed and grown."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import chain, repeat
from typing import Generic, TypeVar

import msgspec

from servicekit.bounds import MAX_LISTED_WORKERS
from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.errors import RefusedError
from supervisor.cluster.annotations import MIN_WORKERS, OURS, REQUESTED, STATUS, SUSPENDED_BY, ours
from supervisor.cluster.objects import PodPhase
from supervisor.cluster.podspec import Body
from supervisor.domain.capacity import Demand, Pods, ResourceRequest
from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Framework, Observed, Phase, Result, Spec, SupervisedJob
from supervisor.jobs.annotated import asked_count, requested_workers
from supervisor.jobs.kind import (
    ActionProgress,
    CommonJobSpec,
    HubView,
    JobKind,
    JobObject,
    JobPodRole,
    JobState,
    KindContext,
    Right,
    RootTasks,
    WrittenField,
    owned_by,
)
from supervisor.jobs.manifest import JobBody, RoleReplicas, RunPolicy, StartedStatus, decoded, gangs_of
from supervisor.jobs.observation import STATUS_OF, SUSPENSION, JobObservation, marked_result, observed_run, refusal

_CAPABILITIES = frozenset({Capability.MAKES_HOSTS, Capability.STARTS_RUNS, Capability.SIGNALS_PODS})


class JobCondition(StrEnum):
    """The conditions of a job that the supervisor reads."""

    RUNNING = "Running"
    """The launcher and all workers ran once since the last start; it stays true whatever ends later."""
    SUSPENDED = "Suspended"
    """The controller says that the job is suspended, which it does for a moment after a resume, too."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShape:
    """The fields and labels with which a kind writes its roles.

    Attributes:
        replicas: The field of the spec with the replicas of each role.
        roles: The roles whose pods train or are trained with. Specs may spell them with any letters in upper case.
        scaled: The one of them whose number may change.
        role_label: The label of a pod with its role in lower case.
        controller: The name of the operator in `runPolicy.managedBy`.
    """

    replicas: str
    roles: tuple[str, ...]
    scaled: str
    role_label: str
    controller: str


class ElasticPolicy(Body, frozen=True):
    """The bounds and the rendezvous of a job that torchrun starts."""

    min_replicas: int | None = None
    max_replicas: int | None = None
    rdzv_backend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedSpec(CommonJobSpec):
    """The sizes, templates and policies that a job asks for; `replicas` is the sum of its sizes.

    Attributes:
        sizes: The present number of pods of each role.
        scaled: The role whose number may change.
        parts: The number of pods of each part of a role, for roles that consist of equal, numbered parts.
        restart_policies: Those of the roles.
        commands: The command line of each container as one text.
        variables: The literal variables of the containers.
        elastic: The elastic policy; None without one.
        has_fixed_size: The controller accepts no other size.
        discovers_hosts: A run looks for its hosts while it runs, so that more of them are of use to it.
    """

    sizes: Mapping[str, int]
    scaled: str
    parts: Mapping[str, int] = field(default_factory=dict)
    restart_policies: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()
    variables: frozenset[tuple[str, str]] = frozenset()
    elastic: ElasticPolicy | None = None
    has_fixed_size: bool = False
    discovers_hosts: bool = True

    @property
    def others(self) -> int:
        """The number of pods of the roles whose number does not change."""
        return self.replicas - self.sizes.get(self.scaled, 0)

    @property
    def roles(self) -> tuple[Mapping[str, int], str]:
        return self.sizes, self.scaled

    def places(self, role: str, size: int, first: int = 0) -> Iterable[tuple[str, int]]:
        """The pods of a role of that size.

        Each is a pair: the role or the part of the role, and the pod's number in it.
        """
        pods, indices = self.parts.get(role), range(first, size)
        if pods is None:
            return zip(repeat(role), indices)
        if first or not pods:
            return ((f"{role}-{index // pods}", index % pods) for index in indices)
        parts = enumerate(range(size, 0, -pods))
        return chain.from_iterable(zip(repeat(f"{role}-{part}"), range(min(pods, left))) for part, left in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedJob(JobObject):
    """One job.

    Attributes:
        conditions: Those that are true.
        started_at: When its controller first saw it, or last resumed it.
        restarts: How often its controller has made all of its pods anew, or restarted them in place; None where that is
            another start.
        is_between_runs: Its controller has ended the run and keeps its pods, in which the next one begins soon.
    """

    conditions: frozenset[str] = frozenset()
    started_at: datetime | None = None
    restarts: int | None = None
    is_between_runs: bool = False
    spec: ReplicatedSpec | None = None

    @property
    def run_id(self) -> str:
        """The id of its run is its start time, because a controller sets a new one when it resumes the job.

        Pods may run before it notes a resume. Until then it also says that the job is suspended.
        """
        is_suspended = self.suspended or JobCondition.SUSPENDED in self.conditions
        if is_suspended or self.is_between_runs or self.started_at is None:
            return ""
        start = self.started_at.isoformat()
        return start if self.restarts is None else f"{start}.{self.restarts}"

    @property
    def waiting_since(self) -> datetime | None:
        """When its present start began to wait for pods; None for a start that begins now.

        The controller writes the time of a resume later. Where a person has resumed a job and left the supervisor's
        mark, the start may be unknown: Volcano notes no resume.
        """
        if JobCondition.SUSPENDED in self.conditions or self.annotations.get(SUSPENDED_BY) == OURS:
            return None
        return self.started_at or self.metadata.creation_timestamp


R = TypeVar("R", bound=ReplicatedJob)


def requested_resources(scaled: str, demands: Mapping[str, Demand], sizes: Mapping[str, int]) -> ResourceRequest:
    """The resources of a run whose roles have these sizes and requests. Roles with equal requests are combined."""
    worker = demands.get(scaled) or next(iter(demands.values()))
    others = (Pods(demand, sizes[name]) for name, demand in demands.items() if demand != worker)
    return ResourceRequest(worker=worker, others=tuple(each for each in others if each.count))


def full_right(resource: Resource) -> Right:
    """The right to list, watch and change jobs of this kind."""
    return Right(
        group=resource.group,
        resources=(resource.plural,),
        verbs=("get", "list", "watch", "patch"),
        reason="to follow jobs, and to suspend, resize and resume them",
    )


class _RestartedReplicas(RoleReplicas, frozen=True):
    restart_policy: str = ""


class _ReplicatedBody(Body, frozen=True):
    elastic_policy: ElasticPolicy | None = None
    run_policy: RunPolicy = RunPolicy()


def read_replicated_job(data: bytes | msgspec.Raw, shape: ReplicaShape) -> ReplicatedJob:
    """Decodes a job of this shape from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=JobBody)
    metadata, body = read.metadata, decoded(read.spec, _ReplicatedBody)
    status = decoded(read.status, StartedStatus) or StartedStatus()
    policy = RunPolicy() if body is None else body.run_policy
    asked = None if body is None else _asked(body, read.spec, shape)
    spec, resources = asked if asked is not None else (None, None)
    return ReplicatedJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        from_hub=metadata.from_hub,
        moved_with=metadata.moved_with,
        elsewhere=policy.managed_by not in (None, shape.controller),
        suspended=spec is not None and bool(policy.suspend),
        conditions=frozenset(each.type for each in status.true),
        started_at=status.start_time,
        resource_request=resources,
        gang=policy.gang,
        spec=spec,
    )


def _asked(
    body: _ReplicatedBody, data: msgspec.Raw, shape: ReplicaShape
) -> tuple[ReplicatedSpec, ResourceRequest | None] | None:
    """The spec and the resources of a job; None for each that cannot be read."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        written = msgspec.json.decode(fields[shape.replicas], type=dict[str, _RestartedReplicas])
        # A role has the name that the spec uses: its operator takes `Ps` for `PS`.
        spelled = {name.lower(): name for name in written}
        names = [spelled[role] for each in shape.roles if (role := each.lower()) in spelled]
        roles = {name: written[name] for name in names}
        containers = [container for each in roles.values() for container in each.template.containers()]
        demands = {name: each.template.demand() for name, each in roles.items()}
    except (msgspec.MsgspecError, ValueError, KeyError):
        return None
    sizes = {name: 1 if each.replicas is None else each.replicas for name, each in roles.items()}
    if not roles or any(size < 0 for size in sizes.values()):
        return None
    why = refusal(sizes.values())
    scaled = next((name for name in roles if name.lower() == shape.scaled.lower()), shape.scaled)
    spec = ReplicatedSpec(
        replicas=sum(sizes.values()),
        annotations=tuple(each.template.annotations for each in roles.values()),
        refusal=why,
        gangs=gangs_of({name: each.template for name, each in roles.items()}),
        sizes=sizes,
        scaled=scaled,
        restart_policies=frozenset(each.restart_policy for each in roles.values()),
        commands=tuple(" ".join(each.words) for each in containers),
        variables=frozenset((each.name, each.value) for container in containers for each in container.env or ()),
        elastic=body.elastic_policy,
    )
    return spec, None if why else requested_resources(scaled, demands, sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBounds:
    """The sizes that a job may have, in pods, and the other abilities of its controller.

    Attributes:
        least: The fewest pods with which it goes on or resumes; None: all.
        most: The most pods that it can use; None: those that it asks for.
        capabilities: Those that not all jobs of replicas have.
    """

    least: int | None = None
    most: int | None = None
    capabilities: frozenset[Capability] = frozenset({Capability.FIXED_HOSTS})


def annotated_bounds(job: ReplicatedJob, asked: ReplicatedSpec) -> SizeBounds:
    """Returns the bounds of a job whose controller fails it, or counts a failure, when a pod is deleted.

    Nothing leaves while it runs. It is resumed with as many workers as its annotation allows.
    """
    workers = asked_count([job.annotations, *asked.annotations], MIN_WORKERS)
    if not workers or asked.has_fixed_size:
        return SizeBounds()
    return SizeBounds(least=workers + asked.others)


def labelled_worker(labels: Mapping[str, str], *, label: str, values: Collection[str] = ()) -> JobPodRole | None:
    """Builds the `JobKind.role` of a kind whose pods with this label are all workers, because a run needs each of them.

    Args:
        labels: The labels of a pod.
        label: The label.
        values: The values that it may have; any but the empty one, if there are none.
    """
    found = labels.get(label)
    return JobPodRole.WORKER if found and (not values or found in values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedRules(Generic[R]):
    """How the observations of jobs of replicas differ between kinds.

    Attributes:
        framework: The framework that trains. Of most, only the next run starts from the checkpoint.
        bounds: Reads the bounds of a job.
        host: Returns the host that a pod will be: by the name of its job, its role and its number in the role.
        own: The annotations of the kind.
        observation: Observes one job; None for a `ReplicatedObservation`.
    """

    framework: Framework = Framework.TORCHRUN
    bounds: Callable[[R, ReplicatedSpec], SizeBounds] = annotated_bounds
    host: Callable[[str, str, int], Host] = lambda job, role, index: Host(f"{job}-{role.lower()}-{index}")
    own: frozenset[str] = frozenset()
    observation: "type[ReplicatedObservation[R]] | None" = None

    def observe(self, state: JobState[R], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        """Implements `JobKind.observe`."""
        asked = state.job.spec
        if asked is None:
            return None
        observation = ReplicatedObservation[R] if self.observation is None else self.observation
        return observation(state, asked, known, now, self).supervised()


class ReplicatedObservation(JobObservation[R, ReplicatedSpec]):
    """An observation of a job of replicas."""

    def __init__(
        self,
        state: JobState[R],
        asked: ReplicatedSpec,
        known: SupervisedJob | None,
        now: float,
        rules: ReplicatedRules[R],
    ) -> None:
        super().__init__(state, asked, known, now, framework=rules.framework, own=rules.own)
        self._rules = rules

    def last_hosts(self) -> Iterator[Host]:
        for role, size in self.asked.sizes.items():
            for part, index in self.asked.places(role, size, max(0, size - 1)):
                yield self._rules.host(self.job.metadata.name, part, index)

    def spec(self) -> Spec:
        requested, bounds = self.requested, self._rules.bounds(self.job, self.asked)
        return Spec(
            framework=self.framework,
            min_workers=min(bounds.least or requested, requested),
            max_workers=min(max(bounds.most or 0, requested), MAX_LISTED_WORKERS),
            requested_workers=requested,
            capabilities=_CAPABILITIES | bounds.capabilities,
        )

    def observed(self, spec: Spec, before: Observed) -> Observed:
        run_id, has_failed = self.state.run_id, JobCondition.FAILED in self.job.conditions
        some_run = any(pod.phase is PodPhase.RUNNING for pod in self.state.workers)
        has_begun = (before.running and before.instance == run_id) or self.has_pods(
            min(spec.min_workers, self.asked.replicas)
        )
        running = some_run and bool(run_id) and has_begun
        observed = replace(
            before,
            running=running,
            exit_code=int(has_failed) if before.running and not running else before.exit_code,
            hosts=self.hosts(spec, running=running),
            result=before.result or self.result(),
        )
        if not running:
            return observed
        # A controller notes starts in whole seconds, so one that follows at once has the id of the run that has ended.
        ended = not before.running
        return observed_run(run_id, self.known, replace(observed, instance="") if ended else observed)

    def has_pods(self, enough: int) -> bool:
        """Whether the run has its pods. It does not wait for pods without room on any node if the others are enough."""
        workers = self.state.workers
        starting = any(pod.phase is PodPhase.PENDING and pod.node for pod in workers)
        running = sum(pod.phase is PodPhase.RUNNING for pod in workers)
        return len(workers) >= self.asked.replicas and not starting and running >= enough

    def hosts(self, spec: Spec, *, running: bool) -> frozenset[Host]:
        """The running pods, including terminating ones; before a start, the pods that the controller would create.

        A controller deletes the pods of a suspended job one after the other: each would be a write, and nobody uses
        them.
        """
        asked, name = self.asked, self.job.metadata.name
        if running and not self.job.suspended:
            return frozenset(pod.host for pod in self.state.workers if pod.phase is PodPhase.RUNNING)
        sizes = {**asked.sizes, asked.scaled: spec.requested_workers - asked.others}
        places = (place for role, size in sizes.items() for place in asked.places(role, size))
        return frozenset(self._rules.host(name, role, index) for role, index in places)

    def result(self) -> Result | None:
        """How the job ended. While it is suspended, the supervisor's mark tells it, otherwise the controller does."""
        job, launcher = self.job, self.state.launcher
        if job.suspended and (marked := marked_result(job.annotations)) is not None:
            return marked
        # A launcher's exit counts before the operator has heard of it: a job that has succeeded is never suspended.
        if JobCondition.SUCCEEDED in job.conditions or (launcher is not None and launcher.succeeded):
            return Result.SUCCEEDED
        return Result.FAILED if JobCondition.FAILED in job.conditions else None

    def is_freed(self, known: SupervisedJob) -> bool:
        if self.job.suspended:
            return False
        if known.observed.result in STATUS_OF:
            return True
        # It keeps its hosts until its suspension is in place.
        in_place = not known.decision.hosts or known.observed.applied >= known.decision.generation
        return known.decision.phase is Phase.SUSPENDED and in_place


AnnotationChanges = Mapping[str, str | None]
"""Annotations to write; None removes one."""

SizeWriter = Callable[[R, int | None, AnnotationChanges], Awaitable[None]]
"""Writes a size and annotations of a job; for None it suspends the job, and then the controller deletes all its pods.

A job that was suspended is resumed with the size. It raises ApiError.
"""


def spec_writer(
    context: KindContext[R],
    *,
    size: Callable[[ReplicatedSpec, int], Mapping[str, object]] | None = None,
    policy: str = "",
    before_start: Callable[[R], Awaitable[None]] | None = None,
) -> SizeWriter[R]:
    """Builds a writer that merges changes into the spec.

    Args:
        context: The jobs and their client.
        size: Returns the part of a spec that makes a run of so many pods; None for jobs of one size.
        policy: The part of a spec with the field `suspend`; empty if the spec itself has it.
        before_start: Called before a suspended job is resumed.
    """

    async def write(job: R, pods: int | None, annotations: AnnotationChanges) -> None:
        spec = dict[str, object]()
        # The size of a job that is suspended stays: an operator may delete those pods alone that it would make.
        if pods is not None:
            if job.suspended and before_start is not None:
                await before_start(job)
            if job.spec is not None and size is not None:
                spec |= size(job.spec, pods)
        # A job that grows stays suspended if a person has suspended it meanwhile.
        if pods is None or job.suspended:
            suspension = {"suspend": pods is None}
            spec |= {policy: suspension} if policy else suspension
        merged = await context.client.merge(job, {"spec": spec}, metadata={"annotations": annotations})
        context.wrote(merged)
        if policy and pods is None and context.suspends and merged.spec is not None and not merged.suspended:
            # The CRD of an older operator has no such field. Unsaid, the job would seem to be about to stop forever.
            raise RefusedError(
                f"the API server dropped spec.{policy}.suspend, with which the job is suspended: the definition of its "
                "kind in this cluster has no such field. Install the release of its operator that the kind's page names"
            )

    return write


def only_logs_left(state: JobState[R]) -> bool:
    """Whether all pods have ended and only their logs are kept, as those of failed attempts of a Kubernetes Job."""
    return all(pod.over and pod.deleted_at is None for pod in state.pods)


class ReplicatedJobActions(Generic[R]):
    """Implements `JobActions` for jobs that a field of their spec, or their size, suspends.

    Args:
        context: The jobs and their cluster.
        write: Writes suspensions and sizes.
        is_released: Returns whether a suspended run has no pod left that uses a node or counts in the next run.
    """

    def __init__(
        self,
        context: KindContext[R],
        write: SizeWriter[R],
        is_released: Callable[[JobState[R]], bool] = lambda state: not state.pods,
    ) -> None:
        self.standby_tasks: RootTasks = {}
        self.leader_tasks: RootTasks = {}
        self.context = context
        self.write = write
        self.is_released = is_released

    async def exclude(self, _state: JobState[R], _hosts: Collection[Host]) -> ActionProgress:
        """Changes nothing: the next round leaves the hosts out, and their agents wait."""
        return ActionProgress.IN_PLACE

    async def suspend(self, state: JobState[R]) -> ActionProgress:
        job = state.job
        if JobCondition.SUCCEEDED in job.conditions:
            return ActionProgress.PENDING
        if not job.suspended or not job.annotations.items() >= SUSPENSION.items():
            await self.write(job, None, SUSPENSION)
            return ActionProgress.PENDING
        in_place = self.is_released(state) and JobCondition.SUSPENDED in job.conditions
        return ActionProgress.IN_PLACE if in_place else ActionProgress.PENDING

    async def resume(self, state: JobState[R], workers: int, requested: int) -> ActionProgress:
        """Resumes a job once all pods are gone.

        One that is ending counts as failed, which may fail the job; and a launcher would start without its workers,
        whose names are still taken.
        """
        job = state.job
        if not job.suspended:
            return ActionProgress.IN_PLACE
        if not self.is_released(state):
            return ActionProgress.PENDING
        smaller = None if workers == requested else str(requested)
        await self.write(job, workers, {SUSPENDED_BY: None, STATUS: None, REQUESTED: smaller})
        return ActionProgress.IN_PLACE

    async def grow(self, state: JobState[R], workers: int, _number: int, _seconds: float) -> None:
        """Asks for the new size, and never withdraws it: pods that no node has room for join when a node has room."""
        job, asked = state.job, state.job.spec
        if asked is None or asked.replicas >= workers:
            return
        requested = requested_workers(job.annotations, asked.replicas)
        await self.write(job, workers, {REQUESTED: None if workers >= requested else str(requested)})

    async def end(self, state: JobState[R], result: Result) -> None:
        marks = {**SUSPENSION, STATUS: STATUS_OF[result]}
        if not state.job.suspended or not state.job.annotations.items() >= marks.items():
            await self.write(state.job, None, marks)

    def growable(self, state: JobState[R]) -> int:
        job, asked = state.job, state.job.spec
        if asked is None or job.suspended or not asked.discovers_hosts or REQUESTED not in job.annotations:
            return 0
        # The workers of the last request have to run before others are requested.
        if len(state.workers) != asked.replicas or not all(pod.running for pod in state.workers):
            return 0
        return requested_workers(job.annotations, asked.replicas) - asked.replicas


def resized_role(asked: ReplicatedSpec, pods: int, *, field: str) -> Mapping[str, object]:
    """Builds the `size` for `spec_writer` of jobs with their roles in this field.

    The other roles keep their numbers.
    """
    scaled = {asked.scaled: {"replicas": pods - asked.others}}
    return {field: scaled} if asked.scaled in asked.sizes else {}


def suspension(*policy: str) -> WrittenField:
    """The field `suspend` of the spec, or of this part of it.

    Only a value that is true is the supervisor's, so that a person may suspend such a job at its hub.
    """
    return WrittenField(path=(*policy, "suspend"), mark=SUSPENDED_BY, only=True)


def resized(*path: str) -> WrittenField:
    """A field that is the supervisor's while the job runs with fewer pods than it has asked for."""
    return WrittenField(path=path, mark=REQUESTED)


def roles_view(shape: ReplicaShape, *, final: str = "") -> HubView:
    """Returns what a hub has to know of jobs with a run policy and replicas by role. For `final`, see `HubView`."""
    return HubView(written=(suspension("runPolicy"), resized(shape.replicas, shape.scaled, "replicas")), final=final)


def roles_kind(
    name: str,
    resource: Resource,
    shape: ReplicaShape,
    bounds: Callable[[ReplicatedJob, ReplicatedSpec], SizeBounds] = annotated_bounds,
) -> JobKind[ReplicatedJob]:
    """Builds a kind whose jobs have a run policy and replicas by role.

    All roles are workers, because a run needs each.
    """
    roles = frozenset(role.lower() for role in shape.roles)
    return JobKind(
        name=name,
        resource=resource,
        rights=(full_right(resource),),
        pod_labels=frozenset({shape.role_label}),
        decode=partial(read_replicated_job, shape=shape),
        role=partial(labelled_worker, label=shape.role_label, values=roles),
        reference=partial(owned_by, name=name, resource=resource),
        observe=ReplicatedRules(bounds=bounds).observe,
        actions=lambda context: ReplicatedJobActions(
            context, spec_writer(context, size=partial(resized_role, field=shape.replicas), policy="runPolicy")
        ),
        hub=roles_view(shape),
    )
