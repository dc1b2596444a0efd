"""A supervisor that knows one running job, and the answer of each endpoint to a token."""

from dataclasses import dataclass
from typing import Any

import grpc

from tests.controlplane.identity.identity_world import IdentityPods, MadePod, PodOwner, RunningIdentity
from tests.hostile.hostile_world import agent_refused, said
from tests.testkit.serving import PeerRefusal, ServedPeers, launcher_hello

WHO = {"process": "p", "host": "worker-0", "rank": 0}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/processes/stream": {**WHO, "pid": 1},
    "/v1/processes/report": {**WHO, "generation": 1, "kind": "rank"},
    "/v1/launchers/stream": launcher_hello("job", ["n1"]),
    "/v1/launchers/report": {"job": "job", "instance": "instance-1", **launcher_hello("job", ["n1"])["report"]},
}
PROCESSES = ("/v1/processes/stream", "/v1/processes/report")
BAD, FOREIGN = PeerRefusal(401, "bad_token"), PeerRefusal(403, "foreign_token")
UNAUTHENTICATED = (grpc.StatusCode.UNAUTHENTICATED, "bad_token")
PERMISSION_DENIED = (grpc.StatusCode.PERMISSION_DENIED, "foreign_token")
NOBODY: dict[str, Any] = {**dict.fromkeys(BODIES, BAD), "/v1/status": BAD, "agents": UNAUTHENTICATED}
"""What each endpoint says to whoever has no good token."""


@dataclass(frozen=True, slots=True)
class IdentityScene:
    pods: IdentityPods
    running: RunningIdentity
    owner: PodOwner
    good: str

    @property
    def peers(self) -> ServedPeers:
        return self.running.peers

    async def of(self, pod: MadePod) -> str:
        """The token of a pod that the supervisor has been told of."""
        token = await self.pods.token(pod)
        await self.running.sees(token)
        return token

    async def everywhere(self, token: str) -> dict[str, Any]:
        found: dict[str, Any] = {path: await self._said(path, token) for path in BODIES}
        async with self.peers.session.get(
            self.peers.http + "/v1/status", headers={"Authorization": f"Bearer {token}"}
        ) as response:
            found["/v1/status"] = PeerRefusal(response.status, (await response.json()).get("error"))
        found["agents"] = await agent_refused(self.peers, token, said("node1"))
        return found

    async def _said(self, path: str, token: str) -> PeerRefusal:
        return await self.peers.refused_or_open(path, token, BODIES[path])
