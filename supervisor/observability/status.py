"""Reads the status from the components of the leader, and serves it, the history and the ledger over HTTP."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

import msgspec
from aiohttp import web

from servicekit.bulkhead import Bulkhead
from supervisor.decide.explanation import Missing
from supervisor.domain.capacity import MachinePool
from supervisor.domain.ids import JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import HeldOn
from supervisor.domain.notice import SubjectKind
from supervisor.domain.worker_time import HourlyTime
from supervisor.identity.tokens import Viewer
from supervisor.ingest.errors import MalformedError
from supervisor.ingest.http import Authenticate, require_principal
from supervisor.observability import status_view
from supervisor.observability.groups import DecidedGroups
from supervisor.observability.history import SUBJECT_KINDS, JobHistory, PhaseTracker, stored
from supervisor.observability.hooks import LiveState
from supervisor.observability.journal import NoticedHosts
from supervisor.observability.ledger.book import NOBODY
from supervisor.observability.ledger.hours import HOUR
from supervisor.observability.record.database import HistoryPage, HistoryPosition, HistoryQuery, PoolTime, RecordError
from supervisor.observability.record.recorder import Recorder
from supervisor.observability.views import (
    CapacityView,
    HeldView,
    HistoryEntryView,
    HistoryView,
    LeaderView,
    LedgerJobView,
    LedgerView,
    PoolCapacityView,
    PoolView,
)
from supervisor.refusals import Refusals
from supervisor.store.interface import StoreUnavailableError

VERSION = version("elastic-job-supervisor")

MAX_HAPPENED = 2000
"""Entries in one answer. They take about 0.5 MB, and 10 ms of the loop's time."""

MAX_STAYS = 20_000
"""Stays of hosts in one answer, and spans. They take about 2 MB."""

