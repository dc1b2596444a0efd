"""Jobs on nodes of the real aws-node-termination-handler, set up as docs/guide/termination-handlers.md says."""

import itertools
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from simulator.cloud.trace import Node
from supervisor.settings import Settings
from tests.controlplane.agent.agent_on_cluster import evict
from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.kind_jobs import KindJobs
from tests.controlplane.kinds.mpijob.mpijob_jobs import MpiJobs
from tests.controlplane.kinds.operator_world import OperatorWorld, world
from tests.controlplane.kinds.terminationhandler.handler_process import SpotNodes, written_taints
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import PyTorchJobs
from tests.testkit.controlplane.api import ObjectRefused
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.serving import ProcessPeer
from tests.testkit.waiting import until
from tests.testkit.yaml_text import document

pytestmark = pytest.mark.long

_PAGE = Path(__file__).parents[4] / "docs" / "guide" / "termination-handlers.md"
_BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
_NOTICES = "/apis/job-supervisor.kube-ai.io/v1alpha1/reclaimnotices"
_WITHOUT_PODS = {"maxUnavailable": 0, "minAvailable": None}
"""A budget that is counted from the sizes that the pods' owners have by their scale."""
_LEAD_SECONDS = 110.0
"""Of a notice. Below the handler's 120 s, so that it drains at once, and far above what a busy machine takes."""
_SHORT_LEAD_SECONDS = 30.0
"""Of a notice whose end a test waits for."""
_CORDON = "node.kubernetes.io/unschedulable"
_CORDONED = "Node successfully cordoned"
_DRAINED = "Node successfully cordoned and drained"
_REFUSED = "will retry after 5s"


async def test_a_drain_evicts_a_worker_before_its_job_has_saved(
    plane: ControlPlane, jobs: BatchJobs, spot: SpotNodes, tmp_path: Path
) -> None:
    """What the page is against: nothing keeps the handler off, and the job has failed with most of the notice left."""
    await jobs.nodes(3)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        rank_zero, noticed = await _training(one)
        evicted = (await jobs.pods("j"))["worker-1"]["metadata"]["name"]
        async with spot.agent(noticed, one.supervisor), spot.handler(noticed) as handler:
            deadline = _announce(spot, noticed)
            await rank_zero.lines.matching(type="directive", directive="STOP")
            # Rank 0 is still busy with its checkpoint, and answers nothing.
            await handler.says(f"evicting pod {jobs.namespace.name}/{evicted}")
            await handler.says(_DRAINED)
            assert await jobs.ended("j") == "BackoffLimitExceeded"
            assert time.time() < deadline - _LEAD_SECONDS / 4


async def test_a_handler_that_only_cordons_leaves_the_job_to_the_supervisor(
    plane: ControlPlane, jobs: BatchJobs, spot: SpotNodes, tmp_path: Path
) -> None:
    await jobs.nodes(3)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        rank_zero, noticed = await _training(one)
        async with spot.agent(noticed, one.supervisor), spot.handler(noticed, cordon_only=True) as handler:
            _announce(spot, noticed)
            await handler.says(_CORDONED)
            assert await _taints(one, noticed) == {_CORDON}
            await _saves_and_goes_on_elsewhere(one, rank_zero, noticed)


@pytest.mark.brief
async def test_a_budget_keeps_the_workers_until_the_job_has_saved(
    plane: ControlPlane, jobs: BatchJobs, spot: SpotNodes, tmp_path: Path
) -> None:
    """The handler is refused, and tries again; what the supervisor does needs no eviction."""
    await jobs.nodes(3)
    await _budget(jobs)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        rank_zero, noticed = await _training(one)
        async with spot.agent(noticed, one.supervisor), spot.handler(noticed) as handler:
            _announce(spot, noticed)
            await handler.says(_REFUSED)
            await _saves_and_goes_on_elsewhere(one, rank_zero, noticed)
            await handler.says(_DRAINED)


