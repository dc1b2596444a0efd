"""Which elastic agents of a torchrun job train together: what they are told, and what their reports cause."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

import supervisor.fanout.members
from supervisor.decide.situation import KnownRound, RoundStore
from supervisor.domain.agreement import AnswerKind, Purpose
from supervisor.domain.ids import Host
from supervisor.domain.job import Framework, Spec, SupervisedJob
from supervisor.domain.order import Worker
from supervisor.fanout.members import MemberId
from supervisor.fanout.processes import REPLACED
from tests.supervisor.decide.decide_builders import notice, observing, running_job
from tests.supervisor.fanout.fanout_decided import DecidedJob, ElasticMember
from tests.supervisor.fanout.fanout_streams import FakeStream

NUMBERS = (1, 2, 3, 4)
AGREES = frozenset({Purpose.STOP, Purpose.CHECKPOINT, Purpose.RENDEZVOUS})
REGROUPS = AGREES | {Purpose.REGROUP}
SPEC = Spec(framework=Framework.TORCHRUN, min_workers=2, requested_workers=4, max_workers=4)

JOINING_PAYS = 200.0
"""Seconds after which a restart of three hosts pays for a fourth one."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No member of these tests reports only to be heard, however long a busy machine takes for one."""
    monkeypatch.setattr("supervisor.fanout.members.SILENT_SECONDS", 3600.0)


class Elastic(DecidedJob):
    """A job of four members, of which it needs two; its ranks have a stream each once it trains."""

    def __init__(self, job: SupervisedJob | None = None) -> None:
        super().__init__(job or running_job(SPEC, 4))
        self.agents: dict[int, ElasticMember] = {}
        self.streams = dict[Worker, FakeStream]()

    def join(self, number: int, name: str = "", **says: Any) -> ElasticMember:
        self.agents[number] = agent = ElasticMember(self, number, name, **says)
        return agent

    def enter(self, number: int, *hosts: int, **says: Any) -> None:
        """The present round has these members in this order, and they enter it."""
        members = self.agents[hosts[0]].line["round"]["members"]
        assert [each["host"] for each in members] == [f"n{host}" for host in hosts]
        for host in hosts:
            self.agents[host].enters(number, **says)

    def train(self, purposes: frozenset[Purpose]) -> list[Worker]:
        """A process on each host, in order of their ranks."""
        for rank, number in enumerate(NUMBERS):
            worker = self.worker(number, rank)
            self.streams[worker] = self.connect(number, rank)
            self.states(worker, purposes=purposes, world_size=4)
        self.settle()
        return list(self.streams)

    def commit(self, ranks: Sequence[Worker], purpose: Purpose) -> None:
        """The ranks agree to a step for that purpose, up to the commit."""
        for kind in (AnswerKind.DECLINED, AnswerKind.ACCEPTED, AnswerKind.COMMITTED):
            agreement = self.decision.agreement
            assert agreement is not None
            assert (agreement.purpose, agreement.committed) == (purpose, kind is AnswerKind.COMMITTED)
            for rank in ranks:
                self.answers(rank, kind, (agreement.step or 101) - 1, step_seconds=0.05)
            self.settle()

    def hold(self, ranks: Collection[Worker]) -> None:
        for rank in ranks:
            assert self.decision.agreement is not None
            self.answers(rank, AnswerKind.HELD, self.decision.agreement.step or 0)
        self.settle()


def training() -> Elastic:
    """A job whose members are all in round 1."""
    job = Elastic()
    for number in NUMBERS:
        job.join(number)
    job.enter(1, *NUMBERS)
    return job


async def test_the_first_round_has_all_hosts_in_order() -> None:
    """And the address of the store, as soon as its first member has opened it."""
    job = Elastic()
    for number in reversed(NUMBERS):
        job.join(number)
    job.enter(1, *NUMBERS)
    line = job.agents[3].line
    assert line["round"]["store"] == {"address": "127.0.0.1", "port": 4001}
    assert line["round"]["members"][1] == {"member": "member-on-n2", "host": "n2", "address": "n2:0", "processes": 2}
    assert (line["wanted"], line["release"], line["starts"]) == (1, None, False)


async def test_a_round_without_all_hosts_begins_after_a_delay() -> None:
    job = Elastic()
    for number in (2, 4):
        job.join(number)
    job.passes(job.policy.resume_delay_seconds - 0.1)
    assert job.decision.round is None
    job.passes(0.2)
    job.enter(1, 2, 4)


async def test_a_noticed_member_parks_and_the_others_keep_their_order() -> None:
    """Its ranks cannot agree on a step, so the round changes at once; a withdrawal lets it back in at the end."""
    job = training()
    job.notes(notice(1))
    job.enter(2, 2, 3, 4)
    parked = job.agents[1].line
    assert (parked["wanted"], parked["round"], parked["release"]) == (2, None, None)
    job.agents[1].says(waits=True)
    job.notes()
    job.passes(JOINING_PAYS)
    job.enter(3, 2, 3, 4, 1)


