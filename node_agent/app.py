"""Wires the agent's parts together and runs them."""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import structlog

from node_agent.channel import SupervisorEndpoint
from node_agent.discovery import CloudDiscovery, SourceFactory
from node_agent.node import ALWAYS_SPOT, NodeObject, NodeWatch, ThisNode
from node_agent.notices import NoticeSource
from node_agent.outbox import NoticeOutbox
from node_agent.pods import KUBERNETES, PodWatch
from node_agent.poller import Poller
from node_agent.settings import AgentSettings, PodsMode, SourceKind
from node_agent.stream import AgentReplaced, SupervisorUplink
from node_agent.watchdog import Watchdog, kernel_watchdog
from servicekit import address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.commands import SysExit
from servicekit.kubernetes.access import in_pod, pod_access
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.errors import ConfigurationError
from servicekit.kubernetes.server import ApiServer
from servicekit.lifecycle import Health, RootTaskEnded, run_tasks, stop_on_signals

DISTRIBUTION = "elastic-job-supervisor"


class AgentExitCode(enum.IntEnum):
    """Exit codes of the agent."""

    STOPPED = 0
    FAILED = 1
    # A newer agent speaks for this node.
    REPLACED = 3
    MISCONFIGURED = SysExit.CONFIG


async def run(settings: AgentSettings) -> AgentExitCode:
    """Runs the agent until SIGTERM or SIGINT, or until a newer agent replaces it."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        try:
            await _serve(settings, stop)
        except RootTaskEnded as ended:
            if isinstance(ended.__cause__, AgentReplaced):
                structlog.get_logger().warning("agent.replaced", reason=str(ended.__cause__))
                return AgentExitCode.REPLACED
            structlog.get_logger().error("agent.failed", task=ended.name, exc_info=ended)
            return AgentExitCode.FAILED
        except ConfigurationError as error:
            structlog.get_logger().error("agent.misconfigured", reason=str(error))
            return AgentExitCode.MISCONFIGURED
    structlog.get_logger().info("agent.stopped")
    return AgentExitCode.STOPPED


async def _serve(settings: AgentSettings, stop: asyncio.Event) -> None:
    clock = Clock()
    bulkhead = Bulkhead(clock)
    metrics, outbox = None, NoticeOutbox(settings.outbox_limit)
    if settings.metrics_address:
        # Imported here: an agent without metrics does not pay for the library.
        from node_agent.metrics import AgentMetrics  # noqa: PLC0415

        metrics = AgentMetrics(version(DISTRIBUTION), clock, bulkhead)
        outbox = NoticeOutbox(settings.outbox_limit, metrics.on_report, metrics.on_acknowledged)
    node = ThisNode(settings.node_name, settings.node_uid, on_described=outbox.changed.set)
    uplink = SupervisorUplink(
        endpoint=SupervisorEndpoint(address.parse(settings.supervisor), settings.token_file, settings.ca_file),
        node=node,
        outbox=outbox,
        clock=clock,
        heartbeat=settings.heartbeat_seconds,
        version=version(DISTRIBUTION),
        bulkhead=bulkhead,
    )
    asyncio.get_running_loop().set_exception_handler(bulkhead.on_loop_error)
    tasks = _AgentTasks({"uplink": uplink.run})
    if metrics is not None:
        from servicekit.metrics import MetricsServer  # noqa: PLC0415 - as above

        metrics.observe(outbox, uplink)
        where = address.parse(settings.metrics_address)
        tasks.root["metrics"] = MetricsServer(metrics.registry, where, clock, bulkhead).run
    async with contextlib.AsyncExitStack() as stack:
        # The API server shows the Node object, and whether any opted-in pod runs here.
        spot: NodeObject = ALWAYS_SPOT
        is_idle: Callable[[], bool] | None = None
        cluster_clock = ClusterClock(clock)
        server = await stack.enter_async_context(_api_server(settings, cluster_clock))
        if server is not None:
            pods = PodWatch(server, settings.node_name, outbox, cluster_clock, bulkhead)
            watch = NodeWatch(server, node, settings.not_spot_labels, clock, bulkhead)
            tasks.root.update(
                {"pods": pods.reflector.run, f"source {KUBERNETES}": pods.run, "node": watch.reflector.run}
            )
            tasks.watchdogs[KUBERNETES] = pods.watchdog
            spot, is_idle = watch.object, pods.is_idle
        factory = SourceFactory(settings, clock, is_idle)

        def poller(source: NoticeSource, spot: NodeObject) -> Poller:
            return Poller(
                source,
                node,
                outbox,
                clock,
                settings.poll_seconds,
                bulkhead=bulkhead,
                spot=spot,
                max_lead=settings.max_lead_seconds,
                on_poll=None if metrics is None else metrics.on_poll,
            )

        for kind in settings.sources:
            if kind is SourceKind.AUTO:
                clouds = await stack.enter_async_context(factory.clouds())
                tasks.discover(CloudDiscovery(node, spot, clouds, outbox, clock, bulkhead), partial(poller, spot=spot))
                continue
            source = await stack.enter_async_context(factory.source(kind))
            # A file is read on every node: somebody wrote it on purpose.
            polling = poller(source, ALWAYS_SPOT if kind is SourceKind.FILE else spot)
            tasks.root[f"source {polling.source}"] = polling.run
            tasks.watchdogs[polling.source] = polling.watchdog
        health = AgentHealth(tasks.watchdogs, uplink, node, outbox, clock)
        await stack.enter_async_context(_probes(settings.probe_address, health))
        watchdog = kernel_watchdog(settings.watchdog_seconds)
        if watchdog is not None:
            tasks.root["watchdog"] = partial(watchdog.run, health.hanging)
        await run_tasks(tasks.root, stop)


@dataclass(frozen=True, slots=True)
class _AgentTasks:
    """Root tasks by name, and the watchdog of each source."""

    root: dict[str, Callable[[], Coroutine[Any, Any, None]]]
    watchdogs: dict[str, Watchdog] = field(default_factory=dict)

    def discover(self, discovery: CloudDiscovery, poller: Callable[[NoticeSource], Poller]) -> None:
        """Adds a root task that finds the node's cloud, and then polls its source."""

        async def run() -> None:
            found = poller(await discovery.run())
            del self.watchdogs[SourceKind.AUTO]
            self.watchdogs[found.source] = found.watchdog
            await found.run()

        self.root[f"source {SourceKind.AUTO}"] = run
        self.watchdogs[SourceKind.AUTO] = discovery.watchdog


