"""A job whose hosts, stops and starts the supervisor decides on."""

import random
from collections import defaultdict
from collections.abc import Callable

from supervisor.decide.policy import Policy
from supervisor.decide.registration import LauncherFacts
from supervisor.domain.ids import Host
from supervisor.domain.job import Framework
from supervisor.domain.order import Order, OrderKind
from supervisor.goodput.decider import Decider
from supervisor.goodput.delays import Delays
from supervisor.goodput.model import GoodputCase, GoodputCosts, Score, Unused
from supervisor.goodput.processes import ProcessesState, RingOfProcesses
from supervisor.goodput.rounds import RingOfMembers
from supervisor.goodput.schedule import AddNode, KillNode, ScheduledNotice, Step, Withdraw
from supervisor.goodput.timeline import BEGIN, CapacityTimeline

_REASONS = {ProcessesState.TRAINING: "joining", ProcessesState.CHANGING: "changing", ProcessesState.BROKEN: "changing"}
_WITH_CHECKPOINTS = {**_REASONS, ProcessesState.CHECKPOINTING: "saving"}


def supervised(
    case: GoodputCase, costs: GoodputCosts, seed: int, delays: Delays | None = None, policy: Policy | None = None
) -> Score:
    """Simulates such a job, with the default settings of the supervisor or with others."""
    job = _SupervisedJob(case, costs, seed, delays or Delays(), policy or Policy())
    return job.run()


class _SupervisedJob:
    def __init__(self, case: GoodputCase, costs: GoodputCosts, seed: int, delays: Delays, policy: Policy) -> None:
        self._case, self._costs, self._delays = case, costs, delays
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._line = CapacityTimeline()
        self._present = {Host(node) for node in case.schedule.present}
        in_rounds = costs.in_rounds or not costs.in_process
        framework = Framework.TORCHRUN if in_rounds else Framework.HOROVOD
        self._decider = Decider(case, framework, self._present, self._line.now, policy)
        ring = RingOfMembers if in_rounds else RingOfProcesses
        self._ring = ring(case, costs, delays, self._line, self._present)
        self._launcher = _Launcher(self._ring, self._line, delays, self._chance)
        self._unused: defaultdict[str, float] = defaultdict(float)
        self._stopped = 0.0
        """The steps that were not made since training stopped; what stopped it is known when it goes on."""
        self._counted_at = self._line.now
        self._wakes_at: float | None = None

    def run(self) -> Score:
        for step in self._case.schedule.steps:
            self._line.after(step.at, _call(self._happens, step))
        self._line.after(0.0, _wake)
        self._line.run(self._case.schedule.seconds, self._advance, self._settle)
        self._count_stop()
        training, runs = self._ring.training, self._launcher.run
        return Score(
            useful=training.useful,
            steps_lost=training.steps_lost,
            restarts=max(0, runs - 1) + (0 if self._costs.in_process else self._ring.changes),
            unused=Unused(**self._unused, lost=self._ring.lost),
        )

    def _happens(self, step: Step) -> None:
        host = Host(step.node)
        match step:
            case AddNode():
                self._present.add(host)
                self._within_a_poll(self._see, host, None)
            case ScheduledNotice(at=at, lead=lead):
                self._within_a_poll(self._see, host, BEGIN + at + lead)
            case KillNode():
                self._present.discard(host)
                self._ring.lose(host)
                self._decider.remove(host)
            case Withdraw():
                self._within_a_poll(self._see_withdrawn, host)

    def _within_a_poll(self, do: Callable[..., None], *arguments: object) -> None:
        seconds = self._chance.uniform(0.0, self._delays.poll) + self._delays.wire
        self._line.after(seconds, _call(do, *arguments))

    def _see(self, host: Host, gone_at: float | None) -> None:
        """The agent of a host reports what its metadata say."""
        if host in self._present:
            left = None if gone_at is None else gone_at - self._line.now
            self._decider.report_host(host, left, self._line.now)

    def _see_withdrawn(self, host: Host) -> None:
        if host in self._present:
            self._decider.withdraw(host, self._line.now)

    def _settle(self) -> None:
        """Reports what is so, and passes on what is decided."""
        ring, decider = self._ring, self._decider
        decider.report(self._launcher.report(frozenset(self._present)), ring.acknowledgement)
        decider.decide(ring.rank_zero, ring.ranks, ring.members, self._line.now)
        self._launcher.order(decider.order())
        ring.hear(decider.job.decision, decider.directive())
        if decider.wake_at is not None and decider.wake_at != self._wakes_at:
            self._wakes_at = decider.wake_at
            self._line.at(decider.wake_at, _wake)

    def _advance(self) -> None:
        """Trains, and counts the possible steps that were not made since the last time."""
        ring = self._ring
        steps = (self._line.now - self._counted_at) / self._costs.step
        self._counted_at = self._line.now
        ring.training.advance(self._line.now)
        idle = self._case.possible(len(self._present)) - ring.training.workers
        left = len(self._present.intersection(self._decider.noticed).difference(ring.hosts))
        announced = min(idle, left) if ring.state in _REASONS else 0
        self._unused["announced"] += announced * steps
        unused = (idle - announced) * steps
        if ring.state is ProcessesState.TRAINING:
            self._count_stop()
        if reason := _WITH_CHECKPOINTS.get(ring.state):
            self._unused[reason] += unused
        else:
            self._stopped += unused

    def _count_stop(self) -> None:
        self._unused[self._ring.restarted_for] += self._stopped
        self._stopped = 0.0


class _Launcher:
    """Obeys the supervisor's orders, as `kubeai-run` does."""

    def __init__(self, ring: RingOfProcesses, line: CapacityTimeline, delays: Delays, chance: random.Random) -> None:
        self._ring, self._line, self._delays, self._chance = ring, line, delays, chance
        self.run = 0
        self._applied = 0
        self._ordered = 0
        self._revision = 0

    def report(self, hosts: frozenset[Host]) -> LauncherFacts:
        self._revision += 1
        return LauncherFacts(
            revision=self._revision,
            hosts=hosts,
            run=self.run,
            running=self._ring.is_running,
            applied=self._applied,
        )

    def order(self, order: Order) -> None:
        """Sends an order unless it is the last one that was sent."""
        if order.generation != self._ordered:
            self._ordered = order.generation
            self._line.after(self._delays.wire, lambda: self._obey(order))

    def _obey(self, order: Order) -> None:
        self._applied = order.generation
        listed = frozenset(order.hosts) - frozenset(order.exclusions)
        if order.kind is not OrderKind.RUN:
            self._ring.end()
        elif order.run > self.run:
            self.run = order.run
            self._ring.start(order.run, listed)
        else:
            self._line.after(self._chance.uniform(0.0, self._delays.discovery), lambda: self._read(order))

    def _read(self, order: Order) -> None:
        """The list is read, which is the last one that was written."""
        if order.generation == self._applied:
            self._ring.follow(frozenset(order.hosts) - frozenset(order.exclusions))


def _wake() -> None:
    """Nothing happens; the job is planned again."""


def _call(do: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: do(*arguments)
