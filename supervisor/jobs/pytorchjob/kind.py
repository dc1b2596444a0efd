"""PyTorchJobs of training-operator as a kind of job."""

from collections.abc import Mapping

import msgspec

from supervisor.cluster.objects import Pod
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.kind import JobReference, KindContext, Right, Role
from supervisor.jobs.pytorchjob import observe
from supervisor.jobs.pytorchjob.actions import PyTorchJobActions
from supervisor.jobs.pytorchjob.objects import KIND, PYTORCH_JOBS, REPLICA_TYPE, PyTorchJob, read_pytorch_job, role


class PyTorchJobKind:
    """See `supervisor.jobs.kind.JobKind`."""

    name = KIND
    resource = PYTORCH_JOBS
    pod_labels = frozenset({REPLICA_TYPE})
    rights = (
        Right(
            group="kubeflow.org",
            resources=("pytorchjobs",),
            verbs=("get", "list", "watch", "patch"),
            reason="to follow jobs, and to suspend, resize and resume them",
        ),
    )
    discovery = None
    failpoints = ()

    def decode(self, data: bytes | msgspec.Raw) -> PyTorchJob:
        return read_pytorch_job(data)

    def role(self, labels: Mapping[str, str]) -> Role | None:
        return role(labels)

    def run_id(self, job: PyTorchJob, _launcher: Pod | None) -> str:
        """The operator sets the time of the start anew when it resumes a job."""
        return "" if job.started_at is None or job.suspended else job.started_at.isoformat()

    def reference(self, pod: Pod) -> JobReference | None:
        owner = pod.owner
        if owner is None or owner.kind != PYTORCH_JOBS.kind:
            return None
        return JobReference(cluster_job(pod.metadata.namespace, KIND, owner.name), owner.uid)

    def is_queued(self, state: observe.State) -> bool:
        return state.job.elsewhere

    def observe(self, state: observe.State, known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        return observe.supervised(state, known, now)

    def resource_request(self, job: PyTorchJob) -> ResourceRequest | None:
        return job.resource_request

    def actions(self, context: KindContext[PyTorchJob]) -> PyTorchJobActions:
        return PyTorchJobActions(context)
