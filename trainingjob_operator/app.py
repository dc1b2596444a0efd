"""Wires the operator's parts together and runs them."""

import asyncio
import secrets
from contextlib import AsyncExitStack
from importlib.metadata import version

import structlog

from servicekit import address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.commands import SysExit
from servicekit.http_server import Probes
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.election import Election, ElectionConfig, LeaseLostError
from servicekit.kubernetes.errors import ApiError, ConfigurationError
from servicekit.kubernetes.server import ApiServer, always
from servicekit.lifecycle import Health, RootTaskEnded, cancel_on_signals, run_tasks, stop_on_signals
from servicekit.metrics import MetricsServer
from trainingjob_operator.caches import JobCaches
from trainingjob_operator.controller import Controller, ControllerOptions
from trainingjob_operator.metrics import OperatorMetrics
from trainingjob_operator.settings import TrainingJobOperatorSettings

_DISTRIBUTION = "elastic-job-supervisor"
_ANSWERED_WITHIN = 2 / 3
"""The time limit of a request for the Lease, as a part of its duration, so that there is time for a second attempt."""

_FAILED = 1

_log = structlog.get_logger()


async def run(settings: TrainingJobOperatorSettings) -> int:
    """Runs the operator until SIGTERM or SIGINT; returns the exit code of the process."""
    with cancel_on_signals():  # It may wait long for an API server before it serves.
        try:
            async with AsyncExitStack() as stack:
                await _serve(settings, stack)
        except ConfigurationError as error:
            _log.error("operator.misconfigured", reason=str(error))
            return SysExit.CONFIG
        except (ApiError, RootTaskEnded) as error:
            cause: BaseException | None = error
            while isinstance(cause, RootTaskEnded):
                cause = cause.__cause__
            _log.error("operator.failed", reason=str(cause))
            return SysExit.TEMPFAIL if isinstance(cause, LeaseLostError) else _FAILED
    _log.info("operator.stopped")
    return 0


async def _serve(settings: TrainingJobOperatorSettings, stack: AsyncExitStack) -> None:
    own_clock = Clock()
    bulkhead = Bulkhead(own_clock)
    asyncio.get_running_loop().set_exception_handler(bulkhead.on_loop_error)
    metrics = OperatorMetrics(version(_DISTRIBUTION), bulkhead)
    election = await _election(settings, own_clock, bulkhead, stack) if settings.lease else None
    may_act = always if election is None else lambda: election.certain

    clock = ClusterClock(own_clock)
    server = await ApiServer.connect(
        settings.kubeconfig or None, settings.request_seconds, on_date=clock.observe, may_write=may_act
    )
    stack.push_async_callback(server.close)
    options = ControllerOptions(namespace=settings.namespace, gang=settings.gang)
    controller = Controller(server, clock, bulkhead, options, metrics)
    caches = controller.caches
    metrics.observe(caches.jobs.cache.objects.values, may_act)

    tasks = {f"watch {kind}": reflector.run for kind, reflector in caches.reflectors.items()}
    if settings.metrics_address:
        where = address.parse(settings.metrics_address)
        tasks["metrics"] = MetricsServer(metrics.registry, where, own_clock, bulkhead).run
    if settings.probe_address:
        probes = Probes(lambda: Health(ok=True), lambda: Health(_synced(caches)), address.parse(settings.probe_address))
        listening = await stack.enter_async_context(probes.serving())
        _log.info("probes.listening", address=str(listening))
    for reflector in caches.reflectors.values():
        await reflector.first()

    async def lead() -> None:
        if election is not None:
            epoch = await election.gained()
            _log.info("operator.leads", epoch=epoch)
        await controller.run()

    tasks["controller"] = lead
    if election is not None:
        tasks |= {"lease": election.run, "lease.watch": election.follow}
    _log.info("operator.started", namespace=settings.namespace or "all", gang=settings.gang)
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await run_tasks(tasks, stop)


def _synced(caches: JobCaches) -> bool:
    return all(reflector.synced for reflector in caches.reflectors.values())


async def _election(
    settings: TrainingJobOperatorSettings, clock: Clock, bulkhead: Bulkhead, stack: AsyncExitStack
) -> Election:
    """Opens the election, with a connection of its own: other requests must not delay a renewal."""
    server = await ApiServer.connect(settings.kubeconfig or None, settings.lease_seconds * _ANSWERED_WITHIN)
    stack.push_async_callback(server.close)
    config = ElectionConfig(
        namespace=settings.lease_namespace or server.namespace,
        name=settings.lease,
        identity=f"{settings.pod_name or 'operator'}_{secrets.token_hex(8)}",
        seconds=settings.lease_seconds,
    )

    async def nothing_written() -> int:
        return 0  # The status of a job is compared and swapped: an earlier leader's late write is refused.

    election = Election(server, config, clock, nothing_written, bulkhead)
    await election.first()
    stack.push_async_callback(election.release)
    return election
