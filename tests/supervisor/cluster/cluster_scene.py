"""A view of a cluster that a test fills as the reflectors would."""

import itertools
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType

from msgspec.structs import replace as with_fields

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.allocation import JobCapacitySource
from supervisor.cluster.objects import Node, ObjectCondition, Pod, PodPhase
from supervisor.cluster.view import ClusterView
from supervisor.domain.capacity import Placement, ResourceRequest, Taint
from supervisor.domain.ids import Host, JobName

GPU = "nvidia.com/gpu"

_versions = itertools.count(1)


class ClusterScene:
    def __init__(self, server: ApiServer) -> None:
        self.view = ClusterView(server, frozenset(), Clock(), lambda: None, Bulkhead(Clock()))
        # The followers' own, as there is nobody to follow.
        self._nodes, self._pods = self.view._nodes, self.view._pods

    def node(  # noqa: PLR0913 - each has a default
        self,
        name: str,
        gpus: int = 8,
        *,
        ready: bool = True,
        cordoned: bool = False,
        taints: tuple[Taint, ...] = (),
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> Node:
        node = Node(
            metadata=_metadata(name, ""),
            labels=labels,
            taints=taints,
            cordoned=cordoned,
            allocatable={"cpu": 96_000, "pods": 250_000, GPU: gpus * 1000},
            conditions=(ObjectCondition(type="Ready", status="True" if ready else "False"),),
        )
        self._nodes.apply(node)
        return node

    def pod(self, name: str, node: str = "", gpus: int = 1) -> Pod:
        phase = PodPhase.RUNNING if node else PodPhase.PENDING
        requests = {GPU: gpus * 1000, "cpu": 1000}
        return self.now(
            Pod(metadata=_metadata(name, "ns"), owner=None, host=Host(name), node=node, phase=phase, requests=requests)
        )

    def now(self, pod: Pod) -> Pod:
        pod = replace(pod, metadata=_newer(pod.metadata))
        self._pods.apply(pod)
        return pod

    def pod_gone(self, pod: Pod) -> None:
        self._pods.apply_deletion(replace(pod, metadata=_newer(pod.metadata)))

    def node_gone(self, node: Node) -> None:
        self._nodes.apply_deletion(replace(node, metadata=_newer(node.metadata)))


def _metadata(name: str, namespace: str) -> Metadata:
    version = str(next(_versions))
    return Metadata(
        name=name, uid=f"uid-{name}", resource_version=version, namespace=namespace, creation_timestamp=None
    )


def _newer(metadata: Metadata) -> Metadata:
    return with_fields(metadata, resource_version=str(next(_versions)))


async def _nobody() -> Mapping[str, str]:
    return {}


@asynccontextmanager
async def cluster_scene() -> AsyncIterator[ClusterScene]:
    access = Access(url="https://127.0.0.1:1", namespace="", tls=ssl.create_default_context(), credentials=_nobody)
    server = ApiServer(access, 1.0)
    try:
        yield ClusterScene(server)
    finally:
        await server.close()


def known_jobs(
    requests: Mapping[JobName, ResourceRequest], places: Mapping[JobName, Mapping[Host, Placement]] | None = None
) -> JobCapacitySource:
    """The known jobs of a scene; none can grow."""
    return JobCapacitySource(
        resource_request=requests.get,
        placements=lambda name: (places or {}).get(name, {}),
        growable=lambda _name: 0,
    )
