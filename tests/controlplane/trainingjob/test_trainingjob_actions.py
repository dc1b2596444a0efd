"""The supervisor's actions on TrainingJobs, with its own permissions on a real API server and the stand-in operator."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from supervisor.domain.ids import Host
from supervisor.domain.job import Phase, Result
from tests.controlplane.operator.operator_jobs import RESUME, names, operating
from tests.controlplane.trainingjob.conftest import Operated, RunningJob
from tests.controlplane.trainingjob.trainingjob_world import ElasticJobs, Supervision, supervising
from tests.supervisor.jobs.first_sdk import serving
from tests.supervisor.jobs.trainingjob.trainingjob_objects import OPTED_IN, PREFIX
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

EXCLUDED = f"{PREFIX}excluded-hosts"


async def node_of(jobs: ElasticJobs, pod: str) -> str:
    return str((await jobs.namespace.get_pod(pod))["spec"]["nodeName"])


async def stopping(jobs: ElasticJobs, supervised: Supervision, name: str = "bert") -> None:
    """Two of three workers are noticed, and the job needs two."""
    for worker in range(2):
        await supervised.notices(await node_of(jobs, f"{name}-worker-{worker}"))
    await supervised.world.job(name, lambda known: known.decision.stop is not None, "is to stop")


async def suspended(jobs: ElasticJobs, supervised: Supervision, name: str = "bert") -> None:
    """A job of three workers is below its minimum of two in a moment, stops, and is suspended."""
    await stopping(jobs, supervised, name)
    await supervised.answers(name)
    await supervised.phase(name, Phase.SUSPENDED)
    # What was decided is one thing, and what has been done about it another.
    await jobs.phase(name, "Suspended")
    await jobs.has_pods(name)
    await supervised.spared()


async def test_doomed_hosts_are_left_out_and_their_pods_replaced(running_job: RunningJob, jobs: ElasticJobs) -> None:
    """All in one change, before their machine goes; the pod goes at the last moment and another one joins."""
    async with running_job(4, nodes=5, leave_margin_seconds=1.0) as supervised:
        doomed = await node_of(jobs, "bert-worker-1")
        deadline = time.time() + 15
        await supervised.notices(doomed, left=15)
        job = await supervised.world.job("bert", lambda known: bool(known.decision.exclusions), "leaves hosts out")
        assert job.decision.exclusions == {Host("bert-worker-1")}
        job = await supervised.phase("bert", Phase.RUNNING)
        launcher = await jobs.namespace.get_pod("bert-launcher")
        assert launcher["metadata"]["annotations"][EXCLUDED] == "bert-worker-1\n"
        edl = jobs.edl("bert")
        assert (edl / "excluded_hosts").read_text(encoding="utf-8") == "bert-worker-1\n"
        assert (edl / "discover_hosts.sh").stat().st_mode & 0o111
        assert "bert-worker-1" in await jobs.pods("bert")
        await jobs.has_pods("bert", *names("bert", [0, 2, 3, 4]))
        assert deadline - 1.5 < time.time()
        job = await supervised.world.job(
            "bert", lambda known: Host("bert-worker-4") in known.decision.hosts, "has the replacement"
        )
        assert await node_of(jobs, "bert-worker-4") != doomed or Host("bert-worker-4") in job.decision.exclusions


async def test_a_stopped_job_is_suspended_at_once_and_resumed(running_job: RunningJob, jobs: ElasticJobs) -> None:
    """No restart is counted, all pods are gone, and it comes back as another run."""
    async with running_job(3) as supervised:
        await suspended(jobs, supervised)
        status = await jobs.phase("bert", "Suspended")
        assert not status.get("restartCount")
        supervised.grant("bert", 3)
        job = await supervised.phase("bert", Phase.RUNNING, run=2)
        assert job.decision.hosts == {Host(f"bert-worker-{number}") for number in range(3)}
        assert set(await jobs.annotations("bert")) == set(OPTED_IN)
        assert not (await jobs.status("bert")).get("restartCount")


async def test_a_job_resumes_smaller_and_later_at_its_own_size(running_job: RunningJob, jobs: ElasticJobs) -> None:
    """Workers, variables and host lists say the same number, and what the job asked for is not lost."""
    async with running_job(3) as supervised:
        await suspended(jobs, supervised)
        for workers, run in ((2, 2), (3, 3)):
            supervised.grant("bert", workers)
            job = await supervised.phase("bert", Phase.RUNNING, run=run)
            assert len(job.decision.hosts) == workers
            assert job.spec.requested_workers == 3
            asked = (await jobs.get("bert"))["spec"]["etReplicaSpecs"]
            assert asked["worker"]["replicas"] == workers
            for role in asked.values():
                env = {each["name"]: each["value"] for each in role["template"]["spec"]["containers"][0]["env"]}
                assert env["workers"] == str(workers)
            config = await jobs.config("bert")
            assert config["hostfile"] == "".join(f"bert-worker-{number}:1\n" for number in range(workers))
            noted = (await jobs.annotations("bert")).get(f"{PREFIX}requested-workers")
            assert noted == (None if workers == 3 else "3")
            if run == 2:
                supervised.grant("bert", 0)
                launcher = await node_of(jobs, "bert-launcher")
                await supervised.notices(launcher)
                await supervised.answers("bert")
                await supervised.phase("bert", Phase.SUSPENDED)
                await jobs.phase("bert", "Suspended")
                await supervised.spared()


async def test_a_job_without_resources_times_out(cluster: RunningCluster, jobs: ElasticJobs, tmp_path: Path) -> None:
    """Its operator and Arena are told in their words, and its pods no longer wait."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.submit("bert", 2, annotations={**OPTED_IN, f"{PREFIX}max-wait-time": "3"})
        await jobs.has_pods("bert", *names("bert", range(2), launcher=False))
        # Its time begins here, after its pods were seen, however long they took.
        async with supervising(cluster, jobs.namespace, tmp_path) as supervised:
            await _times_out(jobs, supervised)


