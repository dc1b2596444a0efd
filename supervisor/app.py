"""The wiring list: what the supervisor is made of."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from servicekit import descriptors
from servicekit.address import parse
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.lifecycle import give_up_on_signals, run_tasks, stop_on_signals
from servicekit.probes import Probes
from servicekit.tls import Files, ServerCertificate
from supervisor.control.facts import Alone, Facts
from supervisor.control.loop import Control, Ports
from supervisor.domain.ids import STANDALONE, Host, JobName
from supervisor.failpoints import At
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.processes import Processes
from supervisor.health import Standing, SupervisorHealth
from supervisor.identity.bearers import Bearers
from supervisor.identity.tokens import Tokens
from supervisor.ingest.ageing import Ageing, nobody_sees
from supervisor.ingest.agents import AgentPorts, ReclaimService
from supervisor.ingest.drills import DrillEndpoints
from supervisor.ingest.launchers import LauncherEndpoints
from supervisor.ingest.pod_reports import PodReports, nowhere
from supervisor.ingest.processes import ProcessEndpoints
from supervisor.jobs.kinds import Kinds
from supervisor.jobs.standalone import StandaloneJobs
from supervisor.leadership.interface import Leadership, Unopposed
from supervisor.presence import Agents
from supervisor.record.groups import Groups
from supervisor.record.journal import Journal, Listener
from supervisor.record.look import Lookout
from supervisor.record.measures import Measures, Sight, Unmeasured
from supervisor.record.page import status_page
from supervisor.record.phases import Phases
from supervisor.record.status import StatusEndpoint
from supervisor.record.timed import TimedStore
from supervisor.refusals import Refusals
from supervisor.serving import Endpoints, Servers
from supervisor.settings import Settings, StoreKind
from supervisor.store.interface import Store, StoreUnavailableError
from supervisor.store.sqlite import SqliteStore
from supervisor.unconfirmed import Unconfirmed
from supervisor.webhook.gifts import CaFile
from supervisor.webhook.server import nobody_counts

if TYPE_CHECKING:
    from supervisor.on_cluster import OnCluster
    from supervisor.own_keys import OwnKeys
    from supervisor.record.metrics import Metrics
    from supervisor.replica import Replica

STORE_FILE = "supervisor.sqlite"
_PRUNE_SECONDS = 600.0

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
        cluster: "OnCluster | None" = None,
        leadership: Leadership = Unopposed(),  # noqa: B008 - it has no state
        refusals: Refusals | None = None,
        listeners: Sequence[Listener] = (),
        measures: Measures = Unmeasured(),  # noqa: B008 - it has no state
    ) -> None:
        self._settings = settings
        self._store = store = TimedStore(store, measures.timed, clock)
        self._clock = clock
        self._refusals = refusals or Refusals()
        self._agents = Agents(self._agent_changed, clock.now)
        self._cluster = cluster
        self._unconfirmed = Unconfirmed(self._facts_changed, clock)
        self._facts = Facts(store, self._agents, self._unconfirmed, settings, cluster or Alone())
        self._processes = Processes(self._facts.directives, clock.now, self._rank_zero_changed, measures.told)
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
        watching = measures.watch(
            Sight(
                snapshot=store.snapshot,
                agents=self._agents,
                unconfirmed=self._unconfirmed,
                processes=self._processes,
                launchers=self._launchers,
                noticed=self._facts.noticed,
                placements=(cluster or Alone()).placements,
                failed=lambda: self._journal.failed,
                policy=settings,
                now=clock.now,
            )
        )
        phases, groups = Phases(), Groups(self._facts.noticed, settings)
        self._journal = Journal(store, (*watching, *listeners, phases, groups), clock)
        lookout = Lookout(
            store=store,
            facts=self._facts,
            placements=(cluster or Alone()).placements,
            agents=self._agents,
            unconfirmed=self._unconfirmed,
            processes=self._processes,
            groups=groups,
            phases=phases,
            refusals=self._refusals,
            policy=settings,
            name=settings.pod_name,
            may_act=leadership.may_act,
            clock=clock,
        )
        bearer = Bearers(tokens, cluster.pod_tokens if cluster else None).bearer
        self._ageing = Ageing(store, self._agents, cluster.is_there if cluster else nobody_sees, settings, clock)
        self._pod_reports = PodReports(cluster.node_of if cluster else nowhere, lambda: store.snapshot().notices)
        self._reclaim = ReclaimService(
            AgentPorts(
                store=store,
                agents=self._agents,
                unconfirmed=self._unconfirmed,
                pods=self._pod_reports,
                refusals=self._refusals,
                bearer=bearer,
                policy=settings,
                clock=clock,
                heartbeat_seconds=settings.heartbeat_seconds,
                refused=measures.refused,
            )
        )
        self._certificate = certificate
        self._page = None
        if settings.status_page:
            self._page = status_page(
                look=lookout.look,
                version=lambda: lookout.version,
                bearer=bearer,
                sign=tokens.viewer,
                refusals=self._refusals,
                clock=clock,
            )
        endpoints: tuple[Endpoints, ...] = (
            LauncherEndpoints(
                store=store,
                launchers=self._launchers,
                refusals=self._refusals,
                bearer=bearer,
                clock=clock,
                live_seconds=settings.launcher_live_seconds,
            ),
            ProcessEndpoints(
                store=store,
                processes=self._processes,
                refusals=self._refusals,
                bearer=bearer,
                clock=clock,
                stepped=measures.stepped,
            ),
            DrillEndpoints(store=store, agents=self._agents, bearer=bearer, policy=settings, clock=clock),
            StatusEndpoint(look=lookout.look, bearer=bearer),
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
            "ageing": self._ageing.run,
            "journal": self._journal.run,
            "watch": self._watch,
            "heartbeat": self._beat,
            "retention": self._prune,
            "servers": self._servers.run,
            **({"page": self._page.viewers.run} if self._page else {}),
        }
        if self._cluster is not None:
            return {**tasks, **self._cluster.tasks}
        return {**tasks, **_anyway(self._refusals, self._certificate)}

    async def prune_once(self) -> None:
        """Forgets what ended long ago; what cannot be forgotten now will be later."""
        failpoint(At.PRUNING)
        before = self._clock.now() - self._settings.retention_hours * 3600
        try:
            await self._store.prune(before)
        except StoreUnavailableError as error:
            _log.warning("store.not_pruned", why=str(error))
        jobs = self._store.snapshot().jobs
        self._agents.forget(before)
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
        self._ageing.poke()

    def _agent_changed(self, _node: Host) -> None:
        self._facts_changed()

    def _rank_zero_changed(self, _job: JobName) -> None:
        self._control.poke()

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


async def serve(settings: Settings) -> int:
    """Runs the supervisor until SIGTERM or SIGINT; returns the exit code."""
    descriptors.raise_limit()
    clock = Clock()
    certificate = load_certificate(settings, clock)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with give_up_on_signals():  # While it waits for an API server, that is; later it says goodbye.
        async with _probes(settings.probe_address) as health:
            if settings.store is StoreKind.SQLITE:
                await _serve_alone(settings, clock, certificate, health)
            else:
                await _serve_in_cluster(settings, clock, certificate, health)
    return 0


async def _serve_alone(
    settings: Settings, clock: Clock, certificate: ServerCertificate | None, health: SupervisorHealth
) -> None:
    tokens, stop, refusals = Tokens.load(settings.data_dir), asyncio.Event(), Refusals()
    metrics = _metrics(settings, refusals, clock)
    store = await SqliteStore.open(settings.data_dir / STORE_FILE)
    try:
        health.standing = Standing.SERVING
        supervisor = Supervisor(
            settings,
            store,
            tokens,
            clock,
            certificate=certificate,
            refusals=refusals,
            measures=metrics.leading(Unopposed().may_act) if metrics else Unmeasured(),
        )
        with stop_on_signals(stop):
            await supervisor.serve(stop, _served(settings, metrics))
    finally:
        await store.close()


async def _serve_in_cluster(
    settings: Settings, clock: Clock, certificate: ServerCertificate | None, health: SupervisorHealth
) -> None:
    # Imported here: what speaks with a cluster is of no use to a file.
    from supervisor.replica import Replica  # noqa: PLC0415

    refusals, stop = Refusals(), asyncio.Event()
    metrics = _metrics(settings, refusals, clock)
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(_own_keys(settings, clock))
        tokens = own.tokens if own else Tokens.load(settings.data_dir)
        if own is not None and own.certificate is not None:
            certificate = own.certificate
        replica = await stack.enter_async_context(Replica.open(settings, clock))

        def leading() -> Mapping[str, Task]:
            health.standing = Standing.SERVING
            supervisor = Supervisor(
                settings,
                replica.store,
                tokens,
                clock,
                certificate=certificate,
                cluster=replica.cluster,
                leadership=replica.leadership,
                refusals=refusals,
                listeners=replica.listeners,
                measures=_measures(metrics, replica),
            )
            return {**supervisor.tasks, **replica.listening, **(own.leading(replica.leadership) if own else {})}

        reviewed = metrics.reviewed if metrics else nobody_counts
        webhook = replica.webhook(settings, _handed_out(settings, own, clock), certificate, refusals, reviewed)
        health.standing = Standing.STANDING_BY
        _log.info("supervisor.standing_by")
        with stop_on_signals(stop):
            beside = {**_anyway(refusals, certificate), **_served(settings, metrics), **webhook}
            await replica.serve(leading, stop, beside={**beside, **(own.tasks if own else {})})


def _anyway(refusals: Refusals, certificate: ServerCertificate | None) -> Mapping[str, Task]:
    """Root tasks of every supervisor, by name, whether it leads or not."""
    return {"refusals": refusals.run, **({"certificate": certificate.run} if certificate else {})}


def _measures(metrics: "Metrics | None", replica: "Replica") -> Measures:
    """What the leader's parts tell of their work, on a cluster."""
    if metrics is None:
        return Unmeasured()
    # Imported here: what is not asked for is to cost nothing.
    from supervisor.record.metrics import Surroundings  # noqa: PLC0415

    cluster, events = replica.cluster, replica.events
    around = Surroundings(
        places=cluster.place_of,
        gpus=cluster.gpus,
        events=lambda: {} if events is None else {outcome.value: count for outcome, count in events.outcomes.items()},
    )
    return metrics.leading(replica.leadership.may_act, around)


