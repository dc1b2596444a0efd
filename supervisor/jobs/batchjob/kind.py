"""Supports indexed Jobs of Kubernetes."""

from functools import partial

import msgspec

from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import ours
from supervisor.cluster.podspec import Body
from supervisor.domain.ids import Host
from supervisor.jobs import replicated
from supervisor.jobs.kind import HubView, JobKind, KindContext, Right, owned_by
from supervisor.jobs.manifest import JobBody, PodTemplate, StartedStatus, decoded, gangs_of
from supervisor.jobs.observation import refusal

_JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", namespaced=True)
_INDEX = "batch.kubernetes.io/job-completion-index"
_CONTROLLER = "kubernetes.io/job-controller"
_CRON_JOB = "CronJob"
_INDEXED = "Indexed"
_PODS = "Pod"
_CONDITIONS = {"Complete": replicated.JobCondition.SUCCEEDED}


class _BatchJobSpec(Body, frozen=True):
    template: PodTemplate
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = ""
    suspend: bool | None = None
    max_failed_indexes: int | None = None
    success_policy: dict[str, msgspec.Raw] | None = None
    managed_by: str | None = None


def read_batch_job(data: bytes | msgspec.Raw) -> replicated.ReplicatedJob:
    """Decodes a Job from the API server's JSON.

    It has no spec if a job of another kind has made it, which is supervised itself, or if its pods are no run that
    could be stopped and started as one.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=JobBody)
    metadata, body = read.metadata, decoded(read.spec, _BatchJobSpec)
    status = decoded(read.status, StartedStatus) or StartedStatus()
    # A CronJob makes jobs of their own.
    controllers = [each for each in metadata.owner_references or () if each.controller]
    is_part = bool(controllers) and not controllers[0].is_of(_JOBS.group, _CRON_JOB)
    spec, resources = None, None
    if body is not None and not is_part and body.completion_mode == _INDEXED:
        pods = body.parallelism or 0
        try:
            demand = body.template.demand() if pods == body.completions else None
        except (msgspec.MsgspecError, ValueError):
            demand = None
        if demand is not None:
            spec = replicated.ReplicatedSpec(
                replicas=pods,
                annotations=(body.template.annotations,),
                refusal=refusal([pods]),
                gangs=gangs_of({_PODS: body.template}),
                sizes={_PODS: pods},
                scaled=_PODS,
                # Both may speak of indices that a smaller Job has not, which the API server refuses.
                has_fixed_size=body.max_failed_indexes is not None or body.success_policy is not None,
            )
            resources = None if spec.refusal else replicated.requested_resources(_PODS, {_PODS: demand}, spec.sizes)
    return replicated.ReplicatedJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        from_hub=metadata.from_hub,
        moved_with=metadata.moved_with,
        elsewhere=body is not None and body.managed_by not in (None, _CONTROLLER),
        suspended=spec is not None and body is not None and bool(body.suspend),
        conditions=frozenset(_CONDITIONS.get(each.type, each.type) for each in status.true),
        started_at=status.start_time,
        resource_request=resources,
        spec=spec,
    )


def _actions(
    context: KindContext[replicated.ReplicatedJob],
) -> replicated.ReplicatedJobActions[replicated.ReplicatedJob]:
    async def clear_start(job: replicated.ReplicatedJob) -> None:
        # The controller counts a deadline from the last start until it has noted the next one, and would fail the job.
        if job.started_at is not None:
            cleared = await context.client.merge(job, {"status": {"startTime": None}}, "status")
            context.wrote(cleared)

    write = replicated.spec_writer(
        context,
        # The API server accepts another number of completions only together with the parallelism.
        size=lambda _asked, pods: {"parallelism": pods, "completions": pods},
        before_start=clear_start,
    )
    return replicated.ReplicatedJobActions(context, write, replicated.only_logs_left)


# The controller gives a pod this host name, and a name with random letters at its end.
_RULES: replicated.ReplicatedRules[replicated.ReplicatedJob] = replicated.ReplicatedRules(
    host=lambda job, _role, index: Host(f"{job}-{index}")
)

BATCHJOB = JobKind(
    name="batchjob",
    resource=_JOBS,
    rights=(
        replicated.full_right(_JOBS),
        Right(
            group="batch",
            resources=("jobs/status",),
            verbs=("patch",),
            reason="to clear the start of a suspended job, from which its deadline would be counted",
        ),
    ),
    pod_labels=frozenset({_INDEX}),
    decode=read_batch_job,
    role=partial(replicated.labelled_worker, label=_INDEX),
    reference=partial(owned_by, name="batchjob", resource=_JOBS),
    observe=_RULES.observe,
    actions=_actions,
    hub=HubView(
        written=(replicated.suspension(), replicated.resized("parallelism"), replicated.resized("completions")),
        defaulted=(("selector", "matchLabels"), ("template", "metadata", "labels")),
        hub_aggregates=True,
    ),
)
