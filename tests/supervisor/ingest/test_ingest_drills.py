"""Drills asked for over HTTP: who may, on what, and that each comes to its end."""

from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState, ReclaimNotice
from tests.testkit.serving import PeerRefusal, Served, noticed, serving
from tests.testkit.waiting import until

BEGIN = "/v1/drills"
END = "/v1/drills/end"


async def _says(served: Served, path: str, **body: Any) -> PeerRefusal:
    return await served.peers.post(path, served.peers.tokens.operator("ann"), body)


def _drills(served: Served) -> list[ReclaimNotice]:
    return [each for each in served.store.snapshot().notices.values() if each.simulated]


def _ended(served: Served) -> bool:
    return [each.state for each in _drills(served)] == [NoticeState.WITHDRAWN]


async def test_a_drill_is_a_notice_that_says_that_it_is_one(served: Served) -> None:
    """Its source, whoever held it, and no agent has to have said anything."""
    await served.peers.agent("n1")
    assert await _says(served, BEGIN, node="n1", lead_seconds=60) == PeerRefusal(200, None)
    (drill,) = _drills(served)
    assert (drill.id, drill.state) == ("simulated/n1/uid-n1", NoticeState.ACTIVE)
    assert drill.message == "A drill, held by ann: the machine stays."
    (shown,) = (await served.status())["notices"]
    assert shown["source"] == "simulated"
    assert 0 < shown["seconds_left"] <= 60


async def test_the_line_takes_a_drill_for_a_reclaim_and_gives_the_host_back(served: Served) -> None:
    """A node whose own metadata are clear is left out, and its process told to leave, until the drill is over."""
    await served.peers.agents(["n1", "n2"])
    launcher, order = await served.peers.running("job", ["n1", "n2"], min_workers=1)
    process = await served.peers.process(order["token"], "n2", 1)
    assert await _says(served, BEGIN, node="n2", lead_seconds=600) == PeerRefusal(200, None)
    shown = await process.lines.matching(directive="LEAVE")
    assert shown["notice"]["source"] == "simulated"
    excluding = await launcher.lines.matching(exclusions=["n2"])
    assert excluding["reason"].startswith("Drill: n2 will be reclaimed")
    await launcher.reports(applied=excluding["generation"])
    await _says(served, END)
    await launcher.lines.matching(exclusions=[])
    assert _ended(served)


async def test_a_drill_below_the_minimum_suspends_and_the_job_resumes(served: Served) -> None:
    """STOP, acknowledgement, suspension; the host is granted again once the drill is over."""
    await served.peers.agents(["n1", "n2"])
    launcher, order = await served.peers.running("job", ["n1", "n2"])
    process = await served.peers.process(order["token"], "n1", 0)
    assert await _says(served, BEGIN, node="n2", lead_seconds=600) == PeerRefusal(200, None)
    stop = await process.lines.matching(directive="STOP")
    assert stop["reason"].startswith("Drill:")
    assert await process.reports("left", stop) == PeerRefusal(200, None)
    waiting = await launcher.lines.matching(order="wait")
    await launcher.reports(running=False, exit_code=1, applied=waiting["generation"])
    await until(lambda: served.job("job").decision.phase is Phase.SUSPENDED)
    assert served.job("job").decision.reason.startswith("Drill:")
    assert not _ended(served)
    await _says(served, END)
    resumed = await launcher.lines.matching(order="run")
    assert (resumed["run"], sorted(resumed["hosts"])) == (2, ["n1", "n2"])


async def test_a_drill_ends_when_somebody_says_so(served: Served) -> None:
    await served.peers.agents(["n1", "n2"])
    for node in ("n1", "n2"):
        await _says(served, BEGIN, node=node, lead_seconds=600)
    assert await _says(served, END, node="n1") == PeerRefusal(200, None)
    assert {each.subject.name: each.state for each in _drills(served)} == {
        "n1": NoticeState.WITHDRAWN,
        "n2": NoticeState.ACTIVE,
    }
    assert await _says(served, END) == PeerRefusal(200, None)
    assert {each.state for each in _drills(served)} == {NoticeState.WITHDRAWN}
    assert await _says(served, END, node="nobody") == PeerRefusal(200, None)


