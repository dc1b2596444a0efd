"""A simulated job whose ranks agree with a supervisor on a step, and everything that can happen to it meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from unittest import mock

from kubeai.elastic import monitor
from kubeai.elastic.messages import StepPurpose

from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host
from supervisor.domain.job import Decision
from supervisor.domain.notice import NoticeClass
from tests.agreement.agreement_network import DelayedStream, Network, Timeline, Weather
from tests.agreement.agreement_rank import SimulatedRank
from tests.agreement.agreement_supervisor import DecisionStore, Notices, Supervisor
from tests.supervisor.decide.decide_builders import notice, noticed, observing, running_job, spec

_LOST_SECONDS = 3.0
"""When the launcher notices that a process of the run has died."""


class Happening(Enum):
    """What happens at some moment, to one rank or to the supervisor."""

    NOTICE = "a host will be reclaimed"
    WITHDRAWAL = "no host will be reclaimed any more"
    HINT = "a checkpoint is asked for"
    STUCK = "a rank does not finish its step for some time"
    FROZEN = "a process does nothing for some time"
    CUT = "nothing comes through to a rank for some time"
    BROKEN = "a rank's stream breaks"
    DEATH = "a rank dies"
    KILLED = "the supervisor is killed, and another one is there after some time"
    REPLACED = "another supervisor takes the lead"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementEvent:
    """Something that happens at an instant; `seconds` is how long it lasts, or the lead of a notice."""

    at: float
    what: Happening
    rank: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedTraining:
    """A job: its ranks, and how they train. In `lockstep` no rank finishes a step before all have begun it."""

    ranks: int
    step_seconds: float
    save_seconds: float = 0.5
    lockstep: bool = True
    collective: bool = True
    arbiter: bool = True


class AgreementWorld:
    """Runs a job. `decisions` are all that were stored, in order."""

    def __init__(self, training: AgreedTraining, weather: Weather, policy: Policy = Policy()) -> None:  # noqa: B008 - frozen
        self.timeline = Timeline()
        self.decisions: list[Decision] = []
        self._training = training
        self._network = Network(self.timeline, weather)
        self._policy = policy
        self._notices = Notices({}, {})
        size = training.ranks
        job = running_job(replace(spec(size, size, requested=size)), size)
        job = observing(job, registered_at=0.0)
        self._store = DecisionStore(job, lambda _, after: self.decisions.append(after))
        self._supervisor = self._new_supervisor()
        self.ranks = [
            SimulatedRank(number, size, self._network, self, collective=training.collective) for number in range(size)
        ]
        self._ready: set[int] = set()
        self._saving: dict[StepPurpose, set[int]] = {purpose: set() for purpose in StepPurpose}
        self._stuck_until = [0.0] * size
        self._outcomes: dict[int, bool] = {}

    @property
    def decision(self) -> Decision:
        return self._store.job.decision

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return not self._store.job.observed.running

    def run(self, events: Sequence[AgreementEvent], until: float) -> None:
        """Lets everything happen until the run has ended, at most `until`."""
        with mock.patch.object(monitor, "time", self.timeline):
            for event in events:
                self.timeline.after(event.at, lambda event=event: self._happen(event))  # type: ignore[misc]
            for rank in self.ranks:
                rank.start()
                self._begin_step(rank)
            self.timeline.run(until, lambda: self.is_over)

    # What ranks need of it.

    def connect(
        self, rank: SimulatedRank, hello: Mapping[str, Any], opened: Callable[[], None]
    ) -> DelayedStream | None:
        """Opens a stream to the supervisor; None if that is impossible now."""
        if not self._supervisor.is_alive or not rank.is_reachable:
            return None
        stream = DelayedStream(self._network, rank.receive, rank.lost)
        supervisor = self._supervisor

        def arrive() -> None:
            if supervisor.is_alive and stream.is_open:
                stream.accept(opened)
                supervisor.attach(hello, stream)
            else:
                stream.cut()

        self.timeline.after(self._network.delay(), arrive)
        return stream

    def deliver(self, rank: SimulatedRank, body: Mapping[str, Any]) -> bool:
        """Brings a report to the supervisor; False if that is impossible now."""
        if not self._supervisor.is_alive or self.timeline.now < rank.cut_until:
            return False
        self._supervisor.report(body)
        return True

    def arbitrate(self, epoch: int, *, go_through: bool) -> bool | None:
        """What the ranks' own store says: the first one decides. None: they have no store."""
        return self._outcomes.setdefault(epoch, go_through) if self._training.arbiter else None

    def is_ready(self, rank: SimulatedRank) -> None:
        """Begins the next step of a rank: in lockstep, when all ranks can."""
        if not self._training.lockstep:
            self._begin_step(rank)
            return
        self._ready.add(rank.number)
        if len(self._ready) == len(self.ranks):
            self._ready.clear()
            for each in self.ranks:
                self._begin_step(each)

    def begins_save(self, rank: SimulatedRank, purpose: StepPurpose) -> None:
        """Saves a checkpoint: together, if one rank alone cannot."""
        together = self._saving[purpose]
        together.add(rank.number)
        seconds = self._training.save_seconds
        if not self._training.collective:
            together.clear()
            self.timeline.after(seconds, rank.finish_save)
        elif len(together) == len(self.ranks):
            together.clear()
            for each in self.ranks:
                self.timeline.after(seconds, each.finish_save)

    # What happens to it.

    def _begin_step(self, rank: SimulatedRank) -> None:
        now, seconds = self.timeline.now, self._training.step_seconds
        pace = 1.0 if self._training.lockstep else 1.0 + rank.number / 4
        skew = self._network.random.uniform(0.0, seconds / 4)
        stuck = max(0.0, self._stuck_until[rank.number] - now)
        self.timeline.after(stuck + pace * seconds + skew, rank.finish_step)

    def _happen(self, event: AgreementEvent) -> None:
        rank, until = self.ranks[event.rank % len(self.ranks)], self.timeline.now + event.seconds
        match event.what:
            case Happening.NOTICE:
                seen = notice(rank.number + 1, left=event.seconds, seen=self.timeline.now)
                self._notices.acted_on.update(noticed(seen))
            case Happening.WITHDRAWAL:
                self._notices.acted_on.clear()
            case Happening.HINT:
                hint = replace(notice(1, left=None, seen=self.timeline.now), notice_class=NoticeClass.HINT)
                self._notices.ahead[Host("n1")] = [hint]
            case Happening.STUCK:
                self._stuck_until[rank.number] = until
            case Happening.FROZEN:
                rank.frozen_until = until
            case Happening.CUT:
                rank.cut_until = until
                rank.cut()
            case Happening.BROKEN:
                rank.cut()
            case Happening.DEATH:
                self._die(rank)
            case Happening.KILLED | Happening.REPLACED:
                self._supervisor.kill()
                self.timeline.after(event.seconds if event.what is Happening.KILLED else 0.0, self._succeed)
        self._supervisor.think()

    def _succeed(self) -> None:
        if not self._supervisor.is_alive:
            self._supervisor = self._new_supervisor()
            self._supervisor.think()

    def _die(self, rank: SimulatedRank) -> None:
        rank.is_dead = True
        rank.cut()

        def end() -> None:
            self._store.job = observing(self._store.job, running=False, exit_code=1)

        self.timeline.after(_LOST_SECONDS, end)

    def _new_supervisor(self) -> Supervisor:
        return Supervisor(self._store, self._notices, self._network, self._policy)
