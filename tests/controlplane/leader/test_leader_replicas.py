"""Several supervisors on one control plane: one leads, and another one goes on when it ends, in whatever way."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from supervisor.serving.servers import ENDPOINTS_FILE
from tests.controlplane.leader.leader_replicas import DEPOSED, LEASE, LeaderReplica, LeaderReplicas, freeze, thaw
from tests.supervisor.observability.traces.traces_world import attributes_of, collecting
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.serving import AgentPeer, LauncherPeer, ProcessPeer, ServedPeers, noticed
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

NODES = ["n1", "n2", "n3"]


@pytest.fixture
async def replicas(here: InstalledPlace, tmp_path: Path) -> AsyncIterator[LeaderReplicas]:
    async with LeaderReplicas.on(here, tmp_path) as all_of_them:
        await all_of_them.forget_lease()
        yield all_of_them


@dataclass(frozen=True, slots=True)
class ReplicasTraining:
    """A job of three hosts, at least two of which it needs, with all its peers connected."""

    peers: ServedPeers
    agents: dict[str, AgentPeer]
    launcher: LauncherPeer
    order: dict[str, Any]
    ranks: list[ProcessPeer]

    async def excludes(self, *nodes: str) -> None:
        """Returns once the launcher has been told so, in its first order or in a later one."""
        if self.order["exclusions"] != list(nodes):
            await self.launcher.lines.matching(type="order", exclusions=list(nodes))


@asynccontextmanager
async def training(replica: LeaderReplica, **report: Any) -> AsyncIterator[ReplicasTraining]:
    async with replica.peers() as peers:
        agents = await peers.agents(NODES)
        if report:
            launcher = await peers.launcher("job", NODES, min_workers=2, report=report)
            order = await launcher.lines.any()
        else:
            launcher, order = await peers.running("job", NODES, min_workers=2)
        ranks = [await peers.process(order["token"], node, rank) for rank, node in enumerate(NODES)]
        yield ReplicasTraining(peers, agents, launcher, order, ranks)


async def decision(here: InstalledPlace) -> Any:
    """What lies in the cluster, with the epoch of whoever wrote it."""
    (job,) = await here.jobs()
    return {"epoch": job["status"]["epoch"], **job["status"]["decision"]}


async def decided(here: InstalledPlace, **expected: Any) -> Any:
    async def so() -> Any:
        now = await decision(here)
        return now if expected.items() <= now.items() else None

    return await until(so, f"a decision with {expected}")


def again(known: ReplicasTraining) -> dict[str, Any]:
    return {name: value for name, value in known.launcher.report.items() if name not in ("job", "instance")}


async def test_one_serves_and_the_others_stand_by(replicas: LeaderReplicas) -> None:
    """They are ready, so that a rollout goes on, and take no streams."""
    first = await replicas.start()
    second = await replicas.start(serving=False)
    assert await first.probe("/readyz") == (200, {"ok": True, "detail": {"standing": "serving"}})
    assert await second.probe("/readyz") == (200, {"ok": True, "detail": {"standing": "standing by"}})
    assert (await second.probe("/livez"))[0] == 200
    assert not second.serves


@pytest.mark.brief
async def test_after_a_kill_the_next_one_decides_within_five_seconds(replicas: LeaderReplicas) -> None:
    """All that was confirmed is known; what the streams know comes with them; nobody is stopped."""
    here = replicas.place
    # The group is still collected when the first one dies.
    first, second = await replicas.start(window_seconds=2), await replicas.start(serving=False, window_seconds=2)
    async with training(first) as before:
        await before.agents["n3"].notices("n3")
        begun = time.monotonic()
        await first.kill()
    await until(lambda: second.serves)
    served = time.monotonic() - begun
    async with training(second, **again(before)) as after:
        await after.excludes("n3")
        seconds = time.monotonic() - begun
        now = await decided(here, epoch=2)
        assert now["phase"] in ("Shrinking", "Running")
        assert "stop" not in now
        for rank in after.ranks[:2]:
            lines = await rank.lines.before_heartbeat()
            assert {line["directive"] for line in lines} <= {"RUN"}
    print(f"\nkill -9: the next one serves after {served:.2f} s, decides and tells after {seconds:.2f} s")  # noqa: T201
    assert seconds < 15


@pytest.mark.brief
async def test_a_polite_stop_hands_over_at_once(replicas: LeaderReplicas) -> None:
    """Every stream hears a goodbye and no STOP; the next one serves as soon as that is said."""
    long: dict[str, Any] = {"lease_seconds": 10}
    first, second = await replicas.start(**long), await replicas.start(serving=False, **long)
    async with training(first) as before:
        begun = time.monotonic()
        first.process.terminate()
        for rank in before.ranks:
            await rank.lines.matching(type="goodbye")
        assert (await before.agents["n1"].read("goodbye")).reason == "the supervisor is stopping"
        await until(lambda: second.serves)
        seconds = time.monotonic() - begun
        assert await first.ended() == 0
    print(f"\npolite stop: the next one serves after {seconds:.2f} s")  # noqa: T201 - the figure
    assert seconds < 7, "somebody has waited for the lease"
    async with training(second, **again(before)) as after:
        await after.agents["n3"].notices("n3")
        await after.excludes("n3")
        assert (await decision(replicas.place))["epoch"] == 2


@pytest.mark.brief
async def test_a_leader_that_stood_still_writes_nothing_more_and_ends(replicas: LeaderReplicas) -> None:
    """It wakes up after another one has gone on: goodbye to its streams, and an exit code of its own."""
    here = replicas.place
    first, second = await replicas.start(), await replicas.start(serving=False)
    async with training(first) as before:
        freeze(first)
        # What it finds when it wakes up: a notice that nobody has taken yet.
        await before.agents["n3"].say(notice=noticed("n3", 7))
        await until(lambda: second.serves)
        async with training(second, **again(before)) as after:
            await after.agents["n2"].notices("n2")
            now = await decided(here, epoch=2)
            thaw(first)
            for rank in before.ranks:
                assert (await rank.lines.matching(type="goodbye"))["reason"] == "the supervisor is stopping"
            assert await first.ended() == DEPOSED
            assert [each["spec"]["subject"]["name"] for each in await here.notices()] == ["n2"]
            assert {each["status"]["epoch"] for each in await here.notices()} == {2}
            assert (await decision(here))["generation"] >= now["generation"]
            assert (await decision(here))["epoch"] == 2
    assert "holds the lease" in first.log.read_text()
    assert "Traceback" not in first.log.read_text()


async def test_who_leads_and_cannot_serve_ends_with_a_sentence(replicas: LeaderReplicas) -> None:
    """Its port is another one's: it lets go of the lease, and whoever held it before does not hold it for that."""
    first = await replicas.start()
    taken = json.loads((first.directory / ENDPOINTS_FILE).read_bytes())["http"].partition("://")[2]
    second = await replicas.start(serving=False, http_address=taken)
    freeze(first)
    assert await second.ended() == 1
    assert taken.rpartition(":")[2] in second.log.read_text().splitlines()[-1]
    assert "Traceback" not in second.log.read_text()
    assert "holderIdentity" not in (await replicas.place.api.get(LEASE))["spec"]
    thaw(first)
    assert await first.ended() == DEPOSED


