"""A hub with two members, each with a training-operator and kwok's nodes, and one test's PyTorchJobs in all of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charts.files import HUB_CHART
from supervisor.jobs.batchjob.kind import BATCHJOB
from supervisor.jobs.kind import AnyKind
from supervisor.jobs.pytorchjob.kind import PYTORCHJOB
from supervisor.jobs.registry import KINDS
from tests.controlplane.kinds.operators import built, define
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import PyTorchJobs
from tests.controlplane.kinds.trainingoperator.trainingoperator_process import NAME as OPERATOR
from tests.controlplane.kinds.trainingoperator.trainingoperator_process import training_operator
from tests.testkit.controlplane.api import Api, Manifest, client
from tests.testkit.controlplane.binaries import BinaryProgram, HubBinaries
from tests.testkit.controlplane.hub import WORK, Hub
from tests.testkit.controlplane.namespace import fresh_namespace, propagated_namespace
from tests.testkit.controlplane.running import ControlPlane, running
from tests.testkit.waiting import until
from tests.testkit.yaml_text import document

ONE, TWO = "m1", "m2"
PYTORCH_JOBS = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
_STAGES = Path(__file__).parents[1] / "controlplane" / "pod_stages.yaml"
_POLICY = "policy.karmada.io/v1alpha1"


def _open_definition(kind: AnyKind) -> Manifest:
    """A CRD of a kind whose jobs no controller reads, so their schema is open."""
    resource = kind.resource
    part = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": part, "status": part}}},
    }
    names = {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()}
    return {
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {"group": resource.group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


# Jobs of Kubernetes need none.
_OTHERS = [_open_definition(kind) for kind in KINDS if kind not in (PYTORCHJOB, BATCHJOB)]


@dataclass(frozen=True, slots=True)
class Fleet:
    """A hub and its members, by their names."""

    hub: Hub
    members: Mapping[str, ControlPlane]


@contextmanager
def fleet(programs: Mapping[BinaryProgram, Path], binaries: HubBinaries, directory: Path) -> Iterator[Fleet]:
    """Runs a hub and two members that have joined it."""
    with ExitStack() as stack:
        hub = Hub(programs, binaries, directory / "hub")
        stack.callback(hub.stop)
        definitions = built(OPERATOR).module / "manifests" / "base" / "crds"
        pytorchjobs = document((definitions / "kubeflow.org_pytorchjobs.yaml").read_text(encoding="utf-8"))
        asyncio.run(hub.start(pytorchjobs, *_OTHERS))
        members = dict[str, ControlPlane]()
        for name in (ONE, TWO):
            stages = {BinaryProgram.KWOK: {"config": _STAGES}}
            members[name] = stack.enter_context(running(programs, directory / name, stages))
            stack.enter_context(training_operator(members[name].cluster, "pytorchjob"))
        asyncio.run(_join(hub, members))
        yield Fleet(hub, members)


async def _join(hub: Hub, members: Mapping[str, ControlPlane]) -> None:
    for member in members.values():
        async with client(member.cluster) as api:
            for definition in _OTHERS:
                await define(api, definition)
    async with client(hub.cluster) as api:
        for name, member in members.items():
            await hub.join(api, name, member.cluster)


@dataclass(frozen=True, slots=True)
class FleetTeam:
    """One test's namespace at the hub and in each member.

    Attributes:
        hub: The PyTorchJobs at the hub.
        members: The PyTorchJobs of each member, where they have pods; a member has no nodes yet.
    """

    fleet: Fleet
    api: Api
    hub: PyTorchJobs
    members: Mapping[str, PyTorchJobs]

    @property
    def name(self) -> str:
        return self.hub.namespace.name

    async def propagate(self, clusters: Sequence[str] = (ONE, TWO), **more: Any) -> None:
        """Applies a policy that places each PyTorchJob of the namespace in one of these clusters.

        `more` are other parts of its spec, such as `failover`.
        """
        one = {"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}
        spec = {
            "propagateDeps": True,
            "resourceSelectors": [PYTORCH_JOBS],
            "placement": {"clusterAffinity": {"clusterNames": list(clusters)}, "spreadConstraints": [one]},
            **more,
        }
        await self.apply_policy({"spec": spec})

    async def place_in(self, clusters: Sequence[str]) -> None:
        """Changes the policy: a job that is in none of these clusters is moved to one of them."""
        path = f"/apis/{_POLICY}/namespaces/{self.name}/propagationpolicies/jobs"
        await self.api.patch(path, {"spec": {"placement": {"clusterAffinity": {"clusterNames": list(clusters)}}}})

    async def apply_policy(self, policy: Manifest) -> Any:
        """Makes a PropagationPolicy of this spec in the namespace, and returns it as the hub has accepted it."""
        metadata = {"name": "jobs", "namespace": self.name}
        path = f"/apis/{_POLICY}/namespaces/{self.name}/propagationpolicies?fieldValidation=Strict"
        return await self.api.create(
            path, {**policy, "apiVersion": _POLICY, "kind": "PropagationPolicy", "metadata": metadata}
        )

    async def binding(self, job: str) -> Any:
        """The hub's ResourceBinding of a job: where it is placed, what its members say."""
        return await self.api.get(f"{WORK}/v1alpha2/namespaces/{self.name}/resourcebindings/{job}-pytorchjob")

    async def reflected(self, job: str, checkpoint: str | None = "none") -> None:
        """Returns once the hub has the status of a job from its member, with this step of the last checkpoint.

        None is what the hub reflects without a customization.
        """

        async def told() -> bool:
            found = (await self.binding(job)).get("status", {}).get("aggregatedStatus", [])
            statuses = [each["status"] for each in found if each.get("status")]
            return len(statuses) == 1 and statuses[0].get("lastCheckpoint") == checkpoint

        await until(told, f"the hub knows the status of {job}", every=0.1)

    async def placed(self, job: str) -> str:
        """The one cluster in which a job is, once it is there and nowhere else."""

        async def only() -> str | None:
            there = [name for name, jobs in self.members.items() if await _has(jobs, job)]
            return there[0] if len(there) == 1 else None

        return str(await until(only, f"{job} is in one member"))


@asynccontextmanager
async def customization(api: Api, kind: AnyKind = PYTORCHJOB) -> AsyncIterator[None]:
    """What the chart for a hub has of a kind. A job that `FleetTeam.reflected` has returned for is subject to it."""
    manifest = document((HUB_CHART / "files" / "customizations" / f"{kind.name}.yaml").read_text(encoding="utf-8"))
    path = "/apis/config.karmada.io/v1alpha1/resourceinterpretercustomizations"
    await api.create(path, manifest)
    try:
        yield
    finally:
        await api.delete(f"{path}/{manifest['metadata']['name']}")


async def _has(jobs: PyTorchJobs, name: str) -> bool:
    listed = await jobs.all()
    return any(each["metadata"]["name"] == name for each in listed)


@asynccontextmanager
async def team(present: Fleet) -> AsyncIterator[FleetTeam]:
    """A namespace of its own for one test, which the hub makes in its members."""
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(client(present.hub.cluster))
        namespace = await stack.enter_async_context(fresh_namespace(present.hub.cluster, api))
        members = dict[str, PyTorchJobs]()
        for name, plane in present.members.items():
            of_member = await stack.enter_async_context(client(plane.cluster))
            share = propagated_namespace(plane.cluster, of_member, namespace.name)
            members[name] = PyTorchJobs(of_member, await stack.enter_async_context(share))
        yield FleetTeam(present, api, PyTorchJobs(api, namespace), members)