async def test_a_lost_member_is_left_out_and_its_successor_joins() -> None:
    job = training()
    lost = job.agents[3]
    job.members.detach(lost.id, lost.stream)
    await lost.is_gone()
    job.enter(2, 1, 2, 4)
    job.join(3, "another")
    job.passes(JOINING_PAYS)
    job.enter(3, 1, 2, 4, 3)


async def test_a_frozen_member_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds its stream ended when it goes on, and waits for the next round."""
    job = training()
    monkeypatch.setattr("supervisor.fanout.members.SILENT_SECONDS", 0.01)
    job.agents[2].says()
    await job.agents[2].is_gone()
    job.enter(2, 1, 3, 4)
    assert job.agents[2].stream.goodbye == "silent"


async def test_a_connection_that_returns_at_once_changes_nothing() -> None:
    job = training()
    agent = job.agents[2]
    job.members.detach(agent.id, agent.stream)
    agent.connect()
    agent.says(ready=1)
    assert (agent.line["wanted"], agent.line["round"]["number"], job.round.number) == (1, 1, 1)


async def test_failed_workers_start_again_together_with_the_others() -> None:
    job = training()
    job.agents[4].says(waits=True, failed=True)
    job.enter(2, *NUMBERS)


async def test_parked_members_are_released_once_training_has_ended() -> None:
    """Nobody forms another round then, although members leave one by one."""
    job = training()
    job.notes(notice(1))
    job.enter(2, 2, 3, 4)
    job.agents[1].says(waits=True)
    for number in (2, 3, 4):
        assert job.agents[1].line["release"] is None
        job.agents[number].says(ended=True)
    assert (job.agents[1].line["release"], job.round.number) == (0, 2)


async def test_ranks_that_agree_hold_before_the_members_change() -> None:
    """All stop at one step; the next round comes when each of them holds, and not before."""
    job = training()
    ranks = job.train(AGREES)
    job.notes(notice(1))
    job.commit(ranks, Purpose.RENDEZVOUS)
    assert {stream.lines[-1]["directive"] for stream in job.streams.values()} == {"STOP"}
    job.hold(ranks[1:])
    assert job.round.number == 1
    job.hold(ranks[:1])
    job.enter(2, 2, 3, 4)
    assert job.decision.agreement is None


async def test_a_rank_that_never_holds_delays_the_change_until_the_last_moment() -> None:
    job = training()
    ranks = job.train(AGREES)
    job.notes(notice(1, left=20.0))
    job.commit(ranks, Purpose.RENDEZVOUS)
    job.passes(20.0 - job.policy.leave_margin_seconds - job.policy.window_seconds - 0.5)
    assert job.round.number == 1
    job.passes(0.5)
    job.enter(2, 2, 3, 4)


async def test_ranks_that_regroup_keep_their_processes() -> None:
    """A noticed member leaves; when it may return, its processes start first, and join once they are ready.

    Its place is then the one at which the others keep most of their parts of the state.
    """
    job = training()
    ranks = job.train(REGROUPS)
    job.notes(notice(1))
    job.commit(ranks, Purpose.REGROUP)
    assert "STOP" not in {stream.lines[-1]["directive"] for stream in job.streams.values()}
    job.hold(ranks)
    job.enter(2, 2, 3, 4, ready=2)
    assert job.round.in_process
    job.agents[1].says(waits=True)
    job.notes()
    assert (job.agents[1].line["wanted"], job.agents[1].line["starts"]) == (2, True)
    for number, worker in enumerate(ranks):
        moved = replace(worker, rank=number - 1 if number else None)
        assert job.processes.update(moved, None)
        job.states(moved, world_size=3)
    job.agents[1].says(waits=False, started=True)
    job.commit(ranks[1:], Purpose.REGROUP)
    job.hold(ranks[1:])
    job.enter(3, 2, 3, 1, 4, ready=3, started=False)
    assert job.round.in_process


async def test_the_members_of_the_round_that_may_follow_hear_of_it_while_the_ranks_agree() -> None:
    """With its store, which its first member opens meanwhile. So they are connected when all ranks hold."""
    job = training()
    ranks = job.train(REGROUPS)
    job.notes(notice(1))
    assert job.decision.agreement is not None
    following, epoch = job.agents[2].line["following"], job.decision.agreement.epoch
    assert (following["number"], following["in_process"], following["epoch"]) == (2, True, epoch)
    assert [each["host"] for each in following["members"]] == ["n2", "n3", "n4"]
    assert following["store"] is job.agents[1].line["following"] is None
    job.agents[2].says(following_store=RoundStore(2, "127.0.0.1", 5000))
    job.commit(ranks, Purpose.REGROUP)
    assert job.agents[4].line["following"] == {**following, "store": {"address": "127.0.0.1", "port": 5000}}
    job.hold(ranks)
    assert job.agents[4].line["following"] is None
    assert job.agents[4].line["round"]["store"] == {"address": "127.0.0.1", "port": 5000}
    job.enter(2, 2, 3, 4, ready=2)


async def test_a_store_that_was_opened_early_is_not_that_of_a_round_with_new_processes() -> None:
    """Its first member opens another one for these."""
    job = training()
    job.train(AGREES)
    job.agents[1].says(following_store=RoundStore(2, "127.0.0.1", 5000))
    lost = job.agents[4]
    job.members.detach(lost.id, lost.stream)
    await lost.is_gone()
    line = job.agents[2].line["round"]
    assert (line["number"], line["in_process"], line["store"]) == (2, False, None)
    job.enter(2, 1, 2, 3)
    assert job.agents[2].line["round"]["store"] == {"address": "127.0.0.1", "port": 4002}


async def test_a_report_that_changes_no_line_costs_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a thousand members says that it is ready. A line for each of the others would be a million."""
    job = training()
    told: list[Host] = []
    encode = supervisor.fanout.members._message

    def encoding(of: SupervisedJob, what: Any, to: MemberId) -> Any:
        told.append(to.host)
        return encode(of, what, to)

    monkeypatch.setattr(supervisor.fanout.members, "_message", encoding)
    for number in NUMBERS:
        job.agents[number].says(ready=1)
    assert told == []
    job.agents[1].says(store=RoundStore(1, "127.0.0.1", 5000))
    assert sorted(told) == ["n1", "n2", "n3", "n4"]
    assert {agent.line["round"]["store"]["port"] for agent in job.agents.values()} == {5000}


