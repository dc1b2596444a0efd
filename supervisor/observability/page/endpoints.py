"""Serves the status page to people who are signed in: the pages, their assets and the stream."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.ids import JobName
from supervisor.domain.ledger import HeldOn
from supervisor.domain.worker_time import HourlyTime
from supervisor.fanout.lines import LineResponse
from supervisor.identity.people import People, Steering
from supervisor.identity.tokens import BadTokenError, Person, Tokens
from supervisor.ingest.errors import MalformedError, TooManyError
from supervisor.ingest.http import Authenticate
from supervisor.observability.history import HistoryEntry
from supervisor.observability.page.actions import ActionEndpoints, action_endpoints
from supervisor.observability.page.answers import HEADERS, html_page, page_root
from supervisor.observability.page.comparisons import ComparisonQuestion, PageComparisons
from supervisor.observability.page.console import Console, ConsolePage, PageQuestion
from supervisor.observability.page.gate import PageGate
from supervisor.observability.page.history_form import HistoryForm
from supervisor.observability.page.rendering import PageAsset, PageRenderer
from supervisor.observability.page.report_contents import SpentTime
from supervisor.observability.page.report_form import ReportForm
from supervisor.observability.page.sessions import PageSession, PageSessions, UsedCodes
from supervisor.observability.page.viewers import MAX_VIEWERS, PageViewers
from supervisor.observability.record.database import HistoryQuery, RecordError
from supervisor.observability.record.pool_counts import PoolCounts
from supervisor.observability.status_view import JobPageSnapshot, StatusSnapshot
from supervisor.observability.views import CapacityView, HistoryView, LedgerView
from supervisor.refusals import Refusals

_ASSET_HEADERS = {**HEADERS, "Cache-Control": "public, max-age=86400, immutable"}
"""An asset's URL contains a hash of its content."""

