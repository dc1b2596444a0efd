"""Each signal of the API server becomes one notice."""

from pathlib import Path

from tests.controlplane.ingest.ingest_cluster import PODS, IngestScene, condition, lead
from tests.testkit.controlplane.installed import NOTICES
from tests.testkit.waiting import until


async def test_every_signal_becomes_a_notice(here: IngestScene, tmp_path: Path) -> None:
    """Those that were there before the supervisor and those that come afterwards; kubectl shows them."""
    early = await here.pod("early")
    at_first, expired = await here.event("e1", "BestEffortToBeReleased", early, at=-30), condition("InstanceExpired")
    await here.node("old")
    await here.node_says("old", expired)
    async with here.supervisor(tmp_path):
        assert lead(await here.notice("default/early", "event"), at_first) == 300
        assert lead(await here.notice("old", "node-condition"), expired["lastTransitionTime"]) == 300
        pod, node, expired = await here.pod("eci"), await here.node("huawei"), condition("ContainerInstanceExpired")
        at_pod = await here.event("e2", "SpotToBeReleased", pod)
        at_node = await here.event("e3", "ReceivedReclaimNodeNotification", node, uid="huawei")
        await here.pod_says("eci", expired)
        assert lead(await here.notice("default/eci", "event"), at_pod) == 180
        assert lead(await here.notice("default/eci", "pod-condition"), expired["lastTransitionTime"]) == 180
        found = await here.notice("huawei", "event")
        assert lead(found, at_node) == 300
        assert found["spec"]["subject"] == {"kind": "node", "name": "huawei", "uid": node["metadata"]["uid"]}
        shown = {(row["Subject"], row["Source"], row["State"]) for row in await here.place.table(NOTICES)}
        assert shown == {
            ("default/early", "event", "active"),
            ("old", "node-condition", "active"),
            ("default/eci", "event", "active"),
            ("default/eci", "pod-condition", "active"),
            ("huawei", "event", "active"),
        }


async def test_an_eviction_is_one_and_a_deletion_is_none(here: IngestScene, tmp_path: Path) -> None:
    """The eviction API itself sets condition and deadline; pods that are not in our care are nobody's business."""
    async with here.supervisor(tmp_path):
        await here.node("n")
        for name in ("evicted", "deleted"):
            await here.pod(name, node="n")
        await here.pod("other", node="n", opted_in=False)
        await here.api.delete(f"{PODS}/deleted")
        for name in ("other", "evicted"):
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            await here.api.create(f"{PODS}/{name}/eviction", eviction)
        notice = await here.notice("default/evicted", "pod-condition")
        assert notice["status"]["message"].startswith("DisruptionTarget: EvictionByEvictionAPI")

        async def with_grace() -> bool:
            (one,) = await here.notices()
            ends = (await here.api.get(f"{PODS}/evicted"))["metadata"]["deletionTimestamp"]
            return bool(one["status"].get("announced")) and lead(one, ends) == 0

        await until(with_grace, "the end of the grace to be the deadline")


async def test_an_event_from_before_whose_time_has_passed_is_history(here: IngestScene, tmp_path: Path) -> None:
    """It is expired on arrival; an Event about an earlier pod of the name is about nobody."""
    pod = await here.pod("p")
    await here.event("e1", "SpotToBeReleased", pod, at=-900)
    await here.event("e2", "SpotToBeReleased", pod, uid="the-pod-before")
    async with here.supervisor(tmp_path):
        await here.notice("default/p", "event", "expired")
        assert len(await here.notices()) == 1


async def test_repetitions_and_restarts_write_nothing(here: IngestScene, tmp_path: Path) -> None:
    """A repeated Event moves the deadline of the same notice; a new life of the supervisor finds everything said."""
    pod, node, expired = await here.pod("p"), await here.node("n"), condition("InstanceExpired")
    await here.event("e1", "SpotToBeReleased", pod, at=-60)
    await here.node_says("n", expired)
    async with here.supervisor(tmp_path) as one:
        await here.notice("default/p", "event")
        await here.notice("n", "node-condition")
        again = await here.repeat("e1", 2, at=-5)

        async def moved() -> bool:
            return lead(await here.notice("default/p", "event"), again) == 180

        await until(moved, "the repeated Event to move the deadline")
        before = await here.versions()
        await one.supervisor.kill()
        await one.supervisor.start()
        # Later versions of the same word, and a marker behind them.
        await here.node_says("n", expired, condition("Ready"))
        await here.api.patch(f"{PODS}/p", {"metadata": {"labels": {"some": "label"}}})
        await here.event("e2", "InstanceToBeTerminated", node)
        marker = await here.notice("n", "event")
        after = await here.versions()
        del after[marker["metadata"]["name"]]
        assert after == before


async def test_what_turns_false_is_withdrawn_and_may_come_again(here: IngestScene, tmp_path: Path) -> None:
    await here.node("n")
    await here.pod("p")
    async with here.supervisor(tmp_path):
        await here.node_says("n", condition("InstanceExpired"))
        await here.pod_says("p", condition("DisruptionTarget", reason="PreemptionByScheduler"))
        await here.notice("n", "node-condition")
        await here.notice("default/p", "pod-condition")
        await here.node_says("n", condition("InstanceExpired", "Unknown"))
        await here.pod_says("p", condition("DisruptionTarget", "False"))
        await here.notice("default/p", "pod-condition", "withdrawn")
        await here.notice("n", "node-condition")
        await here.node_says("n", condition("InstanceExpired", "False"))
        await here.notice("n", "node-condition", "withdrawn")
        await here.node_says("n", condition("InstanceExpired"))
        await here.notice("n", "node-condition", episode=2)


async def test_a_taint_announces_a_reclaim_for_as_long_as_it_is_there(here: IngestScene, tmp_path: Path) -> None:
    """A drain at a time that nobody knows is a hint."""
    await here.node("n")
    await here.node("drained")
    async with here.supervisor(tmp_path):
        await _taint(here, "n", "aws-node-termination-handler/spot-itn")
        await _taint(here, "drained", "karpenter.sh/disrupted")
        noticed, hinted = await here.notice("n", "node-taint"), await here.notice("drained", "scale-in")
        assert noticed["status"]["message"] == "aws-node-termination-handler/spot-itn"
        assert noticed["status"]["noticeClass"] == "sudden"
        assert hinted["status"]["noticeClass"] == "hint"
        await _taint(here, "n")
        await here.notice("n", "node-taint", "withdrawn")


async def _taint(here: IngestScene, node: str, *keys: str) -> None:
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    await here.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": taints}})
