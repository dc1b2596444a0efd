"""The admission of jobs by the annotations of KubeQueue and koord-queue. Pure.

Both write on the job itself and on nothing else that a controller reads. Once they have admitted a job they let its
field `suspend` alone, so that the job is suspended and resumed as one without a queue.
"""

from collections.abc import Mapping
from typing import Any

from supervisor.cluster.annotations import QUEUE_DEQUEUED, QUEUE_ENQUEUED, QUEUE_SUSPEND
from supervisor.jobs.kind import Admission, JobState

_HELD = Admission("The job waits in its queue (KubeQueue).")


def admission(state: JobState[Any]) -> Admission | None:
    """Returns the admission of a job; None if no such queue holds it.

    A controller that does not know the queue makes pods of a job that is annotated: such a job is not held.
    """
    if not _is_annotated(state.job.annotations):
        return None
    has_pods = any(pod.deleted_at is None for pod in state.pods)
    return _HELD if state.job.suspended or not has_pods else None


def _is_annotated(annotations: Mapping[str, str]) -> bool:
    """Whether a queue says that it holds the job: in one way of Jobs, and in another one of all other kinds."""
    if annotations.get(QUEUE_SUSPEND) == "true":
        return True
    return annotations.get(QUEUE_ENQUEUED) == "true" and not annotations.get(QUEUE_DEQUEUED)
