"""The parts of a kind that all kinds of replicas have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic

import msgspec

from servicekit.kubernetes.client import Resource
from supervisor.cluster.objects import Pod
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import Host, cluster_job
from supervisor.domain.job import Framework, SupervisedJob
from supervisor.jobs.kind import Dependent, JobReference, JobState, KindContext, Right, Role
from supervisor.jobs.replicated.actions import ReplicatedJobActions
from supervisor.jobs.replicated.objects import ReplicatedSpec
from supervisor.jobs.replicated.observe import Bounds, Observer, R


class ReplicatedKind(ABC, Generic[R]):
    """See `supervisor.jobs.kind.JobKind`.

    Attributes:
        name: The kind in lower case.
        resource: The API resource of its jobs.
        framework: What trains.
    """

    name: str
    resource: Resource
    framework: Framework

    discovery = None
    dependent: Dependent[R] | None = None
    failpoints = ()
    annotations: frozenset[str] = frozenset()

    @abstractmethod
    def bounds(self, job: R, asked: ReplicatedSpec) -> Bounds:
        """Returns the sizes that a job may have, and what can be done to it while it runs."""

    @property
    @abstractmethod
    def pod_labels(self) -> frozenset[str]:
        """See `supervisor.jobs.kind.JobKind`."""

    @abstractmethod
    def host(self, job: str, role: str, index: int) -> Host:
        """Returns the host that a pod of a job will be."""

    @abstractmethod
    def decode(self, data: bytes | msgspec.Raw) -> R:
        """See `supervisor.jobs.kind.JobKind`."""

    @abstractmethod
    def role(self, labels: Mapping[str, str]) -> Role | None:
        """Returns that of workers for all roles that the run needs."""

    @abstractmethod
    def actions(self, context: KindContext[R]) -> ReplicatedJobActions[R]:
        """See `supervisor.jobs.kind.JobKind`."""

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

    def reference(self, pod: Pod) -> JobReference | None:
        owner = pod.owner
        if owner is None or not owner.is_of(self.resource.group, self.resource.kind):
            return None
        return JobReference(cluster_job(pod.metadata.namespace, self.name, owner.name), owner.uid)

    def run_id(self, job: R, _launcher: Pod | None) -> str:
        return job.run_id

    def runs_elsewhere(self, state: JobState[R]) -> bool:
        return state.job.elsewhere

    def observe(self, state: JobState[R], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        return Observer(self.framework, self.bounds, self.host, self.annotations).supervised(state, known, now)

    def resource_request(self, job: R) -> ResourceRequest | None:
        return job.resource_request
