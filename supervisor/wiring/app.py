"""The features of a supervisor that leads, and the components that they share.

`Supervisor` has the list of features. A function below it builds each of them, in the same order.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from servicekit import lifecycle, process
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Fault
from servicekit.reconcile import Notifier, reconcile
from servicekit.tls import ServerCertificate
from supervisor.control import facts, loop
from supervisor.domain.capacity import UNKNOWN_MACHINE
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.job import SupervisedJob, with_end
from supervisor.domain.ledger import HeldOn, TimeSpent
from supervisor.domain.order import ProcessDirective, Worker
from supervisor.domain.stays import MeasuredCosts
from supervisor.failpoints import At
from supervisor.fanout import lines, members, ranks
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import OnSent, Processes
from supervisor.identity.tokens import Authenticator, Tokens
from supervisor.ingest import agent_registry, agent_reports, agents, expiry, operators, rendezvous
from supervisor.ingest.launchers import LauncherEndpoints, LauncherQuotas
from supervisor.ingest.processes import ProcessEndpoints, RelayEndpoints
from supervisor.ingest.steering import StoreSteering
from supervisor.jobs.adapter import adapter_by_job
from supervisor.observability import groups, history, journal, status
from supervisor.observability.hooks import LiveState, MetricsHooks, TimedStore
from supervisor.observability.ledger import book, machines, stays
from supervisor.observability.notifications import config, notifier
from supervisor.observability.page.endpoints import status_page
from supervisor.observability.record import recorder
from supervisor.observability.record.database import file_url
from supervisor.observability.traces.follower import ReclaimTraces
from supervisor.observability.traces.spans import SpanExport
from supervisor.refusals import Refusals
from supervisor.serving.servers import Endpoints, Servers
from supervisor.settings import Settings
from supervisor.store.interface import Store, StoreUnavailableError

if TYPE_CHECKING:
    from supervisor.wiring.cluster import ClusterLeader, WatchedCluster

Task = Callable[[], Coroutine[Any, Any, None]]

_GOODBYE = "the supervisor is stopping"
_PRUNE_SECONDS = 600.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """The parts of the process that a supervisor is built on.

    `changes` wakes the components that decide when facts have changed. `cluster` is None stand-alone. `may_act` returns
    whether no other supervisor can lead now. `traces` is None if none are sent. `features` are further ones, which the
    process brings along. `on_serving` is called with the URL of HTTP.
    """

    settings: Settings
    store: Store
    tokens: Tokens
    clock: Clock
    bulkhead: Bulkhead
    changes: Notifier = field(default_factory=Notifier)
    refusals: Refusals = field(default_factory=Refusals)
    certificate: ServerCertificate | None = None
    cluster: "WatchedCluster | None" = None
    may_act: Callable[[], bool] = lambda: True
    hooks: MetricsHooks = field(default_factory=MetricsHooks)
    notifications: config.NotificationConfig | None = None
    traces: SpanExport | None = None
    features: Sequence["Feature"] = ()
    on_serving: Callable[[str], None] = lambda _url: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A part of the supervisor that can be understood alone, with the tasks, endpoints and listeners that it adds.

    Attributes:
        tasks: The root tasks by name.
        endpoints: The HTTP endpoints.
        listeners: The listeners of the journal.
        streams: The open streams that need heartbeats.
        finish: Ends these and other streams with a goodbye.
        forget: Each drops what it knows of jobs other than the stored ones; by the name of the part, for the log.
    """

    tasks: Mapping[str, Task] = field(default_factory=dict)
    endpoints: Sequence[Endpoints] = ()
    listeners: Sequence[journal.ChangeListener] = ()
    streams: Sequence[lines.HeartbeatStreams] = ()
    finish: Callable[[], None] | None = None
    forget: Mapping[str, Callable[[Collection[JobId]], None]] = field(default_factory=dict)


