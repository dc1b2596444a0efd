"""What the supervisor relies on, and the traps that it avoids: the real operator does what it was seen to do."""

import pytest

from tests.controlplane.kinds.mpijob.mpijob_jobs import MpiJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_ALL = ["worker-0", "worker-1", "worker-2", "worker-3"]


async def test_a_worker_without_its_role_leaves_the_list_and_lives_on(jobs: MpiJobs) -> None:
    await jobs.nodes(4)
    await jobs.submit("j", 4)
    before = await jobs.runs("j", 4)
    await jobs.discovers("j", *_ALL)
    await jobs.relabel("j", "worker-1", "leaving")
    await jobs.discovers("j", "worker-0", "worker-2", "worker-3")
    await jobs.relabel("j", "worker-1", "worker")
    await jobs.discovers("j", *_ALL)
    after = await jobs.runs("j", 4)
    assert _uids(after) == _uids(before)
    assert await jobs.retries("j") == 0


async def test_a_deleted_worker_is_replaced_under_its_name_and_listed_again(jobs: MpiJobs) -> None:
    await jobs.nodes(3)
    await jobs.submit("j", 2)
    before = await jobs.runs("j", 2)
    await jobs.relabel("j", "worker-1", "leaving")
    await jobs.discovers("j", "worker-0")
    await jobs.delete_pod((await jobs.pods("j"))["worker-1"])
    await jobs.discovers("j", "worker-0", "worker-1")
    after = await jobs.runs("j", 2)
    assert [name for name in before if _uids(before)[name] != _uids(after)[name]] == ["worker-1"]


async def test_a_job_is_suspended_and_resumed_for_free(jobs: MpiJobs) -> None:
    """Its launcher's Job allows no retry, and its pods end with an error each time."""
    await jobs.nodes(2)
    await jobs.submit("j", 2)
    await jobs.runs("j", 2)
    for _ in range(3):
        await jobs.suspend("j")
        await jobs.has_pods("j")
        await jobs.is_now("j", "Suspended")
        await jobs.resume("j")
        await jobs.runs("j", 2)
    assert await jobs.retries("j") == 0


async def test_a_job_is_resumed_smaller_and_grows_as_it_runs(jobs: MpiJobs) -> None:
    await jobs.nodes(4)
    await jobs.submit("j", 4)
    await jobs.runs("j", 4)
    await jobs.suspend("j")
    await jobs.has_pods("j")
    await jobs.resize("j", 2)
    await jobs.resume("j")
    smaller = await jobs.runs("j", 2)
    await jobs.discovers("j", "worker-0", "worker-1")
    await jobs.resize("j", 4)
    grown = await jobs.runs("j", 4)
    await jobs.discovers("j", *_ALL)
    assert _uids(smaller).items() <= _uids(grown).items()


async def test_a_job_made_smaller_as_it_is_suspended_keeps_the_others(jobs: MpiJobs) -> None:
    """So another size waits until the pods are gone."""
    await jobs.nodes(4)
    await jobs.submit("j", 4)
    await jobs.runs("j", 4)
    smaller = {"runPolicy": {"suspend": True}, "mpiReplicaSpecs": {"Worker": {"replicas": 2}}}
    await jobs.patch("j", {"spec": smaller})
    await jobs.has_pods("j", "worker-2", "worker-3")
    await jobs.is_now("j", "Suspended")
    await jobs.discovers("j", "worker-2", "worker-3")


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_deadline_counts_from_a_start_that_nobody_has_cleared(jobs: MpiJobs, *, forgotten: bool) -> None:
    """The launcher's Job fails at its resume, unless its startTime was cleared while it was suspended."""
    await jobs.nodes(2)
    # A busy machine starts a run in less.
    deadline = 10
    await jobs.submit("j", 2, activeDeadlineSeconds=deadline)
    await jobs.runs("j", 2)
    await jobs.suspend("j")
    await jobs.has_pods("j")
    await until(lambda: jobs.began_before("j", deadline), "longer ago than its deadline")
    if forgotten:
        await jobs.forget_start("j")
    await jobs.resume("j")
    if forgotten:
        await jobs.runs("j", 2)
        assert not (await jobs.conditions("j")).get("Failed")
    else:
        await jobs.is_now("j", "Failed")


async def test_an_evicted_worker_fails_its_job_for_ever(jobs: MpiJobs, api: Api) -> None:
    await jobs.nodes(2)
    await jobs.submit("j", 2)
    await jobs.runs("j", 2)
    pod = f"{jobs.namespace.path}/pods/j-worker-1"
    await api.patch(f"{pod}/status", {"status": {"phase": "Failed", "reason": "Evicted"}})
    await jobs.is_now("j", "Failed")
    await jobs.delete_pod((await jobs.pods("j"))["worker-1"])
    await jobs.runs("j", 2)
    assert (await jobs.conditions("j"))["Failed"]


def _uids(pods: dict[str, dict[str, dict[str, str]]]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}
