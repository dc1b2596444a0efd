"""Free capacity for suspended jobs follows the cluster's pods and nodes."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.cluster.allocation import Allocation, FreeCapacity, JobCapacitySource
from supervisor.cluster.objects import PodPhase
from supervisor.decide.grant import Grant
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Effect, Placement, Pods, ResourceRequest, Taint
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Growth, Phase, SupervisedJob
from tests.supervisor.cluster.cluster_scene import GPU, ClusterScene, cluster_scene
from tests.supervisor.decide.capacity_builders import CORDON, EVERYTHING, SPOT, demand, waiting, worker_names

WORKER = demand(1, tolerations=EVERYTHING)


@pytest.fixture
async def scene() -> AsyncIterator[ClusterScene]:
    async with cluster_scene() as empty:
        yield empty


def _free(rooms: FreeCapacity, node: str) -> int | None:
    found = [room.free[GPU] // 1000 for room in rooms.nodes(()).usable if room.name == node]
    return found[0] if found else None


async def test_a_pod_takes_room_from_being_bound_to_being_gone(scene: ClusterScene) -> None:
    scene.node("n1")
    rooms = FreeCapacity(scene.view)
    pending = scene.pod("a")
    assert _free(rooms, "n1") == 8
    bound = scene.now(replace(pending, node="n1"))
    assert _free(rooms, "n1") == 7
    ending = scene.now(replace(bound, deleted_at=datetime.now(UTC)))
    assert _free(rooms, "n1") == 7
    scene.pod_gone(ending)
    assert _free(rooms, "n1") == 8
    other = scene.pod("b", "n1", gpus=3)
    assert _free(rooms, "n1") == 5
    scene.now(replace(other, phase=PodPhase.SUCCEEDED))
    assert _free(rooms, "n1") == 8


@pytest.mark.parametrize(
    "key", ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "node.kubernetes.io/out-of-service"]
)
async def test_a_node_that_is_being_removed_is_not_usable(scene: ClusterScene, key: str) -> None:
    """Whatever its pods tolerate; once the taint is gone, it is usable again."""
    rooms = FreeCapacity(scene.view)
    scene.node("n1", taints=(Taint(key=key, effect=Effect.NO_SCHEDULE),))
    assert rooms.nodes(()).usable == []
    scene.node("n1")
    assert [room.name for room in rooms.nodes(()).usable] == ["n1"]


async def test_only_ready_nodes_that_nobody_cordoned_are_usable(scene: ClusterScene) -> None:
    """And that no notice is about: those are doomed, cordoned ones with the taint that a cordon is."""
    scene.node("ready")
    scene.node("silent", ready=False)
    scene.node("cordoned", cordoned=True, taints=(SPOT,))
    rooms = FreeCapacity(scene.view)
    assert [room.name for room in rooms.nodes(()).usable] == ["ready"]
    nodes = rooms.nodes({Host("ready"), Host("cordoned"), Host("elsewhere")})
    assert nodes.usable == []
    assert {room.name: room.taints for room in nodes.noticed} == {"ready": (), "cordoned": (SPOT, CORDON)}


async def test_nodes_come_change_and_go(scene: ClusterScene) -> None:
    scene.node("n1")
    rooms = FreeCapacity(scene.view)
    assert _free(rooms, "n1") == 8
    node = scene.node("n1", gpus=4)
    scene.node("n2")
    assert (_free(rooms, "n1"), _free(rooms, "n2")) == (4, 8)
    scene.node("n2", ready=False)
    scene.node_gone(node)
    assert (_free(rooms, "n1"), _free(rooms, "n2")) == (None, None)


class _Jobs:
    def __init__(self, scene: ClusterScene, *, understood: bool = True) -> None:
        self.places: dict[JobName, Mapping[Host, Placement]] = {}
        self._understood = understood
        self.asked = 0
        self.more: dict[JobName, int] = {}
        self.others: tuple[Pods, ...] = ()
        source = JobCapacitySource(
            resource_request=self._request,
            placements=lambda name: self.places.get(name, {}),
            growable=lambda name: self.more.get(name, 0),
        )
        self._allocation = Allocation(scene.view, Policy(probe_seconds=0), source, Bulkhead(Clock()))

    def granted(self, jobs: Sequence[SupervisedJob], *noticed: str) -> Mapping[JobName, Grant]:
        return self._allocation.granted(jobs, {Host(name) for name in noticed})

    def _request(self, _name: JobName) -> ResourceRequest | None:
        self.asked += 1
        return ResourceRequest(worker=WORKER, others=self.others) if self._understood else None


def _resuming(name: str, workers: int) -> SupervisedJob:
    job = waiting(name, 1, workers)
    decision = replace(job.decision, phase=Phase.RESUMING, waiting_since=None, hosts=worker_names(workers))
    return replace(job, decision=decision)


async def test_a_suspended_job_is_granted_what_is_free(scene: ClusterScene) -> None:
    """And nothing while a node that will be reclaimed has room for it."""
    scene.node("n1", gpus=4)
    scene.node("n2", gpus=4)
    jobs, job = _Jobs(scene), waiting("a", 2, 4)
    assert jobs.granted([job]) == {job.name: Grant(worker_names(4))}
    assert jobs.granted([job], "n2") == {job.name: Grant(held_up=True)}
    scene.pod("x", "n2", gpus=4)
    assert jobs.granted([job], "n2") == {job.name: Grant(worker_names(4))}


async def test_nobody_is_asked_where_nothing_waits(scene: ClusterScene) -> None:
    """A job that runs, one that has yet to end and one that its operator starts want nothing."""
    scene.node("n1")
    jobs, job = _Jobs(scene), waiting("a")
    ending = replace(job, observed=replace(job.observed, running=True))
    others = [replace(job, decision=replace(job.decision, phase=phase)) for phase in (Phase.RUNNING, Phase.WAITING)]
    assert jobs.granted([ending, _resuming("b", 4), *others]) == {}
    assert jobs.asked == 0


async def test_a_job_whose_pods_are_not_understood_gets_nothing(scene: ClusterScene) -> None:
    scene.node("n1")
    assert _Jobs(scene, understood=False).granted([waiting("a"), _resuming("b", 4)]) == {}


async def test_a_resuming_job_keeps_room_for_pods_that_have_none_yet(scene: ClusterScene) -> None:
    """A pod of the run before, which is being deleted, is not one of them."""
    scene.node("n1", gpus=4)
    jobs, job, resuming = _Jobs(scene), waiting("a", 2, 4), _resuming("b", 3)
    assert jobs.granted([job, resuming]) == {}
    host, *_ = sorted(resuming.decision.hosts)
    pod = scene.pod("b-0", "n1")
    jobs.places[resuming.name] = {host: Placement(pod.metadata.uid, Host("n1"))}
    assert jobs.granted([job, resuming]) == {}
    pods = [scene.pod(f"b-{number}", "n1") for number in range(1, 3)]
    places = zip(sorted(resuming.decision.hosts), [pod, *pods], strict=True)
    jobs.places[resuming.name] = {host: Placement(pod.metadata.uid, Host("n1")) for host, pod in places}
    assert jobs.granted([replace(job, spec=replace(job.spec, min_workers=1)), resuming]) == {
        job.name: Grant(worker_names(1))
    }
    scene.now(replace(pod, deleted_at=datetime.now(UTC)))
    assert jobs.granted([replace(job, spec=replace(job.spec, min_workers=1)), resuming]) == {}


async def test_a_resuming_job_keeps_room_for_workers_of_another_role(scene: ClusterScene) -> None:
    """Of three, one needs no GPU; while it is not known which one is bound, two GPUs are kept for the others."""
    scene.node("n1", gpus=5)
    jobs, job, resuming = _Jobs(scene), waiting("a", 2, 4), _resuming("b", 3)
    jobs.others = (Pods(demand(), 1),)
    assert jobs.granted([job, resuming]) == {job.name: Grant(worker_names(4))}
    first, *_ = sorted(resuming.decision.hosts)
    pod = scene.pod("b-0", "n1")
    jobs.places[resuming.name] = {first: Placement(pod.metadata.uid, Host("n1"))}
    assert jobs.granted([job, resuming]) == {job.name: Grant(worker_names(3))}


def _running(name: str, workers: int, growth: Growth | None = None) -> SupervisedJob:
    job = _resuming(name, workers)
    return replace(job, decision=replace(job.decision, phase=Phase.RUNNING, growth=growth))


async def test_a_job_that_could_grow_gets_what_nobody_waits_for(scene: ClusterScene) -> None:
    """Nothing while another one waits or is about to start, nor one that shrinks or has been asked for already."""
    scene.node("n1", gpus=4)
    jobs, job = _Jobs(scene), _running("a", 2)
    job = replace(job, spec=replace(job.spec, max_workers=4))
    assert jobs.granted([job]) == {}
    assert jobs.asked == 0
    jobs.more[job.name] = 2
    assert jobs.granted([job]) == {job.name: Grant(more=2)}
    starting = replace(waiting("b"), decision=replace(waiting("b").decision, phase=Phase.WAITING))
    assert jobs.granted([job, starting]) == {}
    assert jobs.granted([job, waiting("b", 8, 8)]) == {}
    assert jobs.granted([job, _resuming("b", 1)]) == {}
    shrinking = replace(job, decision=replace(job.decision, phase=Phase.SHRINKING))
    assert jobs.granted([shrinking]) == {}
    assert jobs.granted([_running("a", 2, Growth(workers=4, number=7, until=0.0))]) == {}


async def test_a_growing_job_keeps_room_for_workers_that_have_none_yet(scene: ClusterScene) -> None:
    """By how many it is to have; its launcher is none of them."""
    scene.node("n1", gpus=5)
    jobs, growing, other = _Jobs(scene), _running("b", 2, Growth(workers=3, number=7, until=0.0)), waiting("a", 3, 4)
    pods = [scene.pod(f"b-{number}", "n1") for number in range(2)]
    launcher = scene.pod("b-launcher", "n1", gpus=0)
    growing = replace(growing, spec=replace(growing.spec, launcher_host=Host("launcher")))
    places = {Host(f"b-{number}"): Placement(pod.metadata.uid, Host("n1")) for number, pod in enumerate(pods)}
    jobs.places[growing.name] = {**places, Host("launcher"): Placement(launcher.metadata.uid, Host("n1"))}
    assert jobs.granted([other, growing]) == {}
    third = scene.pod("b-2", "n1")
    jobs.places[growing.name] = {**places, Host("b-2"): Placement(third.metadata.uid, Host("n1"))}
    two = replace(other, spec=replace(other.spec, min_workers=2))
    assert jobs.granted([two, growing]) == {other.name: Grant(worker_names(2))}