class SupervisorService:
    """A supervisor that leads; `serve` runs it until `stop` is set.

    Attributes:
        tasks: The root tasks by name, in the order in which they start, without that of the store.
        retention: Removes what has ended.
        processes: The streams to training processes.
        members: The streams to elastic agents.
    """

    def __init__(self, base: Foundation) -> None:
        state = SharedState(base)
        leader = None if base.cluster is None else base.cluster.leader(state.store, state.processes, state.saves)
        # The features that decide and act start before the servers, the others after them.
        acting = [
            _decisions(base, state, leader),
            _launchers(base, state),
            _rendezvous(base, state),
            _processes(base, state),
            _agents(base, state),
            _requests(state),
        ]
        others = [
            Feature(listeners=base.hooks.attach(state.live)),  # Metrics, if the process serves any.
            _status(base, state),
            *([] if base.notifications is None else [_notifications(base, state, base.notifications)]),
            *([] if state.traces is None else [_traces(base, state, state.traces)]),
            Feature(tasks=common_tasks(base.refusals, base.certificate) if leader is None else leader.tasks),
            *base.features,
        ]
        features = [*acting, *others]
        self._base, self._launchers = base, state.launchers
        self._store = state.store
        self.processes, self.members = state.processes, state.members
        self.retention = Retention(
            state.store, base.settings, base.clock, base.bulkhead, [each.forget for each in features]
        )
        observed = journal.Journal(
            state.store, [listener for each in features for listener in each.listeners], base.clock, base.bulkhead
        )

        def say_goodbye() -> None:
            for each in reversed(features):  # Against the order in which they start.
                if each.finish is not None:
                    each.finish()

        streams = [stream for each in reversed(features) for stream in each.streams]
        servers = Servers(
            settings=base.settings,
            certificate=base.certificate,
            agents=state.reclaim,
            endpoints=[endpoints for each in features for endpoints in each.endpoints],
            refusals=base.refusals,
            end_streams=say_goodbye,
            on_serving=base.on_serving,
        )
        self.tasks: Mapping[str, Task] = {
            **_tasks(acting),
            "journal": observed.run,
            "watch": self._watch,
            "heartbeat": lines.Heartbeat(streams, base.settings.heartbeat_seconds, base.bulkhead).run,
            "retention": self.retention.run,
            "servers": servers.run,
            **_tasks(others),
        }

    async def serve(self, stop: asyncio.Event, beside: Mapping[str, Task] = MappingProxyType({})) -> None:
        """Serves until `stop` is set; then the streams end with a goodbye before the servers stop.

        Args:
            stop: Ends all tasks.
            beside: Further root tasks by name.
        """
        await lifecycle.run_tasks({"store": self._store.run, **self.tasks, **beside}, stop)

    async def _watch(self) -> None:
        version = 0
        while True:
            snapshot = await self._store.changed(version)
            version = snapshot.version
            with self._base.bulkhead.guard("launchers", retried=False):
                self._launchers.dismiss_others(snapshot.jobs)
            self._base.changes.notify()


def _tasks(features: Iterable[Feature]) -> Mapping[str, Task]:
    return {name: task for feature in features for name, task in feature.tasks.items()}


def common_tasks(refusals: Refusals, certificate: ServerCertificate | None) -> Mapping[str, Task]:
    """The root tasks of every process of a supervisor by name, leading or not."""
    return {
        "refusals": refusals.run,
        "memory": process.Trimmer().run,
        **({"certificate": certificate.run} if certificate else {}),
    }


