"""Computes metrics at each scrape: the present state, and the capacity that suspended jobs release."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from servicekit.bulkhead import Bulkhead
from servicekit.metrics import LabelLimiter
from supervisor.decide.stopping import answers
from supervisor.domain.ids import JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.ledger import RUN, Account
from supervisor.domain.notice import NoticeState
from supervisor.ingest.agent_registry import SourceState, reclaimed
from supervisor.observability.hooks import Gpus, LiveState
from supervisor.observability.journal import SUSPENDED, Change, JobForgotten, NoticeChanged, first_loss
from supervisor.observability.metrics.pools import PoolMetrics
from supervisor.observability.metrics.table import counter_family, gauge_family, histogram
from supervisor.store.interface import Snapshot

_MAX_NAMESPACES = 200
_MAX_KINDS = 200
"""Combinations of cloud, zone, instance type and price class: agents name them."""


@dataclass(eq=False)
class StateCollector(Collector):
    """Serves the present state of a leader; `sources` limits the values of the label `source`."""

    live: LiveState
    sources: LabelLimiter
    bulkhead: Bulkhead
    pools: PoolMetrics
    _kinds: LabelLimiter = field(default_factory=lambda: LabelLimiter(_MAX_KINDS))
    _namespaces: LabelLimiter = field(default_factory=lambda: LabelLimiter(_MAX_NAMESPACES))

    def collect(self) -> Iterator[Metric]:
        snapshot = self.live.snapshot()
        jobs = snapshot.jobs.values()
        parts: Mapping[str, Callable[[], Iterator[Metric]]] = {
            "notices": partial(self._notices, snapshot),
            "agents": partial(self._agents, snapshot),
            "streams": self._streams,
            "jobs": partial(self._jobs, jobs),
            "coverage": partial(self._coverage, jobs),
            "ledger": self._ledger,
            "record": self._record,
            "pools": self.pools.collect,  # After the ledger, which has counted until now.
            "traces": self._traces,
            "notifications": lambda: iter([counter_family("notifications", sorted(self.live.notified.items()))]),
        }
        for name, part in parts.items():
            with self.bulkhead.guard("metrics", name):
                yield from list(part())  # All of a part or nothing, and what a scraper raises is not ours.

    def _notices(self, snapshot: Snapshot) -> Iterator[Metric]:
        active = [notice for notice in snapshot.notices.values() if notice.state is NoticeState.ACTIVE]
        counts = Counter((*self.sources.of(notice.source), notice.notice_class) for notice in active)
        yield gauge_family("active_notices", counts.items())
        yield gauge_family("unconfirmed_notices", [((), len(self.live.unconfirmed.all()))])

    def _agents(self, snapshot: Snapshot) -> Iterator[Metric]:
        known = self.live.agents.by_node
        agents = known.values()
        connected = sum(agent.connected for agent in agents)
        gone = len(reclaimed(snapshot.notices.values(), known, self.live.agents.silent_since))
        states = {"connected": connected, "unknown": len(agents) - connected - gone, "reclaimed": gone}
        yield gauge_family("agents", [((state,), count) for state, count in states.items()])
        machines = (self.live.machine(agent.node) for agent in agents if agent.connected)
        kinds = Counter(
            self._kinds.of(each.cloud, each.zone, each.instance_type, each.price_class) for each in machines
        )
        yield gauge_family("nodes", kinds.items())
        yield gauge_family("agents_sharing_uid", [((), len(self.live.agents.sharing()))])
        counts = Counter(
            (*self.sources.of(source), state)
            for agent in agents
            for source, state in (*agent.sources.items(), *agent.pod_sources.items())
        )
        sources = {source for source, _ in counts}
        complete = {(source, state): counts[source, state] for source in sources for state in SourceState}
        yield gauge_family("agent_sources", complete.items())

    def _streams(self) -> Iterator[Metric]:
        counts = {
            ("agent",): sum(agent.connected for agent in self.live.agents.by_node.values()),
            ("launcher",): self.live.launchers.count,
            ("process",): self.live.processes.count,
        }
        yield gauge_family("streams", counts.items())

    def _jobs(self, jobs: Collection[SupervisedJob]) -> Iterator[Metric]:
        phases = Counter(job.decision.phase for job in jobs)
        yield gauge_family("jobs", [((phase,), phases[phase]) for phase in Phase])
        held = sum(job.observed.request is not None and job.decision.phase is Phase.SUSPENDED for job in jobs)
        yield gauge_family("held_jobs", [((), held)])
        excluded = sum(len(job.decision.exclusions) for job in jobs if not job.over)
        yield gauge_family("excluded_hosts", [((), excluded)])
        left = [seconds for job in jobs if (seconds := self._left(job)) is not None]
        yield gauge_family("unacknowledged_stop_seconds_left", [((), min(left))] if left else [])
        unread = [
            seconds
            for job in jobs
            if job.decision.agreement is not None
            and not job.over
            and (seconds := self.live.ranks.of(job.id, job.observed.run).unread_seconds) is not None
        ]
        yield gauge_family("unread_seconds", [((), max(unread))] if unread else [])

    def _left(self, job: SupervisedJob) -> float | None:
        """Returns the seconds that a STOP waits for rank 0: until the first host is gone, or until the time-out."""
        stop = job.decision.stop
        if stop is None or job.decision.phase is not Phase.STOPPING or not job.observed.running:
            return None
        if answers(job.observed.acknowledgement, stop):
            return None
        end = first_loss(job, self.live.noticed, self.live.now(), self.live.policy)
        return (stop.since + self.live.policy.stop_timeout_seconds if end is None else end) - self.live.now()

    def _ledger(self) -> Iterator[Metric]:
        """Each namespace has every account from the beginning, as rate() does not see a series begin."""
        ledger = self.live.ledger
        counted, told = ledger.counted(), ledger.told
        namespaces = {job_namespace for job_namespace, _ in counted}
        for name, sums, accounts in (("worker_seconds", counted, _COUNTED), ("told_worker_seconds", told, _TOLD)):
            by_labels: dict[tuple[str, ...], float] = {}
            for job_namespace in namespaces:
                for account in accounts:
                    labels = (*self._namespaces.of(job_namespace), accounts[account])
                    by_labels[labels] = by_labels.get(labels, 0.0) + sums.get((job_namespace, account), 0.0)
            yield counter_family(name, sorted(by_labels.items()))

    def _record(self) -> Iterator[Metric]:
        yield gauge_family("record_failing", [((), int(self.live.record.reason is not None))])

    def _traces(self) -> Iterator[Metric]:
        counted = {} if self.live.spans is None else self.live.spans()
        yield counter_family("spans", [((outcome,), count) for outcome, count in counted.items()])

    def _coverage(self, jobs: Collection[SupervisedJob]) -> Iterator[Metric]:
        workers = without_agent = without_stream = 0
        for job in jobs:
            workers += len(job.workers)
            without_agent += sum(not self.live.agents.connected(node) for node in self.live.nodes(job).values())
            without_stream += len(job.workers - self.live.processes.hosts(job.id))
        yield gauge_family("workers", [((), workers)])
        missing = {("agent",): without_agent, ("stream",): without_stream}
        yield gauge_family("uncovered_workers", missing.items())


_COUNTED: Mapping[Account, str] = {
    Account.UNMEASURED: "running",
    **{account: account.value for account in Account if account not in RUN},
}
"""The accounts that are counted at once, with their labels: what a run does, its processes say later."""
_TOLD: Mapping[Account, str] = {
    account: account.value for account in (*RUN, Account.STARTING) if account is not Account.UNMEASURED
}

_ENDS = (Phase.RUNNING, Phase.TIMED_OUT, Phase.FINISHED)


@dataclass(slots=True)
class _MeasuredSuspension:
    """A suspension; `free_since` is None while the job still uses its hosts, and once the next run is ordered."""

    since: float
    workers: int
    free_since: float | None = None


class Suspensions(Collector):
    """Measures, as a listener of the journal, how long jobs are suspended and which capacity that releases.

    A job that was suspended before this process started counts from the start, with the workers that it asks for, as
    those of its last run are not stored.

    Args:
        registry: The registry that serves the metrics.
        gpus: Called whenever capacity has been released.
        now: Unix seconds.
    """

    name = "suspension metrics"

    def __init__(self, registry: CollectorRegistry, gpus: Gpus, now: Callable[[], float]) -> None:
        self._gpus = gpus
        self._now = now
        self._jobs: dict[JobName, _MeasuredSuspension] = {}
        self._worker_seconds = 0.0
        self._gpu_seconds = 0.0
        self._seconds = histogram(registry, "suspended_seconds")
        registry.register(self)

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """Starts from the stored jobs."""
        for job in jobs:
            if job.decision.phase in SUSPENDED:
                since = job.decision.waiting_since
                self._jobs[job.name] = _MeasuredSuspension(
                    self._now() if since is None else since, job.spec.requested_workers
                )
                self._follow(job, self._now())

    def on_change(self, change: Change) -> None:
        if isinstance(change, NoticeChanged):
            return
        if isinstance(change, JobForgotten):
            self._end(change.before.name, change.at)
            return
        before, after = change.before, change.after
        # Two decisions may be reported as one change, so a short suspension is visible only as a resume.
        if after.decision.phase in SUSPENDED and after.name not in self._jobs:
            had = after if before is None else before
            workers = len(had.decision.hosts - had.decision.exclusions) or after.spec.requested_workers
            self._jobs[after.name] = _MeasuredSuspension(change.at, workers)
        if after.decision.phase in _ENDS:
            self._end(after.name, change.at)
        else:
            self._follow(after, change.at)

    def collect(self) -> Iterator[Metric]:
        now = self._now()
        for name in self._jobs:
            self._release(name, now)
        yield counter_family("released_worker_seconds", [((), self._worker_seconds)])
        yield counter_family("released_gpu_seconds", [((), self._gpu_seconds)])

    def _follow(self, job: SupervisedJob, at: float) -> None:
        suspension = self._jobs.get(job.name)
        if suspension is None:
            return
        is_free = job.decision.phase is Phase.SUSPENDED and not job.decision.hosts
        if is_free and suspension.free_since is None:
            suspension.free_since = at
        elif not is_free:
            self._release(job.name, at)
            suspension.free_since = None

    def _end(self, name: JobName, at: float) -> None:
        if name in self._jobs:
            self._release(name, at)
            self._seconds.observe(max(0.0, at - self._jobs.pop(name).since))

    def _release(self, name: JobName, at: float) -> None:
        suspension = self._jobs[name]
        if suspension.free_since is None:
            return
        worker_seconds = suspension.workers * max(0.0, at - suspension.free_since)
        suspension.free_since = max(at, suspension.free_since)
        self._worker_seconds += worker_seconds
        self._gpu_seconds += worker_seconds * (self._gpus(name) or 0.0)
