"""Wires the agent's parts together and runs them."""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import structlog

from node_agent import reclaim
from node_agent.channel import Endpoint
from node_agent.discovery import Discovery
from node_agent.health import AgentHealth
from node_agent.identity import ThisNode
from node_agent.outbox import Outbox
from node_agent.pods import PodWatch
from node_agent.poller import Poller, ignore_poll
from node_agent.settings import PodsMode, Settings, SourceKind
from node_agent.source_factory import SourceFactory
from node_agent.sources import Source
from node_agent.spot import ALWAYS, Spot, SpotLabel
from node_agent.uplink import AgentReplaced, Uplink
from node_agent.watchdog import Watchdog, kernel_watchdog
from servicekit import address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.commands import SysExit
from servicekit.kubernetes.access import Access, in_pod, pod_access
from servicekit.kubernetes.errors import ConfigurationError
from servicekit.kubernetes.server import ApiServer
from servicekit.lifecycle import RootTaskEnded, run_tasks, stop_on_signals

if TYPE_CHECKING:
    from node_agent.metrics import AgentMetrics

DISTRIBUTION = "elastic-job-supervisor"


class ExitCode(enum.IntEnum):
    """Exit codes of the agent."""

    STOPPED = 0
    FAILED = 1
    # A newer agent speaks for this node.
    REPLACED = 3
    MISCONFIGURED = SysExit.CONFIG


async def run(settings: Settings) -> ExitCode:
    """Runs the agent until SIGTERM or SIGINT, or until a newer agent replaces it."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        try:
            await _serve(settings, stop)
        except RootTaskEnded as ended:
            return _exit_code(ended)
        except ConfigurationError as error:
            structlog.get_logger().error("agent.misconfigured", reason=str(error))
            return ExitCode.MISCONFIGURED
    structlog.get_logger().info("agent.stopped")
    return ExitCode.STOPPED


async def _serve(settings: Settings, stop: asyncio.Event) -> None:
    clock = Clock()
    outbox = Outbox(settings.outbox_limit)
    node = ThisNode(settings.node_name, settings.node_uid, on_described=outbox.wake)
    bulkhead = Bulkhead(clock)
    uplink = Uplink(
        endpoint=Endpoint(address.parse(settings.supervisor), settings.token_file, settings.ca_file),
        node=node,
        outbox=outbox,
        clock=clock,
        heartbeat=settings.heartbeat_seconds,
        version=version(DISTRIBUTION),
        bulkhead=bulkhead,
    )
    asyncio.get_running_loop().set_exception_handler(bulkhead.on_loop_error)
    metrics = _metrics(settings, outbox, uplink, clock, bulkhead)
    tasks = _Tasks({"uplink": uplink.run}, {})
    if metrics is not None:
        tasks.root["metrics"] = metrics.server(address.parse(settings.metrics_address)).run
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(_api_server(settings))
        cluster = (
            _WITHOUT_CLUSTER if server is None else _add_cluster(tasks, server, settings, node, outbox, clock, bulkhead)
        )
        factory = SourceFactory(settings, clock, cluster.idle)
        on_poll = ignore_poll if metrics is None else metrics.on_poll

        def poller(source: Source, spot: Spot) -> Poller:
            lead = settings.max_lead_seconds
            return Poller(
                source,
                node,
                outbox,
                clock,
                settings.poll_seconds,
                bulkhead=bulkhead,
                spot=spot,
                max_lead=lead,
                on_poll=on_poll,
            )

        for kind in settings.sources:
            if kind is SourceKind.AUTO:
                clouds = await stack.enter_async_context(factory.clouds())
                tasks.discover(Discovery(node, cluster.spot, clouds, outbox, clock, bulkhead), cluster.spot, poller)
                continue
            source = await stack.enter_async_context(factory.source(kind))
            # A file is read on every node: somebody wrote it on purpose.
            tasks.add(poller(source, ALWAYS if kind is SourceKind.FILE else cluster.spot))
        health = AgentHealth(tasks.watchdogs, uplink, node, outbox, clock)
        await stack.enter_async_context(_probes(settings.probe_address, health))
        watchdog = kernel_watchdog(settings.watchdog_seconds)
        if watchdog is not None:
            tasks.root["watchdog"] = partial(watchdog.run, health.hanging)
        await run_tasks(tasks.root, stop)


def _metrics(
    settings: Settings, outbox: Outbox, uplink: Uplink, clock: Clock, bulkhead: Bulkhead
) -> "AgentMetrics | None":
    if not settings.metrics_address:
        return None
    # Imported here: an agent without metrics does not pay for the library.
    from node_agent.metrics import AgentMetrics  # noqa: PLC0415

    metrics = AgentMetrics(version(DISTRIBUTION), clock, bulkhead)
    metrics.observe(outbox, uplink)
    return metrics


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Root tasks by name, and the watchdog of each source."""

    root: dict[str, Callable[[], Coroutine[Any, Any, None]]]
    watchdogs: dict[str, Watchdog]

    def add(self, poller: Poller) -> None:
        self.root[f"source {poller.source}"] = poller.run
        self.watchdogs[poller.source] = poller.watchdog

    def discover(self, discovery: Discovery, spot: Spot, poller: Callable[[Source, Spot], Poller]) -> None:
        """Adds a root task that finds the node's cloud, and then polls its source."""

        async def run() -> None:
            found = poller(await discovery.run(), spot)
            del self.watchdogs[SourceKind.AUTO]
            self.watchdogs[found.source] = found.watchdog
            await found.run()

        self.root[f"source {SourceKind.AUTO}"] = run
        self.watchdogs[SourceKind.AUTO] = discovery.watchdog


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The API server's knowledge of this node: the Node object, and whether no opted-in pod runs here."""

    spot: Spot
    idle: Callable[[], bool]


