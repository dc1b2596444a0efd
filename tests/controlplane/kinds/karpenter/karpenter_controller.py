"""The real Karpenter, outside a pod, with its provider of nodes that kwok keeps Ready."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.operators import built, define, started
from tests.testkit.controlplane.api import Api, Manifest, client
from tests.testkit.controlplane.binaries import OperatorBinary
from tests.testkit.controlplane.commands import KWOK_LABEL
from tests.testkit.controlplane.namespace import GPU, OWNER_LABEL, Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

NAME = "karpenter"
_DEFINITIONS = ("pkg/apis/crds", "kwok/apis/crds")
_CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
_POOLS = "/apis/karpenter.sh/v1/nodepools"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_NODES = "/api/v1/nodes"
_SPOT = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}
_ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["here"]}
_UNREGISTERED = {"key": "karpenter.sh/unregistered", "operator": "Exists", "effect": "NoExecute"}
_MACHINE = {
    "name": "one-gpu",
    "offerings": [{"Price": 1.0, "Available": True, "Requirements": [_SPOT, _ZONE]}],
    "architecture": "amd64",
    "operatingSystems": ["linux"],
    "resources": {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "600Gi", "pods": "110", GPU: "1"},
}


@contextmanager
def karpenter(cluster: RunningCluster) -> Iterator[None]:
    """Karpenter, for the whole cluster."""
    operator = built(NAME)
    machines = cluster.directory / f"{NAME}-machines.json"
    machines.write_text(json.dumps([_MACHINE]), encoding="utf-8")
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "SYSTEM_NAMESPACE": "default",
        "DISABLE_LEADER_ELECTION": "true",
        "INSTANCE_TYPES_FILE_PATH": str(machines),
        # Of any free port.
        "METRICS_PORT": "0",
        "HEALTH_PROBE_PORT": "0",
    }
    asyncio.run(_prepare(operator, cluster))
    with started(NAME, [str(operator.program)], cluster, environment):
        yield


async def _prepare(operator: OperatorBinary, cluster: RunningCluster) -> None:
    async with client(cluster) as api:
        for directory in _DEFINITIONS:
            for path in sorted((operator.module / directory).iterdir()):
                await define(api, path.read_text(encoding="utf-8"))
        await api.create(
            _CLASSES, {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", **_named(NAME)}
        )


class KarpenterJobs(BatchJobs):
    """Indexed Jobs whose pods stay on a node that Karpenter has only just made.

    It makes nodes with a taint that evicts, and takes the taint off once it knows the node. The scheduler may see that
    before the cluster's taint eviction does, which then evicts the pod that was bound first.
    """

    def pod_spec(self, container: str, **asked: Any) -> Manifest:
        return super().pod_spec(container, tolerations=[_UNREGISTERED], **asked)


class KarpenterPool:
    """A pool of spot nodes with one GPU each, for the pods of one namespace. It has none until a pod needs one."""

    def __init__(self, api: Api, namespace: Namespace) -> None:
        self._api = api
        self._namespace = namespace

    async def open(self) -> None:
        """Makes the pool; a node stays when it is empty, so that tests alone remove nodes."""
        node_class = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": NAME}
        spec = {"nodeClassRef": node_class, "requirements": [_SPOT], "expireAfter": "Never"}
        labels = {**KWOK_LABEL, OWNER_LABEL: self._namespace.name}
        pool = {
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        }
        manifest = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", **_named(self._namespace.name), "spec": pool}
        await self._api.create(_POOLS, manifest)

    async def close(self) -> None:
        """Takes the pool away, and all of its nodes with it."""
        await self._api.delete(f"{_POOLS}/{self._namespace.name}")

    async def remove(self, node: str) -> None:
        """Has Karpenter remove a node: it taints the node, and deletes it once its pods are drained."""

        async def claim() -> Any:
            claims = (await self._api.get(_CLAIMS))["items"]
            named = {each.get("status", {}).get("nodeName"): each["metadata"]["name"] for each in claims}
            return named.get(node)

        await self._api.delete(f"{_CLAIMS}/{await until(claim, f'{node} is registered')}")

    async def nodes(self) -> set[str]:
        """The names of the nodes that it has."""
        listed = await self._api.get(_NODES, labelSelector=f"{OWNER_LABEL}={self._namespace.name}")
        return {node["metadata"]["name"] for node in listed["items"]}


def _named(name: str) -> Manifest:
    return {"metadata": {"name": name}}
