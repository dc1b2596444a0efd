import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.view import ClusterView
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import GPU, Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until


@asynccontextmanager
async def _viewing(cluster: RunningCluster) -> AsyncIterator[ClusterView]:
    server = await ApiServer.connect(str(cluster.kubeconfig), 10.0)
    view = ClusterView(server, frozenset({"role"}), Clock(), lambda: None, Bulkhead(Clock()))
    for reflector in view.reflectors:
        await reflector.first()
    tasks = [asyncio.create_task(reflector.run()) for reflector in view.reflectors]
    try:
        yield view
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.close()


async def _holds(condition: Callable[[], bool], what: str) -> None:
    async def looked() -> bool:
        return condition()

    await until(looked, what)


async def test_pods_are_known_by_uid_and_owner_and_count_on_their_node(
    api: Api, cluster: RunningCluster, namespace: Namespace
) -> None:
    node = await namespace.node(gpus=8)
    made = await api.create(f"{namespace.path}/configmaps", {"metadata": {"name": "o"}})
    uid = made["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": uid, "controller": True}
    async with _viewing(cluster) as view:
        made = await namespace.pod("a", gpus=3, labels={"role": "worker"})
        await namespace.running("a")
        await _holds(lambda: view.taken(node).get(GPU) == 3_000, "the pod's GPUs are taken")
        assert view.taken(node)["pods"] == 1_000
        pod_uid = made["metadata"]["uid"]
        await _holds(lambda: (pod := view.pod(pod_uid)) is not None and pod.running, "the pod runs")
        pod = view.pod(pod_uid)
        assert pod is not None
        assert (pod.key, pod.node, pod.labels) == (ObjectKey(namespace.name, "a"), node, {"role": "worker"})
        shown = view.node(node)
        assert shown is not None
        assert (shown.open, shown.allocatable[GPU]) == (True, 8_000)
        await api.patch(f"{namespace.path}/pods/a", {"metadata": {"ownerReferences": [owner]}})
        await _holds(lambda: _owner(view, pod_uid) == uid, "the pod has an owner")
        await api.delete(f"{namespace.path}/pods/a")
        await _holds(lambda: not view.taken(node) and view.pod(pod.metadata.uid) is None, "the pod is gone")


def _owner(view: ClusterView, pod_uid: str) -> str | None:
    pod = view.pod(pod_uid)
    return None if pod is None or pod.owner is None else pod.owner.uid