class SharedState:
    """Builds the components that features share: the facts, the streams, and the state that is kept in memory."""

    def __init__(self, base: Foundation) -> None:
        changes, clock, bulkhead, settings = base.changes, base.clock, base.bulkhead, base.settings
        self.around: WatchedCluster | facts.NoCluster = base.cluster or facts.NoCluster()
        pod = None if base.cluster is None else base.cluster.pod_tokens.authenticate
        self.authenticate = Authenticator(base.tokens, pod).authenticate
        self.store = store = TimedStore(base.store, base.hooks, clock)

        def job(name: JobName) -> SupervisedJob | None:
            return store.snapshot().jobs.get(name)

        self.agents = agent_registry.AgentRegistry(changes.notify, clock.now)
        self.unconfirmed = agent_registry.UnconfirmedNotices(changes.notify, clock)
        self.facts = facts.Facts(store, self.agents, self.unconfirmed, settings, self.around, now=clock.now)
        self.steering = StoreSteering(store=store, agents=self.agents, policy=settings, clock=clock)
        self.pod_reports = agent_reports.PodReports(self.around.node_of, lambda: store.snapshot().notices)
        self.reclaim = agents.ReclaimService(
            agent_reports.AgentDependencies(
                store=store,
                agents=self.agents,
                unconfirmed=self.unconfirmed,
                pods=self.pod_reports,
                refusals=base.refusals,
                authenticate=self.authenticate,
                policy=settings,
                clock=clock,
                bulkhead=bulkhead,
                heartbeat_seconds=settings.heartbeat_seconds,
                on_refused=base.hooks.on_report_refused,
            )
        )
        # In this order: notices age before jobs are planned.
        self.facts_aged, self.facts_changed = changes.subscribe(), changes.subscribe()
        self.requests = loop.PlanRequests(changes.notify)
        self.traces: ReclaimTraces | None = None
        on_sent: OnSent = base.hooks.on_directives_sent
        if base.traces is not None:
            self.traces = ReclaimTraces(
                base.traces.put, self.facts.noticed, self.facts.binds, self.around.placements, settings, clock.now
            )
            on_sent = _observed_by(base, self.traces)
        self.processes = Processes(self.facts.directives, clock.now, bulkhead, self.requests.add, on_sent)
        self.ranks = ranks.RankStates(self.processes.workers, self.facts.agreement, self.requests.add)
        self.saves = ranks.Saves()
        self.members = members.MemberStreams(job, self.requests.add, bulkhead)
        self.launchers = Launchers(base.tokens.process, clock.now, self.facts.waits_for)
        self.groups = groups.DecidedGroups(self.facts.noticed, settings)
        self.machines = machines.HostMachines(base.clock, partial(_held_on, base, self))
        self.ledger = book.LedgerBook(base.clock, self.machines)
        self.record = Fault("record of what happened", base.clock)
        self.live = LiveState(
            snapshot=store.snapshot,
            agents=self.agents,
            unconfirmed=self.unconfirmed,
            processes=self.processes,
            ranks=self.ranks,
            launchers=self.launchers,
            noticed=self.facts.noticed,
            ledger=self.ledger,
            record=self.record,
            placements=self.around.placements,
            machine=self.facts.machine,
            node_of=self.around.node_of,
            policy=settings,
            now=clock.now,
            spans=None if base.traces is None else base.traces.outcomes,
        )


def _observed_by(base: Foundation, traces: ReclaimTraces) -> OnSent:
    """Returns what tells metrics and traces which directives were sent."""

    def on_sent(job: JobName, directives: Collection[ProcessDirective]) -> None:
        base.hooks.on_directives_sent(job, directives)
        with base.bulkhead.guard("traces", job, retried=False):
            traces.on_directives_sent(job, directives)

    return on_sent


def _decisions(base: Foundation, state: SharedState, leader: "ClusterLeader | None") -> Feature:
    """Builds the feature that plans every job and has its decisions carried out."""
    control = loop.Control(
        loop.ControlDependencies(
            store=state.store,
            facts=state.facts,
            processes=state.processes,
            ranks=state.ranks,
            saves=state.saves,
            members=state.members,
            adapter=adapter_by_job(state.launchers.publish, None if leader is None else leader.actuator.carry_out),
            may_act=base.may_act,
            policy=base.settings,
            clock=base.clock,
            requests=state.requests,
            wakeup=state.facts_changed,
            bulkhead=base.bulkhead,
        )
    )
    return Feature(tasks={"control": control.run})


def _launchers(base: Foundation, state: SharedState) -> Feature:
    """Builds the feature of stand-alone jobs: their launchers register them and take orders."""
    endpoints = LauncherEndpoints(
        store=state.store,
        quotas=LauncherQuotas(state.store, base.settings.launcher_hosts),
        launchers=state.launchers,
        refusals=base.refusals,
        authenticate=state.authenticate,
        clock=base.clock,
        live_seconds=base.settings.launcher_live_seconds,
    )
    return Feature(
        endpoints=[endpoints],
        streams=[state.launchers],
        finish=partial(state.launchers.finish, _GOODBYE),
        forget={"launchers": state.launchers.forget_others},
    )


def _rendezvous(base: Foundation, state: SharedState) -> Feature:
    """Builds the feature of torchrun's rounds: elastic agents report, and get the members of their next round."""
    endpoints = rendezvous.RendezvousEndpoints(
        store=state.store,
        members=state.members,
        refusals=base.refusals,
        authenticate=state.authenticate,
        clock=base.clock,
    )
    return Feature(
        endpoints=[endpoints],
        streams=[state.members],
        finish=partial(state.members.finish, _GOODBYE),
        forget={"members": state.members.forget_others},
    )


