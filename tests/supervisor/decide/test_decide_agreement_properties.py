"""Whatever ranks answer, and whoever leads: a step is committed only if all accepted it, and no epoch returns."""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.directives import JobDirectives
from supervisor.decide.plan import plan
from supervisor.decide.ranks import Ranks, RankState
from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, StepAnswer
from supervisor.domain.ids import Host
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.order import ProcessDirectiveKind, Worker
from tests.supervisor.decide.agreement_builders import BOTH, SIZE, stopping_for
from tests.supervisor.decide.decide_builders import POLICY, T0, noticed, running_job, spec
from tests.testkit.properties import examples

RANKS = st.integers(0, SIZE - 1)


@dataclass
class NegotiationScene:
    """A job with four ranks, what they have said, and the rules that hold at every moment."""

    collective: bool
    job: SupervisedJob = field(default_factory=lambda: running_job(spec(SIZE, SIZE), SIZE))
    now: float = T0
    since: float = T0
    noticed: bool = True
    states: dict[int, RankState] = field(default_factory=dict)
    consents: dict[tuple[int, int | None], set[int]] = field(default_factory=dict)
    known: list[Agreement] = field(default_factory=list)

    def connect(self, rank: int) -> None:
        state = RankState(process=f"p{rank}", rank=rank, purposes=BOTH, world_size=SIZE, collective=self.collective)
        self.states.setdefault(rank, state)

    def disconnect(self, rank: int) -> None:
        self.states.pop(rank, None)

    def restart(self) -> None:
        """Another leader: what the ranks have said is lost."""
        self.states, self.since = {}, self.now

    def answer(self, rank: int, kind: AnswerKind, step: int, back: int) -> None:
        """A rank answers the present agreement or an earlier one."""
        if rank not in self.states or back >= len(self.known):
            return
        agreement = self.known[-1 - back]
        answer = StepAnswer(epoch=agreement.epoch, at_step=agreement.step, kind=kind, step=step, at=self.now)
        self.states[rank] = replace(self.states[rank], answer=answer, step_seconds=0.1)
        if kind is AnswerKind.ACCEPTED:
            self.consents.setdefault((agreement.epoch, agreement.step), set()).add(rank)

    def happens(self, event: tuple[object, ...]) -> None:
        match event:
            case "connect", int(rank):
                self.connect(rank)
            case "disconnect", int(rank):
                self.disconnect(rank)
            case ("restart",):
                self.restart()
            case "notice", bool(there):
                self.noticed = there
            case "answer", int(rank), AnswerKind() as kind, int(step), int(back):
                self.answer(rank, kind, step, back)
            case "all", AnswerKind() as kind:
                for rank in range(SIZE):
                    self.answer(rank, kind, 100, 0)
            case "wait", float(seconds):
                self.now += seconds

    def think(self) -> None:
        facts = stopping_for(self.states.values(), since=self.since)
        facts = replace(facts, ranks=Ranks(tuple(self.states.values())), notices=facts.notices if self.noticed else {})
        before = self.job.decision
        planned = plan(self.job, facts, self.now, POLICY)
        self.job = replace(self.job, decision=planned.decision)
        again = plan(self.job, facts, self.now, POLICY)
        assert (again.decision, again.wake_at) == (planned.decision, planned.wake_at)
        assert planned.wake_at is None or planned.wake_at > self.now
        self._follows(before.agreement, planned.decision.agreement)
        self._tells()

    def _follows(self, before: Agreement | None, after: Agreement | None) -> None:
        if after is None or after == before:
            return
        last = max((each.epoch for each in self.known), default=0)
        is_same_attempt = before is not None and before.epoch == after.epoch
        assert after.epoch > last or is_same_attempt, "an epoch is used once"
        assert self.job.decision.epochs >= after.epoch
        self.known.append(after)
        if after.committed:
            assert before == replace(after, committed=False, since=before.since if before else 0.0)
            assert self.consents[after.epoch, after.step] == set(range(SIZE)), "all have accepted it"

    def _tells(self) -> None:
        """All ranks are told the same, and to stop together only after a commit."""
        directives = JobDirectives.of(self.job, noticed(), POLICY)
        told = [directives.directive(Worker(f"p{rank}", self.job.id, 1, Host("n1"), rank)) for rank in range(SIZE)]
        assert len({each.agreement for each in told}) == 1
        decision = self.job.decision
        if decision.phase is Phase.STOPPING and decision.agreed_stop is not None:
            assert {each.kind for each in told} == {ProcessDirectiveKind.STOP}
        elif decision.agreement is not None and not (decision.stop and decision.stop.everyone):
            assert ProcessDirectiveKind.STOP not in {each.kind for each in told}


EVENTS = st.one_of(
    st.tuples(st.just("connect"), RANKS),
    st.tuples(st.just("disconnect"), RANKS),
    st.tuples(st.just("restart")),
    st.tuples(st.just("notice"), st.booleans()),
    st.tuples(st.just("answer"), RANKS, st.sampled_from(AnswerKind), st.integers(0, 200), st.integers(0, 2)),
    st.tuples(st.just("all"), st.sampled_from([AnswerKind.ACCEPTED, AnswerKind.DECLINED])),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 2.0, 10.0, 100.0])),
)


@examples(300)
@given(st.booleans(), st.lists(EVENTS, max_size=40))
def test_a_step_is_committed_only_if_all_accepted_it(collective: bool, events: list[tuple[object, ...]]) -> None:  # noqa: FBT001
    """Under loss, late answers to earlier attempts, ranks that come and go, and leaders that change."""
    scene = NegotiationScene(collective)
    for rank in range(SIZE):
        scene.connect(rank)
    scene.think()
    for event in events:
        scene.happens(event)
        scene.think()
    assert all(each.purpose is Purpose.STOP for each in scene.known)
