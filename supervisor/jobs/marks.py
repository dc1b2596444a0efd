"""Reads and writes what a job's object tells the hub of many clusters that has made it."""

from servicekit.bounds import whole
from servicekit.kubernetes.client import ResourceClient
from supervisor.cluster.annotations import LAST_CHECKPOINT, NO_CAPACITY
from supervisor.domain.job import NO_CHECKPOINT, HubMarks
from supervisor.jobs.kind import J, JobObject, JobState

_MAX_STEP = 2**53
"""The largest step that every reader of JSON keeps."""


def read_marks(job: JobObject) -> HubMarks | None:
    """What a job's object tells its hub at present; None without a hub. A checkpoint that is no step is missing."""
    if not job.from_hub:
        return None
    noted = job.annotations.get(LAST_CHECKPOINT, "")
    is_known = noted == NO_CHECKPOINT or whole(noted, _MAX_STEP) is not None
    return HubMarks(
        given_up=job.annotations.get(NO_CAPACITY) == "true",
        checkpoint=noted if is_known else "",
        moved=job.moved_with is not None,
    )


def step_of(job: JobObject) -> int | None:
    """The step of the last checkpoint that the object names, such as that of the cluster that the job comes from."""
    return whole(job.annotations.get(LAST_CHECKPOINT, job.moved_with), _MAX_STEP) if job.from_hub else None


async def write_marks(client: ResourceClient[J], state: JobState[J], marks: HubMarks) -> J | None:
    """Writes the marks of a job in one patch, as the hub acts on one annotation and then reads the other.

    Returns the job as it is then, and None if nothing was written, because it is to be given up and has pods. After a
    loss of the store, a job that was suspended before counts as suspended while its pods still end.

    Raises ApiError.
    """
    if marks.given_up and not all(pod.over for pod in state.pods):
        return None
    annotations = {NO_CAPACITY: "true" if marks.given_up else None, LAST_CHECKPOINT: marks.checkpoint or None}
    return await client.merge(state.job, {}, metadata={"annotations": annotations})
