"""Supports JobSets of Kubernetes: a run is a set of Jobs. Kinds whose controllers make JobSets use this module."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from servicekit.bounds import counted
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.objects import Owner
from supervisor.cluster.annotations import ours
from supervisor.cluster.objects import Pod
from supervisor.cluster.podspec import Body
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.jobs import replicated
from supervisor.jobs.kind import HubView, JobKind, JobReference, JobState, KindContext, Right
from supervisor.jobs.manifest import ConditionsStatus, JobBody, PodTemplate, decoded, gangs_of
from supervisor.jobs.observation import refusal

_JOBSETS = Resource(group="jobset.x-k8s.io", version="v1alpha2", kind="JobSet", plural="jobsets", namespaced=True)
_NAME = "jobset.sigs.k8s.io/jobset-name"
_UID = "jobset.sigs.k8s.io/jobset-uid"
_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"
_JOBS = ("batch", "Job")
_INDEXED = "Indexed"
_ENDED = "Complete"
_CONDITIONS = {"Completed": replicated.JobCondition.SUCCEEDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSet(replicated.ReplicatedJob):
    """One JobSet. Its roles are its replicated jobs, and the parts of a role are its Jobs.

    Its run also ends when its controller makes all of its Jobs anew, or restarts the containers of its pods in place.

    Attributes:
        owner: The job that it is a part of, which suspends it; None if it is nobody's part.
        counts_in_place: Its status has a number of restarts in place, to which its pods add one when they start.
    """

    owner: Owner | None = None
    counts_in_place: bool = False


S = TypeVar("S", bound=JobSet)


class _JobBody(Body, frozen=True):
    template: PodTemplate
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = _INDEXED


class _JobTemplate(Body, frozen=True):
    spec: _JobBody


class _Dependency(Body, frozen=True):
    name: str
    status: str


class _ReplicatedJobBody(Body, frozen=True):
    name: str
    template: _JobTemplate
    replicas: int = 1
    depends_on: tuple[_Dependency, ...] | None = ()


class _JobSetSpec(Body, frozen=True):
    replicated_jobs: tuple[_ReplicatedJobBody, ...]
    suspend: bool | None = None
    managed_by: str | None = None


class _JobSetStatus(ConditionsStatus, frozen=True):
    """The status of a JobSet.

    With `restartStrategy: InPlaceRestart`, an agent in each pod writes the number of the attempt that the pod is in.
    Pods whose number is at most the previous attempt restart their containers; those in the current one may train.
    """

    restarts: int = 0
    previous_in_place_restart_attempt: int | None = None
    current_in_place_restart_attempt: int | None = None

    @property
    def attempt(self) -> int:
        """The attempt in which the pods train; 0 is the first one."""
        return counted(self.current_in_place_restart_attempt or 0)

    @property
    def is_restarting(self) -> bool:
        """Whether the present attempt has ended and not all pods are in the next one."""
        previous = self.previous_in_place_restart_attempt
        return previous is not None and previous >= self.attempt


def read_jobset(data: bytes | msgspec.Raw) -> JobSet:
    """Decodes a JobSet from the API server's JSON.

    It has no spec if its pods are no run that could be stopped and started as one.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=JobBody)
    metadata, body = read.metadata, decoded(read.spec, _JobSetSpec)
    status = decoded(read.status, _JobSetStatus) or _JobSetStatus()
    # It was last resumed when the first condition of this type became false that is so.
    suspensions = (each for each in status.conditions or () if each.type == replicated.JobCondition.SUSPENDED)
    resumed_at = next((each.last_transition_time for each in suspensions if each.status != "True"), None)
    spec, resources = (None, None) if body is None else _asked(body)
    return JobSet(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        from_hub=metadata.from_hub,
        moved_with=metadata.moved_with,
        elsewhere=body is not None and body.managed_by not in (None, _CONTROLLER),
        suspended=spec is not None and body is not None and bool(body.suspend),
        conditions=frozenset(_CONDITIONS.get(each.type, each.type) for each in status.true),
        started_at=resumed_at or metadata.creation_timestamp,
        resource_request=resources,
        spec=spec,
        restarts=counted(status.restarts) + status.attempt,
        is_between_runs=status.is_restarting,
        counts_in_place=status.current_in_place_restart_attempt is not None,
        owner=next((each for each in metadata.owner_references or () if each.controller), None),
    )


