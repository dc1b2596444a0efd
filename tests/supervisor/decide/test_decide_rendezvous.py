"""Rounds of a torchrun job: members that do as they are told, and whatever happens to them in whatever order."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.grant import usable_workers
from supervisor.decide.ranks import ChangeCosts, Ranks, RankState
from supervisor.decide.situation import RETURN_SECONDS, JobFacts, Member, Members, RankZero
from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, Round, StepAnswer
from supervisor.domain.ids import Host
from supervisor.domain.job import Framework, Phase, Spec, SupervisedJob
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    decide,
    first,
    notice,
    noticed,
    obeyed,
    running_job,
    seeing,
)
from tests.testkit.properties import examples

SIZE = 6
_SAYS_SECONDS = 0.2
HOSTS = sorted(first(SIZE))
AGREE = {
    "alone": frozenset[Purpose](),
    "restart": frozenset({Purpose.RENDEZVOUS}),
    "in process": frozenset({Purpose.RENDEZVOUS, Purpose.REGROUP}),
}
SPEC = Spec(framework=Framework.TORCHRUN, min_workers=2, max_workers=SIZE, requested_workers=SIZE, worker_multiple=2)


class RendezvousWorld:
    """A job of six hosts that needs two and takes multiples of two; one rank on each host."""

    def __init__(self, mode: str) -> None:
        self.purposes = AGREE[mode]
        self.now = 0.0
        self.job: SupervisedJob = running_job(SPEC, SIZE)
        self.notices = noticed()
        self.members = {host: self._member(host) for host in HOSTS}
        self.answers: dict[Host, StepAnswer] = {}
        self.rounds: list[Round] = []
        self.since = 0.0
        self.are_ranks_silent = False
        self.are_ranks_connected = True
        self.have_ended = False
        self.slow = frozenset[Host]()
        self.saving = frozenset[Host]()
        self.joined: dict[Host, float] = {}
        self.wasted: list[Host] = []
        """Hosts whose agents have ended processes that were still starting."""
        self.starting = frozenset[Host]()
        self.foretold = dict[int, Round | None]()
        """By the epoch of the attempt to agree on a step, the round that was to follow."""
        self.costs = ChangeCosts()
        self.policy = POLICY

    @property
    def phase(self) -> Phase:
        return self.job.decision.phase

    @property
    def can_train(self) -> set[Host]:
        return {host for host in self.members if host not in self.notices}

    def notice(self, host: Host) -> None:
        if len(self.can_train - {host}) >= SPEC.min_workers:
            self.notices |= noticed(notice(int(host[1:]), seen=T0 + self.now))

    def withdraw(self, host: Host) -> None:
        self.notices.pop(host, None)

    def lose(self, host: Host) -> None:
        if len(self.can_train - {host}) >= SPEC.min_workers:
            self.members.pop(host, None)

    def replace(self, host: Host) -> None:
        """Another agent on this host, whether its predecessor was lost or not."""
        self.members[host] = self._member(host)

    def fail(self, host: Host) -> None:
        found = self.members.get(host)
        if found is not None and found.round and not found.waits:
            self.members[host] = replace(found, waits=True, failed=True, started=False)

    def settle(self, seconds: float = 400.0) -> None:
        """Lets everybody do as they are told until nothing changes any more."""
        end = self.now + seconds
        while self.now < end:
            before = (self.job, dict(self.members), dict(self.answers))
            planned = decide(self.job, self._facts(), self.now, self.policy)
            self.job = obeyed(planned.job)
            self._note()
            self._obey()
            if before == (self.job, self.members, self.answers):
                wake = planned.plan.wake_at
                if wake is None or wake - T0 > end:
                    return
                self.now = max(wake - T0, self.now + 0.001)

    @property
    def held(self) -> Round:
        assert self.job.decision.round is not None
        return self.job.decision.round

    def _facts(self) -> JobFacts:
        held = self.job.decision.round
        hosts = HOSTS if held is None else held.hosts
        states = tuple(
            RankState(
                process=host,
                rank=hosts.index(host),
                purposes=self._purposes(host),
                world_size=len(hosts),
                answer=self.answers.get(host),
                step_seconds=0.1,
            )
            for host in hosts
            if host in self.members and not self.members[host].failed
        )
        facts = replace(seeing(self.notices), members=Members(self.members, self.have_ended), since=T0 + self.since)
        if not self.are_ranks_connected:
            return replace(facts, rank_zero=RankZero(connected=False, since=facts.since))
        return replace(facts, ranks=Ranks(states, known_costs=self.costs)) if self.purposes else facts

    def _obey(self) -> None:
        held, agreement = self.job.decision.round, self.job.decision.agreement
        for host, each in list(self.members.items()):
            if held is not None:
                told = self.members[host] = _told(each, held, host, is_slow=host in self.slow)
                if host in self.starting and told.waits and not each.waits and each.member not in held.members:
                    self.wasted.append(host)
                if each.started and each.member in held.members and each.round != held.number:
                    self.joined[host] = self.now
            if agreement is not None and held is not None and host in held.hosts and not self.are_ranks_silent:
                self.answers[host] = _answer(agreement, T0 + self.now, saves=host in self.saving)
        self.starting = frozenset() if held is None else frozenset(held.starting)

    def _purposes(self, host: Host) -> frozenset[Purpose]:
        """A process that has just joined the others has not said yet that it agrees to steps."""
        return self.purposes if self.now >= self.joined.get(host, -_SAYS_SECONDS) + _SAYS_SECONDS else frozenset()

    def _note(self) -> None:
        """Keeps each round, and checks that it may follow the one before, and that its attempt foretells one round."""
        held, agreement = self.job.decision.round, self.job.decision.agreement
        if agreement is not None:
            foretold = self.foretold.setdefault(agreement.epoch, agreement.following)
            assert agreement.following == foretold
            assert (foretold is not None) == (agreement.purpose is Purpose.REGROUP)
            assert foretold is None or held is None or foretold.number == held.number + 1
        if held is None or (self.rounds and self.rounds[-1].number == held.number):
            assert held is None or self.rounds[-1].members == held.members
            return
        assert usable_workers(len(held.hosts), SPEC) == len(held.hosts)
        assert len(set(held.hosts)) == len(held.hosts) == len(held.members)
        if self.rounds:
            before, after = set(self.rounds[-1].members), set(held.members)
            assert held.number > self.rounds[-1].number
            there = {each.member for each in self.members.values() if not each.failed}
            is_intact = before <= there or before <= after or before >= after
            assert not held.in_process or is_intact, "members join while others are lost"
            first = self.rounds[-1].hosts[0]
            assert first not in held.hosts or held.hosts[0] == first, "another one becomes the first"
        self.rounds.append(held)

    def _member(self, host: Host) -> Member:
        known = self.members.get(host) if hasattr(self, "members") else None
        name = f"{host}-{0 if known is None else int(known.member.split('-')[1]) + 1}-{self.now}"
        return Member(member=name, since=T0 + self.now, processes=1, address=f"{host}:0", waits=True)


def _told(each: Member, held: Round, host: Host, *, is_slow: bool) -> Member:
    """A member after it has done what it was told about that round."""
    if each.member in held.members:
        if each.round == held.number or (held.in_process and each.waits):
            return each
        return replace(each, round=held.number, waits=False, failed=False, started=False, ready=held.number)
    if host in held.starting:
        return replace(each, waits=False, failed=False, started=not is_slow)
    return replace(each, waits=True, started=False)


def _answer(agreement: Agreement, at: float, *, saves: bool) -> StepAnswer:
    if agreement.step is None:
        kind = AnswerKind.DECLINED
    elif not agreement.committed:
        kind = AnswerKind.ACCEPTED
    else:
        kind = AnswerKind.REACHED if saves else AnswerKind.HELD
    return StepAnswer(epoch=agreement.epoch, at_step=agreement.step, kind=kind, step=agreement.step or 100, at=at)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                RendezvousWorld.notice,
                RendezvousWorld.withdraw,
                RendezvousWorld.lose,
                RendezvousWorld.replace,
                RendezvousWorld.fail,
            ]
        ),
        st.sampled_from(HOSTS),
        st.sampled_from([0.0, 0.001, 0.5, 5.0, 60.0]),
    ),
    max_size=12,
)


@pytest.mark.parametrize("mode", AGREE)
@examples(100)
@given(events=EVENTS)
def test_the_members_that_can_train_do_whatever_happens(
    mode: str, events: list[tuple[Callable[[RendezvousWorld, Host], None], Host, float]]
) -> None:
    """All rules for what may follow a round hold, and in the end nothing is left to be done."""
    world = RendezvousWorld(mode)
    world.settle()
    for event, host, seconds in events:
        event(world, host)
        world.settle(seconds)
    world.settle()
    assert world.phase is Phase.RUNNING
    assert world.job.decision.agreement is None
    assert set(world.held.hosts) <= world.can_train
    assert len(world.held.hosts) == usable_workers(len(world.can_train), SPEC)
    assert not any(world.members[host].waits for host in world.held.hosts)


def _agreed(world: RendezvousWorld) -> Mapping[Host, StepAnswer]:
    return {host: answer for host, answer in world.answers.items() if answer.kind is not AnswerKind.DECLINED}


@pytest.mark.parametrize("mode", ["restart", "in process"])
def test_an_announced_leave_waits_for_the_ranks(mode: str) -> None:
    world = RendezvousWorld(mode)
    world.settle()
    world.notice(HOSTS[1])
    world.notice(HOSTS[4])
    world.settle()
    assert _agreed(world)
    assert world.held.hosts == (HOSTS[0], HOSTS[2], HOSTS[3], HOSTS[5])
    *_, foretold = world.foretold.values()
    if foretold is not None:
        assert (foretold.members, foretold.hosts) == (world.held.members, world.held.hosts)
    assert [each.in_process for each in world.rounds] == [False, mode == "in process"]


def test_hosts_that_come_back_one_after_another_restart_nobody() -> None:
    """Processes that have just joined agree to nothing yet; until they do, those of the next host go on starting."""
    world = RendezvousWorld("in process")
    world.settle()
    for host in HOSTS[2:]:
        world.notice(host)
    world.settle()
    for host in HOSTS[2:]:
        world.withdraw(host)
    world.slow = frozenset(HOSTS[4:])
    world.settle(1.0)
    assert {*world.held.hosts} == {*HOSTS[:4]}
    world.slow = frozenset()
    world.settle()
    assert {*world.held.hosts} == {*HOSTS}
    assert [each.in_process for each in world.rounds] == [False, True, True, True]


def test_a_loss_long_after_a_change_in_process_restarts_nobody() -> None:
    """The lost member had entered the round; its absence does not mean that the round was never entered."""
    world = RendezvousWorld("in process")
    world.settle()
    world.notice(HOSTS[4])
    world.notice(HOSTS[5])
    world.settle()
    assert world.held.in_process
    world.now += 60.0
    world.lose(HOSTS[3])
    world.settle()
    assert [each.in_process for each in world.rounds] == [False, True, True]


@pytest.mark.parametrize("change", ["another joins", "another leaves", "another is lost"])
def test_a_start_is_not_thrown_away_when_the_others_change(change: str) -> None:
    """With changes more frequent than a start, whose import of torch alone takes 20 s, a host would never join."""
    world = RendezvousWorld("in process")
    world.settle()
    for host in HOSTS[2:]:
        world.notice(host)
    world.settle()
    world.slow = frozenset(HOSTS[4:])
    for host in HOSTS[2:] if change == "another joins" else HOSTS[4:]:
        world.withdraw(host)
    world.settle(1.0)
    if change == "another leaves":
        world.withdraw(HOSTS[2])
        world.withdraw(HOSTS[3])
        world.settle(60.0)
        world.notice(HOSTS[2])
        world.notice(HOSTS[3])
    elif change == "another is lost":
        world.withdraw(HOSTS[2])
        world.withdraw(HOSTS[3])
        world.settle(60.0)
        world.lose(HOSTS[2])
    world.settle(60.0)
    assert len(world.rounds) > 2
    assert set(world.held.starting) >= set(HOSTS[4:])
    assert not set(world.wasted) & set(HOSTS[4:])


@pytest.mark.parametrize(
    ("mode", "left", "returned"),
    [("restart", (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)), ("in process", (1, 3, 4, 2), (1, 5, 3, 4, 6, 2))],
)
def test_processes_that_are_not_restarted_are_ordered_by_their_parts_of_the_state(
    mode: str, left: tuple[int, ...], returned: tuple[int, ...]
) -> None:
    """A half of it moves, and then a third, instead of three quarters. Others load a checkpoint, in any order."""
    world = RendezvousWorld(mode)
    world.settle()
    world.notice(HOSTS[4])
    world.notice(HOSTS[5])
    world.settle()
    assert world.held.hosts == tuple(f"n{number}" for number in left)
    world.withdraw(HOSTS[4])
    world.withdraw(HOSTS[5])
    world.settle()
    assert world.held.hosts == tuple(f"n{number}" for number in returned)


def test_after_a_loss_the_others_keep_their_order() -> None:
    """A part of the state is lost, so none moves; and nobody knows any more how many ranks the lost host had."""
    world = RendezvousWorld("in process")
    world.settle()
    world.lose(HOSTS[4])
    world.lose(HOSTS[5])
    world.settle()
    assert world.held.in_process
    assert world.held.hosts == tuple(HOSTS[:4])


def test_ranks_that_cannot_agree_are_not_waited_for() -> None:
    world = RendezvousWorld("alone")
    world.settle()
    world.notice(HOSTS[1])
    world.notice(HOSTS[2])
    world.settle(5.0)
    assert world.held.hosts == (HOSTS[0], HOSTS[3], HOSTS[4], HOSTS[5])


def test_a_loss_does_not_interrupt_the_checkpoint_for_an_announced_leave() -> None:
    """Without it the other hosts would train all steps since an older checkpoint again."""
    world = RendezvousWorld("restart")
    world.settle()
    world.saving = frozenset(HOSTS[:1])
    world.notice(HOSTS[4])
    world.settle(3.0)
    world.lose(HOSTS[5])
    world.settle(3.0)
    assert world.held.number == 1
    world.saving = frozenset()
    world.settle()
    assert world.held.hosts == tuple(HOSTS[:4])


def test_rank_zero_is_not_waited_for_for_ever() -> None:
    world = RendezvousWorld("restart")
    world.settle()
    world.saving = frozenset(HOSTS[:1])
    world.notice(HOSTS[4])
    world.settle(3.0)
    world.lose(HOSTS[5])
    world.settle()
    assert world.held.hosts == tuple(HOSTS[:4])


def test_silent_ranks_are_not_waited_for_longer_than_the_time_out() -> None:
    world = RendezvousWorld("restart")
    world.settle()
    world.are_ranks_silent = True
    world.notice(HOSTS[1])
    world.notice(HOSTS[2])
    world.settle(5.0)
    assert world.held.number == 1
    world.settle(30.0)
    assert world.held.number == 2


@pytest.mark.parametrize("mode", AGREE)
def test_members_that_are_only_on_their_way_back_are_not_lost(mode: str) -> None:
    """A supervisor that was started just now has not heard of them yet."""
    world = RendezvousWorld(mode)
    world.settle(0.5)
    gone = {host: world.members.pop(host) for host in HOSTS[:4]}
    world.now = RETURN_SECONDS - 1.0
    world.settle(0.5)
    assert world.held.number == 1
    world.members |= gone
    world.settle()
    assert world.held.number == 1


@pytest.mark.parametrize("mode", ["restart", "in process"])
def test_ranks_that_are_on_their_way_back_still_hold_before_the_members_change(mode: str) -> None:
    """A supervisor that was started during an agreement may hear of all agents before it hears of a rank."""
    world = RendezvousWorld(mode)
    world.policy = replace(POLICY, just_in_time=False)
    world.settle()
    world.are_ranks_silent = True
    world.notice(HOSTS[1])
    world.notice(HOSTS[2])
    world.settle(3.0)
    assert world.job.decision.agreement is not None
    world.since, world.are_ranks_connected = world.now, False
    world.settle(1.0)
    assert world.held.number == 1
    world.are_ranks_silent, world.are_ranks_connected = False, True
    world.settle()
    assert _agreed(world)
    assert {*world.held.hosts} == {HOSTS[0], *HOSTS[3:]}


def test_ranks_that_do_not_come_back_are_not_waited_for_long() -> None:
    world = RendezvousWorld("restart")
    world.settle()
    world.are_ranks_connected = False
    world.notice(HOSTS[1])
    world.notice(HOSTS[2])
    world.settle(RETURN_SECONDS)
    assert world.held.number == 2


def test_a_job_with_too_few_members_stops_after_a_while() -> None:
    """Those that are left wait in a collective, or for a round, and keep their hosts for nothing."""
    world = RendezvousWorld("restart")
    world.settle()
    for host in HOSTS[1:]:
        del world.members[host]
    world.settle(POLICY.lost_grace_seconds / 2)
    assert (world.phase, world.held.number) == (Phase.RUNNING, 1)
    world.settle(POLICY.lost_grace_seconds * 2)
    assert world.phase is Phase.STOPPING


def test_members_that_end_one_after_another_form_no_other_round() -> None:
    world = RendezvousWorld("in process")
    world.settle()
    world.members[HOSTS[0]] = replace(world.members[HOSTS[0]], ended=True)
    world.have_ended = True
    world.settle(5.0)
    for host in HOSTS[:5]:
        del world.members[host]
        world.settle(100.0)
    assert (world.held.number, world.phase) == (1, Phase.RUNNING)