async def _times_out(jobs: ElasticJobs, supervised: Supervision) -> None:
    job = await supervised.phase("bert", Phase.TIMED_OUT)
    await jobs.phase("bert", "Suspended")
    job = await supervised.world.job("bert", lambda known: known.over, "is over")
    assert (job.decision.phase, job.observed.result) == (Phase.TIMED_OUT, Result.TIMED_OUT)
    marks = await jobs.annotations("bert")
    assert (marks[f"{PREFIX}job-suspended"], marks[f"{PREFIX}job-status"]) == ("true", "timeout")
    await jobs.has_pods("bert")


async def test_a_job_whose_launcher_vanishes_is_suspended_and_resumed(
    running_job: RunningJob, jobs: ElasticJobs
) -> None:
    """Its operator would leave it without one for ever; it does not wait for capacity, so it does not time out."""
    async with running_job(
        3, annotations={**OPTED_IN, f"{PREFIX}max-wait-time": "20"}, launcher_grace_seconds=1.0
    ) as supervised:
        await jobs.delete_pod("bert-launcher")
        job = await supervised.phase("bert", Phase.SUSPENDED)
        assert job.decision.reason == (
            "The launcher of run 1 is gone and its operator started no other: suspending and resuming the job. "
            "Run 1 was lost soon after it began: pausing 0.1 s before the next one."
        )
        await jobs.has_pods("bert")
        supervised.grant("bert", 3)
        await supervised.phase("bert", Phase.RUNNING, run=2)
        assert not (await jobs.status("bert")).get("restartCount")


async def test_a_launcher_that_fails_after_a_stop_is_suspended_nevertheless(
    running_job: RunningJob, jobs: ElasticJobs
) -> None:
    async with running_job(3) as supervised:
        await stopping(jobs, supervised)
        await jobs.end_pod("bert-launcher", "Failed")
        await supervised.phase("bert", Phase.SUSPENDED)
        await jobs.phase("bert", "Suspended")


async def test_a_job_that_succeeds_while_it_is_stopped_has_succeeded(
    running_job: RunningJob, jobs: ElasticJobs
) -> None:
    """It is not suspended, which would train it again."""
    async with running_job(3) as supervised:
        await stopping(jobs, supervised)
        await jobs.end_pod("bert-launcher", "Succeeded")
        job = await supervised.phase("bert", Phase.FINISHED)
        assert job.observed.result is Result.SUCCEEDED
        await jobs.phase("bert", "Succeeded")
        assert set(await jobs.annotations("bert")) == set(OPTED_IN)


