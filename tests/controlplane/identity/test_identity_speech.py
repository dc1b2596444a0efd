"""A pod's token authorizes calls about that pod's job, host and run."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.domain.job import AcknowledgementKind, Phase, Stop, SupervisedJob
from supervisor.store.interface import Store
from tests.controlplane.identity.identity_world import IdentityPods, MadePod, job_of, supervising
from tests.supervisor.store.store_behaviour import put_job
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.credentials import write_kubeconfig
from tests.testkit.controlplane.installed import OWN_RULES, RULES, InstalledPlace
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.serving import AgentPeer, PeerRefusal, ProcessPeer, ServedPeers, hello
from tests.testkit.waiting import until

STREAM = "/v1/processes/stream"
REPORT = "/v1/processes/report"
HELLO = {"process": "p", "host": "whatever", "rank": 0, "pid": 1}
_DISCOVERY = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:service-account-issuer-discovery"


def stopping(job: SupervisedJob) -> SupervisedJob:
    """A job whose rank 0 was told to stop."""
    stop = Stop(run=job.observed.run, generation=9, since=time.time())
    decision = replace(job.decision, generation=9, phase=Phase.STOPPING, stop=stop)
    return replace(job, decision=decision)


async def observed(store: Store, job: SupervisedJob, **changes: Any) -> None:
    def change(known: SupervisedJob | None) -> SupervisedJob:
        now = known or job
        return replace(now, observed=replace(now.observed, **changes))

    await store.put_job(job.name, change)


async def process(peers: ServedPeers, token: str, rank: int = 0, **said: Any) -> ProcessPeer:
    peer = ProcessPeer(peers, token, {"process": f"process-{rank}", "host": "elsewhere", "rank": rank, **said})
    await peer.connect()
    return peer


async def test_a_process_is_its_pod(here: InstalledPlace, pods: IdentityPods, tmp_path: Path) -> None:
    """Told what its job's run is told; its answer counts for that run and comes from that pod, whatever it says."""
    owner = await pods.owner("train")
    worker = await pods.pod("worker-0", owner)
    async with here.opened() as store, supervising(here, tmp_path / "supervisor", log_format="json") as running:
        await put_job(store, stopping(job_of(owner, "worker-0", run=3)))
        await running.knows(owner.job)
        rank_zero = await process(running.peers, await pods.token(worker))
        told = await rank_zero.lines.matching(directive="STOP")
        assert (told["job"], told["run"]) == (owner.job, 3)
        assert await rank_zero.reports("saved", told) == PeerRefusal(200, None)

        async def acknowledged() -> Any:
            return store.snapshot().jobs[owner.job].observed.acknowledgement

        stored = await until(acknowledged, "the acknowledgement")
        assert (stored.run, stored.kind, stored.step) == (3, AcknowledgementKind.SAVED, 7)
        assert '"host":"worker-0"' in running.log.read_text().replace(": ", ":")


async def test_a_process_belongs_to_the_run_that_goes_on(
    here: InstalledPlace, pods: IdentityPods, tmp_path: Path
) -> None:
    """Before one does it waits; one that heard of an earlier run is told that it is over, or stays with its own."""
    owner = await pods.owner("train")
    token = await pods.token(await pods.pod("worker-0", owner))
    job = job_of(owner, "worker-0", run=1, running=False)
    async with here.opened() as store, supervising(here, tmp_path / "supervisor") as running:
        await put_job(store, stopping(job))
        await running.knows(owner.job)
        # Its launcher is not seen to run yet, and what run 1 was told is not for it.
        assert await running.peers.post(STREAM, token, HELLO) == PeerRefusal(404, "unknown_job")
        heard = await running.peers.lines(STREAM, token, {**HELLO, "run": 1})
        assert (await heard.any())["directive"] == "STOP"
        assert await running.peers.post(STREAM, token, {**HELLO, "run": 2}) == PeerRefusal(404, "unknown_job")
        await observed(store, job, run=2, running=True)

        async def admitted() -> bool:
            return await running.peers.refused_or_open(STREAM, token, HELLO) == PeerRefusal(200, None)

        await until(admitted, "run 2 goes on")
        assert (await (await running.peers.lines(STREAM, token, HELLO)).any())["run"] == 2
        assert await running.peers.post(STREAM, token, {**HELLO, "run": 1}) == PeerRefusal(409, "run_is_over")
        report = {"process": "p", "host": "h", "rank": 0, "generation": 1, "kind": "left", "run": 1}
        assert await running.peers.post(REPORT, token, report) == PeerRefusal(409, "run_is_over")


async def test_an_agent_speaks_for_its_pods_node(here: InstalledPlace, pods: IdentityPods, tmp_path: Path) -> None:
    token = await pods.token(await pods.agent("node5"))
    async with supervising(here, tmp_path / "supervisor") as running:
        agent = await _agent(running.peers, token, "node5")
        await agent.notices("node5")
        assert [each["subject"] for each in (await running.status())["notices"]] == ["node5"]


