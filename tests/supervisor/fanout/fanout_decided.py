"""A job whose decisions follow from the messages on its streams.

The fan-out and the rules are real; a test moves the time.
"""

from dataclasses import replace
from typing import Any, Self

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.decide.plan import plan
from supervisor.decide.policy import Policy
from supervisor.decide.situation import JobFacts, KnownRound, Member, RoundStore
from supervisor.domain.agreement import AnswerKind, Round, StepAnswer
from supervisor.domain.ids import Host
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.domain.order import Worker
from supervisor.fanout.members import MemberId, MemberStreams
from supervisor.fanout.ranks import Measurements, RankStates, Statement
from tests.supervisor.decide.decide_builders import POLICY, noticed, obeyed
from tests.supervisor.fanout.fanout_streams import FakeStream, JobStreams
from tests.testkit.waiting import until


class DecidedJob(JobStreams):
    """As `JobStreams`, with decisions in which its ranks and elastic agents take part, and an obedient launcher."""

    policy: Policy = POLICY

    def __init__(self, job: SupervisedJob) -> None:
        super().__init__()
        self.job = job
        self.since = 0.0
        self.due_at: float | None = None
        self.rank_states = RankStates(self.processes.workers, lambda _: self.decision.agreement, lambda _: None)
        self.members = MemberStreams(lambda _: self.job, lambda _: None, Bulkhead(Clock()))

    @property
    def decision(self) -> Decision:
        return self.job.decision

    @property
    def round(self) -> Round:
        assert self.decision.round is not None
        return self.decision.round

    def started_again(self) -> Self:
        """The job at another supervisor, which knows what is stored, and none of the streams."""
        again = type(self)(self.job)
        again.now = again.since = self.now
        again.notices = self.notices
        return again

    def settle(self) -> None:
        """Decides until nothing changes any more, and sends what has changed, as the control loop does."""
        for _ in range(50):
            planned = plan(self.job, self._facts(), self.now, self.policy)
            decided = obeyed(replace(self.job, decision=planned.decision))
            if decided == self.job:
                self.due_at = planned.wake_at
                return
            self.job = decided
            self.processes.refresh([self.job.name])
            self.members.refresh([self.job.name])
        raise AssertionError("the decisions do not come to an end")

    def passes(self, seconds: float) -> None:
        """Time passes, and each decision comes when it is due."""
        end = self.now + seconds
        self.settle()
        while self.due_at is not None and self.due_at <= end:
            self.now = max(self.due_at, self.now + 1e-6)
            self.settle()
        self.now = end

    def notes(self, *notices: ReclaimNotice) -> None:
        """These notices are the present ones, for longer than a group is collected."""
        self.notices = noticed(*notices)
        self.passes(self.policy.window_seconds + 0.1)

    def states(self, worker: Worker, **fields: Any) -> None:
        self.rank_states.put_statement(worker, Statement(**fields))

    def answers(self, worker: Worker, kind: AnswerKind, step: int, **measured: float) -> None:
        """A rank answers the present agreement."""
        agreement = self.decision.agreement
        assert agreement is not None
        answer = StepAnswer(epoch=agreement.epoch, at_step=agreement.step, kind=kind, step=step, at=self.now)
        self.rank_states.answered(worker, answer, Measurements(**measured))

    def _facts(self) -> JobFacts:
        present, run = self.decision.round, self.job.observed.run
        training = frozenset(present.hosts) if present is not None and present.run == run else None
        return JobFacts(
            notices=self.notices,
            rank_zero=self.processes.rank_zero(self.job.id, run),
            ranks=self.rank_states.of(self.job.id, run, training),
            members=self.members.of(self.job.id, run),
            since=self.since,
        )


class ElasticMember:
    """One elastic agent of a `DecidedJob`; it waits for a round."""

    def __init__(
        self, job: DecidedJob, number: int, name: str = "", *, state: Member | None = None, **says: Any
    ) -> None:
        self.host = Host(f"n{number}")
        self.job = job
        self.id = MemberId(job.job.id, job.job.observed.run, self.host, name or f"member-on-{self.host}")
        fresh = Member(member=self.id.member, since=job.now, processes=2, address=f"{self.host}:0", waits=True)
        self.state = replace(state or fresh, **says)
        self._revision = 0
        self.connect()

    @property
    def line(self) -> dict[str, Any]:
        """The last line that it got: the present state."""
        return self.stream.lines[-1]

    def connect(self) -> None:
        self.stream = FakeStream()
        self.job.members.attach(self.id, self.state, self.stream)
        self.job.settle()

    def says(self, **changes: Any) -> None:
        """Reports its state with these changes."""
        self.state = replace(self.state, **changes)
        self._revision += 1
        assert self.job.members.report(self.id, self.state, self._revision)
        self.job.settle()

    def enters(self, number: int, **says: Any) -> None:
        """Enters that round, which is its present one; the first member opens a store."""
        found = self.line["round"]
        assert found["number"] == number
        hosts = tuple(Host(each["host"]) for each in found["members"])
        store = RoundStore(number, "127.0.0.1", 4000 + number) if hosts[0] == self.host else None
        known = KnownRound(number=number, hosts=hosts)
        self.says(**{"round": number, "waits": False, "failed": False, "known": known, "store": store, **says})

    async def is_gone(self) -> None:
        """Waits until the supervisor has given it up."""
        await until(lambda: self.host not in self.job.members.of(self.id.job, self.id.run).by_host)
        self.job.settle()