async def test_a_line_that_could_not_be_made_is_made_at_the_next_report(monkeypatch: pytest.MonkeyPatch) -> None:
    job = training()
    with monkeypatch.context() as broken:
        broken.delattr(supervisor.fanout.members, "_message")
        job.agents[1].says(store=RoundStore(1, "127.0.0.1", 5000))
    assert job.agents[2].line["round"]["store"]["port"] == 4001
    job.agents[3].says(ready=1)
    assert job.agents[2].line["round"]["store"]["port"] == 5000


async def test_nothing_follows_a_round_whose_processes_are_restarted() -> None:
    job = training()
    job.train(AGREES)
    job.notes(notice(1))
    assert job.decision.agreement is not None
    assert {agent.line["following"] for agent in job.agents.values()} == {None}


async def test_survivors_of_a_lost_member_regroup_at_once() -> None:
    """Without an agreement: some of the ranks are gone."""
    job = training()
    job.train(REGROUPS)
    lost = job.agents[4]
    job.members.detach(lost.id, lost.stream)
    await lost.is_gone()
    job.enter(2, 1, 2, 3, ready=2)
    assert job.round.in_process


async def test_a_member_whose_processes_failed_joins_again() -> None:
    """The others do not wait for it."""
    job = training()
    job.train(REGROUPS)
    job.agents[4].says(waits=True, failed=True)
    job.enter(2, 1, 2, 3, ready=2)
    assert (job.agents[4].line["wanted"], job.agents[4].line["starts"]) == (2, True)


async def test_processes_that_do_not_regroup_are_restarted() -> None:
    job = training()
    job.train(REGROUPS)
    lost = job.agents[4]
    job.members.detach(lost.id, lost.stream)
    await lost.is_gone()
    job.enter(2, 1, 2, 3)
    job.passes(19.0)
    assert (job.round.number, job.round.in_process) == (2, True)
    job.passes(1.1)
    job.enter(3, 1, 2, 3)
    assert not job.round.in_process


async def test_a_supervisor_that_is_started_again_leaves_the_members_alone() -> None:
    job = training()
    again = job.started_again()
    agents = [again.join(number, state=job.agents[number].state) for number in NUMBERS]
    again.passes(60.0)
    assert [agent.line["wanted"] for agent in agents] == [1] * 4
    assert again.round == job.round


async def test_members_that_formed_a_round_without_a_supervisor_keep_it() -> None:
    job = Elastic().started_again()
    known = KnownRound(number=7, hosts=(Host("n4"), Host("n2")))
    for number in (2, 4):
        job.join(number, waits=False, round=7, known=known)
    assert (job.round.number, job.round.hosts) == (7, ("n4", "n2"))


async def test_a_job_that_takes_the_name_of_an_earlier_one_gets_its_first_round() -> None:
    """Although the earlier one had reached a later run, and its members and processes still have streams."""
    job = training()
    job.job = observing(replace(job.job, decision=replace(job.decision, run=3)), run=3)
    job.train(REGROUPS)
    stale, processes = job.join(3), list(job.streams.values())
    job.streams.clear()
    new = running_job(SPEC, 4)
    job.job = replace(new, uid="another", observed=replace(new.observed, registered_at=new.observed.registered_at + 60))
    for number in NUMBERS:
        job.join(number)
    job.enter(1, *NUMBERS)
    assert {stale.stream.goodbye, *(stream.goodbye for stream in processes)} == {REPLACED}
    job.train(REGROUPS)
    assert {stream.lines[-1]["directive"] for stream in job.streams.values()} == {"RUN"}
    assert len(job.processes.workers(job.job.id)) == len(NUMBERS)
