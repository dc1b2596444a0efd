"""Properties of jobs whose operator makes the hosts, under any order of events."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.grant import joining_workers, startable_workers, takes_any_size, usable_workers
from supervisor.decide.plan import Plan, plan
from supervisor.decide.registration import acknowledge
from supervisor.decide.situation import JobFacts, RankZero
from supervisor.decide.urgency import deadline_of
from supervisor.domain.ids import Host
from supervisor.domain.job import (
    ELASTIC,
    Acknowledgement,
    AcknowledgementKind,
    Decision,
    OnLoss,
    Phase,
    Result,
    SupervisedJob,
)
from supervisor.domain.notice import ReclaimNotice
from supervisor.domain.order import (
    AddHosts,
    LeaveHosts,
    RemoveHosts,
    SetHostList,
    StartRun,
    StopProcesses,
    SuspendRun,
    Worker,
)
from tests.supervisor.decide.decide_builders import POLICY, T0, first, notice, observing, spec, waiting_job
from tests.testkit.properties import examples

LAUNCHER = Host("launcher")
SIZE = 6
LIVE = (Phase.RUNNING, Phase.SHRINKING)


@dataclass(slots=True)
class OperatedWorld:
    """One job, its operator, and what the supervisor sees of both."""

    job: SupervisedJob
    now: float = T0
    notices: dict[Host, ReclaimNotice] = field(default_factory=dict)
    granted: frozenset[Host] = frozenset()
    rank_zero: RankZero = field(default_factory=partial(RankZero, connected=True, since=T0))
    below_since: float | None = None
    more: int = 0
    to_add: AddHosts | None = None

    def facts(self) -> JobFacts:
        notices = {host: each for host, each in self.notices.items() if host in self.job.own_hosts}
        more = 0 if self.job.decision.growing else self._more(self.job)
        return JobFacts(notices=notices, granted=self.granted, more=more, rank_zero=self.rank_zero)

    def _more(self, job: SupervisedJob) -> int:
        """How many of those that could be added make another size."""
        return joining_workers(len(job.decision.hosts), self.more, job.spec)

    def think(self) -> None:
        """Decides once, and checks that and that it would not decide otherwise a moment later."""
        before, facts = self.job, self.facts()
        planned = plan(before, facts, self.now, POLICY)
        after = replace(before, decision=planned.decision)
        again = plan(after, facts, self.now, POLICY)
        assert again.decision == planned.decision
        self._check(before, after, planned)
        self._grows_for_a_reason(before, after)
        self.to_add = next((action for action in planned.actions if isinstance(action, AddHosts)), None)
        self.job = after

    def _grows_for_a_reason(self, before: SupervisedJob, after: SupervisedJob) -> None:
        was, growth = before.decision.growth, after.decision.growth
        if growth is not None:
            assert after.decision.phase in LIVE
            assert before.decision.run == after.decision.run
        if growth is not None and growth.workers and growth != was:
            assert was is None or not was.workers
            assert after.decision.phase is Phase.RUNNING
            assert not after.decision.exclusions & self.notices.keys()
            assert not after.decision.hosts & self.notices.keys()
            assert growth.workers == len(after.decision.hosts) + self._more(after)
            assert was is None or self.now >= was.until

    def _check(self, before: SupervisedJob, after: SupervisedJob, planned: Plan) -> None:
        decision, observed = after.decision, after.observed
        if decision.phase in LIVE:
            assert observed.running or observed.exit_code == 0
            assert not observed.running or decision.hosts == observed.hosts
        assert decision.exclusions <= decision.hosts
        if decision.phase in (*LIVE, Phase.RESUMING):
            assert decision.exclusions <= self.notices.keys() or not takes_any_size(after.spec)
        if decision.phase in LIVE and observed.running and not self._too_few(after):
            used = len(decision.hosts - decision.exclusions)
            assert usable_workers(used, after.spec) == used, "every size is one that the job can have"
        self._stops_for_a_reason(before, after)
        if (before.decision.phase, decision.phase) == (Phase.WAITING, Phase.SUSPENDED):
            assert observed.launcher_lost_since is not None
            assert self.now >= observed.launcher_lost_since + POLICY.launcher_grace_seconds
        self._acts_for_a_reason(after, planned)
        if decision.phase is Phase.RESUMING and before.decision.phase is not Phase.RESUMING:
            assert before.decision.phase is Phase.SUSPENDED
            assert decision.hosts == self.granted != frozenset()
            assert decision.run > max(before.decision.run, observed.run)

    def _stops_for_a_reason(self, before: SupervisedJob, after: SupervisedJob) -> None:
        observed, spec = before.observed, before.spec
        resuming = before.decision.phase is Phase.RESUMING
        hosts = before.decision.hosts & observed.hosts if resuming and not observed.running else observed.hosts
        few = not usable_workers(len(hosts - self.notices.keys()), spec)
        # None takes the place of one that leaves in the same change.
        few = few or (not takes_any_size(spec) and self._too_few(before))
        if after.decision.phase in (*LIVE, Phase.RESUMING) and self._too_few(after):
            self.below_since = self.below_since or self.now
        elif after.decision.phase is not Phase.STOPPING:
            self.below_since = None
        begun = after.decision.stop is not None and before.decision.stop is None
        if begun:
            lost = self.below_since is not None and self.now >= self.below_since + POLICY.lost_grace_seconds
            assert LAUNCHER in self.notices or few or lost

    def _too_few(self, job: SupervisedJob) -> bool:
        """Whether the hosts that a decided job uses make no size that it could have."""
        used = (job.decision.hosts & job.observed.hosts) - job.decision.exclusions - self.notices.keys()
        return not usable_workers(len(used), job.spec)

    def _acts_for_a_reason(self, after: SupervisedJob, planned: Plan) -> None:
        decision, observed = after.decision, after.observed
        for action in planned.actions:
            match action:
                case StartRun(run):
                    assert decision.phase in (Phase.RESUMING, Phase.STOPPING)
                    assert run == decision.run > observed.run
                case SuspendRun():
                    assert decision.phase is Phase.SUSPENDED
                case StopProcesses():
                    assert decision.stop is not None
                    assert decision.stop.everyone
                case SetHostList(hosts, exclusions):
                    assert (hosts, exclusions) == (decision.hosts, decision.exclusions)
                case AddHosts(run, workers, number, until):
                    assert (decision.phase, run) == (Phase.RUNNING, observed.run)
                    growth = decision.growing
                    assert growth is not None
                    assert (growth.workers, growth.number, growth.until) == (workers, number, until)
                    assert observed.applied >= decision.generation
                    assert len(decision.hosts) < workers
                    assert self.now < until
                case LeaveHosts(_, hosts):
                    self._go(hosts, decision, POLICY.margin_seconds)
                case RemoveHosts(_, hosts):
                    self._go(hosts, decision, POLICY.leave_margin_seconds)
        if after.over:
            assert planned.actions == ()

    def _go(self, hosts: frozenset[Host], decision: Decision, margin: float) -> None:
        assert hosts <= decision.exclusions & self.notices.keys()
        assert all(self.now >= deadline_of(self.notices[host], POLICY) - margin for host in hosts)

    # What may happen.

    def runs(self, workers: frozenset[Host]) -> None:
        """The operator has a run of these workers, another one if there was one before."""
        if not self.job.over and not self.job.observed.running:
            run = max(self.job.observed.run + 1, self.job.decision.run)
            self.job = observing(
                self.job, run=run, running=True, exit_code=None, launcher_lost_since=None, hosts=workers
            )

    def lists(self, workers: frozenset[Host]) -> None:
        if self.job.observed.running:
            self.job = observing(self.job, hosts=workers)

    def ends(self, code: int) -> None:
        if self.job.observed.running:
            self.job = observing(self.job, running=False, exit_code=code, hosts=first(SIZE))

    def loses_launcher(self) -> None:
        if not self.job.observed.running and self.job.observed.exit_code == 0:
            return
        self.ends(-9)
        since = self.job.observed.launcher_lost_since
        self.job = observing(self.job, launcher_lost_since=self.now if since is None else since)

    def obeys(self) -> None:
        if self.job.decision.phase is Phase.SUSPENDED:
            self.ends(-9)
            self.job = observing(self.job, launcher_lost_since=None)
        self.job = observing(self.job, applied=self.job.decision.generation)

    def answers(self) -> None:
        """Rank 0 has saved, if it was told to stop."""
        if (stop := self.job.decision.stop) is None:
            return
        worker = Worker("process", self.job.id, stop.run, Host("n1"), 0)
        answer = Acknowledgement(
            run=stop.run, generation=stop.generation, kind=AcknowledgementKind.SAVED, step=1, at=self.now
        )
        self.job = acknowledge(self.job, worker, answer) or self.job

    def noticed(self, number: int, left: float) -> None:
        """A worker's machine, or for 0 the launcher's, will be gone."""
        host = Host(f"n{number}") if number else LAUNCHER
        self.notices[host] = notice(number, left=left, seen=self.now)

    def spared(self, number: int) -> None:
        self.notices.pop(Host(f"n{number}") if number else LAUNCHER, None)

    def grants(self, count: int) -> None:
        """There is room for so many, or none for as many as it needs."""
        self.granted = first(startable_workers(count, self.job.spec))

    def could_add(self, count: int) -> None:
        """The operator could add so many, and nobody else waits for the room."""
        self.more = count

    def adds(self, count: int) -> None:
        """The operator has added some of what it was asked for; perhaps long after that."""
        if self.to_add is not None and self.job.observed.running:
            new = [Host(f"n{number}") for number in range(1, 20) if Host(f"n{number}") not in self.job.observed.hosts]
            self.job = observing(self.job, hosts=self.job.observed.hosts.union(new[:count]))

    def grows(self) -> None:
        """Room lasts until the operator is asked, which has its launcher's word."""
        self.more = 2
        for _ in range(2):
            self.think()
            self.passes(POLICY.growth_delay_seconds)
        self.obeys()
        self.think()

    def rank_zero_is(self, connected: bool) -> None:  # noqa: FBT001 - a state, and the only one
        """Rank 0's stream comes or goes."""
        self.rank_zero = RankZero(connected=connected, since=self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def is_over(self, result: Result) -> None:
        self.job = observing(self.job, result=self.job.observed.result or result)


Event = Callable[[OperatedWorld], None]
_NUMBERS = st.integers(1, 8)
_WORKERS = st.frozensets(_NUMBERS.map(lambda number: Host(f"n{number}")), min_size=1)


def _happening(what: Callable[..., None], **given_: st.SearchStrategy[object]) -> st.SearchStrategy[Event]:
    return st.builds(partial, st.just(what), **given_)


_EVENTS: st.SearchStrategy[Event] = st.one_of(
    _happening(OperatedWorld.runs, workers=_WORKERS),
    _happening(OperatedWorld.runs, workers=st.just(first(SIZE))),
    _happening(OperatedWorld.lists, workers=_WORKERS),
    _happening(OperatedWorld.ends, code=st.sampled_from([255, 1, -9, 0])),
    st.just(OperatedWorld.loses_launcher),
    st.just(OperatedWorld.obeys),
    st.just(OperatedWorld.obeys),
    st.just(OperatedWorld.answers),
    _happening(OperatedWorld.noticed, number=st.integers(0, 8), left=st.sampled_from([300.0, 120.0, 6.0, 1.0])),
    _happening(OperatedWorld.noticed, number=_NUMBERS, left=st.just(120.0)),
    _happening(OperatedWorld.spared, number=st.integers(0, 8)),
    _happening(OperatedWorld.grants, count=st.integers(0, SIZE)),
    _happening(OperatedWorld.could_add, count=st.integers(0, 3)),
    _happening(OperatedWorld.adds, count=st.integers(1, 3)),
    st.just(OperatedWorld.grows),
    _happening(OperatedWorld.rank_zero_is, connected=st.booleans()),
    _happening(OperatedWorld.passes, seconds=st.sampled_from([0.1, 1.25, 2.0, 5.0, 30.0, 120.0, 400.0])),
    _happening(OperatedWorld.passes, seconds=st.sampled_from([1.25, 5.0])),
    st.builds(
        lambda number, later: lambda world: _leaves_out(world, number, later),
        _NUMBERS,
        st.sampled_from([30.0, 100.0, 118.0]),
    ),
)


def _leaves_out(world: OperatedWorld, number: int, later: float) -> None:
    world.noticed(number, 120.0)
    world.think()
    world.passes(POLICY.window_seconds)
    world.think()
    world.obeys()
    world.think()
    world.passes(later)


@st.composite
def _worlds(draw: st.DrawFn) -> OperatedWorld:
    least = draw(st.integers(1, SIZE))
    asked = replace(
        spec(least, SIZE, max_wait=draw(st.sampled_from([0.0, 100.0]))),
        capabilities=ELASTIC,
        launcher_host=LAUNCHER,
        least_to_start=draw(st.sampled_from([least, SIZE])),
        on_loss=draw(st.sampled_from([OnLoss.SHRINK, OnLoss.SHRINK, OnLoss.HOLD])),
        worker_multiple=draw(st.sampled_from([1, 1, 2, 3])),
    )
    return OperatedWorld(waiting_job(asked))


@examples(200)
@given(world=_worlds(), events=st.lists(_EVENTS, min_size=5, max_size=30))
def test_an_operated_job_through_anything(world: OperatedWorld, events: list[Event]) -> None:
    """Every decision is sound; and when all is well again it runs, unless it waited too long or is over."""
    for event in events:
        event(world)
        world.think()
    world.notices.clear()
    world.grants(SIZE)
    world.could_add(0)
    for _ in range(40):
        phase = world.job.decision.phase
        if phase is Phase.STOPPING:
            world.answers()
        if phase in (Phase.WAITING, Phase.RESUMING):
            world.runs(first(SIZE))
        if world.job.observed.running:
            world.lists(first(SIZE))
        elif world.job.observed.exit_code == 0:
            world.is_over(Result.SUCCEEDED)
        world.obeys()
        world.passes(5.0)
        world.think()
    ends = (Phase.FINISHED, *([Phase.TIMED_OUT] if world.job.spec.max_wait_seconds else []))
    assert world.job.decision.phase in (Phase.RUNNING, *ends)
