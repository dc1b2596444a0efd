"""JobSets under their real controller, without a supervisor."""

import pytest

from tests.controlplane.jobset.jobset_jobs import JobSets

pytestmark = pytest.mark.long


async def test_a_pod_that_is_deleted_fails_the_set(jobs: JobSets) -> None:
    """The control run: what a reclaim does to a JobSet that nobody suspends."""
    await jobs.nodes(2)
    await jobs.submit_workers("j", 2, {})
    pods = await jobs.runs("j", 2)
    await jobs.delete_pod(pods["worker-1"])
    assert await jobs.ended("j") == "FailedJobs"
