"""Starts the process of a supervisor: stand-alone with SQLite, or as a replica on a cluster."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog

from servicekit import descriptors
from servicekit.address import parse
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.lifecycle import cancel_on_signals, stop_on_signals
from servicekit.probes import Probes
from servicekit.settings import SettingsError
from servicekit.tls import Files, ServerCertificate
from supervisor.identity.tokens import Tokens
from supervisor.leadership.interface import AlwaysLeader
from supervisor.observability.hooks import MetricsHooks, NoMetrics
from supervisor.observability.notifications.config import Config as NotificationConfig
from supervisor.observability.notifications.config import ConfigError, load
from supervisor.refusals import Refusals
from supervisor.serving.health import ServingState, SupervisorHealth
from supervisor.settings import PREFIX, Settings, StoreKind
from supervisor.store.sqlite import SqliteStore
from supervisor.webhook.injection import CaFile
from supervisor.webhook.server import ignore_review
from supervisor.wiring.app import Supervisor, Task, common_tasks
from supervisor.wiring.data_dir import ensure_data_dir

if TYPE_CHECKING:
    from supervisor.observability.metrics.wiring import Metrics
    from supervisor.wiring.keys import PkiService
    from supervisor.wiring.replica import Replica

STORE_FILE = "supervisor.sqlite"

_log = structlog.get_logger()


async def serve(settings: Settings) -> int:
    """Runs the supervisor until SIGTERM or SIGINT; returns the exit code."""
    descriptors.raise_limit()
    clock = Clock()
    certificate = load_certificate(settings, clock)
    ensure_data_dir(settings.data_dir)
    notifications = load_notifications(settings)
    with cancel_on_signals():  # For the wait for an API server; later, signals set `stop`.
        async with _probes(settings.probe_address) as health:
            if settings.store is StoreKind.SQLITE:
                await _serve_alone(settings, clock, certificate, health, notifications)
            else:
                await _serve_in_cluster(settings, clock, certificate, health, notifications)
    return 0


async def _serve_alone(
    settings: Settings,
    clock: Clock,
    certificate: ServerCertificate | None,
    health: SupervisorHealth,
    notifications: NotificationConfig | None,
) -> None:
    tokens, stop, refusals, bulkhead = Tokens.load(settings.data_dir), asyncio.Event(), Refusals(), _bulkhead(clock)
    metrics = _metrics(settings, refusals, bulkhead, clock)
    store = await SqliteStore.open(settings.data_dir / STORE_FILE)
    try:
        await store.continue_clock(clock)
        health.standing = ServingState.SERVING
        supervisor = Supervisor(
            settings,
            store,
            tokens,
            clock,
            certificate=certificate,
            refusals=refusals,
            bulkhead=bulkhead,
            hooks=_standalone_hooks(metrics, store),
            notifications=notifications,
        )
        with stop_on_signals(stop):
            await supervisor.serve(stop, _metrics_task(settings, metrics))
    finally:
        await store.close()


def _standalone_hooks(metrics: "Metrics | None", store: SqliteStore) -> MetricsHooks:
    if metrics is None:
        return NoMetrics()
    # Imported here: metrics that are off should cost no memory.
    from supervisor.observability.metrics.wiring import ClusterSources  # noqa: PLC0415

    return metrics.for_leader(AlwaysLeader().may_act, ClusterSources(unread=lambda: store.unread))


async def _serve_in_cluster(
    settings: Settings,
    clock: Clock,
    certificate: ServerCertificate | None,
    health: SupervisorHealth,
    notifications: NotificationConfig | None,
) -> None:
    # Imported here: a stand-alone supervisor does not need the Kubernetes client.
    from supervisor.wiring.replica import Replica  # noqa: PLC0415

    refusals, stop, bulkhead = Refusals(), asyncio.Event(), _bulkhead(clock)
    metrics = _metrics(settings, refusals, bulkhead, clock)
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(_own_keys(settings, clock, bulkhead))
        tokens = own.tokens if own else Tokens.load(settings.data_dir)
        if own is not None and own.certificate is not None:
            certificate = own.certificate
        replica = await stack.enter_async_context(Replica.open(settings, clock, bulkhead))

        def leader_tasks() -> Mapping[str, Task]:
            health.standing = ServingState.SERVING
            supervisor = Supervisor(
                settings,
                replica.store,
                tokens,
                clock,
                certificate=certificate,
                changes=replica.changes,
                cluster=replica.cluster,
                leadership=replica.leadership,
                refusals=refusals,
                bulkhead=bulkhead,
                listeners=replica.listeners,
                hooks=_metrics_hooks(metrics, replica),
                notifications=notifications,
            )
            return {**supervisor.tasks, **replica.listening, **(own.leader_tasks(replica.leadership) if own else {})}

        on_review = metrics.on_review if metrics else ignore_review
        webhook = replica.webhook(settings, _public_ca(settings, own, clock), certificate, refusals, on_review)
        health.standing = ServingState.STANDING_BY
        _log.info("supervisor.standing_by")
        with stop_on_signals(stop):
            beside = {**common_tasks(refusals, certificate), **_metrics_task(settings, metrics), **webhook}
            await replica.serve(leader_tasks, stop, beside={**beside, **(own.tasks if own else {})})


def _bulkhead(clock: Clock) -> Bulkhead:
    """The guard of this process, which also takes what callbacks of the running loop raise."""
    bulkhead = Bulkhead(clock)
    asyncio.get_running_loop().set_exception_handler(bulkhead.on_loop_error)
    return bulkhead


def _metrics_hooks(metrics: "Metrics | None", replica: "Replica") -> MetricsHooks:
    """The metrics of a leader on a cluster."""
    if metrics is None:
        return NoMetrics()
    # Imported here: metrics that are off should cost no memory.
    from supervisor.observability.metrics.wiring import ClusterSources  # noqa: PLC0415

    cluster, events = replica.cluster, replica.events
    around = ClusterSources(
        locations=cluster.location,
        gpus=cluster.gpus,
        unread=lambda: {**cluster.unread, **replica.store.unread},
        events=lambda: {} if events is None else {outcome.value: count for outcome, count in events.outcomes.items()},
    )
    return metrics.for_leader(replica.leadership.may_act, around)


def _metrics(settings: Settings, refusals: Refusals, bulkhead: Bulkhead, clock: Clock) -> "Metrics | None":
    if settings.metrics is None:
        return None
    # Imported here: metrics that are off should cost no memory.
    from supervisor.observability.metrics.wiring import Metrics  # noqa: PLC0415

    return Metrics(version("elastic-job-supervisor"), refusals, bulkhead, clock, settings.metrics_jobs)


def _metrics_task(settings: Settings, metrics: "Metrics | None") -> Mapping[str, Task]:
    """The root task that serves metrics, if they are on."""
    return {} if metrics is None or settings.metrics is None else {"metrics": metrics.server(settings.metrics).run}


def _public_ca(settings: Settings, own: "PkiService | None", clock: Clock) -> Callable[[], str]:
    """Returns a function that returns the CAs for pods as PEM.

    Raises:
        CertificateUnusable: PUBLIC_CA_FILE cannot be used.
    """
    if settings.public_ca_file is not None:
        return CaFile(settings.public_ca_file, clock).text
    return str if own is None or own.certificate is None else own.trusted


@asynccontextmanager
async def _own_keys(settings: Settings, clock: Clock, bulkhead: Bulkhead) -> AsyncIterator["PkiService | None"]:
    """The PKI that all supervisors of a cluster share; None without KEYS_SECRET."""
    if not settings.keys_secret:
        yield None
        return
    # Imported here: a stand-alone supervisor does not need the Kubernetes client.
    from supervisor.wiring.keys import PkiService  # noqa: PLC0415

    async with PkiService.open(settings, clock, bulkhead) as own:
        yield own


@asynccontextmanager
async def _probes(where: str) -> AsyncIterator[SupervisorHealth]:
    """Serves the probes while the context lasts; no address, no probes."""
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


def load_notifications(settings: Settings) -> NotificationConfig | None:
    """The targets of notifications; None if there is no file of them.

    Raises:
        SettingsError: The file cannot be used.
    """
    if settings.notifications_file is None:
        return None
    try:
        return load(settings.notifications_file)
    except ConfigError as error:
        raise SettingsError(f"{PREFIX}NOTIFICATIONS_FILE", str(error)) from error


def load_certificate(settings: Settings, clock: Clock) -> ServerCertificate | None:
    """The certificate that the settings name; None if they name none.

    Raises:
        CertificateUnusable: The certificate cannot be used.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return ServerCertificate(Files(settings.tls_cert_file, settings.tls_key_file), settings.tls_reload_seconds, clock)
