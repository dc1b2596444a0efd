"""Gauges of the present state, read at each scrape."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from servicekit.bulkhead import Bulkhead
from servicekit.metrics import LabelLimiter
from supervisor.decide.stopping import answers
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeState
from supervisor.ingest.agent_registry import AgentState, SourceState, reclaimed
from supervisor.observability.hooks import LiveState
from supervisor.observability.transitions import first_loss
from supervisor.store.interface import Snapshot

_MAX_KINDS = 200
"""Combinations of cloud, zone, instance type and price class: agents name them."""

Samples = Iterable[tuple[Sequence[str], float]]
"""Label values and the value of each sample."""


class StateCollector(Collector):
    def __init__(self, live: LiveState, sources: LabelLimiter, bulkhead: Bulkhead) -> None:
        self._live = live
        self._bulkhead = bulkhead
        self._sources = sources
        self._kinds = LabelLimiter(_MAX_KINDS)

    def collect(self) -> Iterator[Metric]:
        snapshot = self._live.snapshot()
        jobs = snapshot.jobs.values()
        parts: Mapping[str, Callable[[], Iterator[Metric]]] = {
            "notices": partial(self._notices, snapshot),
            "agents": partial(self._agents, snapshot),
            "streams": self._streams,
            "jobs": partial(self._jobs, jobs),
            "coverage": partial(self._coverage, jobs),
            "notifications": self._notifications,
        }
        for name, part in parts.items():
            with self._bulkhead.guard("metrics", name):
                yield from list(part())  # All of a part or nothing, and what a scraper raises is not ours.

    def _notifications(self) -> Iterator[Metric]:
        sent = CounterMetricFamily(
            "job_supervisor_notifications", "Notifications, by target and outcome.", labels=("target", "outcome")
        )
        for labels, count in sorted(self._live.notified.items()):
            sent.add_metric(labels, count)
        yield sent

    def _notices(self, snapshot: Snapshot) -> Iterator[Metric]:
        active = [notice for notice in snapshot.notices.values() if notice.state is NoticeState.ACTIVE]
        counts = Counter((*self._sources.of(notice.source), notice.notice_class) for notice in active)
        yield _gauge("active_notices", "Active notices.", ("source", "class"), counts.items())
        waiting = len(self._live.unconfirmed.all())
        yield _one("unconfirmed_notices", "Notices that wait to be stored.", waiting)

    def _agents(self, snapshot: Snapshot) -> Iterator[Metric]:
        known = self._live.agents.all()
        agents = known.values()
        connected = sum(agent.connected for agent in agents)
        gone = len(reclaimed(snapshot.notices.values(), known, self._live.agents.silent_since))
        states = {"connected": connected, "unknown": len(agents) - connected - gone, "reclaimed": gone}
        meaning = "Nodes by the state of their agent: connected, unknown (silent), or reclaimed (the node is gone)."
        yield _gauge("agents", meaning, ("state",), [((state,), count) for state, count in states.items()])
        machines = (self._live.machine(agent.node) for agent in agents if agent.connected)
        kinds = Counter(
            self._kinds.of(each.cloud, each.zone, each.instance_type, each.price_class) for each in machines
        )
        yield _gauge(
            "nodes",
            "Nodes with a connected agent, by what is known of their machine; an empty label is unknown.",
            ("cloud", "zone", "instance_type", "price_class"),
            kinds.items(),
        )
        sharing = len(self._live.agents.sharing())
        yield _one("agents_sharing_uid", "Connected agents that report the machine uid of another agent.", sharing)
        counts = Counter(self._of_sources(agents))
        sources = {source for source, _ in counts}
        complete = {(source, state): counts[source, state] for source in sources for state in SourceState}
        yield _gauge("agent_sources", "Sources of agents, by their last answer.", ("source", "state"), complete.items())

    def _of_sources(self, agents: Iterable[AgentState]) -> Iterator[tuple[str, str]]:
        for agent in agents:
            for source, state in (*agent.sources.items(), *agent.pod_sources.items()):
                [label] = self._sources.of(source)
                yield label, state

    def _streams(self) -> Iterator[Metric]:
        agents = sum(agent.connected for agent in self._live.agents.all().values())
        counts = {
            ("agent",): agents,
            ("launcher",): self._live.launchers.count,
            ("process",): self._live.processes.count,
        }
        yield _gauge("streams", "Open streams, by peer.", ("peer",), counts.items())

    def _jobs(self, jobs: Collection[SupervisedJob]) -> Iterator[Metric]:
        phases = Counter(job.decision.phase for job in jobs)
        yield _gauge("jobs", "Jobs, by phase.", ("phase",), [((phase,), phases[phase]) for phase in Phase])
        held = sum(job.observed.request is not None and job.decision.phase is Phase.SUSPENDED for job in jobs)
        yield _one("held_jobs", "Suspended jobs that a person keeps suspended.", held)
        excluded = sum(len(job.decision.exclusions) for job in jobs if not job.over)
        yield _one("excluded_hosts", "Hosts that are excluded at present.", excluded)
        left = min((seconds for job in jobs if (seconds := self._left(job)) is not None), default=None)
        unanswered = _family(
            "unacknowledged_stop_seconds_left",
            "Shortest time that is left for a STOP that rank 0 has not acknowledged; no sample if there is none.",
        )
        if left is not None:
            unanswered.add_metric((), left)
        yield unanswered

        unread = _family(
            "unread_seconds",
            "Longest time for which a rank that is to agree on a step has not asked whether to stop; no sample if no "
            "rank is asked.",
        )
        seconds = max((found for job in jobs if (found := self._unread(job)) is not None), default=None)
        if seconds is not None:
            unread.add_metric((), seconds)
        yield unread

    def _unread(self, job: SupervisedJob) -> float | None:
        if job.decision.agreement is None or job.over:
            return None
        return self._live.ranks.of(job.id, job.observed.run).unread_seconds

    def _left(self, job: SupervisedJob) -> float | None:
        """Seconds that a STOP waits for rank 0: until the first host is gone, or else until the stop times out."""
        stop = job.decision.stop
        if stop is None or job.decision.phase is not Phase.STOPPING or not job.observed.running:
            return None
        if answers(job.observed.acknowledgement, stop):
            return None
        end = first_loss(job, self._live.noticed, self._live.now(), self._live.policy)
        return (stop.since + self._live.policy.stop_timeout_seconds if end is None else end) - self._live.now()

    def _coverage(self, jobs: Collection[SupervisedJob]) -> Iterator[Metric]:
        workers = without_agent = without_stream = 0
        for job in jobs:
            workers += len(job.workers)
            without_agent += sum(not self._live.agents.connected(node) for node in self._nodes(job.name, job.workers))
            without_stream += len(job.workers - self._live.processes.hosts(job.id))
        missing = {("agent",): without_agent, ("stream",): without_stream}
        yield _one("workers", "Workers of running jobs.", workers)
        yield _gauge(
            "uncovered_workers",
            "Workers of running jobs whose node has no connected agent, or that have no process with a stream.",
            ("missing",),
            missing.items(),
        )

    def _nodes(self, name: JobName, hosts: Iterable[Host]) -> Iterator[Host]:
        """The node of each host; empty, and thus without an agent, for a pod that is not in the cache."""
        placements = self._live.placements(name)
        for host in hosts:
            if placements is None:
                yield host
            else:
                yield placements[host].node if host in placements else Host("")


def _family(name: str, meaning: str, labels: tuple[str, ...] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"job_supervisor_{name}", meaning, labels=labels)


def _one(name: str, meaning: str, value: float) -> Metric:
    return _gauge(name, meaning, (), [((), value)])


def _gauge(name: str, meaning: str, labels: tuple[str, ...], values: Samples) -> Metric:
    family = _family(name, meaning, labels)
    for value_labels, value in values:
        family.add_metric(value_labels, value)
    return family
