"""A fault that nobody foresaw in one key of a loop leaves the other keys of that loop served, and is tried again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reclaim.v1 import reclaim_pb2 as wire
from structlog.testing import capture_logs

import supervisor.control.loop
import supervisor.fanout.members
import supervisor.ingest.agent_reports
from supervisor.control.facts import Facts
from supervisor.control.loop import Control, Schedule
from supervisor.decide.directives import JobDirectives
from supervisor.domain.ids import JobName
from supervisor.domain.job import Phase
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.members import MemberStreams
from tests.testkit.serving import Served, noticed, serving
from tests.testkit.waiting import until

BAD, GOOD = "bad", "good"


class Defect:
    """Makes a function of the product raise for one key, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.met = False
        self.mended = False

    def put(self, owner: Any, name: str, concerns: Callable[..., bool]) -> None:
        """Wraps `owner.name`; `concerns` gets its arguments."""
        works = getattr(owner, name)

        def raises(*arguments: Any, **named: Any) -> Any:
            if not self.mended and concerns(*arguments, **named):
                self.met = True
                raise ZeroDivisionError("a defect")
            return works(*arguments, **named)

        self._monkeypatch.setattr(owner, name, raises)


def _plan(defect: Defect) -> None:
    defect.put(supervisor.control.loop, "plan", lambda job, *_: job.name == BAD)


def _shown(defect: Defect) -> None:
    defect.put(supervisor.control.loop, "_VisibleState", lambda job, *_: job.name == BAD)


def _settle(defect: Defect) -> None:
    defect.put(Control, "_carry_out", lambda _self, job, _planned: job.name == BAD)


def _directives(defect: Defect) -> None:
    defect.put(JobDirectives, "of", lambda job, *_: job.name == BAD)


def _grants(defect: Defect) -> None:
    """Grants are made for all jobs together: who has to stop does not wait for them."""
    defect.put(Facts, "granted", lambda _self, jobs: BAD in jobs)


JOBS = [
    pytest.param(_plan, "plan", id="plan"),
    pytest.param(_shown, "show", id="show"),
    pytest.param(_settle, "settle", id="settle"),
    pytest.param(_directives, "directives", id="directives"),
    pytest.param(_grants, "grant", id="grants"),
]


async def stopping(served: Served, name: str, hosts: list[str]) -> tuple[Any, Any]:
    """A running job that cannot lose a host, and its rank 0."""
    launcher, order = await served.peers.running(name, hosts)
    return launcher, await served.peers.process(order["token"], hosts[0], 0)


@pytest.mark.parametrize(("breaks", "where"), JOBS)
async def test_a_fault_in_one_job_leaves_the_others_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Callable[[Defect], None], where: str
) -> None:
    """The other job hears STOP; the one with the fault says so in its status, and hears STOP once it is mended."""
    defect = Defect(monkeypatch)
    with capture_logs() as logs:
        async with serving(tmp_path) as served:
            agents = await served.peers.agents(["b1", "b2", "g1", "g2"])
            _, bad = await stopping(served, BAD, ["b1", "b2"])
            _, good = await stopping(served, GOOD, ["g1", "g2"])
            breaks(defect)
            await agents["b2"].notices("b2")
            await agents["g2"].notices("g2")
            await good.lines.matching(type="directive", directive="STOP")
            await until(lambda: defect.met)
            if where != "grant":
                faults = {job["job"]: job["faults"] for job in (await served.status())["jobs"]}
                assert [text for text in faults[BAD] if "ZeroDivisionError: a defect" in text]
                assert not faults[GOOD]
                assert served.job(GOOD).decision.phase is Phase.STOPPING
            defect.mended = True
            await bad.lines.matching(type="directive", directive="STOP")
    logged = [line for line in logs if line["event"] == "internal.fault"]
    assert {line["where"] for line in logged} == {where}
    assert "ZeroDivisionError" in logged[0]["exception"]


async def test_a_pass_that_raises_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of no job; what the pass had already taken note of is done in the next one."""
    defect = Defect(monkeypatch)
    async with serving(tmp_path) as served:
        agents = await served.peers.agents(["g1", "g2"])
        _, good = await stopping(served, GOOD, ["g1", "g2"])
        defect.put(Schedule, "due", lambda *_: True)
        await agents["g2"].notices("g2")
        await until(lambda: defect.met)
        defect.mended = True
        await good.lines.matching(type="directive", directive="STOP")


async def test_a_fault_in_one_report_leaves_the_others_of_its_stream_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one with the fault is stored and acknowledged once that is mended, on the same stream."""
    defect = Defect(monkeypatch)
    defect.put(supervisor.ingest.agent_reports, "apply_report", lambda _known, report, *_: BAD in report.subject.name)
    async with serving(tmp_path) as served:
        agent = await served.peers.agent("n1")
        for revision, name in enumerate((BAD, GOOD), 1):
            pod = noticed("n1", revision)
            pod.subject.CopyFrom(wire.Subject(kind=wire.SUBJECT_KIND_POD, name=f"space/{name}", uid=name))
            await agent.say(notice=pod)
        assert GOOD in await agent.acknowledged(2)
        assert list(served.notices()) == [f"space/{GOOD}"]
        defect.mended = True
        assert BAD in await agent.acknowledged(1)


async def test_a_fault_in_the_agents_of_one_job_leaves_the_rounds_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect = Defect(monkeypatch)
    async with serving(tmp_path) as served:
        await served.peers.agents(["b1", "g1"])
        orders = {name: (await served.peers.running(name, [host]))[1] for name, host in ((BAD, "b1"), (GOOD, "g1"))}
        bad = await served.peers.member(orders[BAD]["token"], "b1")
        good = await served.peers.member(orders[GOOD]["token"], "g1")
        await bad.lines.matching(type="rendezvous")
        await good.lines.matching(type="rendezvous")
        defect.put(supervisor.fanout.members, "_told", lambda job, *_: job.name == BAD)
        streams = served.supervisor.members
        streams.refresh([JobName(BAD), JobName(GOOD)])
        assert defect.met
        faults = {job["job"]: job["faults"] for job in (await served.status())["jobs"]}
        assert [bool(faults[name]) for name in (BAD, GOOD)] == [True, False]


async def test_a_fault_in_what_is_forgotten_of_one_part_leaves_the_others_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect, forgotten = Defect(monkeypatch), []
    defect.put(Launchers, "forget_others", lambda *_: True)
    monkeypatch.setattr(MemberStreams, "forget_others", lambda *_: forgotten.append("members"))
    async with serving(tmp_path) as served:
        await served.supervisor.retention.once()
    assert defect.met
    assert forgotten
