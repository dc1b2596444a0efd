"""What the actions of each kind write in a member stays there, under the real hub with the chart's customizations.

No controller runs the jobs, except Jobs of Kubernetes. PyTorchJobs have tests of their own, with their controller.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import msgspec
import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.server import ApiServer
from supervisor.domain.ids import cluster_job
from supervisor.domain.job import Result
from supervisor.jobs.batchjob.kind import BATCHJOB
from supervisor.jobs.jobset.kind import JOBSET
from supervisor.jobs.kind import AnyKind, ClusterContext, JobState, KindContext
from supervisor.jobs.registry import KINDS
from supervisor.jobs.trainingjob.kind import TRAININGJOB, size_changes
from tests.fleet.fleet_world import ONE, FleetTeam, customization
from tests.supervisor.jobs.every_kind import OPTED_IN, PREFIX, replicas, spec_of
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_NAME = "bert"
_ANNOTATIONS = {**OPTED_IN, f"{PREFIX}min-workers": "2"}
_RESIZED = [kind for kind in KINDS if kind.name in ("mpijob", "tfjob", "vcjob", "batchjob")]
_FIXED = [kind for kind in KINDS if kind.name in ("jobset", "trainjob")]


class KindInMember:
    """One job of a kind at the hub and in the first member, and the supervisor's actions on it there."""

    def __init__(self, jobs: FleetTeam, kind: AnyKind) -> None:
        self.kind = kind
        self._hub = jobs.api
        self._member = jobs.members[ONE].api
        resource = kind.resource
        self._path = f"/apis/{resource.api_version}/namespaces/{jobs.name}/{resource.plural}"
        self._team = jobs
        self._changes = 0

    async def submit(self, spec: Mapping[str, Any]) -> None:
        """Makes the job at the hub; returns once the member has it."""
        resource = self.kind.resource
        selector = {"apiVersion": resource.api_version, "kind": resource.kind}
        await self._team.propagate([ONE], resourceSelectors=[selector])
        manifest = {**selector, "metadata": {"name": _NAME, "annotations": _ANNOTATIONS}, "spec": spec}
        await self._hub.create(self._path, manifest)
        await until(lambda: self._member.get(f"{self._path}/{_NAME}"), "the job is in the member")
        # A hub that does not know the customization yet would fail the test.
        await self.hub_has_compared()

    async def hub_has_compared(self) -> None:
        """Returns once a change at the hub, with which it compares everything, has arrived in the member."""
        self._changes += 1
        mark = {"metadata": {"annotations": {"changes": str(self._changes)}}}
        await self._hub.patch(f"{self._path}/{_NAME}", mark)

        async def arrived() -> bool:
            return bool((await self.object())["metadata"]["annotations"].get("changes") == str(self._changes))

        await until(arrived, "a change at the hub is in the member")

    async def object(self) -> Any:
        return await self._member.get(f"{self._path}/{_NAME}")

    async def job(self) -> Any:
        job = self.kind.decode(msgspec.json.encode(await self.object()))
        if self.kind.dependent is None:
            return job
        made = {"metadata": {"name": _NAME, "uid": "u", "resourceVersion": "1"}, "spec": spec_of("jobset", 4)}
        return self.kind.dependent.joined(job, JOBSET.decode(msgspec.json.encode(made)))

    async def state(self) -> JobState[Any]:
        """The job without its pods."""
        name = cluster_job(self._team.name, self.kind.name, _NAME)
        return JobState.of(self.kind, name, await self.job(), [])

    async def hub_changes_size(self, size: int) -> None:
        """Has the user ask for another size at the hub; returns once that has arrived."""
        await self._hub.patch(f"{self._path}/{_NAME}", {"spec": _spec(self.kind, size)})
        await self.hub_has_compared()


@pytest.fixture
async def server(jobs: FleetTeam) -> AsyncIterator[ApiServer]:
    """The API server of the first member, as the supervisor sees it."""
    connected = await ApiServer.connect(str(jobs.fleet.members[ONE].cluster.kubeconfig), 10.0)
    yield connected
    await connected.close()


