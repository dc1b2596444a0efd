"""Pods with tokens as a kubelet mounts them, their job, and a supervisor process that authenticates them.

Nothing runs the pods: all that a token is about is that they are there.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jwt

from supervisor.domain.ids import Host, JobName, cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.identity.tokens import Tokens
from supervisor.serving.servers import ENDPOINTS_FILE
from supervisor.settings import PREFIX
from tests.supervisor.decide.decide_builders import running_job, spec
from tests.testkit.controlplane.api import Api, ObjectRefused
from tests.testkit.controlplane.credentials import Credentials
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.serving import FAST, PeerRefusal, ServedPeers
from tests.testkit.waiting import until

AUDIENCE = "job-supervisor.kube-ai.io"
AGENTS = ("arena-system", "elastic-job-supervisor-agent")
_BAD, _LATER = PeerRefusal(401, "bad_token"), PeerRefusal(503, "not_serving")
_SOMEBODY = {"process": "somebody", "host": "anywhere", "rank": None, "pid": 1}

OWNERS = "pytorchjob"
"""The kind of job that the pods of the tests belong to; the cluster has none of it."""


@dataclass(frozen=True, slots=True)
class MadePod:
    namespace: str
    name: str
    uid: str
    account: str


@dataclass(frozen=True, slots=True)
class PodOwner:
    namespace: str
    name: str
    uid: str

    @property
    def job(self) -> JobName:
        return cluster_job(self.namespace, OWNERS, self.name)


class IdentityPods:
    def __init__(self, place: InstalledPlace) -> None:
        self.place = place
        self.namespace = f"identity-{secrets.token_hex(4)}"

    @property
    def api(self) -> Api:
        return self.place.api

    async def open(self) -> None:
        await self.account(self.namespace, "default")

    async def account(self, namespace: str, name: str) -> None:
        await self._there("/api/v1/namespaces", namespace)
        await self._there(f"/api/v1/namespaces/{namespace}/serviceaccounts", name)

    async def owner(self, name: str) -> PodOwner:
        """A job, of which only the uid is needed: nobody here collects pods whose owner does not exist."""
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        made = await self.api.create(path, {"metadata": {"name": name}})
        return PodOwner(self.namespace, name, made["metadata"]["uid"])

    async def pod(
        self,
        name: str,
        owner: PodOwner | None = None,
        *,
        node: str = "node1",
        account: tuple[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> MadePod:
        """A pod that is bound to a node; a worker of `owner` where one is given."""
        namespace, service = account or (self.namespace, "default")
        reference = None if owner is None else {"kind": "PyTorchJob", "name": owner.name, "uid": owner.uid}
        owners = [{"apiVersion": "kubeflow.org/v1", "controller": True, **reference}] if reference else []
        made = await self.api.create(
            f"/api/v1/namespaces/{namespace}/pods",
            {
                "metadata": {"name": name, "ownerReferences": owners, "labels": labels or {}},
                "spec": {
                    "nodeName": node,
                    "serviceAccountName": service,
                    "automountServiceAccountToken": False,
                    "containers": [{"name": "main", "image": "none"}],
                },
            },
        )
        return MadePod(namespace, name, made["metadata"]["uid"], service)

    async def agent(self, node: str) -> MadePod:
        await self.account(*AGENTS)
        return await self.pod(f"agent-{secrets.token_hex(4)}", node=node, account=AGENTS)

    async def token(self, pod: MadePod, audience: str = AUDIENCE) -> str:
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
        asked = {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{pod.account}/token"
        return str((await self.api.create(path, {"spec": asked}))["status"]["token"])

    def signed(self, like: str, **changes: Any) -> str:
        """A token by the API server's own key, with other claims than it would give; None takes one away."""
        key = Credentials(self.place.plane.cluster.directory / "credentials").service_accounts.read_bytes()
        header = jwt.get_unverified_header(like)
        claims = {**jwt.decode(like, options={"verify_signature": False}), **changes}
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, key, algorithm=header["alg"], headers={"kid": header["kid"]})

    def aged(self, token: str) -> str:
        """The same, but of a minute ago: one that is new may be of a pod that the supervisor is yet to hear of."""
        return self.signed(token, iat=int(time.time()) - 60)

    async def delete(self, pod: MadePod) -> None:
        await self.api.delete(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}?gracePeriodSeconds=0")

    async def _there(self, path: str, name: str) -> None:
        try:
            await self.api.create(path, {"metadata": {"name": name}})
        except ObjectRefused as refused:
            if refused.status != HTTPStatus.CONFLICT:
                raise


def job_of(owner: PodOwner, *workers: str, **observed: Any) -> SupervisedJob:
    job = running_job(spec(1, 2))
    hosts = frozenset(Host(worker) for worker in workers)
    return replace(
        job,
        name=owner.job,
        uid=owner.uid,
        observed=replace(job.observed, hosts=hosts, **observed),
        decision=replace(job.decision, hosts=hosts),
    )


@dataclass(frozen=True, slots=True)
class RunningIdentity:
    process: subprocess.Popen[bytes]
    peers: ServedPeers
    log: Path

    async def status(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.peers.tokens.viewer()}"}
        async with self.peers.session.get(self.peers.http + "/v1/status", headers=headers) as response:
            value: dict[str, Any] = await response.json()
        return value

    async def knows(self, job: JobName) -> None:
        async def known() -> bool:
            return job in [each["job"] for each in (await self.status())["jobs"]]

        await until(known, f"{job} is known")

    async def sees(self, token: str, *, alive: bool = True) -> None:
        """Returns when it has been told of the token's pod, or of that pod's end: its watch tells, a moment later."""

        async def told() -> bool:
            answer = await self.peers.refused_or_open("/v1/processes/stream", token, _SOMEBODY)
            return answer != _LATER and (answer != _BAD) is alive

        await until(told, f"the token's pod is {'known' if alive else 'known to be gone'}")


def _spawned(directory: Path, kubeconfig: Path, settings: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
    directory.mkdir(exist_ok=True)
    given = {**FAST, "data_dir": directory, "store": "kubernetes", "leader_election": False, **settings}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment |= {
        PREFIX + name.upper(): ",".join(value) if isinstance(value, tuple) else str(value)
        for name, value in given.items()
    }
    command = [sys.executable, "-m", "supervisor", "serve"]
    with (directory / "log").open("wb") as said:
        return subprocess.Popen(command, env={**environment, "KUBECONFIG": str(kubeconfig)}, stderr=said)


@asynccontextmanager
async def supervising(
    place: InstalledPlace, directory: Path, kubeconfig: Path | None = None, **changes: Any
) -> AsyncIterator[RunningIdentity]:
    """Runs a supervisor on that cluster with its minimal rights."""
    endpoints, log = directory / ENDPOINTS_FILE, directory / "log"
    process = _spawned(directory, kubeconfig or place.kubeconfig, changes)
    try:
        await until(lambda: endpoints.exists() or process.poll() is not None)
        assert endpoints.exists(), log.read_text()
        async with ServedPeers.of(Tokens.load(directory), json.loads(endpoints.read_bytes())) as peers:
            yield RunningIdentity(process, peers, log)
    finally:
        process.kill()
        process.wait()