async def test_another_account_can_be_the_agents(here: InstalledPlace, pods: IdentityPods, tmp_path: Path) -> None:
    """A setting names it; the usual one is then a pod as any other."""
    await pods.account(pods.namespace, "watcher")
    own = await pods.pod("watcher", node="node6", account=(pods.namespace, "watcher"))
    account = f"{pods.namespace}/watcher"
    async with supervising(here, tmp_path / "supervisor", agent_account=account) as running:
        await (await _agent(running.peers, await pods.token(own), "node6")).notices("node6")
        other = await pods.token(await pods.agent("node6"))
        await running.sees(other)
        usual = running.peers.stranger(other)
        assert (await usual.ended()).name == "PERMISSION_DENIED"


async def _agent(peers: ServedPeers, token: str, node: str) -> AgentPeer:
    agent = peers.stranger(token)
    await agent.say(hello=hello(node))
    await agent.read("welcome")
    return agent


async def test_known_keys_and_pods_are_enough_while_the_api_server_is_away(
    here: InstalledPlace, pods: IdentityPods, tmp_path: Path
) -> None:
    """Who is known goes on; whose token cannot be judged is asked to try again, and is served afterwards."""
    plane = here.plane
    owner = await pods.owner("train")
    worker = await pods.pod("worker-0", owner)
    token = await pods.token(worker)
    async with here.opened() as store, supervising(here, tmp_path / "supervisor") as running:
        await put_job(store, job_of(owner, "worker-0"))
        await running.knows(owner.job)
        await (await process(running.peers, token)).lines.any()
        renewed = await pods.token(worker)
        plane.kill(BinaryProgram.API_SERVER)
        try:
            claims = {"kubernetes.io": _bound_to(worker, "a-pod-that-nobody-has-told-of")}
            new_pod = pods.signed(pods.aged(token), **claims)

            async def refused() -> bool:
                return await running.peers.post(STREAM, new_pod, HELLO) == PeerRefusal(503, "not_serving")

            await until(refused, "the supervisor misses the API server")
            # Never seen before: nothing that is remembered of a token helps.
            assert (await (await process(running.peers, renewed)).lines.any())["directive"] == "RUN"
        finally:
            plane.launch(BinaryProgram.API_SERVER)
            plane.wait_ready(BinaryProgram.API_SERVER)
        second = await pods.token(await pods.pod("worker-1", owner))

        async def served() -> bool:
            return await running.peers.refused_or_open(STREAM, second, HELLO) == PeerRefusal(200, None)

        await until(served, "the new pod is served")
        assert await running.peers.post(STREAM, new_pod, HELLO) == PeerRefusal(401, "bad_token")


async def test_where_the_keys_may_not_be_seen_each_token_is_reviewed(
    here: InstalledPlace, pods: IdentityPods, tmp_path: Path
) -> None:
    owner = await pods.owner("train")
    worker = await pods.pod("worker-0", owner)
    token, foreign = pods.aged(await pods.token(worker)), await pods.token(worker, "somebody")
    binding = await pods.api.get(_DISCOVERY)
    await pods.api.delete(_DISCOVERY)
    try:
        kubeconfig = await _without_keys(here, pods, tmp_path)
        async with here.opened() as store, supervising(here, tmp_path / "supervisor", kubeconfig) as running:
            await put_job(store, job_of(owner, "worker-0"))
            await running.knows(owner.job)
            assert (await (await process(running.peers, token)).lines.any())["directive"] == "RUN"
            assert running.log.read_text().count("keys.not_published") == 1
            of_agent = await pods.token(await pods.agent("node5"))
            await running.sees(of_agent)
            await (await _agent(running.peers, of_agent, "node5")).notices("node5")
            for bad in (foreign, f"{token[:-4]}AAAA"):
                assert await running.peers.post(STREAM, bad, HELLO) == PeerRefusal(401, "bad_token")
            await pods.delete(worker)

            async def refused() -> bool:
                return await running.peers.refused_or_open(STREAM, token, HELLO) == PeerRefusal(401, "bad_token")

            await until(refused, "the pod is known to be gone")
    finally:
        await pods.api.create(
            _DISCOVERY.rpartition("/")[0], {**binding, "metadata": {"name": binding["metadata"]["name"]}}
        )


def _bound_to(pod: MadePod, uid: str) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "pod": {"name": pod.name, "uid": uid},
        "serviceaccount": {"name": pod.account, "uid": "any"},
    }


async def _without_keys(here: InstalledPlace, pods: IdentityPods, tmp_path: Path) -> Path:
    """A kubeconfig of an account that may do all the rest."""
    namespace = Namespace(here.plane.cluster, here.api)
    await pods.account(namespace.name, "default")
    rules = [rule for rule in (*RULES, *OWN_RULES) if "nonResourceURLs" not in rule]
    await namespace.account("supervisor", cluster_rules=rules)
    path, cluster = tmp_path / "kubeconfig", here.plane.cluster
    write_kubeconfig(path, cluster.url, cluster.ca, await namespace.token("supervisor"), "default")
    return path