async def test_the_next_launcher_leaves_the_same_hosts_out(running_job: RunningJob, jobs: ElasticJobs) -> None:
    async with running_job(3) as supervised:
        await supervised.notices(await node_of(jobs, "bert-worker-0"), left=300)
        await supervised.world.job("bert", lambda known: bool(known.decision.exclusions), "leaves hosts out")
        await supervised.phase("bert", Phase.RUNNING)
        await jobs.end_pod("bert-launcher", "Failed")
        job = await supervised.world.job(
            "bert", lambda known: known.observed.run == 2 and bool(known.decision.exclusions), "runs without it again"
        )
        job = await supervised.phase("bert", Phase.RUNNING, run=2)
        launcher = await jobs.namespace.get_pod("bert-launcher")
        text = "".join(f"{host}\n" for host in sorted(job.decision.exclusions))
        assert launcher["metadata"]["annotations"][EXCLUDED] == text
        assert (jobs.edl("bert") / "excluded_hosts").read_text(encoding="utf-8") == text


async def test_a_job_deleted_in_mid_reclaim_is_let_go(operated: Operated, jobs: ElasticJobs) -> None:
    async with operated(6) as supervised:
        for name in ("bert", "other"):
            await jobs.submit(name, 3)
            await supervised.phase(name, Phase.RUNNING)
        await stopping(jobs, supervised)
        await jobs.delete("bert")
        await supervised.world.forgotten("bert")
        await suspended(jobs, supervised, "other")


@pytest.mark.parametrize("done", ["size", "annotation", "status"])
async def test_a_resume_that_was_interrupted_is_brought_to_its_end(
    cluster: RunningCluster, jobs: ElasticJobs, tmp_path: Path, done: str
) -> None:
    """Whichever of its steps were done; and if the operator's late word undid the last one."""
    await jobs.nodes(3)
    async with (
        supervising(cluster, jobs.namespace, tmp_path) as supervised,
        operating(cluster, jobs.namespace.name) as operator,
    ):
        await jobs.submit("bert", 3)
        await supervised.phase("bert", Phase.RUNNING)
        await suspended(jobs, supervised)
        if done == "size":
            await jobs.patch("bert", {"etReplicaSpecs": {"worker": {"replicas": 2}}})
        if done == "annotation":
            await jobs.annotate("bert", None)
        if done == "status":
            operator.cancel()
            await asyncio.wait([operator])
        supervised.grant("bert", 3)
        if done == "status":
            await jobs.phase("bert", "Created")
            await jobs.write_status("bert", {"phase": "Suspended"})
            async with operating(cluster, jobs.namespace.name):
                await supervised.phase("bert", Phase.RUNNING, run=2)
        else:
            await supervised.phase("bert", Phase.RUNNING, run=2)


async def test_a_job_that_a_person_suspends_is_left_to_them(running_job: RunningJob, jobs: ElasticJobs) -> None:
    async with running_job(2) as supervised:
        await jobs.annotate("bert", "true")
        await jobs.phase("bert", "Suspended")
        await supervised.world.forgotten("bert")
        supervised.grant("bert", 2)
        await jobs.submit("other", 2)
        await supervised.phase("other", Phase.RUNNING)
        assert supervised.world.known("bert") is None
        assert (await jobs.status("bert"))["phase"] == "Suspended"


async def _held(jobs: ElasticJobs, supervised: Supervision) -> None:
    """A person has suspended a job that is older by now than it may wait."""
    await jobs.submit("bert", 2, annotations={**OPTED_IN, f"{PREFIX}max-wait-time": "20"})
    oldest = time.time() + 20
    await supervised.phase("bert", Phase.RUNNING)
    await jobs.annotate("bert", "true")
    await jobs.phase("bert", "Suspended")
    await supervised.world.forgotten("bert")

    async def old() -> bool:
        return time.time() > oldest

    await until(old, "the job is older than it may wait")


async def test_a_person_resumes_a_job_by_taking_the_annotation_back(operated: Operated, jobs: ElasticJobs) -> None:
    """The operator would leave it Suspended; how old it is does not count as time that it has waited."""
    async with operated() as supervised:
        await _held(jobs, supervised)
        supervised.grant("bert", 2)
        await jobs.annotate("bert", None)
        await supervised.phase("bert", Phase.RUNNING)
        assert not (await jobs.phase("bert", "Running")).get("restartCount")
        assert f"{PREFIX}job-suspended" not in await jobs.annotations("bert")