def _metrics(settings: Settings, refusals: Refusals, clock: Clock) -> "Metrics | None":
    if settings.metrics is None:
        return None
    # Imported here: what is not asked for is to cost nothing.
    from supervisor.record.metrics import Metrics  # noqa: PLC0415

    return Metrics(version("elastic-job-supervisor"), refusals, clock)


def _served(settings: Settings, metrics: "Metrics | None") -> Mapping[str, Task]:
    """The root task that serves metrics, where they are wanted."""
    return {} if metrics is None or settings.metrics is None else {"metrics": metrics.server(settings.metrics).run}


def _handed_out(settings: Settings, own: "OwnKeys | None", clock: Clock) -> Callable[[], str]:
    """The CA for pods, as PEM.

    Raises:
        CertificateUnusable: There is none where one should be.
    """
    if settings.public_ca_file is not None:
        return CaFile(settings.public_ca_file, clock).text
    return str if own is None or own.certificate is None else own.trusted


@asynccontextmanager
async def _own_keys(settings: Settings, clock: Clock) -> AsyncIterator["OwnKeys | None"]:
    """Those that all supervisors of a cluster share; None where they are files of this one."""
    if not settings.keys_secret:
        yield None
        return
    # Imported here: what speaks with a cluster is of no use to a file.
    from supervisor.own_keys import OwnKeys  # noqa: PLC0415

    async with OwnKeys.open(settings, clock) as own:
        yield own


@asynccontextmanager
async def _probes(where: str) -> AsyncIterator[SupervisorHealth]:
    """What they will say, for as long as the context lasts; no `where`, no probes."""
    health = SupervisorHealth()
    if not where:
        yield health
        return
    probes = Probes(health.live, health.ready, parse(where))
    try:
        _log.info("probes.listening", address=str(await probes.start()))
        yield health
    finally:
        await probes.stop()


def load_certificate(settings: Settings, clock: Clock) -> ServerCertificate | None:
    """What the settings name; None where they name none.

    Raises:
        CertificateUnusable: It cannot be served.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return ServerCertificate(Files(settings.tls_cert_file, settings.tls_key_file), settings.tls_reload_seconds, clock)