async def test_another_drill_on_a_node_is_the_same_notice(served: Served) -> None:
    await served.peers.agent("n1")
    for lead in (600, 60):
        await _says(served, BEGIN, node="n1", lead_seconds=lead)
    (drill,) = _drills(served)
    assert drill.deadline is not None
    assert (drill.episode, drill.deadline - drill.first_seen < 70) == (1, True)
    await _says(served, END)
    await _says(served, BEGIN, node="n1", lead_seconds=60)
    assert [(each.episode, each.state) for each in _drills(served)] == [(2, NoticeState.ACTIVE)]


async def test_a_drill_goes_on_after_a_restart_and_ends_then(tmp_path: Path) -> None:
    """It is durable, and its end is nobody's memory: neither the agent nor whoever began it has to come back."""
    # In which a silent agent is not given up yet: a drill's end does not wait for that.
    patience = 120.0
    async with serving(tmp_path, gone_grace_seconds=patience) as served:
        await served.peers.agent("n1")
        await _says(served, BEGIN, node="n1", lead_seconds=2)
    async with serving(tmp_path, gone_grace_seconds=patience) as served:
        await until(lambda: _ended(served))


async def test_the_end_of_a_drill_is_not_the_end_of_a_reclaim(served: Served) -> None:
    """A real notice on the same node stays, and nor does the agent's withdrawal end the drill."""
    agent = await served.peers.agent("n1")
    await _says(served, BEGIN, node="n1", lead_seconds=600)
    await agent.notices("n1")
    await _says(served, END)
    states = {each.source: each.state for each in served.store.snapshot().notices.values()}
    assert states == {"simulated": NoticeState.WITHDRAWN, "metadata": NoticeState.ACTIVE}
    await _says(served, BEGIN, node="n1", lead_seconds=600)
    await agent.say(notice=noticed("n1", 2, withdrawn=True))
    await agent.acknowledged(2)
    states = {each.source: each.state for each in served.store.snapshot().notices.values()}
    assert states == {"simulated": NoticeState.ACTIVE, "metadata": NoticeState.WITHDRAWN}


async def test_a_machine_that_takes_the_nodes_name_is_not_drilled(served: Served) -> None:
    """The job there goes on with it; the drill on the machine before ends in its time."""
    await served.peers.agents(["n1"])
    await _says(served, BEGIN, node="n1", lead_seconds=600)
    await served.peers.agent("n1", node_uid="another", session=11)
    launcher = await served.peers.launcher("job", ["n1"])
    await launcher.lines.matching(order="run", hosts=["n1"])


@pytest.mark.parametrize("lead", [0, 0.9, 3601, -1, "60", None, 1e400])
async def test_a_lead_out_of_its_bounds_is_refused(served: Served, lead: object) -> None:
    """No drill lasts for ever; below a second it would be over before anybody hears of it."""
    await served.peers.agent("n1")
    assert await _says(served, BEGIN, node="n1", lead_seconds=lead) == PeerRefusal(400, "malformed")
    assert not _drills(served)


async def test_a_node_that_nobody_knows_is_refused(served: Served) -> None:
    """A typing error must not be taken for a drill that went well."""
    assert await _says(served, BEGIN, node="n1", lead_seconds=60) == PeerRefusal(404, "unknown_node")
    assert not _drills(served)


async def test_who_only_looks_holds_no_drill(served: Served) -> None:
    """A viewer's token is refused on both calls; an operator's may look as well."""
    await served.peers.agent("n1")
    viewer, operator = served.peers.tokens.viewer(), served.peers.tokens.operator("ann")
    for path, body in ((BEGIN, {"node": "n1", "lead_seconds": 60}), (END, {})):
        assert await served.peers.post(path, viewer, body) == PeerRefusal(403, "foreign_token")
    assert not _drills(served)
    headers = {"Authorization": f"Bearer {operator}"}
    async with served.peers.session.get(served.peers.http + "/v1/status", headers=headers) as response:
        assert response.status == 200


async def test_no_agent_speaks_for_drills(served: Served) -> None:
    """Whoever has taken an agent over can call nothing of its own a drill."""
    agent = await served.peers.agent("n1")
    report = noticed("n1")
    report.source = "simulated"
    await agent.say(notice=report)
    assert (await agent.ended()).name == "INVALID_ARGUMENT"
    assert not _drills(served)
