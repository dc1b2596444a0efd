"""The components of a supervisor, and how they are connected."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.lifecycle import run_tasks
from servicekit.memory import Trimmer
from servicekit.tls import ServerCertificate
from servicekit.wakeup import Notifier
from supervisor.control.facts import Facts, NoCluster
from supervisor.control.loop import Control, ControlDependencies
from supervisor.control.schedule import PlanRequests
from supervisor.domain.ids import JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import OPERATOR, SIMULATED
from supervisor.domain.order import Worker
from supervisor.fanout.heartbeat import Heartbeat
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.members import MemberStreams
from supervisor.fanout.processes import Processes
from supervisor.fanout.ranks import RankStates
from supervisor.fanout.saves import Saves
from supervisor.identity.authenticator import Authenticator
from supervisor.identity.tokens import Tokens
from supervisor.ingest.agent_registry import AgentRegistry
from supervisor.ingest.agents import AgentDependencies, ReclaimService
from supervisor.ingest.drains import DrainEndpoints
from supervisor.ingest.drills import DrillEndpoints
from supervisor.ingest.expiry import Expiry
from supervisor.ingest.launchers import LauncherEndpoints
from supervisor.ingest.pod_reports import PodReports
from supervisor.ingest.processes import ProcessEndpoints
from supervisor.ingest.quotas import LauncherQuotas
from supervisor.ingest.relays import RelayEndpoints
from supervisor.ingest.rendezvous import RendezvousEndpoints
from supervisor.ingest.requested_notices import RequestedNotices
from supervisor.ingest.requests import RequestEndpoints
from supervisor.ingest.unconfirmed import UnconfirmedNotices
from supervisor.jobs.adapter import Adapters
from supervisor.jobs.standalone import StandaloneJobs
from supervisor.leadership.interface import AlwaysLeader, Leadership
from supervisor.observability.groups import Groups
from supervisor.observability.history import JobHistory
from supervisor.observability.hooks import LiveState, MetricsHooks, NoMetrics
from supervisor.observability.journal import Journal, Listener
from supervisor.observability.notifications.config import Config as NotificationConfig
from supervisor.observability.notifications.notifier import Notifications, Timing
from supervisor.observability.page import status_page
from supervisor.observability.phase_tracker import PhaseTracker
from supervisor.observability.status import StatusEndpoint
from supervisor.observability.status_reader import StatusReader, unknown_gpus
from supervisor.observability.timed_store import TimedStore
from supervisor.refusals import Refusals
from supervisor.serving.servers import Endpoints, Servers
from supervisor.settings import Settings
from supervisor.store.interface import Store
from supervisor.wiring.retention import Retention

if TYPE_CHECKING:
    from supervisor.wiring.cluster import Cluster

OnStep = Callable[[Worker, int | None], None]
Task = Callable[[], Coroutine[Any, Any, None]]

_log = structlog.get_logger()


class Supervisor:
    """The components of a serving supervisor; `serve` runs them until `stop` is set.

    `changes` wakes the components that decide when facts have changed; `cluster` is None stand-alone.
    """

    def __init__(  # noqa: PLR0913 - what each run has of its own
        self,
        settings: Settings,
        store: Store,
        tokens: Tokens,
        clock: Clock,
        *,
        changes: Notifier | None = None,
        certificate: ServerCertificate | None = None,
        cluster: "Cluster | None" = None,
        leadership: Leadership = AlwaysLeader(),  # noqa: B008 - it has no state
        refusals: Refusals | None = None,
        bulkhead: Bulkhead | None = None,
        listeners: Sequence[Listener] = (),
        hooks: MetricsHooks = NoMetrics(),  # noqa: B008 - it has no state
        notifications: NotificationConfig | None = None,
    ) -> None:
        changes = changes or Notifier()
        refusals, bulkhead = refusals or Refusals(), bulkhead or Bulkhead(clock)
        cluster_facts = cluster or NoCluster()
        authenticate = Authenticator(tokens, cluster.pod_tokens if cluster else None).authenticate
        self._changes, self._bulkhead = changes, bulkhead
        self._store = store = TimedStore(store, hooks.on_store_write, clock)

        # Facts
        agents = AgentRegistry(changes.notify, clock.now)
        unconfirmed = UnconfirmedNotices(changes.notify, clock)
        facts = Facts(store, agents, unconfirmed, settings, cluster_facts, now=clock.now)
        pod_reports = PodReports(cluster_facts.node_of, lambda: store.snapshot().notices)
        expiry = Expiry(
            store,
            agents,
            cluster_facts.is_there,
            settings,
            clock,
            bulkhead=bulkhead,
            unconfirmed=unconfirmed,
            wakeup=changes.subscribe(),
        )
        self._reclaim = ReclaimService(
            AgentDependencies(
                store=store,
                agents=agents,
                unconfirmed=unconfirmed,
                pods=pod_reports,
                refusals=refusals,
                authenticate=authenticate,
                policy=settings,
                clock=clock,
                bulkhead=bulkhead,
                heartbeat_seconds=settings.heartbeat_seconds,
                on_refused=hooks.on_report_refused,
            )
        )

        # Decisions and actions
        requests = PlanRequests(changes.notify)
        self._processes = Processes(facts.directives, clock.now, bulkhead, requests.add, hooks.on_directives_sent)
        ranks = RankStates(self._processes.workers, facts.agreement, requests.add)
        self._members = MemberStreams(self._job, requests.add, bulkhead)
        self._launchers = Launchers(tokens.process, clock.now, facts.waits_for)
        saves = Saves()
        leader = None
        if cluster is not None:
            # Imported here: a stand-alone supervisor does not need the Kubernetes client.
            from supervisor.wiring.cluster import ClusterLeader  # noqa: PLC0415

            leader = ClusterLeader(
                cluster, clock, store, processes=self._processes, saves=saves, settings=settings, bulkhead=bulkhead
            )
        control = Control(
            ControlDependencies(
                store=store,
                facts=facts,
                processes=self._processes,
                ranks=ranks,
                saves=saves,
                members=self._members,
                adapter=Adapters(StandaloneJobs(self._launchers), leader.actuator if leader else None),
                leadership=leadership,
                policy=settings,
                clock=clock,
                requests=requests,
                wakeup=changes.subscribe(),
                bulkhead=bulkhead,
            )
        )

        # Observability
        notifier = _notifier(notifications, settings, leadership, clock, bulkhead)
        live = LiveState(
            snapshot=store.snapshot,
            agents=agents,
            unconfirmed=unconfirmed,
            processes=self._processes,
            ranks=ranks,
            launchers=self._launchers,
            noticed=facts.noticed,
            placements=cluster_facts.placements,
            machine=facts.machine,
            notified=notifier.outcomes if notifier else {},
            policy=settings,
            now=clock.now,
        )
        phases, groups, history = PhaseTracker(), Groups(facts.noticed, settings), JobHistory()
        notified = notifier.attach(live) if notifier else ()
        journal = Journal(store, (*hooks.attach(live), *listeners, phases, groups, history, *notified), clock, bulkhead)
        reader = StatusReader(
            live=live,
            shown=facts.shown,
            missing=facts.missing,
            groups=groups,
            phases=phases,
            history=history,
            gpus=cluster.gpus if cluster else unknown_gpus,
            refusals=refusals,
            bulkhead=bulkhead,
            name=settings.pod_name,
            may_act=leadership.may_act,
        )
        self._page = None
        if settings.status_page:
            self._page = status_page(
                snapshot=reader.snapshot,
                job=reader.job,
                version=lambda: reader.version,
                authenticate=authenticate,
                sign=tokens.viewer,
                refusals=refusals,
                clock=clock,
                bulkhead=bulkhead,
                docs_url=settings.docs_url,
            )

        # Servers
        process_endpoints = ProcessEndpoints(
            store=store,
            processes=self._processes,
            ranks=ranks,
            saves=saves,
            refusals=refusals,
            authenticate=authenticate,
            clock=clock,
            on_step=_both(hooks.on_step, groups.on_step),
        )
        requested = partial(RequestedNotices, store=store, agents=agents, policy=settings, clock=clock)
        endpoints: tuple[Endpoints, ...] = (
            LauncherEndpoints(
                store=store,
                quotas=LauncherQuotas(store, settings.launcher_hosts),
                launchers=self._launchers,
                refusals=refusals,
                authenticate=authenticate,
                clock=clock,
                live_seconds=settings.launcher_live_seconds,
            ),
            process_endpoints,
            RelayEndpoints(process_endpoints),
            RendezvousEndpoints(
                store=store, members=self._members, refusals=refusals, authenticate=authenticate, clock=clock
            ),
            DrillEndpoints(notices=requested(source=SIMULATED), authenticate=authenticate),
            DrainEndpoints(notices=requested(source=OPERATOR), authenticate=authenticate),
            RequestEndpoints(store=store, authenticate=authenticate, clock=clock),
            StatusEndpoint(snapshot=reader.snapshot, happened=reader.happened, authenticate=authenticate),
            *([self._page] if self._page else []),
        )
        servers = Servers(
            settings=settings,
            certificate=certificate,
            agents=self._reclaim,
            endpoints=endpoints,
            refusals=refusals,
            end_streams=self._goodbye,
        )
        self.retention = Retention(
            store=store,
            agents=agents,
            pod_reports=pod_reports,
            launchers=self._launchers,
            processes=self._processes,
            ranks=ranks,
            saves=saves,
            members=self._members,
            clock=clock,
            seconds=settings.retention_hours * 3600,
            bulkhead=bulkhead,
        )
        self.tasks: Mapping[str, Task] = {
            "control": control.run,
            "ageing": expiry.run,
            "journal": journal.run,
            "watch": self._watch,
            "heartbeat": Heartbeat(
                (self._reclaim, self._processes, self._members, self._launchers), settings.heartbeat_seconds, bulkhead
            ).run,
            "retention": self.retention.run,
            "servers": servers.run,
            **({"page": self._page.viewers.run} if self._page else {}),
            **({"notifications": notifier.run} if notifier else {}),
            **(leader.tasks if leader else common_tasks(refusals, certificate)),
        }
        """The root tasks by name, except the store's."""

    async def serve(self, stop: asyncio.Event, beside: Mapping[str, Task] = MappingProxyType({})) -> None:
        """Serves until `stop` is set; then the streams end with a goodbye before the servers stop.

        Args:
            stop: Ends all tasks.
            beside: Further root tasks by name.
        """
        await run_tasks({"store": self._store.run, **self.tasks, **beside}, stop)

    def _job(self, name: JobName) -> SupervisedJob | None:
        return self._store.snapshot().jobs.get(name)

    async def _watch(self) -> None:
        version = 0
        while True:
            snapshot = await self._store.changed(version)
            version = snapshot.version
            with self._bulkhead.guard("launchers", retried=False):
                self._launchers.dismiss_others(snapshot.jobs)
            self._changes.notify()

    def _goodbye(self) -> None:
        if self._page is not None:
            self._page.viewers.finish("the supervisor is stopping")
        self._reclaim.finish()
        self._processes.finish("the supervisor is stopping")
        self._members.finish("the supervisor is stopping")
        self._launchers.finish("the supervisor is stopping")


def _notifier(
    config: NotificationConfig | None, settings: Settings, leadership: Leadership, clock: Clock, bulkhead: Bulkhead
) -> Notifications | None:
    if config is None:
        return None
    timing = Timing(
        group_seconds=settings.notifications_group_seconds,
        timeout_seconds=settings.notifications_timeout_seconds,
        uncovered_seconds=settings.notifications_uncovered_seconds,
        proxy=settings.notifications_proxy,
    )
    return Notifications(config, timing, leadership.may_act, clock, bulkhead)


def _both(one: OnStep, other: OnStep) -> OnStep:
    def on_step(worker: Worker, step: int | None) -> None:
        one(worker, step)
        other(worker, step)

    return on_step


def common_tasks(refusals: Refusals, certificate: ServerCertificate | None) -> Mapping[str, Task]:
    """The root tasks of every supervisor by name, leading or not."""
    return {
        "refusals": refusals.run,
        "memory": Trimmer().run,
        **({"certificate": certificate.run} if certificate else {}),
    }
