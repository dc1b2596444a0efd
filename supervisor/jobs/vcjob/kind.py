"""Supports Jobs of Volcano. A size of 0 suspends them, because Volcano's own command would use up a retry."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import msgspec

from servicekit.bounds import counted, whole
from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import PREFIX, REQUESTED, ours
from supervisor.cluster.gangs import GangDemand
from supervisor.cluster.podspec import Body
from supervisor.domain.capacity import ResourceRequest
from supervisor.jobs import replicated
from supervisor.jobs.kind import HubView, JobKind, KindContext, WrittenField, owned_by
from supervisor.jobs.manifest import JobBody, PodTemplate, decoded, gangs_of
from supervisor.jobs.observation import refusal

_JOBS = Resource(group="batch.volcano.sh", version="v1alpha1", kind="Job", plural="jobs", namespaced=True)
_TASK = "volcano.sh/task-spec"


SIZES = f"{PREFIX}requested-sizes"
"""The sizes of a job before it was suspended, as JSON, until it runs with them again."""
SUSPENSIONS = f"{PREFIX}suspensions"
"""How often the supervisor has suspended a job: the start after it is a new run."""
_ANNOTATIONS = frozenset({SIZES, SUSPENSIONS})
_MOST_SUSPENSIONS = 10**9

_LOSS = frozenset({"PodEvicted", "*"})
"""Volcano takes pods that it deletes itself, because a task has shrunk, for evicted ones, too."""
_ENDING = frozenset({"AbortJob", "TerminateJob", "CompleteJob"})


class VolcanoPhase(StrEnum):
    """The phases that the supervisor reads."""

    COMPLETED = "Completed"
    FAILED = "Failed"
    TERMINATED = "Terminated"
    ABORTING = "Aborting"
    ABORTED = "Aborted"


_CONDITION: Mapping[str, replicated.JobCondition] = {
    VolcanoPhase.COMPLETED: replicated.JobCondition.SUCCEEDED,
    VolcanoPhase.FAILED: replicated.JobCondition.FAILED,
    VolcanoPhase.TERMINATED: replicated.JobCondition.FAILED,
}


class TaskSize(Body, frozen=True):
    """The number of a task's pods, and how many of them must exist before the job starts."""

    name: str
    replicas: int
    min_available: int


class VolcanoSizes(Body, frozen=True):
    """The sizes of a job's tasks, and how many pods must exist before the job starts."""

    tasks: tuple[TaskSize, ...]
    min_available: int

    @property
    def total(self) -> int:
        """The number of pods."""
        return sum(task.replicas for task in self.tasks)

    @property
    def scaled(self) -> str:
        """The task whose number of pods may change: the largest one whose name says worker, or else the largest."""
        return max(self.tasks, key=lambda task: ("worker" in task.name, task.replicas)).name

    def resized(self, total: int) -> "VolcanoSizes":
        """Returns the sizes for `total` pods.

        The other tasks keep their numbers, except for 0, which suspends the job.
        """
        scaled, tasks = self.scaled, list[TaskSize]()
        others = sum(task.replicas for task in self.tasks if task.name != scaled)
        for task in self.tasks:
            if total and task.name != scaled:
                tasks.append(task)
                continue
            replicas = total - others if total else 0
            least = min(task.min_available, replicas)
            tasks.append(TaskSize(name=task.name, replicas=replicas, min_available=least))
        return VolcanoSizes(tasks=tuple(tasks), min_available=min(self.min_available, total))

    @property
    def operations(self) -> Iterator[Mapping[str, object]]:
        """The operations of a JSON patch that writes them: Volcano accepts them in one write only.

        `add` replaces a value, and also writes one where Volcano has left out a zero.
        """
        yield {"op": "add", "path": "/spec/minAvailable", "value": self.min_available}
        for number, task in enumerate(self.tasks):
            yield {"op": "add", "path": f"/spec/tasks/{number}/replicas", "value": task.replicas}
            yield {"op": "add", "path": f"/spec/tasks/{number}/minAvailable", "value": task.min_available}


