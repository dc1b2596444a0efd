"""A supervisor beside a real operator, agents that announce reclaims, and a training process that answers."""

from collections import Counter
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from supervisor.jobs.registry import chosen
from supervisor.serving.servers import ENDPOINTS_FILE
from tests.controlplane.identity.identity_world import AUDIENCE, RunningIdentity, supervising
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.installed import InstalledPlace, job_path, place
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.serving import AgentPeer, ProcessPeer, noticed
from tests.testkit.waiting import until

_LEAD_SECONDS = 60.0
_QUICK = {
    "window_seconds": 0.5,
    "growth_delay_seconds": 0.3,
    "leave_margin_seconds": 1.0,
    "margin_seconds": 1.5,
    # A busy operator learns later than the supervisor that the old pods are gone, and counts them as failed until then.
    "resume_delay_seconds": 1.5,
    "weigh_joins": False,
}


class OperatedJobs(Protocol):
    """The jobs of one kind in a test's namespace."""

    kind: str
    namespace: Namespace

    async def pods(self, name: str) -> dict[str, Any]:
        """The job's pods by their names, without the job's."""

    async def has_pods(self, name: str, *pods: str) -> dict[str, Any]:
        """The job's pods, once they are just these."""

    async def annotate(self, name: str, **annotations: str | None) -> None:
        """Sets annotations of ours, or removes them."""


J = TypeVar("J", bound=OperatedJobs)


@dataclass(slots=True)
class OperatorWorld(Generic[J]):
    here: InstalledPlace
    jobs: J
    supervisor: RunningIdentity
    revisions: Counter[str] = field(default_factory=Counter)
    """Of what each node's agent announced last."""
    _agents: dict[str, AgentPeer] = field(default_factory=dict)

    @property
    def api(self) -> Api:
        return self.here.api

    async def node_of(self, name: str, pod: str) -> str:
        return str((await self.jobs.pods(name))[pod]["spec"]["nodeName"])

    async def notice(self, nodes: Iterable[str], left: float = _LEAD_SECONDS) -> None:
        """The nodes will be gone in so many seconds; nothing more is scheduled onto them."""
        for node in nodes:
            await self._announce(node, left=left)
            await self._cordon(node, unschedulable=True)

    async def withdraw(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            await self._announce(node, withdrawn=True)
            await self._cordon(node, unschedulable=False)

    async def decided(self, name: str, phase: str, *, run: int | None = None, workers: int | None = None) -> Any:
        """The job as it is stored, once that was decided, of that run and so many workers, and is in place."""
        status: Mapping[str, Any] = {}

        async def reached() -> Any:
            nonlocal status
            job = await self.supervised(name)
            status = job.get("status", {})
            decision, hosts = status.get("decision", {}), status.get("hosts", {})
            is_applied = status.get("observed", {}).get("applied", 0) >= decision.get("generation", 1)
            # A suspended job keeps its hosts until its suspension is in place.
            in_place = is_applied or not (hosts.get("workers") or hosts.get("missing"))
            right_run = run in (None, decision.get("run"))
            right_size = workers in (None, len(hosts.get("workers", ())))
            return job if decision.get("phase") == phase and in_place and right_run and right_size else None

        return await until(reached, lambda: f"{name} is {phase}, run {run}, with {workers} workers: {status}")

    async def supervised(self, name: str) -> Any:
        return await self.api.get(job_path(f"{self.jobs.kind}.{name}", self.jobs.namespace.name))

    async def released(self, name: str) -> None:
        """Returns once the job is none of the supervisor's business."""

        async def gone() -> bool:
            return f"{self.jobs.kind}.{name}" not in await self.names()

        await until(gone, f"{name} is released")

    async def names(self) -> set[str]:
        """The jobs of the namespace that are stored, as KIND.NAME."""
        path = f"/apis/job-supervisor.kube-ai.io/v1alpha1/namespaces/{self.jobs.namespace.name}/supervisedjobs"
        return {job["metadata"]["name"] for job in (await self.api.get(path))["items"]}

    async def train(self, name: str, worker: str) -> ProcessPeer:
        """Rank 0 on a worker, with the token that its pod has."""
        pod = (await self.jobs.pods(name))[worker]["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
        asked = {"audiences": [AUDIENCE], "expirationSeconds": 600, "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{pod['namespace']}/serviceaccounts/default/token"
        token = str((await self.api.create(path, {"spec": asked}))["status"]["token"])
        await self.supervisor.sees(token)
        return await self.supervisor.peers.process(token, pod["name"], 0)

    async def stop(self, name: str, nodes: Iterable[str]) -> None:
        """Announces that those nodes, which the job needs, will be reclaimed; rank 0 saves, and the job is suspended.

        It resumes as soon as there is capacity for its minimum, which may be before the test withdraws a notice.
        """
        reclaimed = set(nodes)
        async with self._left(name, but=reclaimed):
            await self.notice(reclaimed)

    async def suspend(self, name: str) -> None:
        """Has a person suspend the job until `resume`; rank 0 saves when it is told to."""
        async with self._left(name):
            await self.jobs.annotate(name, suspend="ann: power cut at noon")

    async def resume(self, name: str) -> None:
        """Withdraws the person's request."""
        await self.jobs.annotate(name, suspend=None)

    @asynccontextmanager
    async def _left(self, name: str, *, but: Container[str] = ()) -> AsyncIterator[None]:
        """Has rank 0, on no node of `but`, leave once the block has stopped the job; waits until all pods are gone."""
        pods = (await self.jobs.pods(name)).items()
        rank_zero = await self.train(
            name, min(pod for pod, body in pods if pod != "launcher" and body["spec"]["nodeName"] not in but)
        )
        yield
        directive = await rank_zero.lines.matching(type="directive", directive="STOP")
        await rank_zero.reports("left", directive)
        await self.decided(name, "Suspended")
        await self.jobs.has_pods(name)

    async def _announce(self, node: str, **announcement: Any) -> None:
        if node not in self._agents:
            self._agents[node] = await self.supervisor.peers.agent(node)
        self.revisions[node] += 1
        await self._agents[node].say(notice=noticed(node, self.revisions[node], **announcement))
        await self._agents[node].acknowledged(self.revisions[node])

    async def _cordon(self, node: str, *, unschedulable: bool) -> None:
        await self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": unschedulable}})


@asynccontextmanager
async def world(plane: ControlPlane, jobs: J, directory: Path, **settings: Any) -> AsyncIterator[OperatorWorld[J]]:
    """Runs a supervisor, which has the rights of those kinds, in those namespaces, alone that its settings name."""
    kinds, namespaces = chosen(settings.get("kinds", ())), settings.get("namespaces", ())
    async with (
        place(plane, kinds, namespaces) as here,
        supervising(here, directory, **{**_QUICK, **settings}) as supervisor,
    ):
        yield OperatorWorld(here, jobs, supervisor)


@asynccontextmanager
async def restarted(one: OperatorWorld[J], directory: Path) -> AsyncIterator[OperatorWorld[J]]:
    """The same with another supervisor's process, after the first one was killed."""
    (directory / ENDPOINTS_FILE).unlink()
    settings: dict[str, Any] = {**_QUICK}
    async with supervising(one.here, directory, **settings) as supervisor:
        yield OperatorWorld(one.here, one.jobs, supervisor, one.revisions)
