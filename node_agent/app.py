"""The agent's wiring list."""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator
from importlib.metadata import version

import structlog

from node_agent.channel import Endpoint
from node_agent.health import AgentHealth
from node_agent.identity import ThisNode
from node_agent.outbox import Outbox
from node_agent.poller import Poller
from node_agent.settings import Settings, SourceKind
from node_agent.sources import Source
from node_agent.sources.aliyun import AliyunSource
from node_agent.sources.aws import AwsSource
from node_agent.sources.file import FileSource
from node_agent.uplink import AgentReplaced, Uplink
from servicekit import address
from servicekit.clock import Clock
from servicekit.lifecycle import RootTaskEnded, run_tasks, stop_on_signals
from servicekit.probes import Probes


class ExitCode(enum.IntEnum):
    """How the agent ends."""

    STOPPED = 0
    FAILED = 1
    # A newer agent speaks for this node.
    REPLACED = 3
    # The settings are wrong: EX_CONFIG.
    MISCONFIGURED = 78


async def run(settings: Settings) -> ExitCode:
    """Run the agent until SIGTERM, SIGINT, or until it is replaced."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        try:
            await _serve(settings, stop)
        except RootTaskEnded as ended:
            return _verdict(ended)
    structlog.get_logger().info("agent.stopped")
    return ExitCode.STOPPED


async def _serve(settings: Settings, stop: asyncio.Event) -> None:
    clock = Clock()
    node = ThisNode(settings.node_name, settings.node_uid)
    outbox = Outbox(settings.outbox_limit)
    uplink = Uplink(
        endpoint=Endpoint(address.parse(settings.supervisor), settings.token_file, settings.ca_file),
        node=node,
        outbox=outbox,
        clock=clock,
        heartbeat=settings.heartbeat_seconds,
        version=version("elastic-job-supervisor"),
    )
    async with contextlib.AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(_source(kind, settings, clock)) for kind in settings.sources]
        pollers = [Poller(source, node, outbox, clock, settings.poll_seconds) for source in sources]
        health = AgentHealth(pollers, uplink, node, outbox, clock)
        await stack.enter_async_context(_probes(settings.probe_address, health))
        loops = {f"source {poller.source}": poller.run for poller in pollers}
        await run_tasks({**loops, "uplink": uplink.run}, stop)


@contextlib.asynccontextmanager
async def _source(kind: SourceKind, settings: Settings, clock: Clock) -> AsyncIterator[Source]:
    source = _make_source(kind, settings, clock)
    try:
        yield source
    finally:
        await source.close()


def _make_source(kind: SourceKind, settings: Settings, clock: Clock) -> Source:
    match kind:
        case SourceKind.ALIYUN:
            return AliyunSource(settings.metadata_url, settings.metadata_mode, clock)
        case SourceKind.AWS:
            return AwsSource(settings.aws_metadata_url, clock)
        case SourceKind.FILE if settings.file_path is not None:
            return FileSource(settings.file_path, clock)
        case _:
            raise ValueError(f"source {kind} is not set up")


@contextlib.asynccontextmanager
async def _probes(where: str, health: AgentHealth) -> AsyncIterator[None]:
    if not where:
        yield
        return
    probes = Probes(health.live, health.ready, address.parse(where))
    try:
        structlog.get_logger().info("probes.listening", address=str(await probes.start()))
        yield
    finally:
        await probes.stop()


def _verdict(ended: RootTaskEnded) -> ExitCode:
    log = structlog.get_logger()
    if isinstance(ended.__cause__, AgentReplaced):
        log.warning("agent.replaced", reason=str(ended.__cause__))
        return ExitCode.REPLACED
    log.error("agent.failed", task=ended.name, exc_info=ended)
    return ExitCode.FAILED
