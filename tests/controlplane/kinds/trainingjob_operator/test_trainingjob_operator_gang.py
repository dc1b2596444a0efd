"""The PodGroups of our operator under the real scheduler of Volcano: all workers of a job start, or none does."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.trainingjob_operator.trainingjob_operator_process import defined, operating
from tests.controlplane.operator.operator_jobs import OperatorJobs, names, training_job
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until
from trainingjob_operator.groups import Gang

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("_volcano")]
_WORKERS = 3


async def submit(namespace: Namespace, jobs: OperatorJobs) -> None:
    """Submits a job of three workers where there is room for two; Volcano's scheduler places its pods."""
    await namespace.node(gpus=_WORKERS - 1)
    body = training_job(namespace.name, _WORKERS, {"minReplicas": 2, "restartPolicy": "Always"})
    for part in body["etReplicaSpecs"].values():
        part["template"]["spec"]["schedulerName"] = "volcano"
    await jobs.make("j", body)


@pytest.fixture
def jobs(api: Api, namespace: Namespace, tmp_path: Path) -> OperatorJobs:
    return OperatorJobs(api, namespace, tmp_path)


async def test_a_job_of_which_not_all_workers_fit_starts_none_of_them_until_there_is_room(
    cluster: RunningCluster, api: Api, namespace: Namespace, jobs: OperatorJobs
) -> None:
    group = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace.name}/podgroups/j"

    async def unschedulable() -> bool:
        conditions = (await api.get(group)).get("status", {}).get("conditions", ())
        return ("Unschedulable", "True") in {(one["type"], one["status"]) for one in conditions}

    await defined(cluster)
    async with operating(cluster, namespace.name, Gang.VOLCANO):
        await submit(namespace, jobs)
        waiting = await jobs.has_pods("j", *names("j", range(_WORKERS), launcher=False))
        await until(unschedulable, "the scheduler has found no room for the gang")
        assert placed(await jobs.pods("j")) == {}

        await namespace.node("more", gpus=1)
        await jobs.phase("j", "Running")
        running = await jobs.has_pods("j", *names("j", range(_WORKERS)))
        assert {name: pod["metadata"]["uid"] for name, pod in running.items() if name in waiting} == {
            name: pod["metadata"]["uid"] for name, pod in waiting.items()
        }

        # Two are lost, and there is room for one of them: it must not wait until there is room for all again.
        await api.patch(f"/api/v1/nodes/more.{namespace.name}", {"spec": {"unschedulable": True}})
        nodes = {name: node for name, node in placed(running).items() if name in waiting}
        [apart] = [name for name, node in nodes.items() if node.startswith("more.")]
        lost, kept = [apart, *sorted(nodes.keys() - {apart})[:1]], sorted(nodes.keys() - {apart})[1:]
        for name in lost:
            await jobs.delete_pod(name)

        async def one_more() -> bool:
            workers = [name for name in placed(await jobs.pods("j")) if name not in lost and "worker" in name]
            return len(workers) == len(kept) + 1

        await until(one_more, "one of the lost workers is replaced")
        assert (await api.get(group))["spec"]["minMember"] == 2


async def test_without_a_gang_the_workers_that_fit_start(
    cluster: RunningCluster, namespace: Namespace, jobs: OperatorJobs
) -> None:
    """The control: the same job takes the room of two workers, and waits with it."""
    await defined(cluster)
    async with operating(cluster, namespace.name):
        await submit(namespace, jobs)

        async def two_run() -> bool:
            return len(placed(await jobs.pods("j"))) == _WORKERS - 1

        await until(two_run, "two of three workers have a node")
        assert (await jobs.status("j"))["phase"] == "Created"


def placed(pods: dict[str, Any]) -> dict[str, str]:
    """The nodes of the pods that have one."""
    return {name: pod["spec"]["nodeName"] for name, pod in pods.items() if "nodeName" in pod["spec"]}
