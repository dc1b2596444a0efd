"""The parts of a kind that all kinds of replicas have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from servicekit.kubernetes.client import Resource
from supervisor.cluster.objects import Pod
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import cluster_job
from supervisor.domain.job import Framework, SupervisedJob
from supervisor.jobs.kind import JobReference, KindContext, Right, Role
from supervisor.jobs.replicated.actions import ReplicatedJobActions
from supervisor.jobs.replicated.objects import ReplicatedJob, ReplicatedSpec, Shape, read_replicated_job
from supervisor.jobs.replicated.observe import Bounds, Observer, State


class ReplicatedKind(ABC):
    """See `supervisor.jobs.kind.JobKind`.

    Attributes:
        name: The kind in lower case.
        resource: The API resource of its jobs.
        shape: How the kind writes its jobs.
        framework: What trains.
    """

    name: str
    resource: Resource
    shape: Shape
    framework: Framework

    discovery = None
    failpoints = ()

    @abstractmethod
    def bounds(self, job: ReplicatedJob, asked: ReplicatedSpec) -> Bounds:
        """Returns the sizes that a job may have, and what can be done to it while it runs."""

    @property
    def pod_labels(self) -> frozenset[str]:
        return frozenset({self.shape.role_label})

    @property
    def rights(self) -> tuple[Right, ...]:
        return (
            Right(
                group=self.resource.group,
                resources=(self.resource.plural,),
                verbs=("get", "list", "watch", "patch"),
                reason="to follow jobs, and to suspend, resize and resume them",
            ),
        )

    def decode(self, data: bytes | msgspec.Raw) -> ReplicatedJob:
        return read_replicated_job(data, self.shape)

    def role(self, labels: Mapping[str, str]) -> Role | None:
        """All roles are workers: the run needs each of them."""
        roles = {role.lower() for role in self.shape.roles}
        return Role.WORKER if labels.get(self.shape.role_label) in roles else None

    def run_id(self, job: ReplicatedJob, _launcher: Pod | None) -> str:
        """The operator sets the time of the start anew when it resumes a job."""
        return "" if job.started_at is None or job.suspended else job.started_at.isoformat()

    def reference(self, pod: Pod) -> JobReference | None:
        owner = pod.owner
        if owner is None or not owner.is_of(self.resource.group, self.resource.kind):
            return None
        return JobReference(cluster_job(pod.metadata.namespace, self.name, owner.name), owner.uid)

    def is_queued(self, state: State) -> bool:
        return state.job.elsewhere

    def observe(self, state: State, known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        return Observer(self.framework, self.bounds).supervised(state, known, now)

    def resource_request(self, job: ReplicatedJob) -> ResourceRequest | None:
        return job.resource_request

    def actions(self, context: KindContext[ReplicatedJob]) -> ReplicatedJobActions:
        return ReplicatedJobActions(context, self.shape)