async def test_a_lease_that_a_person_deletes_is_made_again(replicas: LeaderReplicas) -> None:
    first, second = await replicas.start(), await replicas.start(serving=False)
    api = replicas.place.api
    holder = (await api.get(LEASE))["spec"]["holderIdentity"]
    await api.delete(LEASE)
    async with training(first) as now:
        await now.agents["n3"].notices("n3")
        await now.excludes("n3")
    assert (await api.get(LEASE))["spec"]["holderIdentity"] == holder
    assert first.process.poll() is None
    assert not second.serves


async def test_the_only_one_needs_no_lease(replicas: LeaderReplicas) -> None:
    """Where that was said; it writes with the epoch of the last who led, so that nothing of its is refused."""
    first = await replicas.start()
    second = await replicas.start(serving=False)
    await first.kill()
    await until(lambda: second.serves)
    async with training(second) as now:
        await now.agents["n3"].notices("n3")
        await decided(replicas.place, epoch=2)
    await second.kill()
    third = await replicas.start(leader_election="false")
    async with training(third, **again(now)) as after:
        await after.excludes("n3")
        assert (await decision(replicas.place))["epoch"] == 2


@pytest.mark.brief
async def test_the_next_one_goes_on_with_the_trace_of_a_killed_one(replicas: LeaderReplicas) -> None:
    """The first has decided on a STOP, and the second hears rank 0's answer to it."""
    with collecting() as there:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{there.address}", "OTEL_BSP_SCHEDULE_DELAY": "10"}
        first = await replicas.start(traces="true", variables=variables)
        second = await replicas.start(serving=False, traces="true", variables=variables)

        def names() -> list[str]:
            return [span.name for span in there.spans]

        def directives() -> list[object]:
            return [attributes_of(span.attributes).get("job_supervisor.directive") for span in there.spans]

        async with training(first) as before:
            for node in ("n2", "n3"):
                await before.agents[node].notices(node)
            await before.ranks[0].lines.matching(directive="STOP")
            await until(lambda: "STOP" in directives(), names)  # n2 alone may have been decided on before
            await first.kill()
        await until(lambda: second.serves)
        async with training(second, **again(before)) as after:
            stop = await after.ranks[0].lines.matching(directive="STOP")
            await after.ranks[0].reports("saved", stop, step=41)
            await until(lambda: {"acknowledge", "stopping"} <= set(names()), names)
        told = tuple(there.spans)
    stopped = [
        span for span in told if span.trace_id == next(each.trace_id for each in told if each.name == "stopping")
    ]
    assert {"decide", "directive", "acknowledge", "stopping"} <= {span.name for span in stopped}
    assert [span.name for span in stopped].count("decide") == 1