def _processes(base: Foundation, state: SharedState) -> Feature:
    """Builds the feature of training processes: they report ranks, steps and saves, and get directives."""

    def on_step(worker: Worker, step: int | None) -> None:
        base.hooks.on_step(worker, step)
        state.groups.on_step(worker, step)

    def on_spent(worker: Worker, said: TimeSpent) -> None:
        with base.bulkhead.guard("time that a process has spent", worker.job.name, retried=False):
            state.ledger.on_spent(worker, said)

    endpoints = ProcessEndpoints(
        store=state.store,
        processes=state.processes,
        ranks=state.ranks,
        saves=state.saves,
        refusals=base.refusals,
        authenticate=state.authenticate,
        clock=base.clock,
        on_step=on_step,
        on_spent=on_spent,
    )
    return Feature(
        endpoints=[endpoints, RelayEndpoints(endpoints)],
        streams=[state.processes],
        finish=partial(state.processes.finish, _GOODBYE),
        forget={
            "processes": state.processes.forget_others,
            "ranks": state.ranks.forget_others,
            "saves": state.saves.forget_others,
        },
    )


def _agents(base: Foundation, state: SharedState) -> Feature:
    """Builds the feature of reclaim notices: agents report them over gRPC, and they expire."""
    ageing = expiry.Expiry(
        state.store,
        state.agents,
        state.around.is_there,
        base.settings,
        base.clock,
        bulkhead=base.bulkhead,
        unconfirmed=state.unconfirmed,
        wakeup=state.facts_aged,
    )

    def forget(_jobs: Collection[JobId]) -> None:
        # Not later than the notice that explains the silence of a reclaimed node.
        state.agents.forget(base.clock.now() - base.settings.retention_hours * 3600 + agent_registry.SILENCE_SECONDS)
        state.pod_reports.forget_others(state.agents.by_node)

    return Feature(
        tasks={"ageing": ageing.run},
        streams=[state.reclaim],
        finish=state.reclaim.finish,
        forget={"pod reports": forget},
    )


def _requests(state: SharedState) -> Feature:
    """Builds the feature of people's requests: drills, drains, and steering of single jobs."""
    return Feature(
        endpoints=[
            operators.OperatorNoticeEndpoints(steering=state.steering, authenticate=state.authenticate),
            operators.RequestEndpoints(steering=state.steering, authenticate=state.authenticate),
        ]
    )


def _status(base: Foundation, state: SharedState) -> Feature:
    """Builds the feature that shows the status and its history as JSON, and the status page."""
    settings, began = base.settings, base.clock.now()
    phases, happened = history.PhaseTracker(), history.JobHistory(began)
    state.ledger.begin(state.store.snapshot().jobs.values())
    stayed = stays.StayBook(
        base.clock,
        noticed=state.facts.noticed,
        costs=partial(_measured, state),
        machines=state.machines,
        totals=state.ledger.totals,
    )
    stayed.begin(state.store.snapshot().jobs.values())
    kept = recorder.Recorder(
        url=partial(_record_url, settings),
        limits=recorder.RecordLimits(days=settings.record_days, entries=settings.record_entries),
        history=happened,
        book=state.ledger,
        stays=stayed,
        noticed=state.facts.shown,
        machine=state.facts.machine,
        leader=settings.pod_name,
        fault=state.record,
        clock=base.clock,
        bulkhead=base.bulkhead,
    )
    reader = status.StatusReader(
        live=state.live,
        shown=state.facts.shown,
        missing=state.facts.missing,
        groups=state.groups,
        phases=phases,
        history=happened,
        record=kept,
        gpus=base.cluster.gpus if base.cluster else lambda _job: None,
        refusals=base.refusals,
        bulkhead=base.bulkhead,
        name=base.settings.pod_name,
        may_act=base.may_act,
        since=began,
    )
    endpoint = status.StatusEndpoint(reader=reader, authenticate=state.authenticate)
    listeners: list[journal.ChangeListener] = [phases, state.groups, happened, state.ledger, stayed, kept]
    if not settings.status_page:
        return Feature(tasks={"record": kept.run}, endpoints=[endpoint], listeners=listeners)

    def audit(entry: history.HistoryEntry) -> None:
        """Adds what a person has asked for to what has happened."""
        happened.add(entry)
        kept.add(entry)

    page = status_page(
        snapshot=reader.snapshot,
        job=reader.job,
        history=reader.happened,
        spent=reader.spent,
        hourly=reader.hourly,
        capacity=reader.capacity,
        pools=kept.read_pool_counts,
        held=reader.held,
        version=lambda: reader.version,
        authenticate=state.authenticate,
        tokens=base.tokens,
        people=None if base.cluster is None else base.cluster.people,
        steering=state.steering if base.cluster is None else base.cluster.steering(state.steering),
        audit=audit,
        refusals=base.refusals,
        clock=base.clock,
        bulkhead=base.bulkhead,
        docs_url=settings.docs_url,
        grafana_url=settings.grafana_url,
    )
    return Feature(
        tasks={"record": kept.run, "page": page.run, "comparisons": page.comparisons.run},
        endpoints=[endpoint, page],
        listeners=listeners,
        finish=partial(page.viewers.finish, _GOODBYE),
    )


