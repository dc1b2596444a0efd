"""The wiring list: what the supervisor is made of."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.lifecycle import run_tasks
from servicekit.memory import Trimmer
from servicekit.tls import ServerCertificate
from supervisor.control.facts import Facts, NoCluster
from supervisor.control.loop import Control, Ports
from supervisor.domain.directive import Worker
from supervisor.domain.ids import STANDALONE, Host, JobName
from supervisor.failpoints import At
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import Processes
from supervisor.identity.authenticator import Authenticator
from supervisor.identity.tokens import Tokens
from supervisor.ingest.agent_registry import SILENCE_SECONDS, AgentRegistry
from supervisor.ingest.agents import AgentDependencies, ReclaimService
from supervisor.ingest.drills import DrillEndpoints
from supervisor.ingest.expiry import Expiry, presence_unknown
from supervisor.ingest.launchers import LauncherEndpoints
from supervisor.ingest.pod_reports import PodReports, unknown_node
from supervisor.ingest.processes import ProcessEndpoints
from supervisor.ingest.quotas import LauncherQuotas
from supervisor.ingest.unconfirmed import UnconfirmedNotices
from supervisor.jobs.kinds import Kinds
from supervisor.jobs.standalone import StandaloneJobs
from supervisor.leadership.interface import AlwaysLeader, Leadership
from supervisor.observability.groups import Groups
from supervisor.observability.hooks import LiveState, MetricsHooks, NoMetrics
from supervisor.observability.journal import Journal, Listener
from supervisor.observability.page import status_page
from supervisor.observability.phase_tracker import PhaseTracker
from supervisor.observability.status import StatusEndpoint
from supervisor.observability.status_reader import StatusReader
from supervisor.observability.timed_store import TimedStore
from supervisor.refusals import Refusals
from supervisor.serving.servers import Endpoints, Servers
from supervisor.settings import Settings
from supervisor.store.interface import Store, StoreUnavailableError

if TYPE_CHECKING:
    from supervisor.wiring.cluster import ClusterWiring

_PRUNE_SECONDS = 600.0

Stepped = Callable[[Worker, int | None], None]
Task = Callable[[], Coroutine[Any, Any, None]]

_log = structlog.get_logger()


class Supervisor:
    """All parts, wired; `serve` runs them until `stop` is set."""

    def __init__(  # noqa: PLR0913 - what each run has of its own
        self,
        settings: Settings,
        store: Store,
        tokens: Tokens,
        clock: Clock,
        *,
        certificate: ServerCertificate | None = None,
        cluster: "ClusterWiring | None" = None,
        leadership: Leadership = AlwaysLeader(),  # noqa: B008 - it has no state
        refusals: Refusals | None = None,
        listeners: Sequence[Listener] = (),
        hooks: MetricsHooks = NoMetrics(),  # noqa: B008 - it has no state
    ) -> None:
        self._settings = settings
        self._store = store = TimedStore(store, hooks.on_store_write, clock)
        self._clock = clock
        self._refusals = refusals or Refusals()
        self._agents = AgentRegistry(self._agent_changed, clock.now)
        self._cluster = cluster
        self._unconfirmed = UnconfirmedNotices(self._facts_changed, clock)
        self._facts = Facts(store, self._agents, self._unconfirmed, settings, cluster or NoCluster())
        self._processes = Processes(
            self._facts.directives, clock.now, self._rank_zero_changed, hooks.on_directives_sent
        )
        self._launchers = Launchers(tokens.process, clock.now)
        if cluster is not None:
            cluster.wire(store, self._facts_changed, leadership.may_act, self._processes.hosts)
        self._control = Control(
            Ports(
                store=store,
                facts=self._facts,
                processes=self._processes,
                adapter=Kinds({STANDALONE: StandaloneJobs(self._launchers), **(cluster.adapters if cluster else {})}),
                leadership=leadership,
                policy=settings,
                clock=clock,
            )
        )
        live = LiveState(
            snapshot=store.snapshot,
            agents=self._agents,
            unconfirmed=self._unconfirmed,
            processes=self._processes,
            launchers=self._launchers,
            noticed=self._facts.noticed,
            placements=(cluster or NoCluster()).placements,
            failed=lambda: self._journal.failed,
            policy=settings,
            now=clock.now,
        )
        phases, groups = PhaseTracker(), Groups(self._facts.noticed, settings)
        self._journal = Journal(store, (*hooks.attach(live), *listeners, phases, groups), clock)
        status_reader = StatusReader(
            live=live,
            shown=self._facts.shown,
            groups=groups,
            phases=phases,
            refusals=self._refusals,
            name=settings.pod_name,
            may_act=leadership.may_act,
        )
        authenticate = Authenticator(tokens, cluster.pod_tokens if cluster else None).authenticate
        self._expiry = Expiry(
            store,
            self._agents,
            cluster.is_there if cluster else presence_unknown,
            settings,
            clock,
            unconfirmed=self._unconfirmed,
        )
        self._pod_reports = PodReports(cluster.node_of if cluster else unknown_node, lambda: store.snapshot().notices)
        self._reclaim = ReclaimService(
            AgentDependencies(
                store=store,
                agents=self._agents,
                unconfirmed=self._unconfirmed,
                pods=self._pod_reports,
                refusals=self._refusals,
                authenticate=authenticate,
                policy=settings,
                clock=clock,
                heartbeat_seconds=settings.heartbeat_seconds,
                on_refused=hooks.on_report_refused,
            )
        )
        self._certificate = certificate
        self._page = None
        if settings.status_page:
            self._page = status_page(
                snapshot=status_reader.snapshot,
                version=lambda: status_reader.version,
                authenticate=authenticate,
                sign=tokens.viewer,
                refusals=self._refusals,
                clock=clock,
            )
        endpoints: tuple[Endpoints, ...] = (
            LauncherEndpoints(
                store=store,
                quotas=LauncherQuotas(store, settings.launcher_hosts),
                launchers=self._launchers,
                refusals=self._refusals,
                authenticate=authenticate,
                clock=clock,
                live_seconds=settings.launcher_live_seconds,
            ),
            ProcessEndpoints(
                store=store,
                processes=self._processes,
                refusals=self._refusals,
                authenticate=authenticate,
                clock=clock,
                on_step=_both(hooks.on_step, groups.on_step),
            ),
            DrillEndpoints(store=store, agents=self._agents, authenticate=authenticate, policy=settings, clock=clock),
            StatusEndpoint(snapshot=status_reader.snapshot, authenticate=authenticate),
            *([self._page] if self._page else []),
        )
        self._servers = Servers(
            settings=settings,
            certificate=certificate,
            agents=self._reclaim,
            endpoints=endpoints,
            refusals=self._refusals,
            goodbye=self._goodbye,
        )

    async def serve(self, stop: asyncio.Event, beside: Mapping[str, Task] = MappingProxyType({})) -> None:
        """Serves until `stop` is set, then stops against the flow: goodbye on the streams, then the servers.

        Args:
            stop: Ends everything.
            beside: More root tasks, by name.
        """
        await run_tasks({"store": self._store.run, **self.tasks, **beside}, stop)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Root tasks, by name, beside the store's."""
        tasks: dict[str, Task] = {
            "control": self._control.run,
            "ageing": self._expiry.run,
            "journal": self._journal.run,
            "watch": self._watch,
            "heartbeat": self._beat,
            "retention": self._prune,
            "servers": self._servers.run,
            **({"page": self._page.viewers.run} if self._page else {}),
        }
        if self._cluster is not None:
            return {**tasks, **self._cluster.tasks}
        return {**tasks, **common_tasks(self._refusals, self._certificate)}

    async def prune_once(self) -> None:
        """Forgets what ended long ago; what cannot be forgotten now will be later."""
        failpoint(At.PRUNING)
        before = self._clock.now() - self._settings.retention_hours * 3600
        try:
            await self._store.prune(before)
        except StoreUnavailableError as error:
            _log.warning("store.not_pruned", why=str(error))
        jobs = self._store.snapshot().jobs
        # No later than the notice that explains the silence of a node that was reclaimed.
        self._agents.forget(before + SILENCE_SECONDS)
        self._pod_reports.forget_others(self._agents.all())
        self._launchers.forget_others(jobs)
        self._processes.forget_others(jobs)
        failpoint(At.PRUNED)

    async def _watch(self) -> None:
        version = 0
        while True:
            snapshot = await self._store.changed(version)
            version = snapshot.version
            self._launchers.dismiss_others(snapshot.jobs)
            self._facts_changed()

    def _facts_changed(self) -> None:
        self._control.poke()
        self._expiry.poke()

    def _agent_changed(self, _node: Host) -> None:
        self._facts_changed()

    def _rank_zero_changed(self, job: JobName) -> None:
        self._control.poke(job)

    def _goodbye(self) -> None:
        if self._page is not None:
            self._page.viewers.finish("the supervisor is stopping")
        self._reclaim.finish()
        self._processes.finish("the supervisor is stopping")
        self._launchers.finish("the supervisor is stopping")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_seconds)
            await self._processes.heartbeat()
            self._launchers.heartbeat()

    async def _prune(self) -> None:
        while True:
            await self.prune_once()
            await asyncio.sleep(_PRUNE_SECONDS)


def _both(one: Stepped, other: Stepped) -> Stepped:
    def on_step(worker: Worker, step: int | None) -> None:
        one(worker, step)
        other(worker, step)

    return on_step


def common_tasks(refusals: Refusals, certificate: ServerCertificate | None) -> Mapping[str, Task]:
    """Root tasks of every supervisor, by name, whether it leads or not."""
    return {
        "refusals": refusals.run,
        "memory": Trimmer().run,
        **({"certificate": certificate.run} if certificate else {}),
    }