async def test_a_budget_keeps_an_excluded_worker_until_shortly_before_the_deadline(
    plane: ControlPlane, mpi_jobs: MpiJobs, spot: SpotNodes, tmp_path: Path
) -> None:
    """The others train on without it, and the supervisor deletes its pod itself.

    The handler goes on evicting the pod by its name, which by then is its successor's on another node.
    """
    await mpi_jobs.nodes(4)
    await _budget(mpi_jobs)
    async with world(plane, mpi_jobs, tmp_path / "supervisor") as one:
        await mpi_jobs.submit("j", 3)
        before = await mpi_jobs.runs("j", 3)
        await one.decided("j", "Running", run=1, workers=3)
        noticed = await one.node_of("j", "worker-1")
        async with spot.agent(noticed, one.supervisor), spot.handler(noticed) as handler:
            deadline = _announce(spot, noticed, _SHORT_LEAD_SECONDS)
            await handler.says(_REFUSED)
            await mpi_jobs.discovers("j", "worker-0", "worker-2")
            assert (await mpi_jobs.run("j", *before))["worker-1"]["spec"]["nodeName"] == noticed
            await mpi_jobs.discovers("j", "worker-0", "worker-1", "worker-2")
            assert time.time() > deadline - _SHORT_LEAD_SECONDS / 4
            after = await mpi_jobs.runs("j", 3)
            assert after["worker-1"]["spec"]["nodeName"] != noticed
            kept = ["launcher", "worker-0", "worker-2"]
            assert [_uid(after[name]) for name in kept] == [_uid(before[name]) for name in kept]
            await handler.says_again(_REFUSED)
            assert _uids((await mpi_jobs.runs("j", 3)).values()) == _uids(after.values())
        assert await mpi_jobs.retries("j") == 0


async def test_the_budget_counts_pods_whatever_the_scale_of_their_job(
    pytorch: PyTorchJobs, namespace: Namespace
) -> None:
    """With `maxUnavailable: 0` one pod could be evicted: the job's scale leaves out its master, so two suffice."""
    await pytorch.nodes(3)
    await pytorch.submit("j", 2, masters=1)
    pods = await pytorch.run("j", "master-0", "worker-0", "worker-1")
    await _budget(pytorch)
    for pod in pods.values():
        with pytest.raises(ObjectRefused, match="disruption budget"):
            await evict(pytorch.api, namespace, pod["metadata"]["name"])
    looks = itertools.count()

    async def allowed() -> bool:
        # A change of the budget has the controller look again: it may have learned of this kind of job just now.
        changes = {"metadata": {"annotations": {"looks": str(next(looks))}}, "spec": _WITHOUT_PODS}
        await pytorch.api.patch(_budget_path(pytorch), changes)
        return bool((await pytorch.api.get(_budget_path(pytorch)))["status"]["disruptionsAllowed"] == 1)

    await until(allowed, "one pod may be evicted", every=1.0)


async def test_the_taint_of_a_spot_interruption_announces_it_without_an_agent(
    plane: ControlPlane, jobs: BatchJobs, spot: SpotNodes, tmp_path: Path
) -> None:
    await jobs.nodes(3)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        rank_zero, noticed = await _training(one)
        async with spot.handler(noticed, cordon_only=True, taint_node=True) as handler:
            _announce(spot, noticed)
            await handler.says(_CORDONED)
            assert "aws-node-termination-handler/spot-itn" in await _taints(one, noticed)
            await _saves_and_goes_on_elsewhere(one, rank_zero, noticed)
        assert await _announced(one) == {("node-taint", noticed, "sudden")}


async def test_the_taint_of_a_rebalance_recommendation_is_a_hint(
    plane: ControlPlane, jobs: BatchJobs, spot: SpotNodes, tmp_path: Path
) -> None:
    """The job saves, and trains on where it is."""
    await jobs.nodes(3)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        rank_zero, noticed = await _training(one)
        before = await jobs.pods("j")
        options = {"enable_rebalance_monitoring": True, "taint_node": True}
        async with spot.handler(noticed, **options) as handler:
            spot.metadata.warn(Node(noticed), time.time())
            await handler.says(_CORDONED)
            assert "aws-node-termination-handler/rebalance-recommendation" in await _taints(one, noticed)
            await rank_zero.lines.matching(type="directive", directive="CHECKPOINT")
        assert await _announced(one) == {("node-taint", noticed, "hint")}
        await one.decided("j", "Running", run=1, workers=2)
        assert _uids((await jobs.runs("j", 2)).values()) == _uids(before.values())


