"""A job that runs is handed from et-operator (the stand-in for it) to our operator, and back."""

from pathlib import Path

from tests.controlplane.kinds.trainingjob_operator.trainingjob_operator_process import defined, operating
from tests.controlplane.operator.operator_jobs import OperatorJobs, names
from tests.controlplane.operator.operator_jobs import operating as et_operating
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until


async def test_a_running_job_goes_on_under_either_operator(
    cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path
) -> None:
    await defined(cluster)
    await namespace.node()
    jobs = OperatorJobs(api, namespace, tmp_path)

    async def lists(*workers: int) -> None:
        """The launcher's file has just these workers, and the job is known to run with them."""
        listed = [f"{worker}:1" for worker in names("j", workers, launcher=False)]
        file = jobs.edl("j") / "hostfile"
        await until(lambda: file.exists() and file.read_text().split() == listed, f"the list is {listed}")
        await jobs.phase("j", "Running", currentWorkers=names("j", workers, launcher=False))

    async with et_operating(cluster, namespace.name):
        await jobs.create("j", 3, {"restartPolicy": "Always"})
        await jobs.phase("j", "Running")
        await jobs.delete_pod("j-worker-0")
        await lists(1, 2, 3)
    launcher = (await jobs.pods("j"))["j-launcher"]["metadata"]["uid"]
    async with operating(cluster, namespace.name):
        await jobs.delete_pod("j-worker-1")
        await lists(2, 3, 4)
    async with et_operating(cluster, namespace.name):
        await jobs.delete_pod("j-worker-2")
        await lists(3, 4, 5)
    pods = await jobs.has_pods("j", *names("j", [3, 4, 5]))
    assert pods["j-launcher"]["metadata"]["uid"] == launcher
    assert not (await jobs.status("j")).get("restartCount")
