"""Notes when each job wanted workers and which hosts were there for it, as a listener of the journal."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from servicekit.clock import Clock
from supervisor.domain.capacity import MachinePool
from supervisor.domain.ids import Host, Instant, JobName, NoticeId
from supervisor.domain.job import Capability, Framework, OnLoss, Phase, SupervisedJob
from supervisor.domain.ledger import Account, HeldOn
from supervisor.domain.notice import NoticeClass, NoticeState, ReclaimNotice
from supervisor.domain.stays import HostStay, MeasuredCosts, WantedSpan
from supervisor.observability.journal import Change, JobChanged, JobForgotten, NoticeChanged, NoticedHosts
from supervisor.observability.ledger.accounts import workers_by_account
from supervisor.observability.ledger.hours import HOUR
from supervisor.observability.ledger.machines import HostMachines
from supervisor.observability.ledger.totals import PoolTotals

MAX_WAITING = 50_000
"""Spans and stays that wait for the database, about 20 MB."""

_UNKNOWN_POOL = MachinePool()

SpanKey = tuple[JobName, Instant]
StayKey = tuple[JobName, Host, Instant]
"""A job, and the beginning of one of its spans; the host as well of a stay."""


@dataclass(frozen=True, slots=True)
class StayChanges:
    """The spans and stays that have changed since they were written."""

    spans: Mapping[SpanKey, WantedSpan]
    stays: Mapping[StayKey, HostStay]


@dataclass(slots=True)
class _Wanting:
    """A job that wants workers. `machines` are those that its stays have their pools from."""

    job: SupervisedJob
    span: WantedSpan
    machines: Mapping[Host, HeldOn] = field(default_factory=dict)
    stays: dict[Host, HostStay] = field(default_factory=dict)
    notices: dict[Host, NoticeId] = field(default_factory=dict)


@dataclass(slots=True)
class StayBook:
    """The spans and stays of the time in which this supervisor leads, until they are written.

    Args:
        clock: Its instants are those of the changes that the journal reports.
        machines: Knows the machines of hosts.
        noticed: Returns the hosts of a job with a notice.
        costs: Returns what the processes of a job have measured.
        totals: Gets the hosts that went, by pool.
    """

    name = "stays"
    clock: Clock
    noticed: NoticedHosts = lambda _job: {}
    costs: Callable[[SupervisedJob], MeasuredCosts] = lambda _job: MeasuredCosts()
    machines: HostMachines = field(default_factory=lambda: HostMachines(Clock()))
    totals: PoolTotals = field(default_factory=PoolTotals)
    _jobs: dict[JobName, _Wanting] = field(default_factory=dict)
    _staying: defaultdict[Host, set[JobName]] = field(default_factory=lambda: defaultdict(set))
    _noticing: defaultdict[NoticeId, set[JobName]] = field(default_factory=lambda: defaultdict(set))
    _spans: dict[SpanKey, WantedSpan] = field(default_factory=dict)
    _stays: dict[StayKey, HostStay] = field(default_factory=dict)

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """Starts from the stored jobs and the hosts that they have."""
        for job in jobs:
            self._see(job, self.clock.now())

    def on_change(self, change: Change) -> None:
        match change:
            case JobChanged(before, after, at):
                self._see(after, at, restarts=0 if before is None else _restarts(before, after))
            case JobForgotten(before, at):
                self._end(before.name, at)
                self.machines.forget(before.name)
            case NoticeChanged(_, notice, at):
                # Of thousands of jobs, a notice concerns a few.
                names = self._noticing.get(notice.id, set()) | self._staying.get(Host(notice.subject.name), set())
                for wanting in [self._jobs[name] for name in sorted(names) if name in self._jobs]:
                    for host in [host for host, known in wanting.notices.items() if known == notice.id]:
                        self._hear(wanting, host, notice, at)
                    self._find_notices(wanting, at)
                if not notice.holds:
                    self._noticing.pop(notice.id, None)

    def waiting(self) -> StayChanges:
        """Extends the spans until now, and returns what has changed since it was written."""
        now = self.clock.now()
        for wanting in self._jobs.values():
            self._leave_overdue(wanting, now)
            self._extend(wanting, now)
            self._find_pools(wanting, now)
        if len(self._spans) + len(self._stays) > MAX_WAITING:
            self._drop(now)
        return StayChanges(dict(self._spans), dict(self._stays))

    def written(self, changes: StayChanges) -> None:
        """Hears that these were written. Those that have not changed meanwhile are forgotten."""
        self._spans = {key: span for key, span in self._spans.items() if changes.spans.get(key) != span}
        self._stays = {key: stay for key, stay in self._stays.items() if changes.stays.get(key) != stay}

    def _drop(self, now: Instant) -> None:
        """Drops the earliest of each job that has more than its share of what may go, half of the share at least.

        The present span of a job and the stays that go on are kept.
        """
        spans, stays = defaultdict[JobName, list[SpanKey]](list), defaultdict[JobName, list[StayKey]](list)
        present = {(name, wanting.span.begins) for name, wanting in self._jobs.items()}
        for span in self._spans.keys() - present:
            spans[span[0]].append(span)
        for key, stay in self._stays.items():
            if stay.ends is not None:
                stays[key[0]].append(key)
        going = sum(map(len, spans.values())) + sum(map(len, stays.values()))
        kept = len(self._spans) + len(self._stays) - going
        jobs = {*spans, *stays}
        share = max(0, MAX_WAITING - kept) // max(1, len(jobs))
        for name in jobs:
            ends = {key: self._stays[key].ends or now for key in stays[name]}
            instants = sorted([*(begins for _, begins in spans[name]), *ends.values()])
            if len(instants) <= share:
                continue
            until = instants[-share // 2 - 1]
            for span in [span for span in spans[name] if span[1] <= until]:
                del self._spans[span]
            for key in [key for key, end in ends.items() if end <= until]:
                del self._stays[key]
            # In a time without a span nothing is known, so a span goes in which a stay is missing.
            wanting = self._jobs.get(name)
            if wanting is not None and wanting.span.begins <= until:
                self._spans.pop((name, wanting.span.begins), None)
                wanting.span = replace(wanting.span, begins=now, ends=now, restarts=0)
                self._spans[name, now] = wanting.span

    def _see(self, job: SupervisedJob, at: Instant, restarts: int = 0) -> None:
        wanting = self._jobs.get(job.name)
        if not _wants(job):
            self._end(job.name, at)
            return
        if wanting is None:
            wanting = self._jobs[job.name] = _Wanting(job, _span(job, at))
        before, wanting.job = wanting.job, job
        wanting.span = replace(wanting.span, restarts=wanting.span.restarts + restarts)
        fresh = _span(job, at)
        if _sizes(fresh) != _sizes(wanting.span):
            self._extend(wanting, at)
            wanting.span = replace(fresh, costs=wanting.span.costs)
        self._spans[job.name, wanting.span.begins] = wanting.span
        if job.decision.phase is not before.decision.phase:
            self._measure(wanting)
        self._find_hosts(wanting, at)

    def _end(self, name: JobName, at: Instant) -> None:
        """The job wants no workers any more. What becomes of its hosts then is not its concern."""
        wanting = self._jobs.get(name)
        if wanting is None:
            return
        self._extend(wanting, at)
        for stay in [*wanting.stays.values()]:
            self._close(wanting, stay, at, gone=False)
        del self._jobs[name]

    def _extend(self, wanting: _Wanting, now: Instant) -> None:
        """Extends the span of a job. An hour that is over has a span of its own, so that it is kept and deleted whole.

        Where nothing is measured now, what was measured before holds.
        """
        self._measure(wanting)
        span = wanting.span
        while (end := (span.begins // HOUR + 1) * HOUR) < now:
            self._spans[wanting.job.name, span.begins] = replace(span, ends=end)
            span = replace(span, begins=end, restarts=0)
        wanting.span = self._spans[wanting.job.name, span.begins] = replace(span, ends=max(span.begins, now))

    def _measure(self, wanting: _Wanting) -> None:
        known, measured = wanting.span.costs, self.costs(wanting.job)
        wanting.span = replace(
            wanting.span,
            costs=MeasuredCosts(
                step_seconds=measured.step_seconds or known.step_seconds,
                checkpoint_seconds=measured.checkpoint_seconds or known.checkpoint_seconds,
                start_seconds=measured.start_seconds or known.start_seconds,
                change_seconds=measured.change_seconds or known.change_seconds,
            ),
        )

    def _find_hosts(self, wanting: _Wanting, at: Instant) -> None:
        """Compares the hosts of a job with those that were there before, and their notices."""
        noticed, listed = self.noticed(wanting.job.name), wanting.job.observed.hosts
        self._leave_overdue(wanting, at)
        for stay in list(_left(wanting, listed, at)):
            self._close(wanting, stay, at, gone=True)
        for host in sorted(listed - wanting.stays.keys()):
            if host not in noticed or noticed[host].state is not NoticeState.GONE:
                self._put(wanting, HostStay(host=host, begins=at, pool=_pool(wanting.machines.get(host))))
        self._find_pools(wanting, at)
        self._find_notices(wanting, at)

    def _find_pools(self, wanting: _Wanting, at: Instant) -> None:
        """Notes what has become known of the machines. Another machine under the same name begins another stay."""
        before, wanting.machines = wanting.machines, self.machines.of(wanting.job)
        if wanting.machines is before:
            return
        for host, on in wanting.machines.items():
            stay = None if on is before.get(host) else wanting.stays.get(host)
            if stay is None or (pool := _pool(on)) == stay.pool:
                continue
            if stay.pool is None or (pool is not None and pool.says(stay.pool)):
                self._put(wanting, replace(stay, pool=pool))
            else:
                self._close(wanting, stay, at, gone=False)
                self._put(wanting, HostStay(host=host, begins=max(at, stay.begins), pool=pool))

    def _find_notices(self, wanting: _Wanting, at: Instant) -> None:
        # An end is reported by itself: what is noticed at present may be later than the change that is heard of.
        for host, notice in self.noticed(wanting.job.name).items():
            if notice.holds:
                self._hear(wanting, host, notice, at)

    def _leave_overdue(self, wanting: _Wanting, now: Instant) -> None:
        """Ends the stays of hosts whose pods were deleted before the announced instant, once that has passed."""
        for stay in [*wanting.stays.values()]:
            if stay.host not in wanting.job.observed.hosts and stay.deadline is not None and stay.deadline <= now:
                self._close(wanting, stay, max(stay.begins, stay.deadline), gone=True)

    def _hear(self, wanting: _Wanting, host: Host, notice: ReclaimNotice, at: Instant) -> None:
        """Notes what a notice says of a host."""
        stay = wanting.stays.get(host)
        if stay is None:
            return
        ended = at if notice.ended_at is None else min(at, notice.ended_at)
        match notice.state:
            case NoticeState.GONE:
                self._close(wanting, stay, ended, gone=True)
            case NoticeState.ACTIVE:
                # One that is announced days ahead is one to act on from now on.
                sudden = notice.notice_class is NoticeClass.SUDDEN
                since = notice.first_seen if sudden else at
                wanting.notices[host] = notice.id
                self._noticing[notice.id].add(wanting.job.name)
                noticed = since if stay.noticed is None else stay.noticed
                self._put(wanting, replace(stay, noticed=noticed, deadline=notice.deadline))
            case _:
                self._stand(wanting, host, ended)

    def _stand(self, wanting: _Wanting, host: Host, at: Instant) -> None:
        """The notice of a host has ended, and the host stays."""
        stay = wanting.stays.get(host)
        if stay is not None and stay.noticed is not None:
            self._close(wanting, stay, max(at, stay.noticed), gone=False)
            self._put(wanting, HostStay(host=host, begins=max(at, stay.noticed), pool=stay.pool))
        wanting.notices.pop(host, None)

    def _put(self, wanting: _Wanting, stay: HostStay) -> None:
        if wanting.stays.get(stay.host) != stay:
            wanting.stays[stay.host] = self._stays[wanting.job.name, stay.host, stay.begins] = stay
            self._staying[stay.host].add(wanting.job.name)

    def _close(self, wanting: _Wanting, stay: HostStay, at: Instant, *, gone: bool) -> None:
        ended = replace(stay, ends=max(stay.begins, at), gone=gone)
        if gone:
            self.totals.add_gone(stay.pool or _UNKNOWN_POOL, noticed=stay.noticed is not None)
        self._stays[wanting.job.name, stay.host, stay.begins] = ended
        del wanting.stays[stay.host]
        self._staying[stay.host].discard(wanting.job.name)
        if not self._staying[stay.host]:
            del self._staying[stay.host]
        wanting.notices.pop(stay.host, None)


def _pool(on: HeldOn | None) -> MachinePool | None:
    """The pool of a machine; None if nothing is known of it."""
    return None if on is None or on.pool == _UNKNOWN_POOL else on.pool


def _wants(job: SupervisedJob) -> bool:
    held_back = {Account.QUEUED, Account.PAUSED}
    return bool(workers := workers_by_account(job)) and not held_back & workers.keys() and not job.held_back


def _span(job: SupervisedJob, at: Instant) -> WantedSpan:
    spec, following = job.spec, job.decision.round
    least = spec.requested_workers if spec.on_loss is OnLoss.HOLD else min(spec.min_workers, spec.requested_workers)
    in_rounds = spec.framework is not Framework.HOROVOD
    return WantedSpan(
        begins=at,
        ends=at,
        least=least,
        most=spec.requested_workers,
        in_process=not in_rounds or (following is not None and following.in_process),
        in_rounds=in_rounds,
    )


def _sizes(span: WantedSpan) -> tuple[int, int, bool, bool]:
    return span.least, span.most, span.in_process, span.in_rounds


def _restarts(before: SupervisedJob, after: SupervisedJob) -> int:
    """Counts the starts of all processes of a job after its first one that a change shows."""
    old, new = before.decision.round, after.decision.round
    is_run = after.observed.running and (not before.observed.running or after.observed.run != before.observed.run)
    is_round = new is not None and new.number > 1 and not new.in_process
    return int(is_run and after.observed.run > 1) + int(is_round and new != old)


def _left(wanting: _Wanting, listed: Collection[Host], at: Instant) -> Iterator[HostStay]:
    """Yields the stays of hosts that are gone, because they are not listed any more.

    A controller also deletes the pods of a job that stops, and those of a host that is to leave: then the host is there
    until the job runs again without it, or until the announced instant.
    """
    job = wanting.job
    makes_hosts = job.spec.can(Capability.MAKES_HOSTS)
    runs = job.observed.running and job.decision.phase in (Phase.RUNNING, Phase.SHRINKING)
    for host, stay in wanting.stays.items():
        is_early = stay.deadline is not None and at < stay.deadline
        if host not in listed and (not makes_hosts or (runs and not is_early)):
            yield stay
