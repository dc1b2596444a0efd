"""The endpoints for launchers: the stream, whose hello registers a job, and reports."""

import uuid
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from servicekit.bounds import LONGEST_SECONDS, MAX_HOSTS, MAX_LISTED_WORKERS
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from supervisor.decide.directives import order_for
from supervisor.decide.registration import LauncherReport, Registration, observe, register
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Framework, OnLoss, Result, Spec, SupervisedJob, with_end
from supervisor.failpoints import At
from supervisor.fanout.launchers import UNKNOWN, Launchers
from supervisor.fanout.lines import LineStream
from supervisor.identity.tokens import Launcher
from supervisor.ingest.errors import TooManyError
from supervisor.ingest.http import Authenticate, body, done, printable, require_principal
from supervisor.ingest.quotas import LauncherQuotas
from supervisor.refusals import Code, Refusals, Wire
from supervisor.store.interface import Store

_MAX_BYTES = 1024 * 1024
_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z"  # `$` would let a newline at the end pass.

Count = Annotated[int, Meta(ge=0, le=2**31)]
Workers = Annotated[int, Meta(ge=1, le=MAX_LISTED_WORKERS)]
Name = Annotated[str, Meta(pattern=_NAME)]
HostName = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[^\s:]+\Z")]
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**31)]
Instance = Annotated[str, Meta(min_length=8, max_length=64)]
Hosts = Annotated[list[HostName], Meta(max_length=MAX_HOSTS)]

_log = structlog.get_logger()