def test_the_supervisor_knows_each_taint_that_the_handler_can_write() -> None:
    """By the source of the pinned version."""
    known = {taint.partition(":")[0] for taint in Settings().reclaim_taints}
    assert written_taints() == {key for key in known if key.startswith("aws-node-termination-handler/")}


async def _training(one: OperatorWorld[BatchJobs]) -> tuple[ProcessPeer, str]:
    """Rank 0 of a job of two workers, and the node of the other worker."""
    await one.jobs.submit("j", 2)
    await one.jobs.runs("j", 2)
    await one.decided("j", "Running", run=1, workers=2)
    return await one.train("j", "worker-0"), await one.node_of("j", "worker-1")


async def _saves_and_goes_on_elsewhere(one: OperatorWorld[BatchJobs], rank_zero: ProcessPeer, noticed: str) -> None:
    """All workers are there until rank 0 has saved; then the job is suspended, and resumes without the node."""
    directive = await rank_zero.lines.matching(type="directive", directive="STOP")
    kept = await one.jobs.runs("j", 2)
    assert kept["worker-1"]["spec"]["nodeName"] == noticed
    await rank_zero.reports("left", directive)
    await one.decided("j", "Running", run=2, workers=2)
    pods = await one.jobs.runs("j", 2)
    assert noticed not in {pod["spec"]["nodeName"] for pod in pods.values()}
    assert _uids(pods.values()).isdisjoint(_uids(kept.values()))
    assert await one.jobs.retries("j") == 0


async def _budget(jobs: KindJobs) -> None:
    """The budget of the page, for the pods of the job "j"."""
    [text] = re.findall(r"^ *```yaml\n(.*?)^ *```", _PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    budget = document(text)
    budget["metadata"]["namespace"] = jobs.namespace.name
    budget["spec"]["selector"]["matchLabels"] = {jobs.job_label: "j"}
    await jobs.api.create(_BUDGETS.format(jobs.namespace.name), budget)

    async def seen() -> bool:
        return "observedGeneration" in (await jobs.api.get(_budget_path(jobs)))["status"]

    await until(seen, "the budget is seen")


def _budget_path(jobs: KindJobs) -> str:
    return f"{_BUDGETS.format(jobs.namespace.name)}/supervised"


def _announce(spot: SpotNodes, node: str, seconds: float = _LEAD_SECONDS) -> float:
    """Has EC2 announce that the node's instance will be interrupted; returns when, in Unix seconds."""
    deadline = time.time() + seconds
    spot.metadata.notice(Node(node), deadline)
    return deadline


async def _announced(one: OperatorWorld[BatchJobs]) -> set[tuple[str, str, str]]:
    """The notices that the supervisor has: the source of each, its subject and its class."""
    notices = (await one.api.get(_NOTICES))["items"]
    return {
        (each["spec"]["source"], each["spec"]["subject"]["name"], each["status"]["noticeClass"]) for each in notices
    }


async def _taints(one: OperatorWorld[BatchJobs], node: str) -> set[str]:
    """The keys of the node's taints, once its cordon is one of them."""

    async def keys() -> set[str]:
        taints = (await one.api.get(f"/api/v1/nodes/{node}"))["spec"].get("taints", ())
        return {taint["key"] for taint in taints}

    async def cordoned() -> bool:
        return _CORDON in await keys()

    await until(cordoned, f"{node} is cordoned")
    return await keys()


def _uid(pod: Any) -> str:
    return str(pod["metadata"]["uid"])


def _uids(pods: Iterable[Any]) -> set[str]:
    return {_uid(pod) for pod in pods}
