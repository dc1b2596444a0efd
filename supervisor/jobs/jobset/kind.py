"""JobSets of Kubernetes as a kind of job, and what other kinds have of them."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from servicekit.kubernetes.client import Resource
from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host, cluster_job
from supervisor.domain.job import Framework, SupervisedJob
from supervisor.jobs.jobset.actions import JobSetActions, S
from supervisor.jobs.jobset.objects import JobSet, read_jobset
from supervisor.jobs.kind import JobReference, JobState, KindContext, Role
from supervisor.jobs.replicated.kind import ReplicatedKind
from supervisor.jobs.replicated.objects import ReplicatedSpec
from supervisor.jobs.replicated.observe import Bounds

_NAME = "jobset.sigs.k8s.io/jobset-name"
_UID = "jobset.sigs.k8s.io/jobset-uid"
_JOBS = ("batch", "Job")


def _role_of(job: str) -> str:
    """The replicated job of a Job, whose name ends in its number."""
    return job.rpartition("-")[0]


class JobSetBasedKind(ReplicatedKind[S]):
    """The parts that all kinds have in common whose pods are those of a JobSet with the job's name."""

    framework = Framework.TORCHRUN  # The next run starts from the checkpoint.

    @property
    def pod_labels(self) -> frozenset[str]:
        return frozenset({_NAME, _UID})

    def reference(self, pod: Pod) -> JobReference | None:
        """By its labels: its owner is a Job, which begins with the JobSet's name. They do not tell the job's uid."""
        owner, name = pod.owner, pod.labels.get(_NAME)
        if owner is None or not name or not owner.is_of(*_JOBS) or not owner.name.startswith(f"{name}-"):
            return None
        return JobReference(cluster_job(pod.metadata.namespace, self.name, name))

    def role(self, labels: Mapping[str, str]) -> Role | None:
        """The pods of all Jobs are workers: the run needs each of them."""
        return Role.WORKER if labels.get(_NAME) else None

    def host(self, job: str, role: str, index: int) -> Host:
        """A Job gives its pods this host name, and names with random letters at their end."""
        return Host(f"{job}-{role}-{index}")

    def bounds(self, _job: S, _asked: ReplicatedSpec) -> Bounds:
        """None of its pods leaves while it runs, as that fails its Job, and it has one size."""
        return Bounds()

    def observe(self, state: JobState[S], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        """The pods of Jobs that prepare the training are no hosts of it."""
        name, asked = state.job.metadata.name, state.job.spec
        roles = {f"{name}-{role}" for role in ({} if asked is None else asked.sizes)}
        workers = [pod for pod in state.workers if pod.owner is not None and _role_of(pod.owner.name) in roles]
        return super().observe(replace(state, workers=workers), known, now)

    def actions(self, context: KindContext[S]) -> JobSetActions[S]:
        return JobSetActions(context)


class JobSetKind(JobSetBasedKind[JobSet]):
    """See `supervisor.jobs.kind.JobKind`."""

    name = "jobset"
    resource = Resource(group="jobset.x-k8s.io", version="v1alpha2", kind="JobSet", plural="jobsets", namespaced=True)

    def decode(self, data: bytes | msgspec.Raw) -> JobSet:
        return read_jobset(data)

    def reference(self, pod: Pod) -> JobReference | None:
        found = super().reference(pod)
        return None if found is None else JobReference(found.name, pod.labels.get(_UID, ""))

    def observe(self, state: JobState[JobSet], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        """A part of another job is no job of its own."""
        return None if state.job.owner is not None else super().observe(state, known, now)