class ReportBody(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a launcher's report."""

    revision: Count
    hosts: Hosts
    run: Count
    running: bool
    exit_code: ExitCode | None = None
    restarts: Count = 0
    applied: Count = 0
    ending: bool = False
    result: Result | None = None

    def __post_init__(self) -> None:
        for host in self.hosts:
            printable("hosts", host)

    def value(self) -> LauncherReport:
        """The report as a value of the domain."""
        return LauncherReport(
            revision=self.revision,
            hosts=frozenset(Host(name) for name in self.hosts),
            run=self.run,
            running=self.running,
            exit_code=self.exit_code,
            restarts=self.restarts,
            applied=self.applied,
            ending=self.ending,
            result=self.result,
        )


class SentReport(ReportBody, frozen=True, kw_only=True):
    """A report as a request of its own."""

    job: Name
    instance: Instance


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first and only message of a launcher's stream."""

    job: Name
    instance: Instance
    framework: Framework
    min_workers: Workers
    max_workers: Workers
    requested_workers: Workers
    max_wait_seconds: Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)] = 0.0
    launcher_host: HostName | None = None
    on_loss: OnLoss = OnLoss.SHRINK
    worker_multiple: Workers = 1
    report: ReportBody

    def __post_init__(self) -> None:
        if not self.min_workers <= self.requested_workers <= self.max_workers:
            raise ValueError("min_workers <= requested_workers <= max_workers must hold")
        if self.requested_workers % self.worker_multiple:
            raise ValueError("requested_workers must be a multiple of worker_multiple")
        printable("launcher_host", self.launcher_host or "")

    def spec(self) -> Spec:
        """The spec of the job."""
        return Spec(
            framework=self.framework,
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            requested_workers=self.requested_workers,
            max_wait_seconds=self.max_wait_seconds,
            launcher_host=None if self.launcher_host is None else Host(self.launcher_host),
            on_loss=self.on_loss,
            worker_multiple=self.worker_multiple,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherEndpoints:
    """`/v1/launchers/…`. A launcher keeps its job's name for `live_seconds` after its stream ended."""

    store: Store
    quotas: LauncherQuotas
    launchers: Launchers
    refusals: Refusals
    authenticate: Authenticate
    clock: Clock
    live_seconds: float

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/launchers/stream", self.stream), web.post("/v1/launchers/report", self.report)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Registers the job and sends orders until either side ends."""
        launcher = await require_principal(Launcher, request, self.authenticate)
        hello = await body(request, Hello, _MAX_BYTES)
        failpoint(At.HELLO_RECEIVED)
        job = await self._register(launcher.name, hello)
        failpoint(At.JOB_REGISTERED)
        lines = LineStream(request, self.refusals)
        await lines.prepare()
        # A decision may have been made while the head of the response was sent, or another job may have the name.
        present = self.store.snapshot().jobs.get(job.name)
        if present is None or present.uid != job.uid:
            lines.finish(UNKNOWN)
        else:
            job = present
            self.launchers.attach(job, order_for(job), lines)
        failpoint(At.FIRST_ORDER_SENT)
        _log.info("launcher.connected", job=job.name, launcher=launcher.name)
        try:
            return await lines.serve()
        finally:
            self.launchers.detach(job.id, lines)
            _log.info("launcher.disconnected", job=job.name)

    async def report(self, request: web.Request) -> web.Response:
        """Stores a report. If its hosts exceed the quota, only some are stored and the launcher is told once."""
        launcher = await require_principal(Launcher, request, self.authenticate)
        sent = await body(request, SentReport, _MAX_BYTES)
        name, report = JobName(sent.job), sent.value()
        known = self._known(name, launcher.name, sent.instance)
        accepted = report if known is None else self._accepted(known, report)

        def change(stored: SupervisedJob | None) -> SupervisedJob:
            return with_end(observe(stored, launcher.name, sent.instance, accepted), self.clock.now())

        failpoint(At.REPORT_RECEIVED)
        with self.quotas.claim(launcher.name, name, len(accepted.hosts)):
            await self.store.put_job(name, change)
        failpoint(At.REPORT_STORED)
        if known is not None and accepted is not report and known.observed.revision < report.revision:
            raise TooManyError(self.quotas.refusal(launcher.name, name, len(report.hosts)))
        return done()

    async def _register(self, launcher: str, hello: Hello) -> SupervisedJob:
        name, report = JobName(hello.job), hello.report.value()
        known = self._known(name, launcher, hello.instance)
        # A launcher that reconnects must not be refused, whatever other jobs its token has by then.
        accepted = report if known is None else self._accepted(known, report)
        if accepted is not report:
            why = self.quotas.refusal(launcher, name, len(report.hosts))
            self.refusals.add(Wire.HTTP, Code.TOO_MANY, why)
        evictable = [] if known else self.quotas.evictable(launcher, name, len(report.hosts), self._eviction_order)
        with self.quotas.claim(launcher, name, len(accepted.hosts)):
            job = await self._registered(launcher, hello, accepted)
            # Only now: a registration that is refused must cost no other job its place.
            for each in evictable:
                await self.store.forget_job(each.name, each.uid)
            return job

    async def _registered(self, launcher: str, hello: Hello, report: LauncherReport) -> SupervisedJob:
        registration = Registration(
            name=JobName(hello.job),
            uid=str(uuid.uuid4()),
            launcher=launcher,
            instance=hello.instance,
            spec=hello.spec(),
            report=report,
        )
        now = self.clock.now()

        def change(known: SupervisedJob | None) -> SupervisedJob:
            return with_end(register(known, registration, live=self._live(known), now=now), now)

        job = await self.store.put_job(registration.name, change)
        if job is None:
            raise AssertionError("registering always returns a job")
        return job

    def _known(self, name: JobName, launcher: str, instance: str) -> SupervisedJob | None:
        """The job, if this launcher process has already registered it."""
        job = self.store.snapshot().jobs.get(name)
        there = job is not None and (job.observed.launcher, job.observed.instance) == (launcher, instance)
        return job if there else None

    def _accepted(self, known: SupervisedJob, report: LauncherReport) -> LauncherReport:
        hosts = self.quotas.accepted(known, report.hosts)
        return report if len(hosts) == len(report.hosts) else replace(report, hosts=hosts)

    def _eviction_order(self, job: SupervisedJob) -> tuple[bool, float] | None:
        """The order in which jobs are forgotten: ended jobs before silent ones; None for a live job."""
        idle = job.over or not self._live(job)
        return (not job.over, self.launchers.last_seen(job.id)) if idle else None

    def _live(self, known: SupervisedJob | None) -> bool:
        """Whether the job's launcher is connected, or was connected or registered a moment ago."""
        if known is None:
            return False
        seen = max(self.launchers.last_seen(known.id), known.observed.registered_at)
        return self.clock.now() - seen < self.live_seconds
