"""Every endpoint refuses tokens that a real API server issued to other accounts."""

import time

from tests.controlplane.identity.identity_scene import (
    BODIES,
    FOREIGN,
    NOBODY,
    PERMISSION_DENIED,
    PROCESSES,
    IdentityScene,
)
from tests.controlplane.identity.identity_world import AGENTS, MadePod, PodOwner
from tests.testkit.serving import PeerRefusal, hello

_UNKNOWN = PeerRefusal(404, "unknown_job")
_NO_BUSINESS = {**dict.fromkeys(BODIES, FOREIGN), "/v1/status": FOREIGN, "agents": PERMISSION_DENIED}
"""What is said to a pod that is neither a job's nor an agent."""

_NO_JOB = {**_NO_BUSINESS, **dict.fromkeys(PROCESSES, _UNKNOWN)}
"""What is said to a pod of a job that nobody knows."""


async def test_a_pod_of_another_namespace_is_refused(scene: IdentityScene) -> None:
    """Its controller has the name and uid of the job; but a job's pods are in its own namespace."""
    elsewhere = f"{scene.pods.namespace}-elsewhere"
    await scene.pods.account(elsewhere, "default")
    pod = await scene.pods.pod("worker-0", scene.owner, account=(elsewhere, "default"))
    assert await scene.everywhere(await scene.of(pod)) == _NO_JOB


async def test_a_pod_of_another_service_account_is_no_agent(scene: IdentityScene) -> None:
    """Beside the agents, or by their account's name elsewhere: on that node, and it may not speak for it."""
    await scene.pods.account(*AGENTS)
    for account in ((AGENTS[0], "default"), (scene.pods.namespace, AGENTS[1])):
        await scene.pods.account(*account)
        pod = await scene.pods.pod(f"stranger-{account[1]}", account=account, node="node1")
        assert await scene.everywhere(await scene.of(pod)) == _NO_BUSINESS


async def test_an_expired_token_is_refused(scene: IdentityScene) -> None:
    assert await scene.everywhere(scene.pods.signed(scene.good, exp=int(time.time()) - 60)) == NOBODY


async def test_a_token_for_another_audience_is_refused(scene: IdentityScene) -> None:
    """For the API server, or for somebody else's service: whoever was shown it cannot use it here."""
    worker = await scene.pods.pod("worker-1", scene.owner)
    await scene.of(worker)
    for audience in ("https://kubernetes.default.svc", "somebody"):
        assert await scene.everywhere(await scene.pods.token(worker, audience)) == NOBODY


async def test_a_token_of_a_pod_that_is_gone_is_refused(scene: IdentityScene) -> None:
    pod = await scene.pods.pod("gone", scene.owner)
    assert await scene.everywhere(await _of_the_deleted(scene, pod)) == NOBODY


async def test_a_replayed_token_is_refused_where_another_pod_has_the_name(scene: IdentityScene) -> None:
    """An operator makes a worker again under its name; what the first one's token was good for is over."""
    pod = await scene.pods.pod("worker-1", scene.owner)
    token = await _of_the_deleted(scene, pod)
    again = await scene.pods.pod("worker-1", scene.owner)
    assert await scene.everywhere(await scene.of(again)) != NOBODY
    assert await scene.everywhere(token) == NOBODY


async def test_an_agent_that_reports_another_node_is_refused(scene: IdentityScene) -> None:
    """Its hello for another node than its pod's; on its own node it is welcome."""
    token = await scene.of(await scene.pods.agent("node2"))
    assert (await scene.everywhere(token))["agents"] == PERMISSION_DENIED
    own = scene.peers.stranger(token)
    await own.say(hello=hello("node2"))
    await own.read("welcome")


async def test_a_pod_that_wears_a_jobs_labels_is_refused(scene: IdentityScene) -> None:
    """Labels are anybody's to write; those of the agents make no agent either."""
    of_job = {"training-job-name": scene.owner.name, "training-job-role": "worker", "replica-index": "1"}
    of_agent = {"app.kubernetes.io/name": "elastic-job-supervisor", "app.kubernetes.io/component": "agent"}
    for name, labels in (("worker-1", of_job), ("agent", of_agent)):
        pod = await scene.pods.pod(name, labels=labels)
        assert await scene.everywhere(await scene.of(pod)) == _NO_BUSINESS


async def test_a_process_that_asks_for_another_job_hears_of_its_own(scene: IdentityScene) -> None:
    """Whatever it says of itself: its pod's controller is its job. A job that nobody knows is not to be had either."""
    other = await scene.pods.owner("other")
    asked = {**BODIES[PROCESSES[0]], "job": other.job, "host": "other-worker-0"}
    told = await (await scene.peers.lines(PROCESSES[0], scene.good, asked)).any()
    assert told["job"] == scene.owner.job
    earlier = PodOwner(scene.pods.namespace, scene.owner.name, "uid-of-an-earlier-one")
    for name, owner in (("other-0", other), ("earlier-0", earlier)):
        assert await scene.everywhere(await scene.of(await scene.pods.pod(name, owner))) == _NO_JOB


async def _of_the_deleted(scene: IdentityScene, pod: MadePod) -> str:
    """The token of a pod that the supervisor knew, and knows to be gone."""
    token = scene.pods.aged(await scene.pods.token(pod))
    await scene.running.sees(token)
    await scene.pods.delete(pod)
    await scene.running.sees(token, alive=False)
    return token
