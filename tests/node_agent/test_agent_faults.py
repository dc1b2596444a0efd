"""A real agent beside a metadata service that really misbehaves, for seconds here and for minutes on request."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from reclaim.v1 import reclaim_pb2 as pb

from node_agent.poller import POLL_LIMIT
from simulator.cloud.dialects import METADATA_URLS, SimulatedCloud, termination_time
from simulator.cloud.faults import FaultPeriod, MetadataFault, fault_periods
from simulator.cloud.metadata import AnswerMode, MetadataServer
from simulator.cloud.trace import Node
from tests.node_agent.agent_process import MEBIBYTE, AgentProcess, agent, probe
from tests.node_agent.fake_supervisor import FakeAgentService, fake_supervisor
from tests.testkit.waiting import until

# `make metadata-faults` sets these: 3 rounds of up to 2 s a fault take 80 s a cloud.
SEED = int(os.environ.get("METADATA_FAULTS_SEED", "1"))
ROUNDS = int(os.environ.get("METADATA_FAULTS_ROUNDS", "1"))
LONGEST = float(os.environ.get("METADATA_FAULTS_LONGEST_SECONDS", "0.2"))

NODE = Node("n1")
POLL_SECONDS = 0.1
LEAD = 300.0
# Between two requests of an agent that is not told to wait: a poll that is given up, a period, and two busy cores.
LONGEST_SILENCE = POLL_LIMIT + POLL_SECONDS + 5.0
_UNHEARD = {MetadataFault.REFUSED, MetadataFault.THROTTLED}


@dataclass
class FaultScene:
    """One agent that asks two clouds; `faulty` misbehaves, and the other one announces something all the time."""

    faulty: MetadataServer
    source: str
    other: str
    supervisor: FakeAgentService
    agent: AgentProcess

    def reports(self, source: str) -> list[pb.NoticeReport]:
        """What the supervisor was told by that source, in order; the agent has one stream throughout."""
        (stream,) = self.supervisor.streams
        return [report for report in [*stream.hello.notices, *stream.notices] if report.source == source]

    def told(self, source: str) -> int:
        """The state of that source as the supervisor heard it last."""
        (stream,) = self.supervisor.streams
        said = [message.source for message in stream.messages if message.WhichOneof("message") == "source"]
        return next(each.state for each in reversed([*stream.hello.sources, *said]) if each.source == source)

    async def shown(self) -> dict[str, Any]:
        """What /readyz says of the sources; the agent must be ready and live whatever they do."""
        status, body = await probe(self.agent, "/readyz")
        assert status == 200, body
        assert (await probe(self.agent, "/livez"))[0] == 200
        detail = body["detail"]["sources"]
        assert detail[self.other]["state"] == "noticed", "one source's trouble hides another's notice"
        shown: dict[str, Any] = detail[self.source]
        return shown

    async def until_shown(self, *states: str) -> dict[str, Any]:
        shown: dict[str, Any] = {}

        async def one_of_them() -> bool:
            nonlocal shown
            shown = await self.shown()
            return shown["state"] in states

        await until(one_of_them, lambda: f"one of {states} in {shown}")
        return shown

    async def live_through(self, period: FaultPeriod) -> None:
        """Misbehave for a while, and be well again; everything that must hold meanwhile is checked meanwhile."""
        before = len(self.reports(self.source))
        await self.faulty.set_fault(period.fault)
        if period.fault.hides_metadata:
            assert (await self.until_shown("unknown"))["detail"], "unknown has no reason"
            await until(lambda: self.told(self.source) == pb.SOURCE_STATE_UNKNOWN)
        await self._hold(period)
        if period.fault.hides_metadata:
            assert len(self.reports(self.source)) == before, f"{period.fault} was taken for an announcement"

    async def recover(self) -> None:
        await self.faulty.set_fault(None)
        await self.until_shown("clear", "noticed")
        await until(lambda: self.told(self.source) != pb.SOURCE_STATE_UNKNOWN)

    async def until_announced(self, deadline: float) -> None:
        """Wait until the supervisor's last word from the source is that instant."""

        def announced() -> bool:
            said = self.reports(self.source)[-1:]
            return [termination_time(report.deadline.seconds) for report in said] == [termination_time(deadline)]

        await until(announced)

    async def _hold(self, period: FaultPeriod) -> None:
        end = time.monotonic() + period.seconds
        while time.monotonic() < end:
            state = (await self.shown())["state"]
            assert (state == "unknown") == period.fault.hides_metadata, f"{state} during {period.fault}"
            if period.fault not in _UNHEARD:
                assert time.monotonic() - self.faulty.asked_at < LONGEST_SILENCE, f"no polls during {period.fault}"
            await asyncio.sleep(0.05)


# Some faults are about tokens; test_agent_clouds.py has each fault with every cloud.
WITH_TOKENS = [SimulatedCloud.ALIYUN, SimulatedCloud.AWS, SimulatedCloud.VOLCENGINE]


