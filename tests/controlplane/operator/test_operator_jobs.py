"""The stand-in operator behaves as the real operator was observed to behave."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from servicekit.kubernetes.errors import NotFoundError
from simulator.et_operator.scaling import OperatorCrashedError
from simulator.et_operator.settings import QUICK, Flaw
from tests.controlplane.operator.operator_jobs import RESUME, OperatorJobs, names, operating
from tests.testkit.controlplane.api import Api, ObjectRefused
from tests.testkit.controlplane.namespace import fresh_namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_ALWAYS = {"restartPolicy": "Always"}


@pytest.mark.brief
async def test_a_job_has_its_workers_first_and_then_its_launcher(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    """Names, labels, owner and ConfigMap are those of the real one, and the status tells of it step by step."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        status = await jobs.phase("j", "Running")
        pods = await jobs.has_pods("j", *names("j", range(2)))
    worker, launcher = pods["j-worker-1"]["metadata"], pods["j-launcher"]["metadata"]
    assert worker["labels"] == {
        "group-name": "kai.alibabacloud.com",
        "training-job-name": "j",
        "training-job-role": "worker",
        "replica-index": "1",
    }
    assert launcher["labels"]["training-job-role"] == "launcher"
    assert [(one["kind"], one["controller"]) for one in worker["ownerReferences"]] == [("TrainingJob", True)]
    assert (await jobs.config("j"))["hostfile"] == "j-worker-0:1\nj-worker-1:1\n"
    assert [each["type"] for each in status["conditions"]] == [
        "Created",
        "WorkersCreated",
        "WorkersReady",
        "LauncherCreated",
        "Running",
    ]
    assert status["targetWorkers"] == ["j-worker-0", "j-worker-1"]


async def test_a_job_that_lacks_one_worker_has_no_launcher(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 9, {"minReplicas": 1})
        await jobs.has_pods("j", *names("j", range(9), launcher=False))
        await until(lambda: _pending(jobs), "the ninth finds no GPU")
        assert set(await jobs.pods("j")) == set(names("j", range(9), launcher=False))
        await jobs.phase("j", "Created")


async def _pending(jobs: OperatorJobs) -> bool:
    phases = [pod["status"]["phase"] for pod in (await jobs.pods("j")).values()]
    return sorted(phases) == ["Pending", *["Running"] * 8]