_LONGEST_TIMER_SECONDS = 86400.0 * 7
_PERSON_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEndpoints:
    snapshot: Callable[[], StatusSnapshot]
    job: Callable[[JobName], JobPageSnapshot | None]
    history: Callable[[HistoryQuery], Awaitable[HistoryView]]
    spent: Callable[[float, float], Awaitable[LedgerView]]
    hourly: Callable[[float, float, JobName | None], Awaitable[HourlyTime]]
    capacity: Callable[[JobName, float, float], Awaitable[CapacityView]]
    console: Console
    renderer: PageRenderer
    viewers: PageViewers
    comparisons: PageComparisons
    gate: PageGate
    actions: ActionEndpoints
    refusals: Refusals
    clock: Clock
    bulkhead: Bulkhead

    async def run(self) -> None:
        """Root task: renders for viewers, once the templates of all pages are compiled."""
        with self.bulkhead.guard("page", retried=False):
            await self.renderer.compile()
        await self.viewers.run()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self.page),
            web.get("/status", self.page),
            web.get("/status/stream", self.stream),
            web.get("/status/jobs/{job:.+}", self.job_page),
            web.get("/status/history", self.history_page),
            web.get("/status/report", self.report_page),
            *self.gate.routes(),
            *self.actions.routes(),
            *(web.get(path, partial(self._console_page, page)) for path, page in self.console.pages.items()),
            *(web.get(f"/status/{asset.name}", partial(_serve, asset)) for asset in self.renderer.assets.values()),
        ]

    async def page(self, request: web.Request) -> web.Response:
        """Serves the page, or the login form without a session."""
        session = await self._session(request)
        if isinstance(session, web.Response):
            return session
        # In a thread: there may be thousands of nodes.
        return html_page(await asyncio.to_thread(self.renderer.page, self.snapshot(), session=session))

    async def job_page(self, request: web.Request) -> web.Response:
        """Serves the page of one job, or the login form without a session."""
        session = await self._session(request)
        if isinstance(session, web.Response):
            return session
        name, root = JobName(request.match_info["job"]), page_root(request)
        found = self.job(name)
        if found is None:
            text = self.renderer.render("no_job.html", job=name, session=session, root=root)
            return html_page(text, status=404)
        # In a thread: a job may have thousands of hosts.
        text = await asyncio.to_thread(self.renderer.job, found, root, session=session)
        return html_page(text)

    async def history_page(self, request: web.Request) -> web.Response:
        """Serves a page of the record, or the login form without a session."""
        session = await self._session(request)
        if isinstance(session, web.Response):
            return session
        form, status = HistoryForm(), 200
        happened: HistoryView | str
        try:
            form = HistoryForm.read(request.query)
            happened = await self.history(form.query(self.clock.now()))
        except MalformedError as error:
            happened, status = str(error), 400
        except RecordError as error:
            happened, status = f"The record cannot be read now: {error}.", 503
        text = await asyncio.to_thread(self.renderer.history, form, happened, page_root(request), session=session)
        return html_page(text, status=status)

    async def report_page(self, request: web.Request) -> web.Response:
        """Serves where worker-hours went, or the login form without a session."""
        session = await self._session(request)
        if isinstance(session, web.Response):
            return session
        form, status = ReportForm(), 200
        spent: SpentTime | str
        try:
            form = ReportForm.read(request.query)
            now = self.clock.now()
            found = await self.spent(now - form.seconds, now)
            job = JobName(form.job) if form.job else None
            spent = SpentTime(
                found,
                await self.hourly(found.since, found.until, job),
                None if job is None else await self.capacity(job, found.since, found.until),
            )
        except MalformedError as error:
            spent, status = str(error), 400
        except RecordError as error:
            spent, status = f"The ledger cannot be read now: {error}.", 503
        compared = None
        if form.compare and isinstance(spent, SpentTime) and spent.has(form.job):
            compared = self.comparisons.of(ComparisonQuestion(JobName(form.job), form.seconds))
        # In a thread: there may be thousands of jobs.
        text = await asyncio.to_thread(self.renderer.report, form, spent, compared, page_root(request), session=session)
        return html_page(text, status=status)

    async def _console_page(self, page: ConsolePage, request: web.Request) -> web.Response:
        """Serves a page of the console, or the login form without a session."""
        session = await self._session(request)
        if isinstance(session, web.Response):
            return session
        question = PageQuestion(query=request.query, names=request.match_info, root=page_root(request), session=session)
        shown = await page(question)
        return html_page(shown.text, status=shown.status)

    async def _session(self, request: web.Request) -> PageSession | web.Response:
        """The session of a request, or the login form."""
        return await self.gate.session(request)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Streams the content of the page whenever it changes."""
        session = await self.gate.sessions.of(request)
        if session is None:
            raise BadTokenError("no bearer token and no session")
        if len(self.viewers.streams) >= MAX_VIEWERS:
            raise TooManyError("the maximum number of viewers is reached")
        lines = LineResponse(request, self.refusals)
        await lines.prepare()
        left = _LONGEST_TIMER_SECONDS if session.until is None else max(0.0, session.until - self.clock.wall())
        longest, why = _LONGEST_TIMER_SECONDS, "the session is over"
        if isinstance(session.who, Person):  # Whether they still may see it is asked when they come back at once.
            longest, why = _PERSON_SECONDS, "the rights are asked for again"
        end = asyncio.get_running_loop().call_later(min(left, longest), lines.finish, why)
        try:
            with self.viewers.showing(lines):
                return await lines.serve()
        finally:
            end.cancel()


async def _serve(asset: PageAsset, _request: web.Request) -> web.Response:
    return web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8", headers=_ASSET_HEADERS)


def status_page(  # noqa: PLR0913 - its dependencies
    *,
    snapshot: Callable[[], StatusSnapshot],
    job: Callable[[JobName], JobPageSnapshot | None],
    history: Callable[[HistoryQuery], Awaitable[HistoryView]],
    spent: Callable[[float, float], Awaitable[LedgerView]],
    hourly: Callable[[float, float, JobName | None], Awaitable[HourlyTime]],
    capacity: Callable[[JobName, float, float], Awaitable[CapacityView]],
    pools: Callable[[], Awaitable[PoolCounts]],
    held: Callable[[float, float], Awaitable[Mapping[HeldOn, float]]],
    version: Callable[[], Any],
    authenticate: Authenticate,
    tokens: Tokens,
    people: People | None,
    steering: Steering,
    audit: Callable[[HistoryEntry], None],
    refusals: Refusals,
    clock: Clock,
    bulkhead: Bulkhead,
    docs_url: str = "",
    grafana_url: str = "",
) -> PageEndpoints:
    """Builds the endpoints of the page; they and their `comparisons` need root tasks.

    Args:
        snapshot: Reads what the page shows.
        job: Reads what the page of one job shows; None if there is no such job.
        history: Reads a page of the record; raises RecordError if that cannot be read now.
        spent: Reads the ledger between two instants; raises RecordError likewise.
        hourly: Reads the hours of the ledger between two instants, of one job or of all; raises RecordError likewise.
        capacity: Reads which hosts were there for a job between two instants; raises RecordError likewise.
        pools: Counts the notices of capacity pools in the last 30 days; raises RecordError likewise.
        held: Reads the worker-seconds on each kind of machine between two instants; raises RecordError likewise.
        version: Changes whenever the page should be rendered at once.
        authenticate: Identifies the sender of an Authorization header.
        tokens: Makes and checks sessions.
        people: The users of the cluster, if they may sign in.
        steering: Carries out what people ask for.
        audit: Keeps what a person has asked for.
        refusals: Counts refused requests.
        clock: For the ages on the page.
        bulkhead: Keeps a rendering that raises.
        docs_url: The URL that the repository's pages are below; empty: the page links to none.
        grafana_url: The URL of the Grafana that has the dashboards; empty: the page links to none.
    """
    renderer = PageRenderer(docs_url, grafana_url)
    sessions = PageSessions(
        authenticate=authenticate, tokens=tokens, clock=clock, codes=UsedCodes(clock.wall()), people=people
    )
    gate = PageGate(sessions=sessions, renderer=renderer, refusals=refusals)
    return PageEndpoints(
        snapshot=snapshot,
        job=job,
        history=history,
        spent=spent,
        hourly=hourly,
        capacity=capacity,
        console=Console(snapshot=snapshot, history=history, pools=pools, held=held, renderer=renderer, clock=clock),
        renderer=renderer,
        viewers=PageViewers(snapshot, renderer.content, version, clock, bulkhead),
        comparisons=PageComparisons(spent, capacity, clock, bulkhead),
        gate=gate,
        actions=action_endpoints(
            gate=gate,
            steering=steering,
            snapshot=snapshot,
            audit=audit,
            renderer=renderer,
            clock=clock,
            refusals=refusals,
        ),
        refusals=refusals,
        clock=clock,
        bulkhead=bulkhead,
    )
