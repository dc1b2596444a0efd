"""A stand-in for koord-queue, which is in no package registry: it writes on jobs what koord-queue's sources write.

It is no queue: tests say when a job is admitted, and when it is preempted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.kind_jobs import MANAGED
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import PyTorchJobs

J = TypeVar("J", BatchJobs, PyTorchJobs)

_DEQUEUED = "koord-queue/job-dequeue-timestamp"
_AT = "2026-11-23 14:00:00.000000000 +0000 UTC"


@dataclass(frozen=True, slots=True)
class Queue(Generic[J]):
    """A queue for the jobs of one kind.

    Attributes:
        jobs: The jobs.
        held: What it annotates a job with that it holds back; it suspends the job in the same write.
        admitted: What it annotates a job with that it admits; it resumes the job in the same write.
    """

    jobs: J
    held: Mapping[str, str]
    admitted: Mapping[str, str]

    async def submit(self, name: str, workers: int) -> None:
        """Makes a job that the queue holds back."""
        await self.jobs.submit(name, workers, annotations={**MANAGED, **self.held}, suspend=True)

    async def admit(self, name: str) -> None:
        await self._write(name, self.admitted, suspend=False)

    async def preempt(self, name: str) -> None:
        await self._write(name, self.held, suspend=True)

    async def _write(self, name: str, annotations: Mapping[str, str], *, suspend: bool) -> None:
        changes = {"metadata": {"annotations": annotations}, "spec": self.jobs.suspending(suspend=suspend)}
        await self.jobs.patch(name, changes)


def queue_of_pytorch_jobs(jobs: PyTorchJobs) -> Queue[PyTorchJobs]:
    suspend = "scheduling.x-k8s.io/suspend"
    return Queue(jobs, held={suspend: "true"}, admitted={suspend: "false", _DEQUEUED: _AT})


def queue_of_jobs(jobs: BatchJobs) -> Queue[BatchJobs]:
    return Queue(jobs, held={"koord-queue/job-has-enqueued": "true", _DEQUEUED: ""}, admitted={_DEQUEUED: _AT})
