"""Pages of the status: an answer holds so little that it keeps no other request waiting."""

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
"""On one page, an entry being a host of a job, a notice or an agent: some 5 ms of the loop's time."""


class BadPositionError(ValueError):
    """No page ends there."""


class Part(IntEnum):
    """The lists that go from page to page, in this order."""

    JOBS = 0
    NOTICES = 1
    UNCONFIRMED = 2
    AGENTS = 3


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The last thing on a page: everything after it is still to come. Of a job, `host` is the last one.

    By name, so that it stays good while things come and go.
    """

    part: Part = Part.JOBS
    name: str = ""
    host: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """What `str` of a position says.

        Raises:
            BadPositionError: It is no such text.
        """
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)
        except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
            raise BadPositionError("no page ends there") from error

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode("ascii")


START = Position()


@dataclass(frozen=True, slots=True)
class JobPart:
    """Some of a job's hosts, in order of their names: those that its launcher lists, and its own."""

    seen: JobStatus
    hosts: Sequence[Host]


@dataclass(slots=True)
class Page:
    """What is on one page, the `first` or a later one; `last` is where it ends, None where nothing follows."""

    first: bool = True
    jobs: list[JobPart] = field(default_factory=list)
    notices: list[ReclaimNotice] = field(default_factory=list)
    unconfirmed: list[ReclaimNotice] = field(default_factory=list)
    agents: list[AgentState] = field(default_factory=list)
    last: Position | None = None


def whole(seen: StatusSnapshot) -> Page:
    """All of it on one page, as it comes."""
    jobs = [JobPart(each, _hosts(each)) for each in seen.jobs]
    notices, unconfirmed, agents = list(seen.notices), list(seen.unconfirmed), list(seen.agents.values())
    return Page(jobs=jobs, notices=notices, unconfirmed=unconfirmed, agents=agents)


def page(seen: StatusSnapshot, after: Position, most: int) -> Page:
    """The page of at most so many entries that follows that position."""
    cut, room = Page(first=after == START), most
    for each, hosts in _jobs(seen, after):
        if room <= 0:
            return cut
        part = hosts[:room]
        cut.jobs.append(JobPart(each, part))
        cut.last = Position(Part.JOBS, each.job.name, part[-1] if part else "")
        room -= max(1, len(part))
        if len(part) < len(hosts):
            return cut
    lists: list[tuple[Part, list[Any], Mapping[Any, Any]]] = [
        (Part.NOTICES, cut.notices, {notice.id: notice for notice in seen.notices}),
        (Part.UNCONFIRMED, cut.unconfirmed, {notice.id: notice for notice in seen.unconfirmed}),
        (Part.AGENTS, cut.agents, seen.agents),
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


def _jobs(seen: StatusSnapshot, after: Position) -> Iterator[tuple[JobStatus, list[Host]]]:
    """The jobs after a position, each with those of its hosts that are still to come."""
    if after.part is not Part.JOBS:
        return
    for each in sorted((each for each in seen.jobs if each.job.name >= after.name), key=lambda each: each.job.name):
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