@dataclass(frozen=True, slots=True, kw_only=True)
class VolcanoJob(replicated.ReplicatedJob):
    """One job.

    Attributes:
        requested: The sizes that its user has asked for; None where the spec is not understood.
        suspensions: How often the supervisor has suspended it.
        version: How often Volcano has restarted all of its pods.
    """

    requested: VolcanoSizes | None = None
    suspensions: int = 0
    version: int = 0

    @property
    def run_id(self) -> str:
        """The id of the present run: Volcano counts its own restarts, and the supervisor its suspensions."""
        return "" if self.suspended or self.spec is None else f"{self.suspensions}.{self.version}"


class _VolcanoPolicy(Body, frozen=True):
    action: str = ""
    event: str = ""
    events: tuple[str, ...] | None = ()


class _VolcanoTask(Body, frozen=True):
    name: str
    template: PodTemplate
    replicas: int = 0
    min_available: int | None = None
    policies: tuple[_VolcanoPolicy, ...] | None = ()


class _VolcanoSpec(Body, frozen=True):
    tasks: tuple[_VolcanoTask, ...]
    min_available: int = 0
    policies: tuple[_VolcanoPolicy, ...] | None = ()


class _VolcanoState(Body, frozen=True):
    phase: str = ""


class _VolcanoStatus(Body, frozen=True):
    state: _VolcanoState = _VolcanoState()
    version: int = 0


