"""Wires the keeper's parts together and runs them."""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib.metadata import version
from typing import Any

import structlog

from node_agent.keeper.files import PartFiles
from node_agent.keeper.keeper import StateKeeper
from node_agent.keeper.ledger import Bounds, Ledger
from node_agent.keeper.metrics import KeeperMetrics
from node_agent.keeper.server import KeeperServer
from node_agent.keeper.settings import KeeperAuthentication, KeeperSettings
from node_agent.keeper.tenants import OneTenant, ReviewedTenants, Tenants
from servicekit import address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.commands import SysExit
from servicekit.http_server import Probes
from servicekit.kubernetes.access import pod_access
from servicekit.kubernetes.errors import ConfigurationError
from servicekit.kubernetes.server import ApiServer
from servicekit.lifecycle import Health, RootTaskEnded, run_tasks, stop_on_signals
from servicekit.metrics import MetricsServer

_DISTRIBUTION = "elastic-job-supervisor"

_log = structlog.get_logger()


class KeeperExitCode(enum.IntEnum):
    """Exit codes of the keeper."""

    STOPPED = 0
    FAILED = 1
    MISCONFIGURED = SysExit.CONFIG


async def run(settings: KeeperSettings) -> KeeperExitCode:
    """Runs the keeper until SIGTERM or SIGINT. What it keeps stays in its directory for the next process."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        try:
            await _serve(settings, stop)
        except RootTaskEnded as ended:
            _log.error("keeper.failed", task=ended.name, exc_info=ended)
            return KeeperExitCode.FAILED
        except ConfigurationError as error:
            _log.error("keeper.misconfigured", reason=str(error))
            return KeeperExitCode.MISCONFIGURED
    _log.info("keeper.stopped")
    return KeeperExitCode.STOPPED


async def _serve(settings: KeeperSettings, stop: asyncio.Event) -> None:
    clock = Clock()
    bulkhead = Bulkhead(clock)
    asyncio.get_running_loop().set_exception_handler(bulkhead.on_loop_error)
    metrics = KeeperMetrics(version(_DISTRIBUTION), bulkhead)
    of_tenant = settings.tenant_bytes or settings.bytes
    async with contextlib.AsyncExitStack() as stack:
        tenants = await stack.enter_async_context(_tenants(settings, clock))
        files = PartFiles(settings.directory)
        files.open()
        stack.callback(files.close)
        keeper = StateKeeper(
            ledger=Ledger(Bounds(host=settings.bytes, tenant=of_tenant)),
            files=files,
            clock=clock,
            bulkhead=bulkhead,
            max_seconds=settings.seconds,
            on_kept=metrics.on_kept,
            on_expired=metrics.on_expired,
        )
        keeper.recover()
        metrics.observe(keeper.ledger, settings.bytes)
        server = KeeperServer(
            keeper=keeper,
            tenants=tenants,
            address=address.parse(settings.address),
            clock=clock,
            bulkhead=bulkhead,
            on_refused=metrics.on_refused,
        )
        tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "server": server.run,
            "expiry": keeper.sweep,
            "removal": keeper.free,
        }
        if settings.metrics_address:
            where = address.parse(settings.metrics_address)
            tasks["metrics"] = MetricsServer(metrics.registry, where, clock, bulkhead).run
        if settings.probe_address:
            probes = Probes(_healthy, _healthy, address.parse(settings.probe_address))
            _log.info("probes.listening", address=str(await stack.enter_async_context(probes.serving())))
        await run_tasks(tasks, stop)


@contextlib.asynccontextmanager
async def _tenants(settings: KeeperSettings, clock: Clock) -> AsyncIterator[Tenants]:
    if settings.authentication is KeeperAuthentication.NONE:
        _log.warning("keeper.unauthenticated", address=settings.address)
        yield OneTenant()
        return
    server = ApiServer(pod_access(directory=settings.account_dir), settings.api_timeout_seconds)
    try:
        yield ReviewedTenants(server, settings.audience, clock)
    finally:
        await server.close()


def _healthy() -> Health:
    """Healthy while the loop turns. It depends on nothing outside: without the API server, states are still read."""
    return Health(ok=True)