@asynccontextmanager
async def serving(cloud: SimulatedCloud) -> AsyncIterator[MetadataServer]:
    server = MetadataServer(AnswerMode.HARDENED, cloud=cloud)
    await server.start()
    server.add(NODE)
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def scene(faulty: SimulatedCloud, directory: Path) -> AsyncIterator[FaultScene]:
    """An agent that knows two clouds: nothing announced by the one that will misbehave."""
    (directory / "token").write_text("secret")
    other = SimulatedCloud.ALIYUN if faulty is SimulatedCloud.AWS else SimulatedCloud.AWS
    async with fake_supervisor() as supervisor, serving(faulty) as misbehaving, serving(other) as honest:
        # Three of its own 50 ms are silence, which two busy cores may make: one stream throughout is what is looked at.
        supervisor.heartbeat = 5.0
        honest.notice(NODE, time.time() + 2 * LEAD)
        environ = {
            "NODE_AGENT_NODE_NAME": NODE,
            "NODE_AGENT_NODE_UID": "machine-1",
            "NODE_AGENT_SUPERVISOR": f"127.0.0.1:{supervisor.port}",
            "NODE_AGENT_TOKEN_FILE": str(directory / "token"),
            "NODE_AGENT_SOURCES": f"{faulty},{other}",
            METADATA_URLS[faulty]: misbehaving.url_of(NODE),
            METADATA_URLS[other]: honest.url_of(NODE),
            "NODE_AGENT_PROBE_ADDRESS": "127.0.0.1:0",
            "NODE_AGENT_POLL_SECONDS": str(POLL_SECONDS),
        }
        async with agent(environ) as process:
            await until(lambda: process.event("supervisor.welcomed"))
            one = FaultScene(misbehaving, faulty.value, other.value, supervisor, process)
            await until(lambda: one.reports(other.value))
            # Three clear answers withdraw whatever an earlier agent announced: that is not to fall into a fault.
            await until(lambda: one.reports(faulty.value))
            assert one.told(faulty.value) == pb.SOURCE_STATE_CLEAR
            yield one


# The long form goes through the whole of it with each cloud that has tokens.
@pytest.mark.parametrize("cloud", WITH_TOKENS if ROUNDS > 1 else [SimulatedCloud.AWS])
@pytest.mark.timeout(240 + ROUNDS * 15 * (LONGEST + 3))
async def test_faults_neither_announce_nor_withdraw_nor_hide_anything(cloud: SimulatedCloud, tmp_path: Path) -> None:
    """Every fault in turn, a notice amid one of them: unknown is seen, the notice survives, the agent stays small."""
    plan = fault_periods(SEED, ROUNDS, LONGEST)
    blinding = [number for number, period in enumerate(plan) if period.fault.hides_metadata]
    noticed_in = blinding[len(blinding) // 2]
    async with scene(cloud, tmp_path) as one:
        deadline = time.time() + LEAD
        for number, period in enumerate(plan):
            await one.live_through(period)
            if number == noticed_in:
                one.faulty.notice(NODE, deadline)
                footprint = (one.agent.resident, one.agent.descriptors)
            await one.recover()
            if number >= noticed_in:
                await one.until_announced(deadline)
                # It drifts: the same notice, said again.
                deadline += 7.0
                one.faulty.notice(NODE, deadline)
                await one.until_announced(deadline)
        _check_log(one, len(blinding))
        _check_footprint(one, footprint)
        _check_notices(one)
        one.faulty.withdraw(NODE)
        await until(lambda: one.reports(one.source)[-1].announcement == pb.ANNOUNCEMENT_WITHDRAWN)
        await one.agent.stop()
        assert one.agent.process.returncode == 0


def _check_log(one: FaultScene, episodes: int) -> None:
    dependency = f"source {one.source}"
    assert one.agent.count("dependency.failing", dependency) == episodes
    assert one.agent.count("dependency.recovered", dependency) == episodes
    assert one.agent.count("dependency.failing", f"source {one.other}") == 0
    assert not any("Traceback" in line for line in one.agent.raw)


def _check_footprint(one: FaultScene, before: tuple[int, int]) -> None:
    assert one.agent.resident <= before[0] + 4 * MEBIBYTE
    assert one.agent.descriptors <= before[1] + 3


def _check_notices(one: FaultScene) -> None:
    """One notice, each of its reports newer than the one before, and nothing withdrawn since it was announced."""
    reports = one.reports(one.source)
    first = next(number for number, each in enumerate(reports) if each.announcement == pb.ANNOUNCEMENT_ACTIVE)
    assert {each.announcement for each in reports[first:]} == {pb.ANNOUNCEMENT_ACTIVE}
    assert {each.subject.uid for each in reports} == {"machine-1"}
    revisions = [each.revision for each in reports]
    assert revisions == sorted(set(revisions))
    assert {each.announcement for each in one.reports(one.other)} == {pb.ANNOUNCEMENT_ACTIVE}


async def test_a_deadline_may_be_anywhere(tmp_path: Path) -> None:
    """Moved into the past it is the same notice; at the end of time nobody believes it, and the notice stays."""
    async with scene(SimulatedCloud.ALIYUN, tmp_path) as one:
        now = time.time()
        for shift in (LEAD, LEAD + 60.0, -30.0, -30.0 * 86400.0):
            one.faulty.notice(NODE, now + shift)
            await one.until_announced(now + shift)
            left = one.reports(one.source)[-1].seconds_left
            assert left == pytest.approx(shift, abs=25.0)
        said = len(one.reports(one.source))
        one.faulty.notice(NODE, now + 3000.0 * 365.0 * 86400.0)
        assert "more than 3600 s ahead" in (await one.until_shown("unknown"))["detail"]
        assert len(one.reports(one.source)) == said
        one.faulty.notice(NODE, now + LEAD)
        await one.until_announced(now + LEAD)
        _check_notices(one)


def test_a_plan_of_faults_is_the_seeds() -> None:
    assert fault_periods(3, 2, 1.0) == fault_periods(3, 2, 1.0) != fault_periods(4, 2, 1.0)
    assert sorted(period.fault for period in fault_periods(3, 2, 1.0)) == sorted([*MetadataFault, *MetadataFault])
    assert all(0.25 <= period.seconds <= 1.0 for period in fault_periods(3, 2, 1.0))
