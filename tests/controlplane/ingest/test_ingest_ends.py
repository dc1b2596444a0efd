"""Notices from the API server end correctly, also while the node's own agent reports otherwise."""

from pathlib import Path

import pytest

from simulator.cloud.schedule import ScheduledNotice
from simulator.cloud.trace import Node
from simulator.services import ServedJobPlan
from tests.controlplane.ingest.ingest_cluster import NODES, PODS, IngestScene, condition
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


async def test_what_is_not_there_any_more_is_gone(here: IngestScene, tmp_path: Path) -> None:
    """A node and a pod that are deleted, and a pod that has failed, long before their deadlines."""
    await here.node("n")
    for name in ("deleted", "failed", "there"):
        await here.pod(name)
        await here.pod_says(name, condition("ContainerInstanceExpired"))
    await here.node_says("n", condition("InstanceExpired"))
    async with here.supervisor(tmp_path, GONE_GRACE_SECONDS="0.3"):
        for name in ("deleted", "failed", "there"):
            await here.notice(f"default/{name}", "pod-condition")
        await here.notice("n", "node-condition")
        await here.api.delete(f"{NODES}/n")
        await here.remove_pod("deleted")
        await here.pod_says("failed", condition("ContainerInstanceExpired"), phase="Failed", reason="BidFailed")
        for name in ("deleted", "failed"):
            await here.notice(f"default/{name}", "pod-condition", "gone")
        await here.notice("n", "node-condition", "gone")
        await here.node("n")  # Another one under its name.
        await here.node_says("n", condition("InstanceExpired"))
        fresh = await here.notice("n", "node-condition")
        assert len([one for one in await here.notices() if one["spec"]["subject"]["name"] == "n"]) == 2
        assert fresh["spec"]["episode"] == 1
        await here.notice("default/there", "pod-condition")


async def test_what_lives_on_long_after_its_deadline_was_not_reclaimed(here: IngestScene, tmp_path: Path) -> None:
    """Its notice expires; one of a pod that is being ended is gone a little after its grace instead."""
    await here.node("n")
    await here.node("m")
    ending = await here.pod("ending", node="m")
    living = await here.pod("living")
    async with here.supervisor(tmp_path, GONE_GRACE_SECONDS="0.3", EXPIRE_SECONDS="9", RECLAIM_EVENTS="Soon:1"):
        await here.event("e1", "Soon", ending)
        await here.notice("default/ending", "event")
        await here.api.delete(f"{PODS}/ending")
        await here.event("e2", "Soon", living)
        await here.event("e3", "Soon", await here.api.get(f"{NODES}/n"))
        await here.notice("default/ending", "event", "gone")
        await here.notice("default/living", "event", "expired")
        await here.notice("n", "event", "expired")


async def test_a_clear_answer_of_the_node_outranks_its_condition_until_it_falls_silent(
    here: IngestScene, tmp_path: Path
) -> None:
    """A real job: what its metadata say takes a node off the list; what a detector says, once the agent is dead."""
    nodes = ["node1", "node2", "node3", "node4"]
    for name in nodes:
        await here.node(name)
    async with here.supervisor(tmp_path, *nodes, HEARTBEAT_SECONDS="0.5") as one:
        job = one.start_job(ServedJobPlan(min_workers=1, max_workers=4, steps=100_000, step_seconds=0.05))
        await one.until_training(job, workers=4)
        await here.node_says("node2", condition("InstanceExpired"))
        await here.notice("node2", "node-condition")
        await one.play([ScheduledNotice(0, Node("node3"), 60, "g")])

        async def excluded(*names: str) -> bool:
            return job.exclusions_now() == names

        await until(lambda: excluded("node3"), "node3 alone to be excluded")
        await one.nodes.agent(Node("node2")).kill()
        await until(lambda: excluded("node2", "node3"), "node2 to be excluded as well")
        await one.stop_jobs()
