"""Which elastic agents of a torchrun job train together: what a supervisor tells them, and what their reports cause."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.agreement import Round
from tests.testkit.serving import AgentPeer, LauncherPeer, Lines, MemberPeer, PeerRefusal, ProcessPeer, Served, serving
from tests.testkit.waiting import until

NODES = ["n1", "n2", "n3", "n4"]
AGREES: Mapping[str, Any] = {"agrees": ["stop", "checkpoint", "rendezvous"], "world_size": 4}
REGROUPS: Mapping[str, Any] = {"agrees": ["stop", "checkpoint", "rendezvous", "regroup"], "world_size": 4}
SPEC: Mapping[str, Any] = {"framework": "torchrun", "min_workers": 2, "requested_workers": 4, "max_workers": 4}


class Elastic:
    """A job of four members, of which it needs two."""

    def __init__(self, served: Served, agents: Mapping[str, AgentPeer], launcher: LauncherPeer, token: str) -> None:
        self.served = served
        self.agents = agents
        self.launcher = launcher
        self.token = token
        self.members: dict[str, MemberPeer] = {}

    async def join(self, host: str, **says: Any) -> MemberPeer:
        self.members[host] = peer = await self.served.peers.member(self.token, host, **says)
        return peer

    async def enter(self, number: int, *hosts: str, **says: Any) -> None:
        """Waits until these members have the round, which has no other members, and have entered it."""
        lines = await asyncio.gather(*(self.members[host].enters(number, **says) for host in hosts))
        assert [each["host"] for each in lines[0]["round"]["members"]] == list(hosts)

    async def trains(self, says: Mapping[str, Any], hosts: list[str] = NODES) -> list[ProcessPeer]:
        """A process on each host, in order of their ranks."""
        found = [
            await self.served.peers.process(self.token, host, rank, **{**says, "world_size": len(hosts)})
            for rank, host in enumerate(hosts)
        ]

        async def connected() -> bool:
            return self.served.processes.hosts(self.served.job("job").id).issuperset(hosts)

        await until(connected, "all ranks are connected")
        return found

    @property
    def round(self) -> Round:
        held = self.served.job("job").decision.round
        assert held is not None
        return held


@asynccontextmanager
async def elastic(directory: Path, **settings: Any) -> AsyncIterator[Elastic]:
    async with serving(directory, **settings) as served:
        agents = await served.peers.agents(NODES)
        yield Elastic(served, agents, *await _running(served))


async def _running(served: Served, **changes: Any) -> tuple[LauncherPeer, str]:
    """A launcher whose first run goes on, and the token of its run."""
    launcher, order = await served.peers.running("job", NODES, **SPEC, **changes)
    return launcher, order["token"]


@asynccontextmanager
async def training(directory: Path, **settings: Any) -> AsyncIterator[Elastic]:
    """A job whose members are all in round 1."""
    async with elastic(directory, **settings) as job:
        for host in NODES:
            await job.join(host)
        await job.enter(1, *NODES)
        yield job


async def test_the_first_round_has_all_hosts_in_order(tmp_path: Path) -> None:
    """And the address of the store, as soon as its first member has opened it."""
    async with elastic(tmp_path, resume_delay_seconds=60.0) as job:
        for host in reversed(NODES):
            await job.join(host)
        await job.enter(1, *NODES)
        line = await job.members["n3"].lines.matching(type="rendezvous")
        assert line["round"]["store"] == {"address": "127.0.0.1", "port": 4001}
        assert line["round"]["members"][1] == {
            "member": "member-on-n2",
            "host": "n2",
            "address": "n2:0",
            "processes": 2,
        }
        assert (line["wanted"], line["release"], line["starts"]) == (1, None, False)


async def test_a_round_without_all_hosts_begins_after_a_delay(tmp_path: Path) -> None:
    async with elastic(tmp_path, resume_delay_seconds=0.2) as job:
        await job.join("n2")
        await job.join("n4")
        await job.enter(1, "n2", "n4")


async def test_a_noticed_member_parks_and_the_others_keep_their_order(tmp_path: Path) -> None:
    """Its ranks cannot agree on a step, so the round changes at once; a withdrawal lets it back in at the end."""
    async with training(tmp_path) as job:
        await job.agents["n1"].notices("n1")
        await job.enter(2, "n2", "n3", "n4")
        parked = await job.members["n1"].lines.matching(type="rendezvous", wanted=2)
        assert (parked["round"], parked["release"]) == (None, None)
        assert await job.members["n1"].says(waits=True) == PeerRefusal(200, None)
        await job.agents["n1"].notices("n1", revision=2, withdrawn=True)
        await job.enter(3, "n2", "n3", "n4", "n1")


async def test_a_lost_member_is_left_out_and_its_successor_joins(tmp_path: Path) -> None:
    async with training(tmp_path) as job:
        job.members["n3"].end()
        await job.enter(2, "n1", "n2", "n4")
        job.members["n3"].member = "another"
        await job.join("n3")
        await job.enter(3, "n1", "n2", "n4", "n3")


async def test_a_frozen_member_is_left_out(tmp_path: Path) -> None:
    """It finds its stream ended when it goes on, and waits for the next round."""
    async with training(tmp_path) as job:
        job.members["n2"].freeze()
        await job.enter(2, "n1", "n3", "n4")
        assert await job.members["n2"].lines.matching(type="goodbye")


async def test_a_connection_that_returns_at_once_changes_nothing(tmp_path: Path) -> None:
    async with training(tmp_path) as job:
        member = job.members["n2"]
        member.lines.close()
        await member.connect()
        line = await member.round(1)
        await member.says(ready=1)
        assert line["wanted"] == 1
        assert job.round.number == 1


async def test_failed_workers_start_again_together_with_the_others(tmp_path: Path) -> None:
    async with training(tmp_path) as job:
        assert await job.members["n4"].says(waits=True, failed=True) == PeerRefusal(200, None)
        await job.enter(2, *NODES)


async def test_parked_members_are_released_once_training_has_ended(tmp_path: Path) -> None:
    """Nobody forms another round then, although members leave one by one."""
    async with training(tmp_path) as job:
        await job.agents["n1"].notices("n1")
        await job.enter(2, "n2", "n3", "n4")
        assert await job.members["n1"].says(waits=True) == PeerRefusal(200, None)
        for host in ("n2", "n3", "n4"):
            assert await job.members[host].says(ended=True) == PeerRefusal(200, None)
        await job.members["n1"].lines.matching(type="rendezvous", release=0)
        assert job.round.number == 2


async def test_ranks_that_agree_hold_before_the_members_change(tmp_path: Path) -> None:
    """All stop at one step; the next round comes when each of them holds, and not before."""
    async with training(tmp_path, agreement_timeout_seconds=30.0) as job:
        ranks = await job.trains(AGREES)
        await job.agents["n1"].notices("n1")
        committed = await _commit(ranks, "rendezvous")
        assert committed["directive"] == "STOP"
        for rank in ranks[1:]:
            await _answers(rank, committed, "held")
        assert job.round.number == 1
        await _answers(ranks[0], committed, "held")
        await job.enter(2, "n2", "n3", "n4")
        assert job.served.job("job").decision.agreement is None


async def test_a_rank_that_never_holds_delays_the_change_until_the_last_moment(tmp_path: Path) -> None:
    async with training(tmp_path, agreement_timeout_seconds=30.0, leave_margin_seconds=1.0) as job:
        ranks = await job.trains(AGREES)
        await job.agents["n1"].notices("n1", left=4.0)
        await _commit(ranks, "rendezvous")
        await job.enter(2, "n2", "n3", "n4")


async def test_ranks_that_regroup_keep_their_processes(tmp_path: Path) -> None:
    """A noticed member leaves; when it may return, its processes start first, and join once they are ready."""
    async with training(tmp_path, agreement_timeout_seconds=30.0) as job:
        ranks = await job.trains(REGROUPS)
        await job.agents["n1"].notices("n1")
        committed = await _commit(ranks, "regroup")
        assert committed["directive"] != "STOP"
        for rank in ranks:
            await _answers(rank, committed, "held")
        await job.enter(2, "n2", "n3", "n4", ready=2)
        assert job.round.in_process
        assert await job.members["n1"].says(waits=True) == PeerRefusal(200, None)
        await job.agents["n1"].notices("n1", revision=2, withdrawn=True)
        await job.members["n1"].lines.matching(type="rendezvous", wanted=2, starts=True)
        for number, process in enumerate(ranks):
            process.who = {**process.who, "rank": number - 1 if number else None, "world_size": 3}
            assert await process.reports("rank", committed) == PeerRefusal(200, None)
        assert await job.members["n1"].says(waits=False, started=True) == PeerRefusal(200, None)
        committed = await _commit(ranks[1:], "regroup")
        for rank in ranks[1:]:
            await _answers(rank, committed, "held")
        await job.enter(3, "n2", "n3", "n4", "n1", ready=3, started=False)
        assert job.round.in_process


async def test_survivors_of_a_lost_member_regroup_at_once(tmp_path: Path) -> None:
    """Without an agreement: some of the ranks are gone."""
    async with training(tmp_path) as job:
        await job.trains(REGROUPS)
        job.members["n4"].end()
        await job.enter(2, "n1", "n2", "n3", ready=2)
        assert job.round.in_process


async def test_a_member_whose_processes_failed_joins_again(tmp_path: Path) -> None:
    """The others do not wait for it."""
    async with training(tmp_path) as job:
        await job.trains(REGROUPS)
        assert await job.members["n4"].says(waits=True, failed=True) == PeerRefusal(200, None)
        await job.enter(2, "n1", "n2", "n3", ready=2)
        await job.members["n4"].lines.matching(type="rendezvous", wanted=2, starts=True)


async def test_processes_that_do_not_regroup_are_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second round is entered before they end, however busy the machine is.
    monkeypatch.setattr("supervisor.decide.rendezvous.READY_SECONDS", 4.0)
    async with training(tmp_path) as job:
        await job.trains(REGROUPS)
        job.members["n4"].end()
        await job.enter(2, "n1", "n2", "n3")
        await job.enter(3, "n1", "n2", "n3")
        assert not job.round.in_process


async def test_a_supervisor_that_is_started_again_leaves_the_members_alone(tmp_path: Path) -> None:
    async with training(tmp_path) as job:
        held, token = job.round, job.token
        states = {host: member.state for host, member in job.members.items()}
        await job.served.stop()
    async with serving(tmp_path) as served:
        again = Elastic(served, {}, job.launcher, token)
        for host in NODES:
            await again.join(host, **states[host])
        line = await again.members["n1"].round(1)
        assert line["wanted"] == 1
        assert again.round == held


async def test_members_that_formed_a_round_without_a_supervisor_keep_it(tmp_path: Path) -> None:
    async with elastic(tmp_path) as job:
        known = {"number": 7, "hosts": ["n4", "n2"], "in_process": False}
        for host in ("n2", "n4"):
            await job.join(host, waits=False, round=7, known=known)

        async def taken_over() -> bool:
            held = job.served.job("job").decision.round
            return held is not None and (held.number, held.hosts) == (7, ("n4", "n2"))

        await until(taken_over, "the supervisor knows the round")


async def test_malformed_states_are_refused(tmp_path: Path) -> None:
    async with training(tmp_path) as job:
        member = job.members["n1"]
        for field, value in (("processes", 0), ("round", -1), ("store", {"round": 1}), ("waits", "yes")):
            before = member.state[field]
            assert await member.says(**{field: value}) == PeerRefusal(400, "malformed")
            member.state[field] = before
        older = {"member": "member-on-n1", "host": "n1", "run": None, "state": member.state, "revision": 0}
        assert await job.served.peers.post("/v1/rendezvous/report", job.token, older) == PeerRefusal(
            409, "older_revision"
        )


async def _stage(lines: Lines, answer: str) -> dict[str, Any]:
    """The next line that asks for this answer."""
    while True:
        line: dict[str, Any] = await lines.matching(type="directive")
        agreement = line["agreement"]
        if agreement is not None:
            is_poll, is_committed = agreement["step"] is None, agreement["committed"]
            stage = "declined" if is_poll else "committed" if is_committed else "accepted"
            if stage == answer:
                return line


async def _commit(ranks: Sequence[ProcessPeer], purpose: str) -> dict[str, Any]:
    """The line with the commit, after all ranks have agreed to it."""
    for answer in ("declined", "accepted", "committed"):
        for rank in ranks:
            line = await _stage(rank.lines, answer)
            assert line["agreement"]["purpose"] == purpose
            await _answers(rank, line, answer)
    return line


async def _answers(rank: ProcessPeer, line: Mapping[str, Any], answer: str) -> None:
    agreement = line["agreement"]
    fields = {
        "epoch": agreement["epoch"],
        "purpose": agreement["purpose"],
        "at_step": agreement["step"],
        "answer": answer,
        "step_seconds": 0.05,
    }
    step = 100 if agreement["step"] is None else agreement["step"] - 1
    assert await rank.reports("agreement", line, **{**fields, "step": step}) == PeerRefusal(200, None)


async def test_a_job_that_takes_the_name_of_an_earlier_one_gets_its_first_round(tmp_path: Path) -> None:
    """Although the earlier one had reached a later run, and its members and processes still have streams."""
    async with training(tmp_path) as earlier:
        served, known = earlier.served, earlier.served.job("job")
        later = served.peers.tokens.process("job", known.uid, 3)
        await earlier.launcher.reports(run=3)
        old = await served.peers.process(later, "n4", 0, **REGROUPS)
        stale = await served.peers.member(later, "n3")
        await stale.lines.any()
        await earlier.launcher.reports(running=False, result="succeeded")
        new = Elastic(served, earlier.agents, *await _running(served, instance="instance-2"))
        for host in NODES:
            await new.join(host)
        await new.enter(1, *NODES)
        assert await stale.lines.matching(type="goodbye")
        assert await old.lines.matching(type="goodbye")
        refused = PeerRefusal(404, "unknown_job")
        assert await stale.says(ended=True) == refused
        assert await old.reports("left", {"run": 3, "generation": 1}) == refused
        processes = await new.trains(REGROUPS)
        assert (await processes[0].lines.matching(type="directive"))["directive"] == "RUN"
        assert len(served.processes.workers(served.job("job").id)) == len(NODES)
