"""The supervisor's own decisions about one job, from facts that a simulation supplies."""

from collections.abc import Iterable
from dataclasses import replace

from supervisor.decide.directives import JobDirectives, order_for
from supervisor.decide.grant import grants
from supervisor.decide.notices import apply_report
from supervisor.decide.plan import plan
from supervisor.decide.policy import Policy
from supervisor.decide.ranks import NO_COSTS, Ranks
from supervisor.decide.registration import LauncherFacts, Registration, acknowledge, observe, register
from supervisor.decide.situation import JobFacts, Members, RankZero
from supervisor.decide.urgency import NodeIdentities, noticed_hosts
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import Acknowledgement, Framework, Spec
from supervisor.domain.notice import Announcement, ReclaimNotice, Report, Subject, SubjectKind
from supervisor.domain.order import Order, ProcessDirective, Worker
from supervisor.goodput.model import GoodputCase

_JOB = JobName("job")
_SOURCE = Source("metadata")
_RANK_ZERO = Host("rank zero's")
"""None of the hosts that go: if its host goes, another process is rank 0."""
_MOST_PASSES = 20


class RestlessError(AssertionError):
    """The decisions about one moment do not come to rest."""


class Decider:
    """One job and its notices, which only functions of the product change. `hosts` are there from the start."""

    def __init__(
        self, case: GoodputCase, framework: Framework, hosts: Iterable[Host], now: float, policy: Policy
    ) -> None:
        spec = Spec(
            framework=framework,
            min_workers=case.least,
            max_workers=case.most,
            requested_workers=case.most,
        )
        nothing_yet = LauncherFacts(revision=0, hosts=frozenset(), run=0, running=False)
        hello = Registration(name=_JOB, uid=_JOB, launcher=_JOB, instance=_JOB, spec=spec, report=nothing_yet)
        self.job = register(None, hello, live=False, now=now)
        self.wake_at: float | None = None
        self._policy = policy
        self._costs = NO_COSTS
        self._connected = set(hosts)
        self._notices: dict[Host, ReclaimNotice] = {}
        self.noticed: dict[Host, ReclaimNotice] = {}

    def report_host(self, host: Host, seconds_left: float | None, now: float) -> None:
        """The agent of a host reports that there is no notice, or how much time one leaves."""
        self._connected.add(host)
        if seconds_left is None:
            return
        self._apply(host, _noticed(host, self._next_revision(host), seconds_left), now)

    def withdraw(self, host: Host, now: float) -> None:
        """The agent of a host reports that its notice was withdrawn: the host stays."""
        withdrawn = replace(_noticed(host, self._next_revision(host), None), announcement=Announcement.WITHDRAWN)
        self._apply(host, withdrawn, now)

    def _next_revision(self, host: Host) -> int:
        known = self._notices.get(host)
        return 1 if known is None else known.revision + 1

    def _apply(self, host: Host, report: Report, now: float) -> None:
        known = apply_report(self._notices.get(host), report, now, self._policy)
        if known is not None:
            self._notices[host] = known
        self._find_noticed()

    def remove(self, host: Host) -> None:
        """A host is gone."""
        self._connected.discard(host)
        self._notices.pop(host, None)
        self._find_noticed()

    def _find_noticed(self) -> None:
        self.noticed = noticed_hosts(self._notices.values(), NodeIdentities(), self._policy)

    def report(self, report: LauncherFacts, answer: Acknowledgement | None) -> None:
        """The launcher reports, and so does rank 0 if it has answered a STOP."""
        self.job = observe(self.job, _JOB, _JOB, report)
        if answer is not None:
            self.job = acknowledge(self.job, self._rank_zero, answer) or self.job

    def decide(self, rank_zero: RankZero, ranks: Ranks, members: Members, now: float) -> None:
        """Plans until nothing changes.

        Raises:
            RestlessError: Something always changes.
        """
        ranks = replace(ranks, known_costs=self._costs)
        self._costs = ranks.costs
        for _ in range(_MOST_PASSES):
            planned = plan(self.job, self._facts(rank_zero, ranks, members), now, self._policy)
            self.wake_at = planned.wake_at
            if planned.decision == self.job.decision:
                return
            self.job = replace(self.job, decision=planned.decision)
        raise RestlessError(self.job.decision.reason)

    def _facts(self, rank_zero: RankZero, ranks: Ranks, members: Members) -> JobFacts:
        available = frozenset(self._connected.difference(self.noticed))
        granted = grants([self.job], available, self.noticed).get(_JOB, frozenset())
        own = {host: notice for host, notice in self.noticed.items() if host in self.job.own_hosts}
        return JobFacts(notices=own, granted=granted, rank_zero=rank_zero, ranks=ranks, members=members)

    def order(self) -> Order:
        """What the launcher is told."""
        return order_for(self.job)

    def directive(self) -> ProcessDirective:
        """What rank 0 is told."""
        return JobDirectives.of(self.job, self.noticed, self._policy).directive(self._rank_zero)

    @property
    def _rank_zero(self) -> Worker:
        return Worker("rank 0", self.job.id, self.job.observed.run, _RANK_ZERO, 0)


def _noticed(host: Host, revision: int, seconds_left: float | None) -> Report:
    return Report(
        source=_SOURCE,
        subject=Subject(SubjectKind.NODE, host, host),
        session=1,
        revision=revision,
        announcement=Announcement.ACTIVE,
        seconds_left=seconds_left,
    )
