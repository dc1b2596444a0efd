"""Starts the process of a supervisor: stand-alone with SQLite, or as a replica on a cluster."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog

from servicekit import http_server, lifecycle, tls
from servicekit.address import parse
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.process import raise_descriptor_limit
from servicekit.settings import SettingsError
from supervisor.identity.tokens import Operator, Tokens
from supervisor.observability.hooks import MetricsHooks
from supervisor.observability.notifications.config import ConfigError, NotificationConfig, load
from supervisor.observability.prices import PricesError, PriceTable, read_prices
from supervisor.observability.traces.spans import SpanExport
from supervisor.refusals import Refusals
from supervisor.serving.servers import ServingState, SupervisorHealth
from supervisor.settings import PREFIX, Settings, StoreKind, create_data_dir
from supervisor.store.sqlite import SqliteStore
from supervisor.webhook.injection import CaFile
from supervisor.wiring.app import Feature, Foundation, SupervisorService, Task, common_tasks

if TYPE_CHECKING:
    from supervisor.observability.metrics.wiring import Metrics
    from supervisor.observability.traces.export import OtlpExport
    from supervisor.wiring.cluster import SupervisorReplica

STORE_FILE = "supervisor.sqlite"

_OWNER = Operator(name="owner")
"""Who has started the supervisor at a terminal, by name."""
_LINK_SECONDS = 900.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProcess:
    """The parts of every supervisor's process, stand-alone or on a cluster.

    `metrics` is None if it serves none, `traces` if it sends none.
    """

    settings: Settings
    clock: Clock
    bulkhead: Bulkhead
    refusals: Refusals
    health: SupervisorHealth
    certificate: tls.ServerCertificate | None
    notifications: NotificationConfig | None
    traces: SpanExport | None
    metrics: "Metrics | None"
    metrics_task: Mapping[str, Task]


async def serve(settings: Settings) -> int:
    """Runs the supervisor until SIGTERM or SIGINT; returns the exit code."""
    raise_descriptor_limit()
    clock = Clock()
    certificate = load_certificate(settings, clock)
    create_data_dir(settings.data_dir)
    notifications, prices = load_notifications(settings), load_prices(settings)
    with lifecycle.cancel_on_signals():  # For the wait for an API server; later, signals set `stop`.
        async with _traces(settings, clock) as traces, _probes(settings.probe_address) as health:
            bulkhead, refusals = Bulkhead(clock), Refusals()
            # It also takes what callbacks of the running loop raise.
            asyncio.get_running_loop().set_exception_handler(bulkhead.on_loop_error)
            metrics, metrics_task = None, dict[str, Task]()
            if settings.metrics is not None:
                # Imported here: metrics that are off should cost no memory.
                from supervisor.observability.metrics.wiring import Metrics, MetricsOptions  # noqa: PLC0415

                release = version("elastic-job-supervisor")
                options = MetricsOptions(named_jobs=settings.metrics_jobs, prices=prices)
                metrics = Metrics(release, refusals, bulkhead, clock, options)
                metrics_task["metrics"] = metrics.server(settings.metrics).run
            process = ServingProcess(
                settings=settings,
                clock=clock,
                bulkhead=bulkhead,
                refusals=refusals,
                health=health,
                certificate=certificate,
                notifications=notifications,
                traces=traces,
                metrics=metrics,
                metrics_task=metrics_task,
            )
            await (_serve_alone(process) if settings.store is StoreKind.SQLITE else _serve_in_cluster(process))
    return 0


async def _serve_alone(process: ServingProcess) -> None:
    settings, tokens, stop = process.settings, Tokens.load(process.settings.data_dir), asyncio.Event()
    store = await SqliteStore.open(settings.data_dir / STORE_FILE)
    try:
        await store.continue_clock(process.clock)
        process.health.standing = ServingState.SERVING
        hooks = MetricsHooks()
        if process.metrics is not None:
            # Imported here: metrics that are off should cost no memory.
            from supervisor.observability.metrics.wiring import ClusterSources  # noqa: PLC0415

            hooks = process.metrics.for_leader(lambda: True, ClusterSources(unread=lambda: store.unread))
        supervisor = SupervisorService(
            Foundation(
                settings=settings,
                store=store,
                tokens=tokens,
                clock=process.clock,
                bulkhead=process.bulkhead,
                refusals=process.refusals,
                certificate=process.certificate,
                hooks=hooks,
                notifications=process.notifications,
                on_serving=partial(_offer_sign_in, tokens, process),
                traces=process.traces,
            )
        )
        with lifecycle.stop_on_signals(stop):
            await supervisor.serve(stop, process.metrics_task)
    finally:
        await store.close()


def _offer_sign_in(tokens: Tokens, process: ServingProcess, url: str) -> None:
    """Prints a link for whoever has started the supervisor at a terminal, but to no log."""
    if process.settings.status_page and sys.stdin.isatty() and sys.stderr.isatty():
        link = tokens.link(_OWNER, url, process.clock.wall(), _LINK_SECONDS)
        sys.stderr.write(f"To sign in to the status page, once: {link}\n")


async def _serve_in_cluster(process: ServingProcess) -> None:
    # Imported here: a stand-alone supervisor does not need the Kubernetes client.
    from supervisor.wiring.cluster import SupervisorReplica  # noqa: PLC0415

    settings, clock, bulkhead, stop = process.settings, process.clock, process.bulkhead, asyncio.Event()
    async with AsyncExitStack() as stack:
        own = None
        if settings.keys_secret:
            from supervisor.wiring.keys import PkiService  # noqa: PLC0415 - as above

            own = await stack.enter_async_context(PkiService.open(settings, clock, bulkhead))
        tokens = own.tokens if own else Tokens.load(settings.data_dir)
        certificate = own.certificate if own and own.certificate else process.certificate
        replica = await stack.enter_async_context(SupervisorReplica.open(settings, clock, bulkhead))

        def leader_tasks() -> Mapping[str, Task]:
            process.health.standing = ServingState.SERVING
            events = replica.events
            recording = Feature(tasks={"events": events.run}, listeners=[events]) if events else Feature()
            publication = Feature(tasks=own.leader_tasks(replica.may_act)) if own else Feature()
            return SupervisorService(
                Foundation(
                    settings=settings,
                    store=replica.store,
                    tokens=tokens,
                    clock=clock,
                    bulkhead=bulkhead,
                    changes=replica.changes,
                    refusals=process.refusals,
                    certificate=certificate,
                    cluster=replica.cluster,
                    may_act=replica.may_act,
                    hooks=_replica_hooks(process.metrics, replica),
                    notifications=process.notifications,
                    traces=process.traces,
                    features=[recording, publication],
                )
            ).tasks

        public_ca: Callable[[], str] = str
        if settings.public_ca_file is not None:
            public_ca = CaFile(settings.public_ca_file, clock).text
        elif own is not None and own.certificate is not None:
            public_ca = own.trusted
        on_review = process.metrics.on_review if process.metrics else None
        webhook = replica.webhook(settings, public_ca, certificate, process.refusals, on_review)
        process.health.standing = ServingState.STANDING_BY
        _log.info("supervisor.standing_by")
        with lifecycle.stop_on_signals(stop):
            beside = {**common_tasks(process.refusals, certificate), **process.metrics_task, **webhook}
            await replica.serve(leader_tasks, stop, beside={**beside, **(own.tasks if own else {})})


def _replica_hooks(metrics: "Metrics | None", replica: "SupervisorReplica") -> MetricsHooks:
    if metrics is None:
        return MetricsHooks()
    # Imported here: metrics that are off should cost no memory.
    from supervisor.observability.metrics.wiring import ClusterSources  # noqa: PLC0415

    cluster, events = replica.cluster, replica.events
    sources = ClusterSources(
        gpus=cluster.gpus,
        unread=lambda: {**cluster.unread, **replica.store.unread},
        events=lambda: {} if events is None else {outcome.value: count for outcome, count in events.outcomes.items()},
    )
    return metrics.for_leader(replica.may_act, sources)


@asynccontextmanager
async def _probes(where: str) -> AsyncIterator[SupervisorHealth]:
    """Serves the probes while the context lasts. Without an address there are no probes."""
    health = SupervisorHealth()
    if not where:
        yield health
        return
    probes = http_server.Probes(health.live, health.ready, parse(where))
    async with probes.serving() as address:
        _log.info("probes.listening", address=str(address))
        yield health


@asynccontextmanager
async def _traces(settings: Settings, clock: Clock) -> AsyncIterator[SpanExport | None]:
    """Sends traces while the context lasts, if the settings ask for them.

    It surrounds all else, so that another supervisor takes over before the last spans are sent.
    """
    export = open_traces(settings, clock) if settings.traces else None
    try:
        yield export
    finally:
        if export is not None:
            await asyncio.to_thread(export.close)


def open_traces(settings: Settings, clock: Clock) -> "OtlpExport":
    """Returns what sends traces. The caller has to close it.

    Raises:
        SettingsError: Its packages are not installed, or OpenTelemetry's variables cannot be used.
    """
    try:
        # Imported here: traces that are off should cost no memory, and their packages are an extra.
        from supervisor.observability.traces.export import OtlpExport, TracesUnusableError  # noqa: PLC0415
    except ImportError as error:
        why = f"needs packages that are not installed: pip install 'elastic-job-supervisor[tracing]' ({error})"
        raise SettingsError(f"{PREFIX}TRACES", why) from error
    try:
        return OtlpExport(version("elastic-job-supervisor"), settings.pod_name, clock)
    except TracesUnusableError as error:
        raise SettingsError(f"{PREFIX}TRACES", str(error)) from error


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


def load_prices(settings: Settings) -> PriceTable | None:
    """The prices of machines; None if there is no file of them.

    Raises:
        SettingsError: The file cannot be used.
    """
    if settings.prices_file is None:
        return None
    try:
        return read_prices(settings.prices_file)
    except PricesError as error:
        raise SettingsError(f"{PREFIX}PRICES_FILE", str(error)) from error


def load_certificate(settings: Settings, clock: Clock) -> tls.ServerCertificate | None:
    """The certificate that the settings name; None if they name none.

    Raises:
        CertificateUnusable: The certificate cannot be used.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return tls.ServerCertificate(
        tls.Files(settings.tls_cert_file, settings.tls_key_file), settings.tls_reload_seconds, clock
    )
