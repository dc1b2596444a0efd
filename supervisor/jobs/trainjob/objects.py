"""TrainJobs, and how they are read: whatever the API server takes must not stop the rest."""

from dataclasses import dataclass, replace

import msgspec

from supervisor.cluster.annotations import ours
from supervisor.cluster.podspec import Body
from supervisor.jobs import manifest
from supervisor.jobs.jobset.objects import JobSet
from supervisor.jobs.manifest import decoded

_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob(JobSet):
    """One TrainJob. It has no spec until its JobSet is known: a TrainJob leaves its size and its pods to a runtime.

    Attributes:
        suspend: Whether its controller has been told to suspend the JobSet; None where that is not understood.
    """

    suspend: bool | None = None

    def joined(self, jobset: JobSet) -> "TrainJob":
        """Returns the TrainJob with what its JobSet asks for, and with what became of that."""
        if jobset.spec is None or self.suspend is None:
            return self
        return replace(
            self,
            conditions=jobset.conditions,
            started_at=jobset.started_at,
            restarts=jobset.restarts,
            spec=replace(jobset.spec, suspended=self.suspend),
        )


class _Spec(Body, frozen=True):
    suspend: bool | None = None
    managed_by: str | None = None


def read_trainjob(data: bytes | msgspec.Raw) -> TrainJob:
    """Returns a TrainJob from the API server's JSON, without its JobSet.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=manifest.JobBody)
    metadata, spec = read.metadata, decoded(read.spec, _Spec)
    return TrainJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        elsewhere=spec is not None and spec.managed_by not in (None, _CONTROLLER),
        suspend=None if spec is None else bool(spec.suspend),
    )