def read_volcano_job(data: bytes | msgspec.Raw) -> VolcanoJob:
    """Decodes a job from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=JobBody)
    metadata, status = read.metadata, decoded(read.status, _VolcanoStatus) or _VolcanoStatus()
    annotations, phase = ours(metadata.annotations), status.state.phase
    conditions = {_CONDITION[phase]} if phase in _CONDITION else set[str]()
    job = VolcanoJob(
        metadata=metadata.identity,
        annotations=annotations,
        deleted=metadata.deletion_timestamp is not None,
        from_hub=metadata.from_hub,
        moved_with=metadata.moved_with,
        conditions=frozenset(conditions),
        suspensions=whole(annotations.get(SUSPENSIONS), _MOST_SUSPENSIONS) or 0,
        version=counted(status.version),
    )
    body = decoded(read.spec, _VolcanoSpec)
    if body is None or not body.tasks:
        return job
    policies = [*(body.policies or ()), *(policy for task in body.tasks for policy in task.policies or ())]
    # A job that ends when it loses a pod would also end when it is suspended.
    losses = ({policy.event, *(policy.events or ())} & _LOSS for policy in policies if policy.action in _ENDING)
    # A person has aborted it, or a policy would.
    if any(losses) or phase in (VolcanoPhase.ABORTING, VolcanoPhase.ABORTED):
        return job
    tasks = tuple(
        TaskSize(
            name=task.name,
            replicas=task.replicas,
            min_available=task.replicas if task.min_available is None else task.min_available,
        )
        for task in body.tasks
    )
    present = VolcanoSizes(tasks=tasks, min_available=body.min_available)
    # The sizes that the supervisor has recorded when it suspended the job, unless they are of other tasks.
    recorded = decoded(msgspec.Raw(annotations.get(SIZES, "").encode()), VolcanoSizes)
    is_of_job = recorded is not None and [task.name for task in recorded.tasks] == [task.name for task in tasks]
    requested = recorded if recorded is not None and is_of_job else present
    suspended = present.total == 0 and requested.total > 0
    asked = _asked(body, requested if suspended else present)
    if asked is None:
        return replace(job, requested=requested)
    # Volcano itself says nothing of a suspension.
    told = conditions | {replicated.JobCondition.SUSPENDED} if suspended else conditions
    spec, resources = asked
    # Volcano itself sets it to all pods where the user has given none, and then it is lowered with the sizes.
    least = counted(requested.min_available)
    return replace(
        job,
        requested=requested,
        gang=GangDemand(least, "spec.minAvailable") if 0 < least < requested.total else None,
        suspended=suspended,
        conditions=frozenset(told),
        resource_request=resources,
        spec=spec,
    )


def _asked(body: _VolcanoSpec, sizes: VolcanoSizes) -> tuple[replicated.ReplicatedSpec, ResourceRequest | None] | None:
    """The spec and the resources of a job with these sizes; None for each that cannot be read."""
    if any(task.replicas < 0 for task in sizes.tasks):
        return None
    annotations, total = tuple(task.template.annotations for task in body.tasks), sizes.total
    if why := refusal([task.replicas for task in sizes.tasks]):
        refused = replicated.ReplicatedSpec(
            replicas=total, annotations=annotations, refusal=why, sizes={"": total}, scaled=""
        )
        return refused, None
    try:
        demands = {task.name: task.template.demand() for task in body.tasks}
        containers = [container for task in body.tasks for container in task.template.containers()]
    except (msgspec.MsgspecError, ValueError):
        return None
    by_task = {task.name: task.replicas for task in sizes.tasks}
    spec = replicated.ReplicatedSpec(
        replicas=sum(by_task.values()),
        annotations=annotations,
        gangs=gangs_of({task.name: task.template for task in body.tasks}),
        sizes=by_task,
        scaled=sizes.scaled,
        commands=tuple(" ".join(each.words) for each in containers),
    )
    return spec, replicated.requested_resources(sizes.scaled, demands, by_task)


def _size_writer(context: KindContext[VolcanoJob]) -> replicated.SizeWriter[VolcanoJob]:
    """Builds a writer that suspends and resumes a job by its sizes."""

    async def write(job: VolcanoJob, pods: int | None, annotations: replicated.AnnotationChanges) -> None:
        requested = job.requested
        if requested is None:
            return
        if pods is None:
            # The sizes are recorded first. A job that runs with these sizes is none that is suspended: the mark of a
            # suspension comes with the sizes of 0, so that nobody sees one without the other.
            recorded = {SIZES: msgspec.json.encode(requested).decode("ascii"), **(annotations if job.suspended else {})}
            if not job.annotations.items() >= recorded.items():
                job = await context.client.merge(job, {}, metadata={"annotations": recorded})
                context.wrote(job)
            if job.suspended:
                return
            changes: replicated.AnnotationChanges = {**annotations, SUSPENSIONS: str(job.suspensions + 1)}
        else:
            changes = {**annotations, SIZES: None} if annotations[REQUESTED] is None else annotations
        # Sizes and annotations are written at once; the job has other annotations already.
        operations = list(requested.resized(pods or 0).operations)
        for name, value in changes.items():
            path = f"/metadata/annotations/{name.replace('/', '~1')}"
            if value is not None:
                operations.append({"op": "add", "path": path, "value": value})
            elif name in job.annotations:
                operations.append({"op": "remove", "path": path})
        context.wrote(await context.client.patch(job, operations))

    return write


def _bounds(job: VolcanoJob, asked: replicated.ReplicatedSpec) -> replicated.SizeBounds:
    """Returns the bounds of a job: one that needs fewer pods than it has also runs with fewer."""
    annotated = replicated.annotated_bounds(job, asked)
    sizes = job.requested
    if annotated.least is not None or sizes is None or sizes.min_available >= sizes.total:
        return annotated
    return replicated.SizeBounds(least=asked.others + 1)


VCJOB = JobKind(
    name="vcjob",
    resource=_JOBS,
    rights=(replicated.full_right(_JOBS),),
    pod_labels=frozenset({_TASK}),
    annotations=_ANNOTATIONS,
    decode=read_volcano_job,
    role=partial(replicated.labelled_worker, label=_TASK),
    reference=partial(owned_by, name="vcjob", resource=_JOBS),
    observe=replicated.ReplicatedRules(bounds=_bounds, own=_ANNOTATIONS).observe,
    actions=lambda context: replicated.ReplicatedJobActions(context, _size_writer(context)),
    hub=HubView(
        written=tuple(
            WrittenField(path=path, mark=SIZES)
            for path in (("minAvailable",), ("tasks", "[name]", "replicas"), ("tasks", "[name]", "minAvailable"))
        ),
        phase=("state", "phase"),
        failures=frozenset({VolcanoPhase.FAILED, VolcanoPhase.TERMINATED}),
    ),
)
