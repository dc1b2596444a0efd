"""Observes TrainingJobs on a real API server while the stand-in operator runs them."""

from pathlib import Path

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host
from supervisor.domain.job import Phase, Result, SupervisedJob
from supervisor.jobs.registry import RESOURCES
from supervisor.jobs.trainingjob.objects import TRAINING_JOBS
from supervisor.store.kubernetes import KubernetesStore, KubernetesStoreOptions
from tests.controlplane.operator.operator_jobs import defined, names, operating
from tests.controlplane.trainingjob.trainingjob_world import ElasticJobs, elastic, watching
from tests.supervisor.store.store_behaviour import opened, put_job
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.definitions import DEFINITIONS, until_gone
from tests.testkit.controlplane.installed import define, job_path
from tests.testkit.controlplane.namespace import fresh_namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


def runs(count: int, run: int = 1) -> "Runs":
    return Runs(count, run)


class Runs:
    def __init__(self, count: int, run: int) -> None:
        self._seen = (True, run, count)

    def __call__(self, job: SupervisedJob) -> bool:
        observed = job.observed
        return (observed.running, observed.run, len(observed.hosts)) == self._seen


@pytest.mark.brief
async def test_a_job_is_known_from_its_beginning_to_its_end(
    cluster: RunningCluster, jobs: ElasticJobs, tmp_path: Path
) -> None:
    """It waits, runs on what it has, loses and regains a worker under a new name, and ends."""
    async with watching(cluster, jobs.namespace, tmp_path) as world:
        await jobs.submit("bert", 3)
        waiting = await world.job("bert", lambda job: not job.observed.running, "is known")
        assert waiting.decision.phase is Phase.WAITING
        node = await jobs.namespace.node()
        async with operating(cluster, jobs.namespace.name):
            await world.job("bert", runs(3), "runs")
            place = world.jobs.placements(world.name("bert"))
            assert set(place) == {*(Host(f"bert-worker-{n}") for n in range(3)), Host("bert-launcher")}
            assert {each.node for each in place.values()} == {node}
            assert all(world.view.pod(each.pod) for each in place.values() if isinstance(each, Placement))
            await jobs.delete_pod("bert-worker-1")
            left = {Host(f"bert-worker-{number}") for number in (0, 2, 3)}
            job = await world.job("bert", lambda job: job.observed.hosts == left, "has another worker")
            assert job.observed.run == 1
            await jobs.end_pod("bert-launcher", "Succeeded")
            ended = await world.job("bert", lambda job: job.over, "is over")
            assert ended.observed.result is Result.SUCCEEDED


async def test_a_launcher_that_fails_is_followed_by_another_run(
    cluster: RunningCluster, jobs: ElasticJobs, tmp_path: Path
) -> None:
    await jobs.namespace.node()
    async with watching(cluster, jobs.namespace, tmp_path) as world, operating(cluster, jobs.namespace.name):
        await jobs.submit("bert", 2)
        await world.job("bert", runs(2), "runs")
        await jobs.end_pod("bert-launcher", "Failed")
        job = await world.job("bert", runs(2, run=2), "runs again")
        assert job.observed.restarts == 1


async def test_jobs_of_one_name_in_two_namespaces_are_two(
    cluster: RunningCluster, api: Api, jobs: ElasticJobs, tmp_path: Path
) -> None:
    async with fresh_namespace(cluster, api) as another:
        others = elastic(api, another, tmp_path)
        for home, workers in ((jobs, 2), (others, 3)):
            await home.namespace.node()
            await home.submit("bert", workers)
        async with (
            watching(cluster, jobs.namespace, tmp_path) as world,
            operating(cluster, jobs.namespace.name),
            operating(cluster, another.name),
        ):
            await world.job("bert", runs(2), "runs")
            await others.phase("bert", "Running")
            assert len(world.jobs.placements(world.name("bert"))) == 3
            assert await others.has_pods("bert", *names("bert", range(3)))


async def test_a_deleted_job_is_forgotten_and_its_name_is_free(
    cluster: RunningCluster, jobs: ElasticJobs, tmp_path: Path
) -> None:
    """Another one of the name is another one; one that was never opted in is not known at all."""
    async with watching(cluster, jobs.namespace, tmp_path) as world:
        await jobs.submit("bert", 2)
        first = await world.appears("bert")
        await jobs.delete("bert")
        await world.forgotten("bert")
        jobs.edl("bert").rmdir()
        await jobs._api.delete(f"/apis/kwok.x-k8s.io/v1alpha1/namespaces/{jobs.namespace.name}/execs/bert-launcher")
        await jobs.submit("bert", 2)
        second = await world.appears("bert")
        assert second.uid != first.uid
        await jobs.submit("other", 2, annotations={})
        await jobs.submit("last", 2)
        await world.appears("last")
        assert world.known("other") is None


async def test_what_is_stored_of_a_job_goes_with_it(own_controlplane: ControlPlane, tmp_path: Path) -> None:
    cluster = own_controlplane.cluster
    async with client(cluster) as api, fresh_namespace(cluster, api) as namespace:
        await defined(cluster)
        await define(api)
        jobs = elastic(api, namespace, tmp_path)
        await jobs.submit("bert", 2)
        uid = (await jobs.get("bert"))["metadata"]["uid"]
        async with watching(cluster, namespace, tmp_path) as world:
            job = await world.appears("bert")
        options = KubernetesStoreOptions(kubeconfig=str(cluster.kubeconfig), timeout_seconds=10.0, kinds=RESOURCES)
        async with opened(lambda: KubernetesStore.open(options, Clock(), Bulkhead(Clock()))) as store:
            await put_job(store, job)
            path = job_path("trainingjob.bert", namespace.name)
            owners = (await api.get(path))["metadata"]["ownerReferences"]
            assert [(each["kind"], each["uid"]) for each in owners] == [(TRAINING_JOBS.kind, uid)]
            await jobs.delete("bert")

            async def gone() -> bool:
                return job.name not in store.snapshot().jobs

            await until(gone, "what was stored is gone")


async def test_jobs_that_are_defined_later_are_picked_up(own_controlplane: ControlPlane, tmp_path: Path) -> None:
    """Without their definition there are none, which is no failure; nor is its end."""
    cluster = own_controlplane.cluster
    async with (
        client(cluster) as api,
        fresh_namespace(cluster, api) as namespace,
        watching(cluster, namespace, tmp_path, undefined_seconds=0.1) as world,
    ):
        await defined(cluster)
        jobs = elastic(api, namespace, tmp_path)
        await jobs.submit("bert", 2)
        await world.appears("bert")
        definition = "trainingjobs.kai.alibabacloud.com"
        await api.delete(f"{DEFINITIONS}/{definition}")
        await until_gone(api, [definition])
        await world.forgotten("bert")