_JOB = "job/"
_POOL = "pool"
_QUERY = frozenset({*SUBJECT_KINDS, "source", "since", "until", "drills", "before", "limit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReader:
    """Reads the status.

    `shown`: a job's noticed hosts as its processes know them; `missing`: what a job lacks; `name`: this supervisor's
    pod; `since`: when this supervisor began to lead; `record`: what has happened, longer than that.
    """

    live: LiveState
    shown: NoticedHosts
    missing: Callable[[SupervisedJob], Missing]
    groups: DecidedGroups
    phases: PhaseTracker
    history: JobHistory
    record: Recorder
    gpus: Callable[[JobName], float | None]
    refusals: Refusals
    bulkhead: Bulkhead
    name: str
    may_act: Callable[[], bool]
    since: float

    @property
    def version(self) -> tuple[int, ...]:
        """A version that changes with every stored change, announcement and agent report, but not with a new stream."""
        return self.live.snapshot().version, self.live.agents.version, self.live.unconfirmed.version

    def job(self, name: JobName) -> status_view.JobPageSnapshot | None:
        """Reads one job; None if it is unknown."""
        job = self.live.snapshot().jobs.get(name)
        if job is None:
            return None
        everything = self.snapshot([job])
        (facts,) = everything.jobs
        # The nodes of the job's hosts by name, and its pods by uid.
        about = {(SubjectKind.NODE, str(facts.node(host))) for host in facts.hosts}
        about |= {(SubjectKind.POD, placement.pod) for placement in (facts.placements or {}).values()}
        return status_view.JobPageSnapshot(
            status=replace(
                everything,
                notices=tuple(each for each in everything.notices if status_view.subject_key(each) in about),
                unconfirmed=tuple(each for each in everything.unconfirmed if status_view.subject_key(each) in about),
                groups=tuple(group for group in everything.groups if (group.job, group.uid) == (name, job.uid)),
            ),
            history=self.history.of(name),
            stored=stored(job),
            since=self.history.since,
        )

    async def happened(self, query: HistoryQuery) -> HistoryView:
        """Reads a page of the record. Of one job, the last page begins with what is stored of the time before.

        Raises:
            RecordError: The record cannot be read now.
        """
        page = await self.record.read(query)
        since = self.since if page.since is None else page.since
        entries, has_more = list(page.entries), page.next is not None
        if query.subject.startswith(_JOB):
            notices = await self._notices_of(page, query)
            entries += notices.entries
            has_more = has_more or notices.next is not None
            job = self.live.snapshot().jobs.get(JobName(query.subject.removeprefix(_JOB)))
            if job is not None and page.next is None:
                entries += (entry for entry in stored(job) if entry.at < since)
        entries.sort(key=lambda entry: entry.at)
        return HistoryView(
            since=since,
            entries=[
                HistoryEntryView(
                    at=entry.at,
                    subject=entry.subject,
                    what=entry.what,
                    text=entry.text,
                    run=entry.run,
                    concerns=entry.concerns,
                    source=entry.source,
                    drill=entry.drill,
                )
                for entry in entries
            ],
            cut=has_more,
            next=None if page.next is None else str(page.next),
        )

    async def _notices_of(self, page: HistoryPage, query: HistoryQuery) -> HistoryPage:
        """Reads the notices, in the time of a page, that the entries of the page concern."""
        subjects = {subject for entry in page.entries for subject in entry.concerns}
        if not subjects:
            return HistoryPage((), None, page.since)
        since = query.since if page.next is None else page.next.at
        until = query.until if query.before is None else query.before.at
        wanted = replace(query, subject="", own=subjects, since=since, until=until, before=None)
        return await self.record.read(wanted)

    async def spent(self, since: float, until: float, *, by_pool: bool = False) -> LedgerView:
        """Reads where worker-seconds went, in the hours that two instants (Unix seconds) are in or between.

        With `by_pool`, what was held is also told by pool. Otherwise no pool is read, which would take as long again.

        Raises:
            RecordError: The record cannot be read now.
        """
        since, until = since // HOUR * HOUR, min(self.live.now(), math.ceil(until / HOUR) * HOUR)
        found = dict(await self.record.read_hours(since, until))
        machines = await self.record.read_machines(since, until)
        pools = await self.record.read_pools(since, until) if by_pool else {}
        counted = sum(found.pop(NOBODY, {}).values())
        jobs = [
            LedgerJobView(
                job=job,
                worker_seconds={account.value: spent for account, spent in found[job].items()},
                machines=[_held(on, seconds) for on, seconds in machines.get(job, {}).items()],
                pools=[_pool(pool, time) for pool, time in pools.get(job, {}).items()],
            )
            for job in sorted(found)
        ]
        return LedgerView(since=since, until=until, counted_seconds=counted, jobs=jobs)

    async def held(self, since: float, until: float) -> Mapping[HeldOn, float]:
        """Reads for how many worker-seconds jobs held each kind of machine, in the hours of `spent`.

        Raises:
            RecordError: The record cannot be read now.
        """
        return await self.record.read_held(since // HOUR * HOUR, until)

    async def hourly(self, since: float, until: float, job: JobName | None) -> HourlyTime:
        """Reads where worker-seconds of one job, or of all, went in each of the hours of `spent`.

        Raises:
            RecordError: The record cannot be read now.
        """
        return await self.record.read_hourly(since // HOUR * HOUR, until, job)

    async def capacity(self, job: JobName, since: float, until: float) -> CapacityView:
        """Reads when a job wanted workers and which hosts were there, between two instants (Unix seconds).

        Raises:
            RecordError: The record cannot be read now.
        """
        found = await self.record.read_capacity(job, since, until, MAX_STAYS)
        return CapacityView(
            job=job, since=since, until=until, spans=list(found.spans), stays=list(found.stays), cut=found.is_cut
        )

    async def pool_capacity(self, pool: MachinePool, since: float, until: float) -> PoolCapacityView:
        """Reads which hosts of a pool were there for any job, between two instants (Unix seconds).

        Raises:
            RecordError: The record cannot be read now.
        """
        found = await self.record.read_pool_stays(pool, since, until, MAX_STAYS)
        stays = {job: list(of_job) for job, of_job in found.stays.items()}
        return PoolCapacityView(pool=pool.name, since=found.since, until=until, stays=stays, cut=found.is_cut)

    def snapshot(self, jobs: Iterable[SupervisedJob] | None = None) -> status_view.StatusSnapshot:
        """Returns the state at this moment, of all jobs or of some, as immutable values."""
        snapshot, agents, now = self.live.snapshot(), dict(self.live.agents.by_node), self.live.now()
        silent = {node: self.live.agents.silent_since(node) for node, agent in agents.items() if not agent.connected}
        return status_view.StatusSnapshot(
            now=now,
            policy=self.live.policy,
            leader=LeaderView(name=self.name, acts=self.may_act(), serving_seconds=now - self.since, version=VERSION),
            jobs=tuple(self._job(job) for job in (snapshot.jobs.values() if jobs is None else jobs)),
            notices=tuple(snapshot.notices.values()),
            unconfirmed=tuple(self.live.unconfirmed.all()),
            groups=(groups := self.groups.all()),
            gpus={name: gpus for name in {each.job for each in groups} if (gpus := self.gpus(name)) is not None},
            agents=agents,
            silent={node: since for node, since in silent.items() if since is not None},
            heard={node: at for node in silent if (at := self.live.agents.heard_at(node)) is not None},
            machines={node: self.live.machine(node) for node in agents},
            sharing=self.live.agents.sharing(),
            refused=dict(self.refusals.counts),
        )

    def _job(self, job: SupervisedJob) -> status_view.JobFactsSnapshot:
        """Reads a job. If that raises, it returns only the stored part, and the other jobs stay complete."""
        with self.bulkhead.guard("status", job.name):
            return status_view.JobFactsSnapshot(
                job=job,
                noticed=self.shown(job.name),
                # Only for the jobs that are shown: these look at each host and each process.
                missing=partial(self.missing, job),
                ranks=partial(self.live.ranks.of, job.id, job.observed.run),
                rank_counts=partial(self.live.processes.rank_counts, job.id, job.observed.run),
                placements=self.live.placements(job.name),
                streams=self.live.processes.hosts(job.id),
                since=self.phases.since(job),
                faults=self._faults(job.name),
            )
        return status_view.JobFactsSnapshot(
            job=job, noticed={}, placements=None, streams=frozenset(), since=None, faults=self._faults(job.name)
        )

    def _faults(self, name: JobName) -> tuple[str, ...]:
        """Writes a sentence for each loop that fails on a job."""
        faults = []
        for where, why in sorted(self.bulkhead.about(name).items()):
            cannot = _CANNOT.get(where, f"serve this job ({where})")
            faults.append(f"The supervisor cannot {cannot}: {why}. It tries again, and other jobs are not affected.")
        return tuple(faults)


_CANNOT = {
    "act": "carry out the decision about this job",
    "directives": "tell the processes of this job what to do",
    "observe": "read the objects of this job",
    "plan": "plan this job",
    "rounds": "tell the elastic agents of this job their round",
    "settle": "store the decision about this job",
    "status": "show all of this job",
}
"""What the supervisor cannot do for a job when one of its loops fails on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEndpoint:
    reader: StatusReader
    authenticate: Authenticate

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/status", self.status),
            web.get("/v1/history", self.history),
            web.get("/v1/ledger", self.ledger),
            web.get("/v1/capacity", self.capacity),
        ]

    async def status(self, request: web.Request) -> web.Response:
        """Answers with one page of the present status."""
        await require_principal(Viewer, request, self.authenticate)
        wanted, position = request.query.get("limit"), request.query.get("after")
        try:
            limit = status_view.MAX_ENTRIES if wanted is None else min(status_view.MAX_ENTRIES, int(wanted))
            after = status_view.START if position is None else status_view.PagePosition.read(position)
        except ValueError as error:
            raise MalformedError("`limit` must be a number, and `after` the `next` of an answer") from error
        if limit < 1:
            raise MalformedError("`limit` must be at least 1")
        snapshot = self.reader.snapshot()
        return web.json_response(
            body=msgspec.json.encode(status_view.status_view(snapshot, status_view.page(snapshot, after, limit)))
        )

    async def history(self, request: web.Request) -> web.Response:
        """Answers with a page of the record; the query says of what."""
        await require_principal(Viewer, request, self.authenticate)
        query = _history_query(request.query)
        with _readable("history"):
            view = await self.reader.happened(query)
        return web.json_response(body=msgspec.json.encode(view))

    async def ledger(self, request: web.Request) -> web.Response:
        """Answers with the worker-seconds of all jobs between two instants, which the query names."""
        await require_principal(Viewer, request, self.authenticate)
        since, until = _past(request.query, ["since", "until", "by"], self.reader.live.now())
        if request.query.get("by", _POOL) != _POOL:
            raise MalformedError(f"`by` must be `{_POOL}`")
        with _readable("ledger"):
            view = await self.reader.spent(since, until, by_pool="by" in request.query)
        return web.json_response(body=msgspec.json.encode(view))

    async def capacity(self, request: web.Request) -> web.Response:
        """Answers with the hosts of a job or of a pool that were there between two instants; the query names them."""
        await require_principal(Viewer, request, self.authenticate)
        since, until = _past(request.query, ["job", "pool", "since", "until"], self.reader.live.now())
        if ("job" in request.query) is ("pool" in request.query):
            raise MalformedError("either `job` or `pool` must be given")
        view: CapacityView | PoolCapacityView
        with _readable("capacity"):
            if "job" in request.query:
                view = await self.reader.capacity(JobName(request.query["job"]), since, until)
            else:
                view = await self.reader.pool_capacity(_named_pool(request.query["pool"]), since, until)
        return web.json_response(body=msgspec.json.encode(view))


def _held(on: HeldOn, seconds: float) -> HeldView:
    return HeldView(
        cloud=on.cloud,
        zone=on.zone,
        instance_type=on.instance_type,
        price_class=on.price_class,
        gpus=on.gpus,
        worker_seconds=seconds,
    )


def _pool(pool: MachinePool, time: PoolTime) -> PoolView:
    return PoolView(
        cloud=pool.cloud,
        zone=pool.zone,
        instance_type=pool.instance_type,
        price_class=pool.price_class,
        worker_seconds={account.value: seconds for account, seconds in time.worker_seconds.items()},
        went=time.went,
        noticed=time.noticed,
    )


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Answers 503 for what the record cannot say now."""
    try:
        yield
    except RecordError as error:
        raise StoreUnavailableError(f"the {what} cannot be read now: {error}") from error


def _named_pool(text: str) -> MachinePool:
    try:
        return MachinePool.named(text)
    except ValueError as error:
        raise MalformedError("`pool` must be CLOUD/ZONE/TYPE") from error


def _refuse_unknown(given: Mapping[str, str], known: Collection[str]) -> None:
    if unknown := sorted(given.keys() - set(known)):
        raise MalformedError(f"`{unknown[0]}` is none of {', '.join(sorted(known))}")


def _past(given: Mapping[str, str], known: Collection[str], now: float) -> tuple[float, float]:
    """Reads `since` and `until`, which is now by default. A query may have what else is `known`."""
    _refuse_unknown(given, known)
    try:
        since, until = _instant(given, "since"), _instant(given, "until")
    except ValueError as error:
        raise MalformedError("`since` and `until` must be Unix seconds") from error
    if since is None or since > now:
        raise MalformedError("`since` must be given, and be an instant in the past")
    until = now if until is None else min(until, now)
    if until < since:
        raise MalformedError("`until` must not be before `since`")
    return since, until


def _history_query(given: Mapping[str, str]) -> HistoryQuery:
    _refuse_unknown(given, _QUERY)
    if _POOL in given:
        given = {**given, _POOL: _named_pool(given[_POOL]).name}
    subjects = [f"{kind}/{given[kind]}" for kind in SUBJECT_KINDS if kind in given]
    if len(subjects) > 1:
        raise MalformedError("`job`, `node`, `pod` and `pool` exclude each other")
    try:
        return HistoryQuery(
            subject=subjects[0] if subjects else "",
            source=given.get("source", ""),
            since=_instant(given, "since"),
            until=_instant(given, "until"),
            drills=given.get("drills") != "false",
            before=HistoryPosition.read(given["before"]) if "before" in given else None,
            limit=min(MAX_HAPPENED, max(1, int(given.get("limit", MAX_HAPPENED)))),
        )
    except (ValueError, OverflowError) as error:
        raise MalformedError(
            "`since` and `until` must be Unix seconds, `limit` a number, and `before` the `next` of an answer"
        ) from error


def _instant(given: Mapping[str, str], name: str) -> float | None:
    """Reads an instant. Text that is no finite number raises ValueError."""
    if name not in given:
        return None
    if not math.isfinite(instant := float(given[name])):
        raise ValueError(name)
    return instant
