"""Hosts whose pods are deleted and still running are treated as gone."""

from pathlib import Path

from supervisor.domain.ids import Host
from supervisor.domain.job import Phase
from tests.controlplane.operator.operator_jobs import defined, operating
from tests.controlplane.trainingjob.trainingjob_world import ElasticJobs, elastic, supervising
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.installed import define
from tests.testkit.controlplane.namespace import fresh_namespace
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

_ENDING, _OTHER = Host("bert-worker-1"), Host("bert-worker-2")


async def test_a_host_whose_pod_is_ending_does_not_come_back(own_controlplane: ControlPlane, tmp_path: Path) -> None:
    """As where a drill ends: the pod was deleted for it two seconds ago, and processes would be started on it."""
    cluster = own_controlplane.cluster
    async with client(cluster) as api, fresh_namespace(cluster, api) as namespace:
        await defined(cluster)
        await define(api)
        jobs = elastic(api, namespace, tmp_path)
        await jobs.nodes(5)
        async with supervising(cluster, namespace, tmp_path) as supervised, operating(cluster, namespace.name):
            await jobs.submit("bert", 4)
            await supervised.phase("bert", Phase.RUNNING)
            nodes = {host: (await namespace.get_pod(host))["spec"]["nodeName"] for host in (_ENDING, _OTHER)}
            for node in nodes.values():
                await supervised.notices(node)
            await supervised.world.job("bert", lambda known: known.decision.exclusions == {*nodes}, "leaves both out")
            await supervised.phase("bert", Phase.RUNNING)
            own_controlplane.kill(BinaryProgram.KWOK)  # Nobody ends a pod any more.
            await supervised.notices(nodes[_ENDING], left=2.0)
            await until(lambda: _is_ending(jobs), "its pod was deleted")
            await supervised.spared()
            job = await supervised.world.job(
                "bert", lambda known: _OTHER not in known.decision.exclusions, "has one back"
            )
            assert job.decision.exclusions == {_ENDING}
            assert job.decision.reason == "bert-worker-2 has no notice any more; now 3 hosts."


async def _is_ending(jobs: ElasticJobs) -> bool:
    return "deletionTimestamp" in (await jobs.namespace.get_pod(_ENDING))["metadata"]
