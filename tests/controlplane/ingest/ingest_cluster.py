"""An API server on which a test plays virtual nodes, detectors and controllers, and a real supervisor beside it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from simulator.harness import ReplayWorld, ServiceSettings, world
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.waiting import until

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
_ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
_CLOCK_SECONDS = 5.0
"""What a Date of whole seconds is good for, and a request that took its time."""

_OPT_IN = {"job-supervisor.kube-ai.io/spot-instance": "true"}


def stamp(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: str = "True", reason: str = "Why", since: float = 0.0) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": "so", "lastTransitionTime": stamp(since)}


@dataclass(frozen=True, slots=True)
class IngestScene:
    place: InstalledPlace

    @property
    def api(self) -> Api:
        return self.place.api

    @asynccontextmanager
    async def supervisor(
        self, directory: Path, *nodes: str, kubeconfig: Path | None = None, **settings: str
    ) -> AsyncIterator[ReplayWorld]:
        """A real supervisor that keeps everything there, and real agents of those nodes."""
        variables = {
            "JOB_SUPERVISOR_STORE": "kubernetes",
            "KUBECONFIG": str(kubeconfig or self.place.kubeconfig),
            **{f"JOB_SUPERVISOR_{name}": value for name, value in settings.items()},
        }
        async with world(directory, nodes, settings=ServiceSettings(supervisor=variables)) as one:
            yield one

    async def pod(self, name: str, *, opted_in: bool = True, node: str = "") -> Any:
        """A pod; one that is on a node has a grace that nobody ends."""
        bound = {"nodeName": node} if node else {}
        metadata = {"name": name, "annotations": _OPT_IN if opted_in else {}}
        spec = {"containers": [{"name": "main", "image": "none"}], **bound}
        return await self.api.create(PODS, {"metadata": metadata, "spec": spec})

    async def pod_says(self, name: str, *conditions: Mapping[str, str], **status: str) -> None:
        await self.api.patch(f"{PODS}/{name}/status", {"status": {"conditions": conditions, **status}})

    async def remove_pod(self, name: str) -> None:
        await self.api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")

    async def node(self, name: str) -> Any:
        return await self.api.create(NODES, {"metadata": {"name": name}})

    async def node_says(self, name: str, *conditions: Mapping[str, str]) -> None:
        await self.api.patch(f"{NODES}/{name}/status", {"status": {"conditions": conditions}})

    async def event(self, name: str, reason: str, about: Any, *, at: float = 0.0, uid: str | None = None) -> str:
        """An Event, as the cloud's controllers write it: no eventTime, no reporter; returns its time."""
        metadata = about["metadata"]
        kind = "Pod" if "namespace" in metadata else "Node"
        involved = {"kind": kind, "name": metadata["name"], "uid": metadata["uid"] if uid is None else uid}
        event = {
            "metadata": {"name": name},
            "involvedObject": {**involved, "namespace": metadata.get("namespace", "default")},
            "reason": reason,
            "message": "as announced",
            "type": "Warning",
            "firstTimestamp": stamp(at),
            "lastTimestamp": stamp(at),
            "count": 1,
        }
        return str((await self.api.create(EVENTS, event))["lastTimestamp"])

    async def repeat(self, name: str, count: int, at: float) -> str:
        repeated = await self.api.patch(f"{EVENTS}/{name}", {"count": count, "lastTimestamp": stamp(at)})
        return str(repeated["lastTimestamp"])

    async def notice(self, subject: str, source: str, state: str = "active", episode: int = 1) -> Any:
        async def found() -> Any:
            for one in await self.notices():
                spec, status = one["spec"], one.get("status", {})
                about = (spec["subject"]["name"], spec["source"], spec["episode"], status.get("state"))
                if about == (subject, source, episode, state):
                    return one
            return None

        return await until(found, f"a notice on {subject}, {state}, of {source}")

    async def notices(self) -> list[Any]:
        return await self.place.notices()

    async def versions(self) -> dict[str, str]:
        return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in await self.notices()}


def lead(notice: Any, since: str) -> float:
    """Seconds from that instant to the end which is announced, which is the deadline too where the clocks agree."""
    announced = datetime.fromisoformat(notice["status"]["announced"])
    assert abs((datetime.fromisoformat(notice["status"]["deadline"]) - announced).total_seconds()) < _CLOCK_SECONDS
    return (announced - datetime.fromisoformat(since)).total_seconds()


async def scene(place: InstalledPlace) -> IngestScene:
    # Nothing here makes accounts, and without one no pod can be made.
    if not (await place.api.get(_ACCOUNTS))["items"]:
        await place.api.create(_ACCOUNTS, {"metadata": {"name": "default"}})
    return IngestScene(place)
