"""Free capacity agrees with the pods that the real scheduler binds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.cluster.allocation import Allocation, FreeCapacity
from supervisor.cluster.podspec import PodSpec
from supervisor.decide.grant import Grant
from supervisor.decide.packing import BinPacker
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Demand, ResourceRequest
from supervisor.domain.ids import Host
from supervisor.domain.job import Phase, SupervisedJob
from tests.controlplane.capacity.capacity_scene import SPOT, CapacityMachine, Stage, container, made_up, staged
from tests.supervisor.cluster.cluster_scene import known_jobs
from tests.supervisor.decide.capacity_builders import waiting, worker_names
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import GPU, Namespace
from tests.testkit.controlplane.running import RunningCluster

pytestmark = pytest.mark.long

_MANY = 20


def _demand(stage: Stage, pod: Mapping[str, Any]) -> Demand:
    return msgspec.convert(stage.spec(pod), PodSpec).demand()


def _room_for(stage: Stage, names: list[str], demand: Demand) -> int:
    """On those nodes as the scheduler has them: those also that are cordoned, to pods that tolerate that."""
    rooms = FreeCapacity(stage.view).nodes({Host(name) for name in names}).noticed
    return BinPacker(rooms).take(ResourceRequest(worker=demand), _MANY, int)


def _resumed(job: SupervisedJob, hosts: frozenset[Host]) -> SupervisedJob:
    spec = replace(job.spec, launcher_host=Host(_LAUNCHER_NAME))
    return replace(job, spec=spec, decision=replace(job.decision, phase=Phase.RESUMING, hosts=hosts))


@pytest.mark.parametrize("seed", [0, 2, 5, 8, 12, 13, 17, 31])
async def test_just_as_many_pods_run_as_were_reckoned(
    api: Api, cluster: RunningCluster, namespace: Namespace, seed: int
) -> None:
    scene = made_up(seed)
    async with staged(cluster, api, namespace) as stage:
        names = await stage.nodes(scene.machines)
        demand = _demand(stage, scene.pod)
        count = _room_for(stage, names, demand)
        assert count < _MANY
        pods = [f"fits-{number}" for number in range(count)]
        for name in pods:
            await stage.pod(name, scene.pod)
        for name in pods:
            await stage.running(name)
        await stage.pod("too-many", scene.pod)
        await stage.unschedulable("too-many")
        await stage.seen(lambda: _room_for(stage, names, demand) == 0, "all room is taken")


_LAUNCHER_NAME = "job-launcher"
_WORKER: Mapping[str, Any] = {
    "tolerations": [{"operator": "Exists"}],
    "containers": [container({GPU: "1", "cpu": "20"})],
}
_LAUNCHER: Mapping[str, Any] = {"nodeSelector": {"pool": "cpu"}, "containers": [container({"cpu": "60"})]}


async def test_a_granted_job_runs_whole_and_the_next_one_when_it_is_gone(
    api: Api, cluster: RunningCluster, namespace: Namespace
) -> None:
    """Two jobs and capacity for one: workers and launcher of the first find their nodes, and nothing is left over."""
    async with staged(cluster, api, namespace) as stage:
        await stage.nodes(
            (
                CapacityMachine(gpus=4),
                CapacityMachine(gpus=2, taints=(SPOT,)),
                CapacityMachine(gpus=0, labels={"pool": "cpu"}),
            )
        )
        ask = ResourceRequest(worker=_demand(stage, _WORKER), launcher=_demand(stage, _LAUNCHER))
        first, second = waiting("first", 4, 6), waiting("second", 1, 6, since=1)
        places = {first.name: stage.placements(())}
        requests = {first.name: ask, second.name: ask}
        shares = Allocation(stage.view, Policy(probe_seconds=0), known_jobs(requests, places), Bulkhead(Clock()))
        assert shares.granted([first, second], ()) == {first.name: Grant(worker_names(6))}

        resuming = _resumed(first, worker_names(6))
        pods = {**{str(name): _WORKER for name in worker_names(6)}, _LAUNCHER_NAME: _LAUNCHER}
        for name, pod in pods.items():
            await stage.pod(name, pod)
            places[first.name] = stage.placements(pods)
            assert shares.granted([resuming, second], ()) == {}
        for name in pods:
            await stage.running(name)

        for name in pods:
            await stage.delete(name)
        await stage.seen(lambda: bool(shares.granted([second], ())), "there is room again")
