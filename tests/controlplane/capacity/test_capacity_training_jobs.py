"""Resource requests of TrainingJob templates are matched against the nodes of a real cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.objects import ObjectKey
from supervisor.decide.grant import Grant
from supervisor.domain.ids import Host, cluster_job
from supervisor.domain.job import Decision, Phase, SupervisedJob
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from supervisor.settings import Settings
from supervisor.store.sqlite import SqliteStore
from supervisor.wiring.cluster import ClusterDependencies, WatchedCluster
from tests.controlplane.operator.operator_jobs import defined, operating
from tests.controlplane.trainingjob.trainingjob_world import elastic
from tests.supervisor.store.store_behaviour import opened
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until


async def _ready(api: Api, node: str) -> None:
    async def ready() -> bool:
        seen = await api.get(f"/api/v1/nodes/{node}")
        conditions = {(each["type"], each["status"]) for each in seen["status"].get("conditions", [])}
        return ("Ready", "True") in conditions and not seen["spec"].get("taints")

    await until(ready, f"node {node} is Ready")


def _suspended(around: WatchedCluster, namespace: Namespace, name: str) -> SupervisedJob:
    seen = around.jobs.state(cluster_job(namespace.name, "trainingjob", name))
    assert seen is not None
    job = TRAININGJOB.observe(seen, None, 1.0)
    assert job is not None
    decision = Decision(generation=2, phase=Phase.SUSPENDED, reason="It is suspended.", waiting_since=1.0)
    return replace(job, decision=decision)


@asynccontextmanager
async def _surroundings(cluster: RunningCluster, directory: Path, settings: Settings) -> AsyncIterator[WatchedCluster]:
    clock = Clock()
    async with opened(lambda: SqliteStore.open(directory / "store.sqlite")) as store:
        around = await WatchedCluster.open(
            ClusterDependencies(
                kubeconfig=str(cluster.kubeconfig),
                settings=settings,
                clock=clock,
                store=store,
                may_act=lambda: True,
                on_change=lambda: None,
                bulkhead=Bulkhead(Clock()),
            )
        )
        try:
            yield around
        finally:
            await around.server.close()


async def test_what_pods_are_reckoned_to_ask_for_is_what_they_ask_for(
    api: Api, cluster: RunningCluster, namespace: Namespace, tmp_path: Path
) -> None:
    await defined(cluster)
    jobs = elastic(api, namespace, tmp_path)
    await jobs.submit("a", 2)
    await namespace.node()
    async with operating(cluster, namespace.name):
        await namespace.running("a-launcher")
    async with _surroundings(cluster, tmp_path, Settings()) as around:
        ask = around.jobs.resource_request(cluster_job(namespace.name, "trainingjob", "a"))
        assert ask is not None
        assert ask.launcher is not None
        asked = {"a-launcher": ask.launcher.requests, "a-worker-0": ask.worker.requests}
        for name, requests in asked.items():
            assert around.view.pods[ObjectKey(namespace.name, name)].requests == requests


async def test_suspended_jobs_are_granted_what_their_templates_ask_for(
    api: Api, cluster: RunningCluster, namespace: Namespace, tmp_path: Path
) -> None:
    """Not more than there is, all of it under the operator's names, and nothing while the node is doomed."""
    await defined(cluster)
    jobs = elastic(api, namespace, tmp_path)
    await jobs.submit("a", 4)
    await jobs.submit("b", 6)
    node = await namespace.node(gpus=7)
    await _ready(api, node)
    async with _surroundings(cluster, tmp_path, Settings(probe_seconds=0)) as around:
        a, b = (_suspended(around, namespace, name) for name in "ab")
        granted = around.granted([b, a], (), ())
        assert granted == {
            a.name: Grant(frozenset(Host(f"a-worker-{number}") for number in range(4))),
            b.name: Grant(frozenset(Host(f"b-worker-{number}") for number in range(3))),
        }
        assert around.granted([a], {Host(node)}, ()) == {a.name: Grant(held_up=True)}
