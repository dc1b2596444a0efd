"""Made-up nodes and pod specs, and how the real scheduler places the pods."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.view import ClusterView
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import GPU, Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

_OWN = "capacity.test/namespace"
_CORDON = "node.kubernetes.io/unschedulable"
_BY_CONDITION = "node.kubernetes.io/"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class CapacityMachine:
    gpus: int
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    cordoned: bool = False


@dataclass(frozen=True)
class CapacityScene:
    machines: tuple[CapacityMachine, ...]
    pod: Mapping[str, Any]


SPOT = {"key": "spot", "value": "true", "effect": "NoSchedule"}
LOST = {"key": "lost", "effect": "NoExecute"}
RATHER_NOT = {"key": "rather-not", "effect": "PreferNoSchedule"}

_TOLERATIONS: tuple[list[Mapping[str, str]], ...] = (
    [],
    [{"operator": "Exists"}],
    [{"key": "spot", "value": "true"}],
    [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}, {"key": "lost", "operator": "Exists"}],
)
_EXPRESSIONS: tuple[Mapping[str, Any], ...] = (
    {"key": "zone", "operator": "In", "values": ["a", "b"]},
    {"key": "zone", "operator": "NotIn", "values": ["a"]},
    {"key": "generation", "operator": "Gt", "values": ["2"]},
    {"key": "generation", "operator": "Lt", "values": ["3"]},
    {"key": "rack", "operator": "Exists"},
    {"key": "rack", "operator": "DoesNotExist"},
)


def made_up(seed: int) -> CapacityScene:
    chance = Random(seed)  # noqa: S311 - nothing is secret
    return CapacityScene(machines=tuple(_machine(chance) for _ in range(4)), pod=_pod(chance))


def _machine(chance: Random) -> CapacityMachine:
    labels = {"zone": chance.choice("abc"), "generation": str(chance.randrange(1, 5))}
    if chance.random() < 0.5:
        labels["rack"] = "1"
    taints = tuple(taint for taint in (SPOT, LOST, RATHER_NOT) if chance.random() < 0.3)
    return CapacityMachine(gpus=chance.randrange(5), labels=labels, taints=taints, cordoned=chance.random() < 0.25)


def _pod(chance: Random) -> Mapping[str, Any]:
    terms = [{"matchExpressions": chance.sample(_EXPRESSIONS, chance.choice([1, 2]))} for _ in range(2)]
    wanted = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}
    amounts = {GPU: str(chance.choice([0, 1, 1, 2])), "cpu": str(chance.choice([20, 30, 50]))}
    return {
        "tolerations": chance.choice(_TOLERATIONS),
        "affinity": wanted if chance.random() < 0.7 else {},
        "containers": [container(amounts)],
    }


def container(amounts: Mapping[str, str]) -> Mapping[str, Any]:
    return {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}


class Stage:
    def __init__(self, api: Api, namespace: Namespace, view: ClusterView) -> None:
        self.view = view
        self._api = api
        self._namespace = namespace

    async def nodes(self, machines: tuple[CapacityMachine, ...]) -> list[str]:
        """The machines as nodes, once they are seen as they are to be; their names."""
        names = []
        for number, machine in enumerate(machines):
            labels = {**machine.labels, _OWN: self._namespace.name}
            name = await self._namespace.node(f"n{number}", gpus=machine.gpus, labels=labels)
            path = f"/api/v1/nodes/{name}"
            if machine.taints:
                # All at once would undo those that the cluster itself puts there.
                taints = [*(await self._api.get(path))["spec"].get("taints", []), *machine.taints]
                await self._api.patch(path, {"spec": {"taints": taints}})
            if machine.cordoned:
                await self._api.patch(path, {"spec": {"unschedulable": True}})
            names.append(name)
        await self.seen(lambda: all(map(self._as_meant, names, machines)), "all nodes are as they are to be")
        return names

    def spec(self, pod: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**pod, "nodeSelector": {**pod.get("nodeSelector", {}), _OWN: self._namespace.name}}

    async def pod(self, name: str, pod: Mapping[str, Any]) -> None:
        await self._api.create(f"{self._namespace.path}/pods", {"metadata": {"name": name}, "spec": self.spec(pod)})

    async def running(self, name: str) -> None:
        await self._namespace.running(name)

    async def delete(self, name: str) -> None:
        await self._api.delete(f"{self._namespace.path}/pods/{name}")

    def placements(self, names: Iterable[str]) -> dict[Host, Placement]:
        pods = {name: self.view.pods.get(ObjectKey(self._namespace.name, name)) for name in names}
        return {Host(name): Placement(pod.metadata.uid, Host(pod.node)) for name, pod in pods.items() if pod}

    async def unschedulable(self, name: str) -> None:
        """Return when the scheduler has said that there is no node for that pod."""

        async def refused() -> bool:
            pod = await self._namespace.get_pod(name)
            conditions = pod["status"].get("conditions", [])
            return any((each["type"], each.get("reason")) == ("PodScheduled", "Unschedulable") for each in conditions)

        await until(refused, f"the scheduler finds no node for {name}")

    async def seen(self, condition: Callable[[], bool], what: str) -> None:
        async def looked() -> bool:
            return condition()

        await until(looked, what)

    def _as_meant(self, name: str, machine: CapacityMachine) -> bool:
        node = self.view.node(name)
        if node is None or node.cordoned != machine.cordoned:
            return False
        if not any(each.type == "Ready" and each.status == "True" for each in node.conditions):
            return False
        own = {taint.key for taint in node.taints if not taint.key.startswith(_BY_CONDITION)}
        others = {taint.key for taint in node.taints if taint.key.startswith(_BY_CONDITION)}
        return own == {each["key"] for each in machine.taints} and others == ({_CORDON} if machine.cordoned else set())


@asynccontextmanager
async def staged(cluster: RunningCluster, api: Api, namespace: Namespace) -> AsyncIterator[Stage]:
    server = await ApiServer.connect(str(cluster.kubeconfig), 10.0)
    view = ClusterView(server, frozenset(), Clock(), lambda: None, Bulkhead(Clock()))
    for reflector in view.reflectors:
        await reflector.first()
    tasks = [asyncio.create_task(reflector.run()) for reflector in view.reflectors]
    try:
        yield Stage(api, namespace, view)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.close()
