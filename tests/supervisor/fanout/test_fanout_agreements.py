"""All ranks stop at one agreed step: what a supervisor says to eight of them, and what their answers cause."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.job import Phase
from tests.testkit.serving import AgentPeer, LauncherPeer, PeerRefusal, ProcessPeer, Served, serving
from tests.testkit.waiting import until

NODES = [f"n{number}" for number in range(1, 9)]
STEP_SECONDS = 0.05
AGREES: Mapping[str, Any] = {"agrees": ["stop", "checkpoint"], "world_size": len(NODES)}


class Rank:
    """One rank that takes a step every `STEP_SECONDS` and answers each line; it notes the step at which it stops."""

    def __init__(self, number: int, peer: ProcessPeer, start: int = 100) -> None:
        self.number = number
        self.peer = peer
        self.start = start
        self.began = time.monotonic()
        self.answers = True
        self.answers_proposals = True
        self.checkpoint_seconds: float | None = None
        self.step_seconds = STEP_SECONDS
        self.seen: list[dict[str, Any]] = []
        self.stops_at: int | None = None

    @property
    def step(self) -> int:
        return self.start + int((time.monotonic() - self.began) / self.step_seconds)

    async def run(self) -> None:
        """Answers until the stream ends."""
        while line := await self.peer.lines.any():
            if line.get("agreement") and self.answers:
                self.seen.append(line)
                if self.answers_proposals or line["agreement"]["step"] is None:
                    await self.answer(line)

    async def answer(self, line: Mapping[str, Any]) -> None:
        agreement, step = line["agreement"], self.step
        if agreement["committed"]:
            if agreement["purpose"] == "stop":
                assert line["directive"] == "STOP"
                self.stops_at = agreement["step"]
            await self.says("committed", line, step)
        else:
            accepts = agreement["step"] is not None and step < agreement["step"]
            await self.says("accepted" if accepts else "declined", line, step)

    async def says(self, answer: str, line: Mapping[str, Any], step: int) -> None:
        agreement = line["agreement"]
        fields = {
            "epoch": agreement["epoch"],
            "purpose": agreement["purpose"],
            "at_step": agreement["step"],
            "step": step,
            "answer": answer,
            "step_seconds": self.step_seconds,
            "checkpoint_seconds": self.checkpoint_seconds,
            "unread_seconds": 0.0,
        }
        assert await self.peer.reports("agreement", line, **fields) == PeerRefusal(200, None)


class Ranks:
    """A job on eight hosts that needs all of them, with a rank on each that agrees."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.ranks: list[Rank] = []
        self.agents: dict[str, AgentPeer] = {}
        self.launcher: LauncherPeer
        self.token = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, **says: Any) -> None:
        peers = self.served.peers
        self.agents = await peers.agents(NODES)
        self.launcher, order = await peers.running("job", NODES)
        await self.connect(order["token"], **says)

    async def connect(self, token: str, **says: Any) -> None:
        """Starts the ranks of a run that goes on."""
        peers, self.token = self.served.peers, token
        for number, node in enumerate(NODES):
            peer = await peers.process(self.token, node, number, **{**AGREES, **says})
            self.ranks.append(Rank(number, peer, 100 + number % 2))
        self._tasks = [asyncio.create_task(rank.run()) for rank in self.ranks]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def decision(self) -> Any:
        return self.served.job("job").decision

    async def phase(self, phase: Phase) -> None:
        async def so() -> bool:
            return self.served.job("job").decision.phase is phase

        await until(so, f"the job is {phase}")

    async def stop_steps(self) -> set[int]:
        """The steps at which the ranks stop, once each of them knows."""

        async def all_know() -> bool:
            return all(rank.stops_at is not None for rank in self.ranks)

        await until(all_know, "every rank has the commit")
        return {rank.stops_at for rank in self.ranks if rank.stops_at is not None}


@asynccontextmanager
async def agreeing(directory: Path, *, says: Mapping[str, Any] | None = None, **settings: Any) -> AsyncIterator[Ranks]:
    async with serving(directory, **settings) as served:
        ranks = Ranks(served)
        await ranks.start(**(says or {}))
        try:
            yield ranks
        finally:
            await ranks.end()


