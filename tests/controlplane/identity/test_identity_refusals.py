"""Tokens of pods on every endpoint: each that is not the right one is refused, with what its bearer may do next."""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest

from tests.controlplane.identity.identity_world import AGENTS, MadePod, Owner, Pods, Running, job_of, supervising
from tests.controlplane.store.store_cluster import Place
from tests.hostile.hostile_world import agent_refused, said
from tests.supervisor.serving import Peers, Refusal, launcher_hello
from tests.supervisor.store_behaviour import put_job

WHO = {"process": "p", "host": "worker-0", "rank": 0}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/processes/stream": {**WHO, "pid": 1},
    "/v1/processes/report": {**WHO, "generation": 1, "kind": "rank"},
    "/v1/launchers/stream": launcher_hello("job", ["n1"]),
    "/v1/launchers/report": {"job": "job", "instance": "instance-1", **launcher_hello("job", ["n1"])["report"]},
}
PROCESSES = ("/v1/processes/stream", "/v1/processes/report")
BAD, FOREIGN = Refusal(401, "bad_token"), Refusal(403, "foreign_token")
UNAUTHENTICATED = (grpc.StatusCode.UNAUTHENTICATED, "bad_token")
PERMISSION_DENIED = (grpc.StatusCode.PERMISSION_DENIED, "foreign_token")


@dataclass(frozen=True, slots=True)
class Scene:
    """A supervisor that knows one running job with a worker."""

    pods: Pods
    running: Running
    owner: Owner
    good: str

    @property
    def peers(self) -> Peers:
        """Of the supervisor."""
        return self.running.peers

    async def of(self, pod: MadePod) -> str:
        """The token of a pod that the supervisor has been told of."""
        token = await self.pods.token(pod)
        await self.running.sees(token)
        return token

    async def everywhere(self, token: str) -> dict[str, Any]:
        """What each endpoint says to that token."""
        found: dict[str, Any] = {path: await self._said(path, token) for path in BODIES}
        async with self.peers.session.get(
            self.peers.http + "/v1/status", headers={"Authorization": f"Bearer {token}"}
        ) as response:
            found["/v1/status"] = Refusal(response.status, (await response.json()).get("error"))
        found["agents"] = await agent_refused(self.peers, token, said("node1"))
        return found

    async def _said(self, path: str, token: str) -> Refusal:
        return await self.peers.refused_or_open(path, token, BODIES[path])


@pytest.fixture
async def scene(here: Place, pods: Pods, tmp_path: Path) -> AsyncIterator[Scene]:
    """Its own for each test."""
    owner = await pods.owner("train")
    worker = await pods.pod("worker-0", owner)
    async with here.opened() as store:
        await put_job(store, job_of(owner, "worker-0"))
        async with supervising(here, tmp_path / "supervisor") as running:
            await running.knows(owner.job)
            yield Scene(pods, running, owner, await pods.token(worker))


async def test_a_bad_token_is_refused_everywhere(scene: Scene) -> None:
    """For others, by others, of other times, of pods that are gone or were never there."""
    pods, good = scene.pods, scene.good
    gone = await pods.pod("gone", scene.owner)
    of_gone = await pods.token(gone)
    await scene.running.sees(of_gone)
    await pods.delete(gone)
    await scene.running.sees(of_gone, alive=False)
    again = await pods.pod("gone", scene.owner)
    bound = jwt.decode(good, options={"verify_signature": False})["kubernetes.io"]
    head, body, signature = good.split(".")
    bad = {
        "for the API server": await pods.token(again, "https://kubernetes.default.svc"),
        "for somebody": await pods.token(again, "elastic-job-supervisor"),
        "of a pod that was replaced": of_gone,
        "expired": pods.signed(good, exp=int(time.time()) - 60),
        "without an end": pods.signed(good, exp=None),
        "of another issuer": pods.signed(good, iss="https://elsewhere"),
        "for nobody": pods.signed(good, aud=None),
        "of no pod": pods.signed(good, **{"kubernetes.io": {**bound, "pod": None}}),
        "of nobody": pods.signed(good, **{"kubernetes.io": None}),
        "of a pod by another name": pods.signed(
            good, **{"kubernetes.io": {**bound, "pod": {**bound["pod"], "name": "x"}}}
        ),
        "of another account": pods.signed(
            good, **{"kubernetes.io": {**bound, "serviceaccount": {"name": "x", "uid": "x"}}}
        ),
        "of another namespace": pods.signed(good, **{"kubernetes.io": {**bound, "namespace": AGENTS[0]}}),
        "cut": good[:-3],
        "with another's signature": f"{head}.{body}.{secrets.token_urlsafe(len(signature) * 3 // 4)}",
        "with another's claims": ".".join((head, (await pods.token(again)).split(".")[1], signature)),
        "of our own secret": jwt.encode(
            jwt.decode(good, options={"verify_signature": False}), b"x" * 64, algorithm="HS256"
        ),
    }
    found = {name: await scene.everywhere(token) for name, token in bad.items()}
    expected = {**dict.fromkeys(BODIES, BAD), "/v1/status": BAD, "agents": UNAUTHENTICATED}
    assert found == dict.fromkeys(bad, expected)


async def test_a_good_token_opens_its_own_door_alone(scene: Scene) -> None:
    """A worker is no launcher, onlooker or agent, and an agent is nothing else."""
    others = dict.fromkeys(("/v1/launchers/stream", "/v1/launchers/report", "/v1/status"), FOREIGN)
    fine = Refusal(200, None)
    assert await scene.everywhere(scene.good) == {
        **dict.fromkeys(PROCESSES, fine),
        **others,
        "agents": PERMISSION_DENIED,
    }
    agent = await scene.of(await scene.pods.agent("node2"))
    assert await scene.everywhere(agent) == {
        **dict.fromkeys(PROCESSES, FOREIGN),
        **others,
        "agents": PERMISSION_DENIED,  # It says that it is on node1, and its pod is on node2.
    }


async def test_a_pod_of_no_job_has_nothing_to_say(scene: Scene) -> None:
    """Nobody's is foreign; one of a job that is not known yet, or of an earlier one of the name, tries again later."""
    pods = scene.pods
    alone = await scene.everywhere(await scene.of(await pods.pod("alone")))
    assert alone == {**dict.fromkeys(BODIES, FOREIGN), "/v1/status": FOREIGN, "agents": PERMISSION_DENIED}
    unknown = await pods.pod("unknown-0", await pods.owner("unknown"))
    earlier = await pods.pod("earlier-0", Owner(pods.namespace, scene.owner.name, "uid-of-an-earlier-one"))
    for pod in (unknown, earlier):
        found = await scene.everywhere(await scene.of(pod))
        assert {found[path] for path in PROCESSES} == {Refusal(404, "unknown_job")}
        assert {found[path] for path in ("/v1/launchers/stream", "/v1/launchers/report", "/v1/status")} == {FOREIGN}


async def test_tokens_of_our_own_are_good_beside_them(scene: Scene) -> None:
    """As stand-alone."""
    tokens = scene.peers.tokens
    await scene.peers.agent("node7")
    await scene.peers.launcher("job", ["node7"])
    token = tokens.process(scene.owner.job, scene.owner.uid, 1)
    assert await scene.peers.refused_or_open("/v1/processes/stream", token, BODIES["/v1/processes/stream"]) == Refusal(
        200, None
    )