async def test_the_end_of_the_launcher_is_the_end_of_the_job(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    """Succeeded, and the workers are given back where the job asks for it."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2, cleanPodPolicy="Running")
        await jobs.phase("j", "Running")
        await jobs.end_pod("j-launcher", "Succeeded")
        await jobs.phase("j", "Succeeded")
        await jobs.has_pods("j", "j-launcher")


@pytest.mark.brief
async def test_a_failed_launcher_starts_everything_again_and_counts_it(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    """All pods are new; when nothing of the limit is left, the job stays Failed."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2, backoffLimit=1)
        await jobs.phase("j", "Running")
        before = await jobs.has_pods("j", *names("j", range(2)))
        await jobs.end_pod("j-launcher", "Failed")
        await jobs.phase("j", "Running", restartCount=1)
        after = await jobs.has_pods("j", *names("j", range(2)))
        assert all(after[name]["metadata"]["uid"] != pod["metadata"]["uid"] for name, pod in before.items())
        await jobs.end_pod("j-launcher", "Failed")
        await jobs.phase("j", "Failed", restartCount=1)


async def test_a_job_that_is_never_restarted_stays_failed(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 1, restartPolicy="Never")
        await jobs.phase("j", "Running")
        await jobs.end_pod("j-launcher", "Failed")
        await jobs.phase("j", "Failed")


async def test_a_launcher_that_is_deleted_is_missed_by_nobody(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    """The job stays Running without one, its workers stay, and no restart is counted."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.delete_pod("j-launcher")
        await jobs.has_pods("j", *names("j", range(2), launcher=False))
        await _nothing_happens(jobs)
        assert not (await jobs.phase("j", "Running")).get("restartCount")
        await jobs.has_pods("j", *names("j", range(2), launcher=False))


async def test_a_suspended_job_has_no_pods_and_does_not_come_back_by_itself(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.annotate("j", "true")
        await jobs.phase("j", "Suspended")
        await jobs.has_pods("j")
        assert "hostfile" in await jobs.config("j")
        await jobs.annotate("j", None)
        await _nothing_happens(jobs)
        assert (await jobs.status("j"))["phase"] == "Suspended"
        await jobs.has_pods("j")


async def _nothing_happens(jobs: OperatorJobs) -> None:
    """Another job has come up meanwhile: the operator was not asleep."""
    await jobs.create("other", 1)
    await jobs.phase("other", "Running")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_the_annotation_flips_a_job_that_is_over(cluster: RunningCluster, jobs: OperatorJobs, phase: str) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 1, restartPolicy="Never")
        await jobs.phase("j", "Running")
        await jobs.end_pod("j-launcher", phase)
        await jobs.phase("j", phase)
        await jobs.annotate("j", "true")
        await jobs.phase("j", "Suspended")


@pytest.mark.brief
async def test_the_recipe_resumes_a_job(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    """Annotation away, status back to Created without conditions and lists: new pods, no restart counted."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.annotate("j", "true")
        await jobs.phase("j", "Suspended")
        await jobs.annotate("j", None)
        await jobs.write_status("j", RESUME)
        status = await jobs.phase("j", "Running")
        assert not status.get("restartCount")
        await jobs.has_pods("j", *names("j", range(2)))


async def test_the_recipe_resumes_a_job_at_another_size(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    """The replicas count that stand in the spec; the host list is as old as nobody has rewritten it."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 4)
        await jobs.phase("j", "Running")
        await jobs.annotate("j", "true")
        await jobs.phase("j", "Suspended")
        await jobs.patch("j", {"etReplicaSpecs": {"worker": {"replicas": 2}}})
        await jobs.annotate("j", None)
        await jobs.write_status("j", RESUME)
        await jobs.phase("j", "Running", targetWorkers=["j-worker-0", "j-worker-1"])
        await jobs.has_pods("j", *names("j", range(2)))
        assert (await jobs.config("j"))["hostfile"].count("\n") == 4


async def test_a_status_without_the_rest_of_the_recipe_resumes_the_old_size(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 4)
        await jobs.phase("j", "Running")
        await jobs.annotate("j", "true")
        await jobs.phase("j", "Suspended")
        await jobs.patch("j", {"etReplicaSpecs": {"worker": {"replicas": 2}}})
        await jobs.annotate("j", None)
        await jobs.write_status("j", {"phase": "Created", "conditions": []})
        await jobs.phase("j", "Running")
        await jobs.has_pods("j", *names("j", range(4)))


async def test_a_suspended_job_that_is_made_failed_starts_again_and_counts_it(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    """A second way to resume, at full size, that uses up the limit."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.annotate("j", "true")
        await jobs.phase("j", "Suspended")
        await jobs.annotate("j", None)
        await jobs.write_status("j", {"phase": "Failed"})
        await jobs.phase("j", "Running", restartCount=1)


async def test_the_operator_writes_over_what_others_have_made_of_the_status(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    """Whoever patches it while the operator looks elsewhere has to look again, and patch again."""
    slow = QUICK.__class__(suspend=0.05, write=5.0, retry=0.1)
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 1)
        await jobs.phase("j", "Running")
    async with operating(cluster, jobs.namespace.name, pace=slow):
        await jobs.annotate("j", "true")
        # Now it has seen the annotation, and looks at nothing for five seconds.
        await jobs.has_pods("j")
        await jobs.annotate("j", None)
        await jobs.write_status("j", RESUME)
        await jobs.phase("j", "Suspended")


async def test_a_lost_worker_is_not_replaced_unless_the_job_asks_for_it(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.delete_pod("j-worker-0")
        await _nothing_happens(jobs)
        await jobs.has_pods("j", *names("j", [1]))


@pytest.mark.brief
async def test_a_lost_worker_is_replaced_under_a_new_number(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    """Each time under one that nobody has had, so that no exclusion by name catches it."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2, _ALWAYS)
        await jobs.phase("j", "Running")
        await jobs.delete_pod("j-worker-0")
        await jobs.has_pods("j", *names("j", [1, 2]))
        await jobs.end_pod("j-worker-2", "Failed")
        await jobs.has_pods("j", *names("j", [1, 3]))


async def test_the_launchers_list_follows_the_workers_that_run(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 3, _ALWAYS)
        await jobs.phase("j", "Running")
        hosts = jobs.edl("j") / "hostfile"
        assert not hosts.exists()
        await jobs.delete_pod("j-worker-1")

        async def listed() -> bool:
            return hosts.exists() and hosts.read_text() == "j-worker-0:1\nj-worker-2:1\nj-worker-3:1\n"

        await until(listed, "the replacement is listed")


async def test_the_status_lists_a_deleted_worker_for_a_while(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    lagging = QUICK.__class__(forget=600.0, write=0.005)
    async with operating(cluster, jobs.namespace.name, pace=lagging):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running", currentWorkers=["j-worker-0", "j-worker-1"])
        await jobs.delete_pod("j-worker-0")
        status = await jobs.phase("j", "Running", replicaStatuses={"Launcher": {"active": 1}, "Worker": {"active": 1}})
        assert status["currentWorkers"] == ["j-worker-0", "j-worker-1"]


async def test_a_fresh_job_may_have_a_worker_too_many(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    """It runs, it is listed nowhere but among the pods, and it is no target."""
    async with operating(cluster, jobs.namespace.name, Flaw.EXTRA_WORKER):
        await jobs.create("j", 4, _ALWAYS)
        status = await jobs.phase("j", "Running")
        await jobs.has_pods("j", *names("j", range(5)))
        assert len(status["targetWorkers"]) == 4


async def test_an_operator_that_starts_again_may_make_a_worker_too_many(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
    async with operating(cluster, jobs.namespace.name, Flaw.EXTRA_WORKER_AT_START):
        await jobs.has_pods("j", *names("j", range(3)))


async def test_an_operator_that_starts_again_leaves_running_jobs_alone(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        before = await jobs.has_pods("j", *names("j", range(2)))
    async with operating(cluster, jobs.namespace.name):
        await _nothing_happens(jobs)
        after = await jobs.has_pods("j", *names("j", range(2)))
    assert {name: pod["metadata"]["uid"] for name, pod in before.items()} == {
        name: pod["metadata"]["uid"] for name, pod in after.items()
    }


async def test_jobs_of_one_name_in_two_namespaces_may_share_their_pods(
    cluster: RunningCluster, api: Api, jobs: OperatorJobs, tmp_path: Path
) -> None:
    """Where that flaw is shown: suspending the one deletes the pods of the other as well."""
    async with fresh_namespace(cluster, api) as other:
        await other.node()
        twin = OperatorJobs(api, other, tmp_path)
        async with operating(cluster, other.name):
            await twin.create("shared", 1)
            await twin.phase("shared", "Running")
        async with operating(cluster, jobs.namespace.name, Flaw.ALL_NAMESPACES):
            await jobs.create("shared", 1)
            await jobs.annotate("shared", "true")
            await jobs.phase("shared", "Suspended")
            await twin.has_pods("shared")


async def test_jobs_of_one_name_in_two_namespaces_are_two_without_that_flaw(
    cluster: RunningCluster, api: Api, jobs: OperatorJobs, tmp_path: Path
) -> None:
    """As anybody would expect."""
    async with fresh_namespace(cluster, api) as other:
        await other.node()
        twin = OperatorJobs(api, other, tmp_path)
        async with operating(cluster, other.name), operating(cluster, jobs.namespace.name):
            for each in (twin, jobs):
                await each.create("twin", 1)
                await each.phase("twin", "Running")
            await jobs.annotate("twin", "true")
            await jobs.phase("twin", "Suspended")
            await twin.has_pods("twin", *names("twin", [0]))


async def test_a_deleted_job_takes_everything_with_it(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.delete("j")
        # The garbage collector learns of a new kind of owner each half minute.
        await jobs.has_pods("j")

        async def config_gone() -> bool:
            try:
                await jobs.config("j")
            except ObjectRefused:
                return True
            return False

        await until(config_gone, "its ConfigMap is gone")


async def test_a_scale_in_deletes_those_that_it_names(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 3, _ALWAYS)
        await jobs.phase("j", "Running")
        await jobs.scale("ScaleIn", "less", "j", toDelete={"podNames": ["j-worker-1"]})
        await until(lambda: _scaled(jobs, "ScaleIn", "less", "ScaleSucceeded"), "it is done")
        await jobs.has_pods("j", *names("j", [0, 2]))


async def test_a_scale_in_that_names_nobody_deletes_every_worker(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 3)
        await jobs.phase("j", "Running")
        await jobs.scale("ScaleIn", "less", "j", toDelete={"podNames": ["j-worker-7"]})
        await jobs.has_pods("j", "j-launcher")


async def test_a_scale_in_that_says_nothing_ends_the_operator_again_and_again(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    async with operating(cluster, jobs.namespace.name) as operator:
        await jobs.create("j", 1)
        await jobs.phase("j", "Running")
        await jobs.scale("ScaleIn", "deadly", "j")
        with pytest.raises(OperatorCrashedError, match="no toDelete"):
            await operator
    async with operating(cluster, jobs.namespace.name) as operator:
        with pytest.raises(OperatorCrashedError):
            await operator


async def test_a_scale_in_of_one_waits_for_ten(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    await jobs.namespace.node("second")
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 11)
        await jobs.phase("j", "Running")
        await jobs.scale("ScaleIn", "less", "j", toDelete={"podNames": ["j-worker-1"]})
        await jobs.has_pods("j", *names("j", [0, *range(2, 11)]))
        await _nothing_happens(jobs)
        assert await jobs.scale_phase("ScaleIn", "less") == "Scaling"
        await jobs.delete_pod("j-worker-10")
        await until(lambda: _scaled(jobs, "ScaleIn", "less", "ScaleSucceeded"), "it is done")


async def test_a_scale_out_adds_workers(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    """Beside those that the spec counts; once all of them run its script does, and they are targets."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.scale("ScaleOut", "more", "j", toAdd={"count": 2}, script='touch "$EDL/scaled"')
        await until(lambda: _scaled(jobs, "ScaleOut", "more", "ScaleSucceeded"), "it is done")
        pods = await jobs.has_pods("j", *names("j", range(4)))
        assert pods["j-worker-3"]["metadata"]["labels"]["scaleout-name"] == "more"
        status = await jobs.phase("j", "Running", targetWorkers=names("j", range(4), launcher=False))
        assert not status.get("currentScaler")
        await until(lambda: _listed(jobs, range(4)), "they are listed")
    assert (jobs.edl("j") / "scaled").exists()


async def test_a_scale_out_without_a_script_rewrites_the_list(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    """With those that ran before it began: nobody looks at them until it is over."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running", currentWorkers=names("j", range(2), launcher=False))
        await jobs.cordon()
        await jobs.scale("ScaleOut", "more", "j", toAdd={"count": 1}, timeout=60)
        await jobs.has_pods("j", *names("j", range(3)))
        await jobs.delete_pod("j-worker-0")
        await jobs.has_pods("j", *names("j", [1, 2]))
        await jobs.cordon(unschedulable=False)
        await until(lambda: _scaled(jobs, "ScaleOut", "more", "ScaleSucceeded"), "it is done")
        await until(lambda: _listed(jobs, [1, 2]), "the lost one is taken off the list after that")


async def test_a_scale_out_that_takes_too_long_takes_back_what_it_has_made(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.cordon()
        await jobs.scale("ScaleOut", "more", "j", toAdd={"count": 1}, timeout=1)
        await until(lambda: _scaled(jobs, "ScaleOut", "more", "ScaleFailed"), "it has failed")
        await jobs.has_pods("j", *names("j", range(2)))
        await jobs.phase("j", "Running")


async def test_a_scale_out_whose_script_fails_changes_nothing(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.scale("ScaleOut", "more", "j", toAdd={"count": 1}, script="false")
        await until(lambda: _scaled(jobs, "ScaleOut", "more", "ScaleFailed"), "it has failed")
        await jobs.has_pods("j", *names("j", range(2)))
        await jobs.phase("j", "Running")


async def test_a_scale_out_that_fails_deletes_whoever_has_its_names(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    """A worker that is no target has the next name; so the supervisor makes none where there is such a worker."""
    async with operating(cluster, jobs.namespace.name, Flaw.EXTRA_WORKER):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.has_pods("j", *names("j", range(3)))
        await jobs.scale("ScaleOut", "more", "j", toAdd={"count": 1}, timeout=1)
        await until(lambda: _scaled(jobs, "ScaleOut", "more", "ScaleFailed"), "it has failed")
        await jobs.has_pods("j", *names("j", range(2)))


async def test_a_scale_out_that_a_suspension_interrupts_is_taken_up_by_the_next_run(
    cluster: RunningCluster, jobs: OperatorJobs
) -> None:
    """With its old names, under which it deletes workers of that run; so the supervisor deletes it before a resume."""
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.cordon()
        await jobs.scale("ScaleOut", "more", "j", toAdd={"count": 2}, timeout=1)
        await jobs.has_pods("j", *names("j", range(4)))
        await jobs.annotate("j", "true")
        await jobs.phase("j", "Suspended")
        await jobs.has_pods("j")
        await jobs.cordon(unschedulable=False)
        await jobs.patch("j", {"etReplicaSpecs": {"worker": {"replicas": 4}}})
        await jobs.annotate("j", None)
        await jobs.write_status("j", RESUME)
        await until(lambda: _scaled(jobs, "ScaleOut", "more", "ScaleFailed"), "it has failed")
        await jobs.has_pods("j", *names("j", range(2)))


async def test_what_a_deleted_scale_out_has_made_stays(cluster: RunningCluster, jobs: OperatorJobs) -> None:
    async with operating(cluster, jobs.namespace.name):
        await jobs.create("j", 2)
        await jobs.phase("j", "Running")
        await jobs.cordon()
        await jobs.scale("ScaleOut", "more", "j", toAdd={"count": 1}, timeout=60)
        await jobs.has_pods("j", *names("j", range(3)))
        await jobs.unscale("ScaleOut", "more")
        await jobs.phase("j", "Running", targetWorkers=names("j", range(2), launcher=False))
        await jobs.cordon(unschedulable=False)
        await until(lambda: _listed(jobs, range(3)), "it is listed")


async def _listed(jobs: OperatorJobs, workers: Iterable[int]) -> bool:
    hosts = jobs.edl("j") / "hostfile"
    return hosts.exists() and hosts.read_text(encoding="utf-8") == "".join(
        f"{name}:1\n" for name in names("j", workers, launcher=False)
    )


async def _scaled(jobs: OperatorJobs, kind: str, name: str, phase: str) -> bool:
    return await jobs.scale_phase(kind, name) == phase


async def test_without_its_definitions_the_operator_ends(own_controlplane: ControlPlane) -> None:
    async with operating(own_controlplane.cluster, "default") as operator:
        with pytest.raises(NotFoundError):
            await operator