async def test_a_new_job_agrees_although_its_runs_begin_again(tmp_path: Path) -> None:
    """The earlier one of its name has ended in run 3, and its processes are still connected."""
    async with serving(tmp_path) as served:
        earlier, new = Ranks(served), Ranks(served)
        try:
            agents = await served.peers.agents(NODES)
            earlier.launcher, _ = await served.peers.running("job", NODES)
            await earlier.launcher.reports(run=3, running=True)
            await earlier.connect((await earlier.launcher.lines.matching(order="run", run=3))["token"])
            await earlier.launcher.reports(running=False, exit_code=0, result="succeeded")
            await earlier.phase(Phase.FINISHED)
            new.launcher, order = await served.peers.running("job", NODES, instance="instance-2")
            await new.connect(order["token"])
            for rank in new.ranks:
                rank.step_seconds = 10.0  # so that this process is never late
            await agents["n8"].notices("n8")
            await new.phase(Phase.STOPPING)
            assert new.decision.agreement is not None, "rank 0 of the new job is stopped alone"
            (step,) = await new.stop_steps()
            for rank in new.ranks:
                await rank.peer.reports("saved", rank.seen[-1], step=step)
            await new.phase(Phase.SUSPENDED)
            assert new.decision.reason.endswith(f"All ranks have saved a checkpoint of step {step}.")
        finally:
            await earlier.end()
            await new.end()


async def test_all_ranks_stop_at_one_step(tmp_path: Path) -> None:
    """Polled, proposed, committed to all, and suspended after every rank has saved; nobody is told before."""
    async with agreeing(tmp_path) as job:
        for rank in job.ranks:
            rank.step_seconds = 10.0  # so that this process is never late
        await job.agents["n8"].notices("n8")
        (step,) = await job.stop_steps()
        assert all(rank.step < step for rank in job.ranks), "the commit comes before the step"
        assert job.decision.phase is Phase.STOPPING
        assert job.decision.reason.endswith(f"stopping. All ranks save after step {step}.")
        for rank in job.ranks:
            kinds = [(line["directive"], line["agreement"]["step"] is None) for line in rank.seen]
            assert kinds[-1] == ("STOP", False)
            assert {kind for kind, _ in kinds[:-1]} <= {"RUN", "LEAVE"}
            assert kinds[0][1], "the first line is a poll"
        for rank in job.ranks:
            assert job.decision.phase is Phase.STOPPING
            assert await rank.peer.reports("saved", rank.seen[-1], step=step) == PeerRefusal(200, None)
        await job.phase(Phase.SUSPENDED)
        assert job.decision.reason.endswith(f"All ranks have saved a checkpoint of step {step}.")


async def test_ranks_that_do_not_answer_are_named_and_rank_zero_stops_alone(tmp_path: Path) -> None:
    """A rank whose flag is not read holds nobody up for longer than the time-out."""
    async with agreeing(tmp_path, agreement_timeout_seconds=1.0) as job:
        job.ranks[3].answers = False
        await job.agents["n8"].notices("n8")
        await job.phase(Phase.STOPPING)
        assert job.decision.reason.endswith("There is no agreed step, as rank 3 did not answer: rank 0 saves alone.")
        assert job.decision.agreement is None
        assert job.decision.agreed_stop is None


async def test_a_withdrawal_before_the_commit_leaves_nothing_behind(tmp_path: Path) -> None:
    """With time until the deadline the ranks train on, and a withdrawn notice stops nobody."""
    async with agreeing(tmp_path, margin_seconds=1.0) as job:
        for rank in job.ranks:
            rank.checkpoint_seconds = 1.0
        await job.agents["n8"].notices("n8", left=300.0)

        async def waits() -> bool:
            return "until then they train on" in job.decision.reason

        await until(waits, "the job trains on")
        assert job.decision.phase is Phase.RUNNING
        await job.agents["n8"].notices("n8", revision=2, withdrawn=True)

        async def runs() -> bool:
            return job.decision.agreement is None

        await until(runs, "nothing is agreed on")
        assert (job.decision.phase, job.decision.reason) == (Phase.RUNNING, "Run 1 is running on 8 hosts.")
        assert {line["directive"] for rank in job.ranks for line in rank.seen} <= {"RUN", "LEAVE"}