def _held_on(base: Foundation, state: SharedState, job: JobName, hosts: Collection[Host]) -> Mapping[Host, HeldOn]:
    """Returns the kind of machine under each of these hosts of a job."""
    placements, machine = state.live.placements(job), state.facts.machine
    gpus = base.cluster.gpus(job) if base.cluster else None
    found = dict[Host, HeldOn]()
    for host in hosts:
        node = host if placements is None else placements[host].node if host in placements else Host("")
        found[host] = HeldOn.of(machine(node) if node else UNKNOWN_MACHINE, gpus)
    return found


def _measured(state: SharedState, job: SupervisedJob) -> MeasuredCosts:
    """Returns what the connected processes of a job, or earlier ones, have measured."""
    ranks, saved = state.ranks.of(job.id, job.observed.run), state.saves.last.get(job.id)
    return MeasuredCosts(
        step_seconds=ranks.slowest_step,
        checkpoint_seconds=ranks.slowest_checkpoint or (None if saved is None else saved.seconds),
        start_seconds=ranks.costs.start_seconds,
        change_seconds=ranks.costs.change_seconds,
    )


def _record_url(settings: Settings) -> str:
    """Returns the URL of the record's database. It raises OSError if the file with it cannot be read."""
    if settings.record_url_file is None:
        return file_url(settings.data_dir / "record.sqlite")
    return settings.record_url_file.read_text(encoding="utf-8").strip()


def _notifications(base: Foundation, state: SharedState, targets: config.NotificationConfig) -> Feature:
    """Builds the feature that sends messages about changes of jobs to webhooks."""
    settings = base.settings
    timing = notifier.NotificationTiming(
        group_seconds=settings.notifications_group_seconds,
        timeout_seconds=settings.notifications_timeout_seconds,
        uncovered_seconds=settings.notifications_uncovered_seconds,
        proxy=settings.notifications_proxy,
    )
    sender = notifier.Notifications(targets, timing, state.live, base.may_act, base.clock, base.bulkhead)
    return Feature(tasks={"notifications": sender.run}, listeners=[sender])


def _traces(base: Foundation, state: SharedState, traces: ReclaimTraces) -> Feature:
    """Builds the feature that makes traces of reclaims."""
    snapshot = state.store.snapshot()
    traces.begin(snapshot.notices.values())
    for job in snapshot.jobs.values():
        with base.bulkhead.guard("traces", job.name, retried=False):
            traces.take_over(job)
    return Feature(listeners=[traces])


@dataclass(frozen=True, slots=True)
class Retention:
    """Removes ended notices and jobs after the retention time, and lets features forget the jobs that are gone."""

    store: Store
    settings: Settings
    clock: Clock
    bulkhead: Bulkhead
    forget: Sequence[Mapping[str, Callable[[Collection[JobId]], None]]]

    async def run(self) -> None:
        """Root task: prunes at intervals."""
        await reconcile("retention", self.once, self.bulkhead)

    async def once(self) -> float:
        """Prunes once. A record that cannot be removed now is removed later.

        Returns the seconds until the next time.
        """
        failpoint(At.PRUNING)
        before = self.clock.now() - self.settings.retention_hours * 3600
        with self.bulkhead.guard("retention", "store"):
            try:
                await self._note_ends()
                await self.store.prune(before)
            except StoreUnavailableError as error:
                _log.warning("store.not_pruned", why=str(error))
        jobs = {job.id for job in self.store.snapshot().jobs.values()}
        for parts in self.forget:
            for part, forget in parts.items():
                with self.bulkhead.guard("retention", part):
                    forget(jobs)
        failpoint(At.PRUNED)
        return _PRUNE_SECONDS

    async def _note_ends(self) -> None:
        """Stores the end of jobs that an earlier version has stored without it, and that nobody observes any more."""
        for job in self.store.snapshot().jobs.values():
            if job.over and job.observed.ended_at is None:
                with suppress(StoreUnavailableError):  # It is noted the next time.
                    await self.store.put_job(
                        job.name, lambda known: None if known is None else with_end(known, self.clock.now())
                    )