_WITHOUT_CLUSTER = _Cluster(ALWAYS, lambda: False)


def _add_cluster(  # noqa: PLR0913, PLR0917 - a part of the wiring list
    tasks: _Tasks,
    server: ApiServer,
    settings: Settings,
    node: ThisNode,
    outbox: Outbox,
    clock: Clock,
    bulkhead: Bulkhead,
) -> _Cluster:
    """Follows this node and its pods through the API server."""
    pods = PodWatch(server, settings.node_name, outbox, clock, bulkhead)
    label = SpotLabel(server, node, settings.not_spot_labels, clock, bulkhead)
    tasks.root.update({"pods": pods.follow, f"source {reclaim.SOURCE}": pods.run, "node": label.follow})
    tasks.watchdogs[reclaim.SOURCE] = pods.watchdog
    return _Cluster(label, lambda: pods.idle)


@contextlib.asynccontextmanager
async def _api_server(settings: Settings) -> AsyncIterator[ApiServer | None]:
    access = _access(settings)
    if access is None:
        yield None
        return
    server = ApiServer(access, settings.api_timeout_seconds)
    try:
        yield server
    finally:
        await server.close()


def _access(settings: Settings) -> Access | None:
    if settings.pods is PodsMode.OFF or (settings.pods is PodsMode.AUTO and not in_pod()):
        return None
    try:
        return pod_access(directory=settings.account_dir)
    except ConfigurationError as error:
        if settings.pods is PodsMode.ON:
            raise
        # A pod without a mounted service account is not meant to use the API server.
        structlog.get_logger().warning("pods.not_watched", reason=str(error))
        return None


@contextlib.asynccontextmanager
async def _probes(bind: str, health: AgentHealth) -> AsyncIterator[None]:
    if not bind:
        yield
        return
    # Imported here, like the metrics: an agent without probes does not pay for an HTTP server.
    from servicekit.probes import Probes  # noqa: PLC0415

    probes = Probes(health.live, health.ready, address.parse(bind))
    try:
        structlog.get_logger().info("probes.listening", address=str(await probes.start()))
        yield
    finally:
        await probes.stop()


def _exit_code(ended: RootTaskEnded) -> ExitCode:
    log = structlog.get_logger()
    if isinstance(ended.__cause__, AgentReplaced):
        log.warning("agent.replaced", reason=str(ended.__cause__))
        return ExitCode.REPLACED
    log.error("agent.failed", task=ended.name, exc_info=ended)
    return ExitCode.FAILED