async def test_another_supervisor_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """It knows the proposal, hears of the ranks again, and they all stop at one step."""
    async with agreeing(tmp_path) as job:
        for rank in job.ranks:
            rank.answers_proposals = False
        await job.agents["n8"].notices("n8")

        async def is_proposed() -> bool:
            return job.decision.agreement is not None and job.decision.agreement.step is not None

        await until(is_proposed, "a step is proposed")
        token, epoch = job.token, job.decision.agreement.epoch
    async with serving(tmp_path) as served:
        job = Ranks(served)
        await job.connect(token)
        try:
            (step,) = await job.stop_steps()
        finally:
            await job.end()
        assert job.decision.agreement.epoch >= epoch
        assert job.decision.agreement.step == step
        assert job.decision.phase is Phase.STOPPING


async def test_a_commit_that_ranks_have_passed_is_followed_by_another(tmp_path: Path) -> None:
    """They say so, and stop a little later, at one step as well."""
    async with agreeing(tmp_path) as job:
        await job.agents["n8"].notices("n8")
        (first,) = await job.stop_steps()
        line = job.ranks[0].seen[-1]
        for rank in job.ranks:
            rank.stops_at = None
            rank.start += first + 1 - rank.step
        for rank in job.ranks:
            await rank.says("passed", line, first + 1)
        (second,) = await job.stop_steps()
        assert second > first
        assert job.decision.reason.endswith(f"stopping. All ranks save after step {second}.")


async def test_status_says_who_has_not_answered(tmp_path: Path) -> None:
    async with agreeing(tmp_path, agreement_timeout_seconds=30.0) as job:
        job.ranks[3].answers = False
        await job.agents["n8"].notices("n8")

        async def waits() -> bool:
            (shown,) = (await job.served.status())["jobs"]
            return (shown["agreement"] or {}).get("waits_for") == "rank 3"

        await until(waits, "the status names the rank")


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": None},
        {"answer": None},
        {"answer": "perhaps"},
        {"epoch": -1},
        {"epoch": 2**40},
        {"step": -1},
        {"step": 1.5},
        {"step_seconds": -1.0},
        {"unread_seconds": "long"},
        {"world_size": 0},
        {"world_size": 10**9},
        {"agrees": "stop"},
        {"agrees": ["stop"] * 100},
        {"agrees": ["x" * 100]},
        {"collective": "yes"},
        {"revision": -1},
    ],
)
async def test_a_malformed_answer_is_refused(served: Served, changes: dict[str, Any]) -> None:
    """And changes nothing; the stream stays as it was."""
    await served.peers.agent("n1")
    _, order = await served.peers.running("job", ["n1"])
    peer = await served.peers.process(order["token"], "n1", 0, **AGREES)
    line = await peer.lines.any()
    good = {"epoch": 1, "purpose": "stop", "at_step": None, "answer": "declined", "step": 7}
    assert await peer.reports("agreement", line, **{**good, **changes}) == PeerRefusal(400, "malformed")
    assert await peer.reports("agreement", line, **good) == PeerRefusal(200, None)


async def test_what_later_versions_say_is_left_out(served: Served) -> None:
    """A purpose that is not known yet, and an answer of a rank that does not know its step."""
    await served.peers.agent("n1")
    _, order = await served.peers.running("job", ["n1"])
    says = {"agrees": ["stop", "migrate"], "agreement": {"epoch": 3, "purpose": "migrate", "step": 5, "later": 1}}
    peer = await served.peers.process(order["token"], "n1", 0, **says)
    line = await peer.lines.any()
    answer = {"epoch": 1, "purpose": "stop", "at_step": None, "answer": "declined", "step": None}
    assert await peer.reports("agreement", line, **answer, agreement=None) == PeerRefusal(200, None)
    assert await peer.reports("resumed", line, step=40) == PeerRefusal(200, None)
