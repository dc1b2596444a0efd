"""Serves launchers over HTTP: the stream, whose hello registers a job, and reports.

Enforces the quota of each token.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated

import structlog
from aiohttp import web
from msgspec import Meta

from servicekit.bounds import LONGEST_SECONDS, MAX_HOSTS, MAX_LISTED_WORKERS
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from supervisor.decide.directives import order_for
from supervisor.decide.registration import LauncherFacts, Registration, observe, register
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Framework, OnLoss, Result, Spec, SupervisedJob, with_end
from supervisor.failpoints import At
from supervisor.fanout.launchers import UNKNOWN, Launchers
from supervisor.fanout.lines import LineResponse
from supervisor.identity.tokens import LauncherPrincipal
from supervisor.ingest.errors import TooManyError
from supervisor.ingest.http import Authenticate, PrintableBody, body, require_principal
from supervisor.refusals import Code, Refusals, Wire
from supervisor.store.interface import Store

_MAX_BYTES = 1024 * 1024
_MAX_JOBS = 1000
"""Jobs of one launcher token."""

_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z"  # `$` would let a newline at the end pass.

Count = Annotated[int, Meta(ge=0, le=2**31)]
Workers = Annotated[int, Meta(ge=1, le=MAX_LISTED_WORKERS)]
Name = Annotated[str, Meta(pattern=_NAME)]
HostName = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[^\s:]+\Z")]
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**31)]
Instance = Annotated[str, Meta(min_length=8, max_length=64)]
Hosts = Annotated[list[HostName], Meta(max_length=MAX_HOSTS)]

_log = structlog.get_logger()


class LauncherReportBody(PrintableBody, frozen=True, kw_only=True):
    """The content of a launcher's report, which is also a part of its hello."""

    PRINTABLE = ("hosts",)

    revision: Count
    hosts: Hosts
    run: Count
    running: bool
    exit_code: ExitCode | None = None
    restarts: Count = 0
    applied: Count = 0
    ending: bool = False
    result: Result | None = None

    def value(self) -> LauncherFacts:
        """Returns the report as a value of the domain."""
        return LauncherFacts(
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


class PostedLauncherReport(LauncherReportBody, frozen=True, kw_only=True):
    """A report that is posted in a request of its own. It names the sender."""

    job: Name
    instance: Instance


class LauncherHello(PrintableBody, frozen=True, kw_only=True):
    """Opens the stream of a launcher and registers its job; it is the only message there."""

    PRINTABLE = ("launcher_host",)

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
    report: LauncherReportBody

    def __post_init__(self) -> None:
        if not self.min_workers <= self.requested_workers <= self.max_workers:
            raise ValueError("min_workers <= requested_workers <= max_workers must hold")
        if self.requested_workers % self.worker_multiple:
            raise ValueError("requested_workers must be a multiple of worker_multiple")
        super().__post_init__()

    def spec(self) -> Spec:
        """Returns the spec of the job."""
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


@dataclass(frozen=True, slots=True)
class _QuotaClaim:
    """A job that is being stored with `hosts` hosts."""

    launcher: str
    job: JobName
    hosts: int


@dataclass(frozen=True, slots=True)
class LauncherQuotas:
    """Limits the jobs of each launcher token, and the hosts of all its jobs together: limits per job would multiply.

    Jobs that are being stored count from their claim on, so that concurrent requests cannot use the same quota twice.
    """

    store: Store
    max_hosts: int
    _claims: dict[int, _QuotaClaim] = field(default_factory=dict)

    @contextmanager
    def claim(self, launcher: str, name: JobName, hosts: int) -> Iterator[None]:
        """Counts the job with `hosts` hosts while the context lasts. The caller leaves it once the job is stored."""
        claim = _QuotaClaim(launcher, name, hosts)
        self._claims[id(claim)] = claim
        try:
            yield
        finally:
            del self._claims[id(claim)]

    def accepted(self, known: SupervisedJob, report: LauncherFacts) -> LauncherFacts:
        """Returns the report with the hosts that fit, or `report` itself. Hosts that the job had already always fit."""
        hosts, listed = report.hosts, known.observed.hosts
        if len(hosts) <= len(listed):
            return report
        launcher = known.observed.launcher
        most = max(len(listed), self.max_hosts - sum(self._other_jobs(launcher, known.name).values()))
        if len(hosts) <= most:
            return report
        kept = hosts & listed
        return replace(report, hosts=kept | frozenset(sorted(hosts - kept)[: most - len(kept)]))

    def evictable(
        self, launcher: str, name: JobName, hosts: int, order: Callable[[SupervisedJob], tuple[bool, float] | None]
    ) -> list[SupervisedJob]:
        """Returns the jobs of the token that have to be forgotten to make room for a new one.

        Args:
            launcher: The name of the token.
            name: The name of the new job.
            hosts: The number of hosts that it lists.
            order: The sort key of a job that may be forgotten; None for one that may not.

        Raises:
            TooManyError: There would not be enough room even without all those jobs.
        """
        jobs, others = self.store.snapshot().jobs, self._other_jobs(launcher, name)

        def fits() -> bool:
            return len(others) < _MAX_JOBS and sum(others.values()) + hosts <= self.max_hosts

        idle = sorted((at, job.name) for job in jobs.values() if job.name in others and (at := order(job)) is not None)
        chosen: list[SupervisedJob] = []
        for _, each in idle:
            if fits():
                break
            chosen.append(jobs[each])
            del others[each]
        if not fits():
            raise TooManyError(self.refusal(launcher, name, hosts, going_on=True))
        return chosen

    def refusal(self, launcher: str, name: JobName, hosts: int, *, going_on: bool = False) -> str:
        """Returns the message for a job that exceeds the quota."""
        listed = self._other_jobs(launcher, name)
        others = f"its other {len(listed)} jobs{' that go on' if going_on else ''} have {sum(listed.values())}"
        return (
            f"{name} lists {hosts} hosts and {others}: the launcher token {launcher} may have {_MAX_JOBS} jobs, and "
            f"{self.max_hosts} hosts in all of them together"
        )

    def _other_jobs(self, launcher: str, but: JobName) -> dict[JobName, int]:
        """Returns the number of hosts of each other job of the token, including jobs that are being stored."""
        jobs = self.store.snapshot().jobs.values()
        listed = {job.name: len(job.observed.hosts) for job in jobs if job.observed.launcher == launcher}
        for claim in self._claims.values():
            if claim.launcher == launcher:
                listed[claim.job] = max(claim.hosts, listed.get(claim.job, 0))
        listed.pop(but, None)
        return listed


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
        launcher = await require_principal(LauncherPrincipal, request, self.authenticate)
        hello = await body(request, LauncherHello, _MAX_BYTES)
        failpoint(At.HELLO_RECEIVED)
        job = await self._register(launcher.name, hello)
        failpoint(At.JOB_REGISTERED)
        lines = LineResponse(request, self.refusals)
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
        """Stores a report. If its hosts exceed the quota, it stores only some of them and tells the launcher once."""
        launcher = await require_principal(LauncherPrincipal, request, self.authenticate)
        sent = await body(request, PostedLauncherReport, _MAX_BYTES)
        name, report = JobName(sent.job), sent.value()
        known = self._registered(name, launcher.name, sent.instance)
        accepted = report if known is None else self.quotas.accepted(known, report)

        failpoint(At.REPORT_RECEIVED)
        with self.quotas.claim(launcher.name, name, len(accepted.hosts)):
            await self.store.put_job(
                name,
                lambda stored: with_end(observe(stored, launcher.name, sent.instance, accepted), self.clock.now()),
            )
        failpoint(At.REPORT_STORED)
        if known is not None and accepted is not report and known.observed.revision < report.revision:
            raise TooManyError(self.quotas.refusal(launcher.name, name, len(report.hosts)))
        return web.json_response({})

    async def _register(self, launcher: str, hello: LauncherHello) -> SupervisedJob:
        name, report = JobName(hello.job), hello.report.value()
        known = self._registered(name, launcher, hello.instance)
        # A launcher that reconnects must not be refused, whatever other jobs its token has by then.
        accepted = report if known is None else self.quotas.accepted(known, report)
        if accepted is not report:
            why = self.quotas.refusal(launcher, name, len(report.hosts))
            self.refusals.add(Wire.HTTP, Code.TOO_MANY, why)

        def eviction_order(job: SupervisedJob) -> tuple[bool, float] | None:
            """Ended jobs are forgotten before silent ones, and live jobs never."""
            idle = job.over or not self._is_live(job)
            return (not job.over, self.launchers.last_seen(job.id)) if idle else None

        evictable = [] if known else self.quotas.evictable(launcher, name, len(report.hosts), eviction_order)
        registration = Registration(
            name=name,
            uid=str(uuid.uuid4()),
            launcher=launcher,
            instance=hello.instance,
            spec=hello.spec(),
            report=accepted,
        )
        now = self.clock.now()

        def change(known: SupervisedJob | None) -> SupervisedJob:
            live = known is not None and self._is_live(known)
            return with_end(register(known, registration, live=live, now=now), now)

        with self.quotas.claim(launcher, name, len(accepted.hosts)):
            job = await self.store.put_job(name, change)
            if job is None:
                raise AssertionError("registering always returns a job")
            # Only now: a registration that is refused must cost no other job its place.
            for each in evictable:
                await self.store.forget_job(each.name, each.uid)
            return job

    def _registered(self, name: JobName, launcher: str, instance: str) -> SupervisedJob | None:
        """Returns the job, if this launcher process has already registered it."""
        job = self.store.snapshot().jobs.get(name)
        same = job is not None and (job.observed.launcher, job.observed.instance) == (launcher, instance)
        return job if same else None

    def _is_live(self, known: SupervisedJob) -> bool:
        """Whether the job's launcher is connected, or was connected or registered a moment ago."""
        seen = max(self.launchers.last_seen(known.id), known.observed.registered_at)
        return self.clock.now() - seen < self.live_seconds
