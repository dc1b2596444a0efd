"""Defines the values that the status is computed from, and cuts them into pages.

A page is small, so that one answer does not delay other requests.
"""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

import msgspec

from supervisor.decide.explanation import NOTHING, Missing
from supervisor.decide.policy import Policy
from supervisor.decide.ranks import NO_RANKS, RankCounts, Ranks
from supervisor.domain.capacity import Machine, Placement
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice, SubjectKind
from supervisor.ingest.agent_registry import AgentState
from supervisor.observability.groups import DecidedGroup
from supervisor.observability.history import JobHistoryEntry
from supervisor.observability.views import LeaderView
from supervisor.refusals import Code, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFactsSnapshot:
    """A job with the facts that only the streams and the cluster know.

    `noticed` maps each noticed host to its most urgent notice. `placements` is None if the hosts are nodes. `streams`
    are the hosts with a connected process. `since` is when the phase began. `missing` returns what a waiting job lacks,
    `ranks` what its processes say about agreed steps, and `rank_counts` how many of them know their rank. `faults` has
    a sentence for each part of the supervisor that fails on this job.
    """

    job: SupervisedJob
    noticed: Mapping[Host, ReclaimNotice]
    placements: Mapping[Host, Placement] | None
    streams: frozenset[Host]
    since: float | None
    missing: Callable[[], Missing] = lambda: NOTHING
    ranks: Callable[[], Ranks] = lambda: NO_RANKS
    rank_counts: Callable[[], RankCounts] = RankCounts
    faults: tuple[str, ...] = ()

    @property
    def hosts(self) -> list[Host]:
        """All hosts of the job, ordered by name."""
        return sorted(self.job.observed.hosts | self.job.own_hosts)

    def node(self, host: Host) -> Host:
        """The node of a host."""
        placement = None if self.placements is None else self.placements.get(host)
        return host if placement is None else placement.node


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """The state at `now` (Unix seconds). `gpus` are those of each worker of a job, where they are known.

    `silent`: since when an agent has had no stream. `heard`: when it last gave a sign of life, which is earlier.
    """

    now: float
    policy: Policy
    leader: LeaderView
    jobs: tuple[JobFactsSnapshot, ...]
    notices: tuple[ReclaimNotice, ...]
    unconfirmed: tuple[ReclaimNotice, ...]
    groups: tuple[DecidedGroup, ...]
    agents: Mapping[Host, AgentState]
    silent: Mapping[Host, float]
    refused: Mapping[tuple[Wire, Code], int]
    heard: Mapping[Host, float] = field(default_factory=dict)
    machines: Mapping[Host, Machine] = field(default_factory=dict)
    sharing: Mapping[Host, Sequence[Host]] = field(default_factory=dict)
    gpus: Mapping[JobName, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPageSnapshot:
    """A snapshot of one job, and its history since `since`, when this supervisor began to lead."""

    status: StatusSnapshot
    history: Sequence[JobHistoryEntry]
    stored: Sequence[JobHistoryEntry]
    since: float


MAX_ENTRIES = 1000
"""Entries on one page: hosts of jobs, notices and agents. They take some 5 ms of the loop's time."""


class BadPositionError(ValueError):
    """The text is not the position of a page's end."""


class StatusPart(IntEnum):
    """The lists that are paged, in this order."""

    JOBS = 0
    NOTICES = 1
    UNCONFIRMED = 2
    AGENTS = 3


class PagePosition(msgspec.Struct, frozen=True, array_like=True):
    """The last entry of a page; `host` is the last host of a job that continues on the next page.

    It consists of names, so that it stays valid when entries are added or removed.
    """

    part: StatusPart = StatusPart.JOBS
    name: str = ""
    host: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """Parses the result of `str`.

        Raises:
            BadPositionError: The text is not a position.
        """
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)
        except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
            raise BadPositionError("not the position of a page") from error

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode("ascii")


START = PagePosition()


@dataclass(frozen=True, slots=True)
class PagedJob:
    """A job with the part of its hosts that is on the page, ordered by name."""

    status: JobFactsSnapshot
    hosts: Sequence[Host]


@dataclass(slots=True)
class StatusPage:
    """The entries of one page; `last` is its end, None if nothing follows."""

    first: bool = True
    jobs: list[PagedJob] = field(default_factory=list)
    notices: list[ReclaimNotice] = field(default_factory=list)
    unconfirmed: list[ReclaimNotice] = field(default_factory=list)
    agents: list[AgentState] = field(default_factory=list)
    last: PagePosition | None = None


def page(snapshot: StatusSnapshot, after: PagePosition, limit: int) -> StatusPage:
    """The page of at most `limit` entries that follows a position."""
    cut, room = StatusPage(first=after == START), limit
    for each, hosts in _jobs(snapshot, after):
        if room <= 0:
            return cut
        part = hosts[:room]
        cut.jobs.append(PagedJob(each, part))
        cut.last = PagePosition(StatusPart.JOBS, each.job.name, part[-1] if part else "")
        room -= max(1, len(part))
        if len(part) < len(hosts):
            return cut
    lists: list[tuple[StatusPart, list[Any], Mapping[Any, Any]]] = [
        (StatusPart.NOTICES, cut.notices, {notice.id: notice for notice in snapshot.notices}),
        (StatusPart.UNCONFIRMED, cut.unconfirmed, {notice.id: notice for notice in snapshot.unconfirmed}),
        (StatusPart.AGENTS, cut.agents, snapshot.agents),
    ]
    for kind, on_page, items in lists:
        names = sorted(name for name in items if kind > after.part or (kind == after.part and name > after.name))
        taken = names[: max(0, room)]
        on_page.extend(items[name] for name in taken)
        room -= len(taken)
        if taken:
            cut.last = PagePosition(kind, taken[-1])
        if len(taken) < len(names):
            return cut
    cut.last = None
    return cut


def _jobs(snapshot: StatusSnapshot, after: PagePosition) -> Iterator[tuple[JobFactsSnapshot, list[Host]]]:
    """The jobs after a position, each with its remaining hosts."""
    if after.part is not StatusPart.JOBS:
        return
    for each in sorted((each for each in snapshot.jobs if each.job.name >= after.name), key=lambda each: each.job.name):
        hosts = each.hosts
        begun = each.job.name == after.name
        rest = hosts[bisect_right(hosts, after.host) :] if begun else hosts
        if rest or not begun:
            yield each, rest


def subject_key(notice: ReclaimNotice) -> tuple[SubjectKind, str]:
    """The key of a notice's subject: a node by its name, a pod by its uid."""
    subject = notice.subject
    return subject.kind, subject.name if subject.kind is SubjectKind.NODE else subject.uid