@contextlib.asynccontextmanager
async def _api_server(settings: AgentSettings, cluster_clock: ClusterClock) -> AsyncIterator[ApiServer | None]:
    """Opens a connection to the API server if the settings want one and the pod has a service account."""
    access = None
    if settings.pods is PodsMode.ON or (settings.pods is PodsMode.AUTO and in_pod()):
        try:
            access = pod_access(directory=settings.account_dir)
        except ConfigurationError as error:
            if settings.pods is PodsMode.ON:
                raise
            # A pod without a mounted service account is not meant to use the API server.
            structlog.get_logger().warning("pods.not_watched", reason=str(error))
    if access is None:
        yield None
        return
    server = ApiServer(access, settings.api_timeout_seconds, on_date=cluster_clock.observe)
    try:
        yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def _probes(bind: str, health: "AgentHealth") -> AsyncIterator[None]:
    if not bind:
        yield
        return
    # Imported here, like the metrics: an agent without probes does not pay for an HTTP server.
    from servicekit.http_server import Probes  # noqa: PLC0415

    probes = Probes(health.live, health.ready, address.parse(bind))
    async with probes.serving() as listening:
        structlog.get_logger().info("probes.listening", address=str(listening))
        yield


@dataclass(frozen=True, slots=True)
class AgentHealth:
    """Live while all loops turn; ready while the supervisor has welcomed the agent on the present stream."""

    sources: Mapping[str, Watchdog]
    uplink: SupervisorUplink
    node: ThisNode
    outbox: NoticeOutbox
    clock: Clock

    def live(self) -> Health:
        """Returns whether all loops turn. This depends on nothing outside the process."""
        loops = {f"source {name}": watchdog.alive for name, watchdog in self.sources.items()}
        loops["uplink"] = self.uplink.watchdog.alive
        return Health(all(loops.values()), {"loops": loops})

    def hanging(self) -> Sequence[str]:
        """Returns the loops that hang."""
        return [name for name, alive in self.live().detail["loops"].items() if not alive]

    def ready(self) -> Health:
        if self.uplink.welcomed:
            supervisor = "acknowledged"
        elif self.node.subject is None:
            supervisor = "waits for the node's uid"
        else:
            supervisor = self.uplink.fault.reason or "connecting"
        now = self.clock.monotonic()
        sources = {
            status.source: {
                "state": status.state.name.lower(),
                "last_good_poll_age": None if status.last_good is None else round(now - status.last_good, 3),
                "detail": status.detail,
            }
            for status in self.outbox.statuses()
        }
        waiting = len(self.outbox.unacknowledged())
        detail = {"supervisor": supervisor, "unacknowledged": waiting, "sources": sources}
        return Health(self.uplink.welcomed, detail)