def _actions(kind: AnyKind, server: ApiServer) -> Any:
    cluster = ClusterContext(
        server=server,
        pods=cast("Any", None),
        snapshot=cast("Any", None),
        may_act=lambda: True,
        on_change=lambda: None,
        clock=Clock(),
        bulkhead=Bulkhead(Clock()),
    )
    client = ResourceClient(server, kind.resource, kind.decode)
    return kind.actions(
        KindContext(
            cluster=cluster,
            client=client,
            wrote=lambda _: None,
            state=lambda _: None,
            namesakes=lambda _: False,
        )
    )


@pytest.mark.parametrize("kind", _RESIZED, ids=lambda kind: kind.name)
async def test_a_size_and_a_suspension_stay_until_they_are_given_back(
    kind: AnyKind, jobs: FleetTeam, server: ApiServer
) -> None:
    async with customization(jobs.api, kind):
        one, actions = KindInMember(jobs, kind), _actions(kind, server)
        await one.submit(_spec(kind, 4))
        as_asked = await one.job()
        for workers in (4, 2):
            await actions.suspend(await one.state())
            await one.hub_has_compared()
            assert (await one.job()).suspended
            await actions.resume(await one.state(), workers, 4)
            await one.hub_has_compared()
            assert ((await one.job()).suspended, (await one.job()).spec.replicas) == (False, workers)
        for workers in (3, 4):
            await actions.grow(await one.state(), workers, 1, 1.0)
            await one.hub_has_compared()
            assert (await one.job()).spec.replicas == workers
        assert (await one.job()).spec == as_asked.spec
        marks = {field.mark for field in kind.hub.written}
        assert not marks & (await one.job()).annotations.keys()
        await one.hub_changes_size(3)
        assert (await one.job()).spec.replicas == 3


@pytest.mark.parametrize("kind", _FIXED, ids=lambda kind: kind.name)
async def test_a_suspension_stays_until_it_is_given_back(kind: AnyKind, jobs: FleetTeam, server: ApiServer) -> None:
    async with customization(jobs.api, kind):
        one, actions = KindInMember(jobs, kind), _actions(kind, server)
        await one.submit({"runtimeRef": {"name": "torch"}} if kind.dependent else _spec(kind, 4))
        await actions.suspend(await one.state())
        await actions.end(await one.state(), Result.TIMED_OUT)
        await one.hub_has_compared()
        assert (await one.job()).suspended
        await actions.resume(await one.state(), 4, 4)
        await one.hub_has_compared()
        assert not (await one.job()).suspended


async def test_the_size_of_a_training_job_stays_in_its_variables_as_well(jobs: FleetTeam, server: ApiServer) -> None:
    launcher = {**replicas(1), "template": _with_size("4")}
    spec = {"etReplicaSpecs": {"launcher": launcher, "worker": replicas(4)}}
    async with customization(jobs.api, TRAININGJOB):
        one, client = KindInMember(jobs, TRAININGJOB), ResourceClient(server, TRAININGJOB.resource, TRAININGJOB.decode)
        await one.submit(spec)
        for workers in (2, 4):
            job = await one.job()
            await client.patch(job, size_changes(job, job.spec, workers, 4))
            await one.hub_has_compared()
            assert (await one.job()).spec.replicas == workers
            assert (await one.job()).spec.launcher.variables["workers"].value == str(workers)


def _spec(kind: AnyKind, size: int) -> Mapping[str, Any]:
    """The spec of a job of so many workers, as the API server takes it."""
    spec = spec_of(kind.name, size)
    if kind is BATCHJOB:
        pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
        return {**spec, "template": {"spec": pod}}
    return spec


def _with_size(workers: str) -> Mapping[str, Any]:
    container = {"name": "main", "image": "none", "env": [{"name": "workers", "value": workers}]}
    return {"spec": {"containers": [container]}}
