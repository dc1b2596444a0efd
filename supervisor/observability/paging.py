"""Splits the status into pages, so that one answer does not delay other requests."""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

import msgspec

from supervisor.domain.ids import Host
from supervisor.domain.notice import ReclaimNotice
from supervisor.ingest.agent_registry import AgentState
from supervisor.observability.snapshot import JobStatus, StatusSnapshot

MAX_ENTRIES = 1000
"""Entries on one page: hosts of jobs, notices and agents. They take some 5 ms of the loop's time."""


class BadPositionError(ValueError):
    """The text is not the position of a page's end."""


class Part(IntEnum):
    """The lists that are paged, in this order."""

    JOBS = 0
    NOTICES = 1
    UNCONFIRMED = 2
    AGENTS = 3


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The last entry of a page; `host` is the last host of a job that continues on the next page.

    It consists of names, so that it stays valid when entries are added or removed.
    """

    part: Part = Part.JOBS
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


START = Position()


@dataclass(frozen=True, slots=True)
class JobPart:
    """A job with the part of its hosts that is on the page, ordered by name."""

    status: JobStatus
    hosts: Sequence[Host]


@dataclass(slots=True)
class Page:
    """The entries of one page; `last` is its end, None if nothing follows."""

    first: bool = True
    jobs: list[JobPart] = field(default_factory=list)
    notices: list[ReclaimNotice] = field(default_factory=list)
    unconfirmed: list[ReclaimNotice] = field(default_factory=list)
    agents: list[AgentState] = field(default_factory=list)
    last: Position | None = None


def whole(snapshot: StatusSnapshot) -> Page:
    """Everything on one page."""
    jobs = [JobPart(each, _hosts(each)) for each in snapshot.jobs]
    notices, unconfirmed, agents = list(snapshot.notices), list(snapshot.unconfirmed), list(snapshot.agents.values())
    return Page(jobs=jobs, notices=notices, unconfirmed=unconfirmed, agents=agents)


def page(snapshot: StatusSnapshot, after: Position, limit: int) -> Page:
    """The page of at most `limit` entries that follows a position."""
    cut, room = Page(first=after == START), limit
    for each, hosts in _jobs(snapshot, after):
        if room <= 0:
            return cut
        part = hosts[:room]
        cut.jobs.append(JobPart(each, part))
        cut.last = Position(Part.JOBS, each.job.name, part[-1] if part else "")
        room -= max(1, len(part))
        if len(part) < len(hosts):
            return cut
    lists: list[tuple[Part, list[Any], Mapping[Any, Any]]] = [
        (Part.NOTICES, cut.notices, {notice.id: notice for notice in snapshot.notices}),
        (Part.UNCONFIRMED, cut.unconfirmed, {notice.id: notice for notice in snapshot.unconfirmed}),
        (Part.AGENTS, cut.agents, snapshot.agents),
    ]
    for kind, on_page, items in lists:
        names = _following(items, kind, after)
        taken = names[: max(0, room)]
        on_page.extend(items[name] for name in taken)
        room -= len(taken)
        if taken:
            cut.last = Position(kind, taken[-1])
        if len(taken) < len(names):
            return cut
    cut.last = None
    return cut


def _jobs(snapshot: StatusSnapshot, after: Position) -> Iterator[tuple[JobStatus, list[Host]]]:
    """The jobs after a position, each with its remaining hosts."""
    if after.part is not Part.JOBS:
        return
    for each in sorted((each for each in snapshot.jobs if each.job.name >= after.name), key=lambda each: each.job.name):
        hosts = _hosts(each)
        begun = each.job.name == after.name
        rest = hosts[bisect_right(hosts, after.host) :] if begun else hosts
        if rest or not begun:
            yield each, rest


def _hosts(each: JobStatus) -> list[Host]:
    return sorted(each.job.observed.hosts | each.job.own_hosts)


def _following(items: Iterable[str], kind: Part, after: Position) -> list[str]:
    if kind < after.part:
        return []
    return sorted(name for name in items if kind > after.part or name > after.name)
