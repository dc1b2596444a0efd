"""The pages of nodes, pools, jobs, decided groups and drills: what each reads, and in which thread it is rendered."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from servicekit.clock import Clock
from supervisor.domain.capacity import MachinePool
from supervisor.domain.ids import Host
from supervisor.domain.ledger import HeldOn
from supervisor.domain.notice import SIMULATED, NoticeState
from supervisor.ingest.errors import MalformedError
from supervisor.observability.page.contents import MAX_ROWS
from supervisor.observability.page.drill_contents import (
    AFTER_SECONDS,
    MAX_ENTRIES,
    Drill,
    DrillsContents,
    drills_of,
    proofs,
    with_jobs,
)
from supervisor.observability.page.group_contents import GroupContents, GroupId, group_contents
from supervisor.observability.page.history_form import MAX_LETTERS
from supervisor.observability.page.job_rows import JOBS, jobs_contents
from supervisor.observability.page.node_contents import NODES, NodeContents, node_contents, node_rows
from supervisor.observability.page.past import RecordRead
from supervisor.observability.page.pool_contents import POOLS, PoolContents, pool_contents, pool_rows
from supervisor.observability.page.rendering import PageRenderer
from supervisor.observability.page.sessions import PageSession
from supervisor.observability.page.tables import TableForm, TableLayout, listed
from supervisor.observability.record.database import HistoryQuery, RecordError
from supervisor.observability.record.pool_counts import DAY, HOUR, POOL_DAYS, PoolCounts, first_day
from supervisor.observability.status_view import StatusPage, StatusSnapshot, status_view
from supervisor.observability.views import HistoryView

_MONTH_SECONDS = POOL_DAYS * DAY

MAX_NOTICES = 500
"""Notices of a pool of which the times to their ends are shown."""

MAX_GROUP_ENTRIES = 500
"""Entries about a group: a job makes five of a reclaim, and its hosts one or two each."""

_AFTER_A_DECISION = (DAY, HOUR, 60.0)
"""How long after a decision its consequences are looked for: for less, if a job has made too many entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuestion:
    """What an address asks: its query, the names in its path, and how its page links to the others.

    `root` leads from the address to the overview; `session` is whose page it is.
    """

    query: Mapping[str, str]
    names: Mapping[str, str]
    root: str
    session: PageSession


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A page and its HTTP status."""

    text: str
    status: int = 200


ConsolePage = Callable[[PageQuestion], Awaitable[RenderedPage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Serves the pages.

    Attributes:
        snapshot: Reads the present status.
        history: Reads a page of the record; raises RecordError if that cannot be read now.
        pools: Reads how many notices there were in each capacity pool in the last 30 days; raises RecordError likewise.
        held: Reads the worker-seconds on each kind of machine between two instants; raises RecordError likewise.
        renderer: Renders templates.
        clock: For the spans of the record.
    """

    snapshot: Callable[[], StatusSnapshot]
    history: Callable[[HistoryQuery], Awaitable[HistoryView]]
    pools: Callable[[], Awaitable[PoolCounts]]
    held: Callable[[float, float], Awaitable[Mapping[HeldOn, float]]]
    renderer: PageRenderer
    clock: Clock

    @property
    def pages(self) -> Mapping[str, ConsolePage]:
        """The pages by path."""
        return {
            "/status/jobs": self.jobs,
            "/status/nodes": self.nodes,
            "/status/nodes/{node:.+}": self.node,
            "/status/pools": self.all_pools,
            "/status/pools/{pool:.+}": self.pool,
            "/status/groups/{at}/{job:.+}": self.group,
            "/status/drills": self.drills,
        }

    async def jobs(self, asked: PageQuestion) -> RenderedPage:
        """All jobs, as a table that can be searched, filtered, sorted and paged."""
        form, trouble = _form(asked, JOBS)
        snapshot = self.snapshot()

        def rendered() -> str:
            shown = jobs_contents(snapshot, form)
            return self._render("jobs.html", asked, form=form, layout=JOBS, shown=shown, trouble=trouble)

        return await _in_thread(rendered, 400 if trouble else 200)

    async def nodes(self, asked: PageQuestion) -> RenderedPage:
        """All nodes with an agent, likewise."""
        form, trouble = _form(asked, NODES)
        snapshot = self.snapshot()

        def rendered() -> str:
            table = listed(node_rows(snapshot), form, NODES)
            return self._render(
                "nodes.html", asked, form=form, layout=NODES, table=table, now=snapshot.now, trouble=trouble
            )

        return await _in_thread(rendered, 400 if trouble else 200)

    async def node(self, asked: PageQuestion) -> RenderedPage:
        """One node: what is there now, and what the record has of it."""
        node = Host(_name(asked, "node"))
        with _read() as read:
            read.past = await self.history(self._since_a_month(f"node/{node}"))
        snapshot = self.snapshot()

        def rendered() -> RenderedPage:
            shown = node_contents(snapshot, node, read.past)
            return self._known("node", asked, shown, read.trouble)

        return await asyncio.to_thread(rendered)

    async def all_pools(self, asked: PageQuestion) -> RenderedPage:
        """All capacity pools with a node, or with a notice in the last 30 days."""
        form, trouble = _form(asked, POOLS)
        with _read() as read:
            await self._read_pools(read)
        snapshot = self.snapshot()

        def rendered() -> str:
            table = listed(pool_rows(snapshot, read), form, POOLS)
            return self._render(
                "pools.html",
                asked,
                form=form,
                layout=POOLS,
                table=table,
                now=snapshot.now,
                trouble=trouble,
                unread=read.trouble,
            )

        return await _in_thread(rendered, 400 if trouble else 503 if read.trouble else 200)

    async def pool(self, asked: PageQuestion) -> RenderedPage:
        """One capacity pool: its nodes now, and its reclaims of the last 30 days."""
        try:
            pool = MachinePool.named(_name(asked, "pool")).name
        except ValueError:
            return RenderedPage(self._render("unknown.html", asked, kind="pool", name="", why=""), 404)
        with _read() as read:
            await self._read_pools(read)
            of_pool = self._since_a_month(f"pool/{pool}")
            read.past = await self.history(of_pool)
            read.notices = await self.history(replace(of_pool, notices=True, limit=MAX_NOTICES))
        snapshot = self.snapshot()

        def rendered() -> RenderedPage:
            shown = pool_contents(snapshot, pool, read)
            return self._known("pool", asked, shown, read.trouble)

        return await asyncio.to_thread(rendered)

    async def group(self, asked: PageQuestion) -> RenderedPage:
        """One decided group, from the leader's memory and from the record."""
        try:
            wanted = GroupId.read(asked.names["at"], _name(asked, "job"))
        except MalformedError as error:
            return RenderedPage(self._render("unknown.html", asked, kind="group", name="", why=str(error)), 404)
        with _read() as read:
            read.past = await self._about(wanted)
        snapshot = self.snapshot()

        def rendered() -> RenderedPage:
            shown = group_contents(snapshot, wanted, read.past)
            return self._known("group", asked, shown, read.trouble)

        return await asyncio.to_thread(rendered)

    async def drills(self, asked: PageQuestion) -> RenderedPage:
        """The drills of the present and the past, with what each proved."""
        shown, at_present = DrillsContents(), None
        with _read() as read:
            since = self.clock.now() - _MONTH_SECONDS
            notices = await self.history(HistoryQuery(source=SIMULATED, since=since, limit=MAX_ENTRIES))
            at_present = self.snapshot()  # After the read: what has ended since then goes on for a moment more.
            found = drills_of(notices, at_present.notices)
            shown = replace(found, drills=[await self._with_jobs(each) for each in found.drills])
        snapshot = at_present or self.snapshot()

        def rendered() -> str:
            now = [each for each in snapshot.notices if each.simulated and each.state is NoticeState.ACTIVE]
            page = StatusPage(first=False, notices=now[:MAX_ROWS])
            view = status_view(snapshot, page)
            more = max(0, len(now) - MAX_ROWS)
            return self._render(
                "drills.html", asked, view=view, more_present=more, shown=shown, proofs=proofs, unread=read.trouble
            )

        return await _in_thread(rendered, 503 if read.trouble else 200)

    async def _read_pools(self, read: RecordRead) -> None:
        now = self.clock.now()
        read.counts = await self.pools()
        read.held = await self.held(first_day(now), now)

    async def _about(self, wanted: GroupId) -> HistoryView:
        """Reads what happened to the job of a group about then."""
        for seconds in _AFTER_A_DECISION:
            query = HistoryQuery(
                subject=f"job/{wanted.job}",
                since=wanted.at - HOUR,
                until=wanted.at + seconds,
                limit=MAX_GROUP_ENTRIES,
            )
            past = await self.history(query)
            if not past.cut:
                break
        return past

    async def _with_jobs(self, drill: Drill) -> Drill:
        """Reads what a drill did to jobs."""
        ends = inf if drill.ended_at is None else drill.ended_at + AFTER_SECONDS
        # Much else may have happened: what came first is worth more than what came last.
        for seconds in _AFTER_A_DECISION:
            until = min(ends, drill.began_at + seconds)
            past = await self.history(HistoryQuery(since=drill.began_at, until=until, limit=MAX_ENTRIES))
            if not past.cut:
                break
        return replace(with_jobs(drill, past.entries), cut=past.cut)

    def _since_a_month(self, subject: str) -> HistoryQuery:
        return HistoryQuery(subject=subject, since=self.clock.now() - _MONTH_SECONDS, limit=MAX_ROWS)

    def _known(
        self, kind: str, asked: PageQuestion, shown: NodeContents | PoolContents | GroupContents, trouble: str
    ) -> RenderedPage:
        """Renders what is known of one thing, or says that nothing is."""
        if not shown.is_known and not trouble:
            text = self._render("unknown.html", asked, kind=kind, name=asked.names.get("job", ""), why="")
            return RenderedPage(text, 404)
        return RenderedPage(self._render(f"{kind}.html", asked, shown=shown, unread=trouble), 503 if trouble else 200)

    def _render(self, template: str, asked: PageQuestion, **values: Any) -> str:
        return self.renderer.render(template, root=asked.root, session=asked.session, **values)


@contextmanager
def _read() -> Iterator[RecordRead]:
    """Keeps what the record says of why it cannot be read: what is known without it is shown all the same."""
    read = RecordRead()
    try:
        yield read
    except RecordError as error:
        read.trouble = f"The record cannot be read now: {error}."


def _form(asked: PageQuestion, layout: TableLayout[Any]) -> tuple[TableForm, str]:
    """Reads the form of a table; an empty form and a sentence if the address asks for what it does not offer."""
    try:
        return TableForm.read(asked.query, layout), ""
    except MalformedError as error:
        return TableForm.empty(layout), str(error)


def _name(asked: PageQuestion, key: str) -> str:
    """Returns a name of the path, of which no more letters are used than any name has."""
    return asked.names[key][: MAX_LETTERS + 1]


async def _in_thread(render: Callable[[], str], status: int) -> RenderedPage:
    """Renders in a thread: there may be thousands of rows to choose from."""
    return RenderedPage(await asyncio.to_thread(render), status)
