"""Supports TrainJobs of Kubeflow Trainer. Their controller makes a JobSet from each."""

from dataclasses import dataclass, replace
from functools import partial

import msgspec

from servicekit.kubernetes.client import Resource, ResourceClient
from supervisor.cluster.annotations import ours
from supervisor.jobs import replicated
from supervisor.jobs.jobset.kind import JOBSET, JobSet, clear_attempts, jobset_actions, labelled, observe_jobset
from supervisor.jobs.kind import Dependent, JobKind, KindContext
from supervisor.jobs.manifest import JobBody, RunPolicy, decoded

_TRAINJOBS = Resource(
    group="trainer.kubeflow.org", version="v1alpha1", kind="TrainJob", plural="trainjobs", namespaced=True
)
_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob(JobSet):
    """One TrainJob. It has no spec until its JobSet is known: a TrainJob leaves its size and its pods to a runtime.

    Attributes:
        suspend: Whether its controller has to suspend the JobSet; None where that is not understood.
        made: The JobSet that its controller has made; None while there is none that is understood.
    """

    suspend: bool | None = None
    made: JobSet | None = None

    def joined(self, jobset: JobSet) -> "TrainJob":
        """Returns the TrainJob with the spec and the status of its JobSet."""
        if jobset.spec is None or self.suspend is None:
            return self
        return replace(
            self,
            suspended=self.suspend,
            conditions=jobset.conditions,
            started_at=jobset.started_at,
            resource_request=jobset.resource_request,
            restarts=jobset.restarts,
            is_between_runs=jobset.is_between_runs,
            spec=jobset.spec,
            made=jobset,
        )


def read_trainjob(data: bytes | msgspec.Raw) -> TrainJob:
    """Decodes a TrainJob from the API server's JSON, without its JobSet.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=JobBody)
    # The spec itself has the fields that other kinds have in their run policy.
    metadata, policy = read.metadata, decoded(read.spec, RunPolicy)
    return TrainJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        from_hub=metadata.from_hub,
        moved_with=metadata.moved_with,
        elsewhere=policy is not None and policy.managed_by not in (None, _CONTROLLER),
        suspend=None if policy is None else bool(policy.suspend),
    )


def _actions(context: KindContext[TrainJob]) -> replicated.ReplicatedJobActions[TrainJob]:
    jobsets = ResourceClient(context.cluster.server, JOBSET.resource, JOBSET.decode)

    async def before_start(job: TrainJob) -> None:
        if job.made is not None:
            await clear_attempts(jobsets, job.made)

    return jobset_actions(context, before_start)


TRAINJOB = JobKind(
    name="trainjob",
    resource=_TRAINJOBS,
    rights=(replicated.full_right(_TRAINJOBS),),
    pod_labels=JOBSET.pod_labels,
    decode=read_trainjob,
    role=JOBSET.role,
    reference=partial(labelled, kind="trainjob"),
    observe=observe_jobset,
    actions=_actions,
    hub=JOBSET.hub,
    dependent=Dependent(kind=JOBSET.name, joined=TrainJob.joined),
)