def _asked(body: _JobSetSpec) -> tuple[replicated.ReplicatedSpec | None, ResourceRequest | None]:
    """The spec and the resources of a JobSet; None for each that cannot be read or that makes no run."""
    # A Job that others wait for is a preparation, which has ended when the training begins.
    dependencies = (each for job in body.replicated_jobs for each in job.depends_on or ())
    ended = {each.name for each in dependencies if each.status == _ENDED}
    jobs = [job for job in body.replicated_jobs if job.name not in ended]
    for job in jobs:
        # All of its pods train together, each with an index.
        of_one = job.template.spec
        is_run = of_one.completion_mode == _INDEXED and of_one.parallelism == of_one.completions
        if not is_run or job.replicas < 0 or (of_one.parallelism or 0) < 0:
            return None, None
    pods = [job.replicas * (job.template.spec.parallelism or 0) for job in jobs]
    if not any(pods):
        return None, None
    # A role for each replicated job and not for each of its Jobs: a JobSet may have a million of these.
    sizes = {job.name: size for job, size in zip(jobs, pods, strict=True)}
    why, largest = refusal(pods), jobs[pods.index(max(pods))].name
    try:
        demands = {} if why else {job.name: job.template.spec.template.demand() for job in jobs}
    except (msgspec.MsgspecError, ValueError):
        return None, None
    spec = replicated.ReplicatedSpec(
        replicas=sum(sizes.values()),
        annotations=tuple(job.template.spec.template.annotations for job in jobs),
        refusal=why,
        gangs={} if why else gangs_of({job.name: job.template.spec.template for job in jobs}),
        sizes=sizes,
        scaled=largest,
        parts={job.name: job.template.spec.parallelism or 0 for job in jobs},
        has_fixed_size=True,
    )
    return spec, None if why else replicated.requested_resources(largest, demands, sizes)


_RULES: replicated.ReplicatedRules[Any] = replicated.ReplicatedRules()
"""The rules of JobSets: no pod leaves while the job runs, as that fails its Job, and the job has one size.

A Job gives its pods a host name
of its own name and their index, and names with random letters at their end."""


def observe_jobset(state: JobState[S], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
    """Implements `JobKind.observe`. The pods of Jobs that prepare the training are not hosts of the job."""
    if state.job.owner is not None:
        return None  # A part of another job is no job of its own.
    name, asked = state.job.metadata.name, state.job.spec
    roles = {f"{name}-{role}" for role in ({} if asked is None else asked.sizes)}
    # The name of a Job ends in its number.
    workers = [pod for pod in state.workers if pod.owner is not None and pod.owner.name.rpartition("-")[0] in roles]
    return _RULES.observe(replace(state, workers=workers), known, now)


def labelled(pod: Pod, *, kind: str, uid_label: str = "") -> JobReference | None:
    """Builds the `JobKind.reference` of a kind whose controller makes JobSets: labels of a pod name its job.

    The owner of such a pod is a Job, whose name begins with the JobSet's. The labels tell the uid of the JobSet alone.
    """
    owner, job = pod.owner, pod.labels.get(_NAME)
    if owner is None or not job or not owner.is_of(*_JOBS) or not owner.name.startswith(f"{job}-"):
        return None
    return JobReference(cluster_job(pod.metadata.namespace, kind, job), pod.labels.get(uid_label, ""))


def jobset_actions(
    context: KindContext[S], before_start: Callable[[S], Awaitable[None]] | None = None
) -> replicated.ReplicatedJobActions[S]:
    """Builds actions that suspend and resume JobSets, or jobs whose controllers make JobSets, by their spec."""
    # The controller's webhook accepts no other size, also of a suspended JobSet.
    write = replicated.spec_writer(context, before_start=before_start)
    return replicated.ReplicatedJobActions(context, write, replicated.only_logs_left)


async def clear_attempts(client: ResourceClient[JobSet], jobset: JobSet) -> JobSet:
    """Has the restarts in place of a suspended JobSet counted anew; returns the JobSet as it is then.

    New pods take the number after the current one, so that each resume would use one of `maxRestarts`.

    Raises:
        ApiError: The API server has not written it.
    """
    if not jobset.counts_in_place:
        return jobset
    attempts = {"currentInPlaceRestartAttempt": None, "previousInPlaceRestartAttempt": None}
    return await client.merge(jobset, {"status": attempts}, "status")


def _actions(context: KindContext[JobSet]) -> replicated.ReplicatedJobActions[JobSet]:
    async def before_start(jobset: JobSet) -> None:
        context.wrote(await clear_attempts(context.client, jobset))

    return jobset_actions(context, before_start)


JOBSET = JobKind(
    name="jobset",
    resource=_JOBSETS,
    rights=(
        replicated.full_right(_JOBSETS),
        Right(
            group=_JOBSETS.group,
            resources=("jobsets/status",),
            verbs=("patch",),
            reason="to have restarts in place counted anew when a job resumes, as its new pods would count as one",
        ),
    ),
    pod_labels=frozenset({_NAME, _UID}),
    decode=read_jobset,
    role=partial(replicated.labelled_worker, label=_NAME),
    reference=partial(labelled, kind="jobset", uid_label=_UID),
    observe=observe_jobset,
    actions=_actions,
    hub=HubView(written=(replicated.suspension(),)),
)