async def test_a_job_that_is_suspended_and_resumed_at_once_is_resumed(
    running_job: RunningJob, jobs: ElasticJobs
) -> None:
    """Its operator deletes the pods and notes the suspension after the annotation has gone, from an older copy."""
    annotations = {**OPTED_IN, f"{PREFIX}max-wait-time": "20"}
    async with running_job(2, annotations=annotations) as supervised:
        await jobs.phase("bert", "Running")  # as the operator writes, perhaps after the supervisor has seen the pods
        await jobs.write_status("bert", {"phase": "Suspended"})
        for pod in names("bert", range(2)):
            await jobs.delete_pod(pod)
        job = await supervised.phase("bert", Phase.SUSPENDED)
        assert job.decision.reason == "The suspension was lifted; waiting for capacity."
        supervised.grant("bert", 2)
        await supervised.phase("bert", Phase.RUNNING)
        assert not (await jobs.phase("bert", "Running")).get("restartCount")


@pytest.mark.long
async def test_a_person_resumes_a_job_by_hand(operated: Operated, jobs: ElasticJobs) -> None:
    """In the two steps that it takes; between them it is said to wait for capacity, and afterwards nobody stops it."""
    async with operated() as supervised:
        await _held(jobs, supervised)
        await jobs.annotate("bert", None)
        job = await supervised.world.appears("bert")
        assert (job.decision.phase, job.decision.reason) == (
            Phase.SUSPENDED,
            "The suspension was lifted; waiting for capacity.",
        )
        await jobs.write_status("bert", RESUME)
        job = await supervised.phase("bert", Phase.RUNNING)
        assert job.observed.run == 1
        assert set(await jobs.annotations("bert")) == {f"{PREFIX}spot-instance", f"{PREFIX}max-wait-time"}
        assert not (await jobs.phase("bert", "Running")).get("restartCount")


async def test_a_job_whose_launchers_container_has_ended_is_suspended_before_its_pod_is_failed(
    running_job: RunningJob, jobs: ElasticJobs
) -> None:
    """As where the first SDK stops everybody: nobody answers, and the operator must not see a failure."""
    async with running_job(3) as supervised:
        await stopping(jobs, supervised)
        await jobs.end_container("bert-launcher", 1)
        job = await supervised.phase("bert", Phase.SUSPENDED)
        assert "The run ended with code 1." in job.decision.reason
        assert not (await jobs.phase("bert", "Suspended")).get("restartCount")


async def test_a_launcher_that_does_not_answer_holds_nothing_up(operated: Operated, jobs: ElasticJobs) -> None:
    """Its list cannot be written, and the job is suspended as soon as rank 0 has left all the same."""
    stuck = jobs.edl("bert") / "discover_hosts.sh"
    async with operated() as supervised:
        await jobs.submit("bert", 3)
        os.mkfifo(stuck)  # A command that reads it never ends.
        try:
            job = await supervised.world.job("bert", lambda known: known.observed.running, "runs")
            await until(lambda: _there(jobs.edl("bert") / "excluded_hosts"), "the command is under way")
            await suspended(jobs, supervised)
            job = await supervised.world.job("bert", lambda known: not known.decision.hosts, "is suspended")
            assert job.decision.stop is None
            assert stuck.is_fifo()
        finally:
            os.close(os.open(stuck, os.O_RDWR))


async def _there(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


async def test_processes_that_have_no_stream_are_asked_to_stop(
    running_job: RunningJob, api: Api, jobs: ElasticJobs
) -> None:
    """In the first SDK's own way, once nobody has turned out to be rank 0, until the run has ended."""
    async with (
        serving("127.0.0.1", b"ok") as (port, heard),
        running_job(3, stop_port=port, rank_zero_grace_seconds=0.5) as supervised,
    ):
        here = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        await api.patch(f"{jobs.namespace.path}/pods/bert-worker-2/status", {"status": here})
        for worker in range(2):
            await supervised.notices(await node_of(jobs, f"bert-worker-{worker}"))

        async def asked() -> bool:
            return len(heard) >= 2

        await until(asked, "it was asked more than once")
        await jobs.end_pod("bert-launcher", "Failed")
        await supervised.phase("bert", Phase.SUSPENDED)
