"""Reads the admission of jobs from the annotations of KubeQueue and its successor koord-queue. Pure.

Both write on the job itself and on nothing else that a controller reads. Once they have admitted a job they let its
field `suspend` alone, so that the job is suspended and resumed as one without a queue.
"""

from typing import Any

from supervisor.cluster.annotations import QUEUE_DEQUEUED, QUEUE_ENQUEUED, QUEUE_SUSPEND
from supervisor.jobs.kind import Admission, JobState

_HELD = Admission("The job waits in its queue (KubeQueue).")


def admission(state: JobState[Any]) -> Admission | None:
    """Returns the admission of a job; None if no such queue holds it."""
    annotations = state.job.annotations
    # A queue marks Jobs of Kubernetes with the time at which it lets them go, and all other kinds with one annotation.
    is_queued = annotations.get(QUEUE_ENQUEUED) == "true" and not annotations.get(QUEUE_DEQUEUED)
    if not is_queued and annotations.get(QUEUE_SUSPEND) != "true":
        return None
    # A controller that does not know the queue makes pods of a job that is annotated: such a job is not held.
    has_pods = any(pod.deleted_at is None for pod in state.pods)
    return _HELD if state.job.suspended or not has_pods else None
