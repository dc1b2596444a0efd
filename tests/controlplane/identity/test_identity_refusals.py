"""Tokens of pods on every endpoint: forged ones are refused, and a good one opens its own door alone."""

import secrets

import jwt

from tests.controlplane.identity.identity_scene import (
    BODIES,
    FOREIGN,
    NOBODY,
    PERMISSION_DENIED,
    PROCESSES,
    IdentityScene,
)
from tests.controlplane.identity.identity_world import AGENTS
from tests.testkit.serving import PeerRefusal


async def test_a_forged_token_is_refused_everywhere(scene: IdentityScene) -> None:
    """By the API server's own key with other claims than it would give, or with claims and signatures of others."""
    pods, good = scene.pods, scene.good
    other = await pods.pod("other", scene.owner)
    bound = jwt.decode(good, options={"verify_signature": False})["kubernetes.io"]
    head, body, signature = good.split(".")
    bad = {
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
        "with another's claims": ".".join((head, (await pods.token(other)).split(".")[1], signature)),
        "of our own secret": jwt.encode(
            jwt.decode(good, options={"verify_signature": False}), b"x" * 64, algorithm="HS256"
        ),
    }
    found = {name: await scene.everywhere(token) for name, token in bad.items()}
    assert found == dict.fromkeys(bad, NOBODY)


async def test_a_good_token_opens_its_own_door_alone(scene: IdentityScene) -> None:
    """A worker is no launcher, onlooker or agent, and an agent is nothing else."""
    others = dict.fromkeys(("/v1/launchers/stream", "/v1/launchers/report", "/v1/status"), FOREIGN)
    fine = PeerRefusal(200, None)
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


async def test_a_pod_of_no_job_has_nothing_to_say(scene: IdentityScene) -> None:
    alone = await scene.everywhere(await scene.of(await scene.pods.pod("alone")))
    assert alone == {**dict.fromkeys(BODIES, FOREIGN), "/v1/status": FOREIGN, "agents": PERMISSION_DENIED}


async def test_tokens_of_our_own_are_good_beside_them(scene: IdentityScene) -> None:
    tokens = scene.peers.tokens
    await scene.peers.agent("node7")
    await scene.peers.launcher("job", ["node7"])
    token = tokens.process(scene.owner.job, scene.owner.uid, 1)
    assert await scene.peers.refused_or_open(
        "/v1/processes/stream", token, BODIES["/v1/processes/stream"]
    ) == PeerRefusal(200, None)
