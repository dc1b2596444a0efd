"""Which hosts a job lacks, and why: one that waits cannot start on them, one that runs goes on without them. Pure.

This explains `grants` for jobs whose hosts are nodes. It decides nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor.decide.grant import waits
from supervisor.decide.size import least_to_start
from supervisor.domain.ids import STANDALONE, Host, JobName, Source, kind_of
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import ReclaimNotice

_MAX_NAMES = 5


class Lack(StrEnum):
    """Why a job cannot start on a host."""

    NO_AGENT = "no_agent"
    NOTICE = "notice"
    SOURCE_UNKNOWN = "source_unknown"
    IN_USE = "in_use"


@dataclass(frozen=True, slots=True)
class MissingHost:
    """One host that cannot be used; `why` follows a colon after its name, or the names of several."""

    host: Host
    lack: Lack
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What is known about nodes.

    `clear` are the nodes whose sources all answer that there is no notice, `noticed` those that must not be used.
    `unknown` returns the sources of a connected agent whose answer is unknown; None if no agent is connected. `holders`
    are the jobs that hold a node.
    """

    clear: Collection[Host]
    noticed: Mapping[Host, ReclaimNotice]
    unknown: Callable[[Host], Sequence[Source] | None]
    holders: Mapping[str, Collection[JobName]]


@dataclass(frozen=True, slots=True)
class Missing:
    """The hosts that a job lacks, in sentences: `summary` if it waits for them, `shortfall` if it runs without them."""

    hosts: tuple[MissingHost, ...] = ()
    summary: str = ""
    shortfall: str = ""


NOTHING = Missing()
NO_NODES = Nodes(clear=(), noticed={}, unknown=lambda _: None, holders={})
_RUNS = (Phase.RUNNING, Phase.SHRINKING)


def missing(job: SupervisedJob, nodes: Nodes) -> Missing:
    """What a waiting job lacks, or one that runs on fewer hosts than requested, by name if they are nodes."""
    is_short = job.observed.running and len(job.workers) < job.spec.requested_workers
    if kind_of(job.name) != STANDALONE:
        return Missing(shortfall=" ".join(_shortfall(job, ()))) if is_short and _runs(job) else NOTHING
    if not waits(job) and not (is_short and _runs(job)):
        return NOTHING
    listed = sorted(job.observed.hosts - (frozenset() if waits(job) else job.workers))
    found = tuple(lack for host in listed if (lack := _lack(host, job, nodes)) is not None)
    if waits(job):
        return Missing(found, summary=" ".join(_summary(job, found, nodes)))
    return Missing(found, shortfall=" ".join(_shortfall(job, found)))


def _runs(job: SupervisedJob) -> bool:
    return job.decision.phase in _RUNS and not job.over


def _lack(host: Host, job: SupervisedJob, nodes: Nodes) -> MissingHost | None:
    unknown, notice = nodes.unknown(host), nodes.noticed.get(host)
    others = sorted(name for name in nodes.holders.get(host, ()) if name != job.name)
    if notice is not None:
        return MissingHost(host, Lack.NOTICE, _about(notice))
    if unknown is None:
        return MissingHost(host, Lack.NO_AGENT, "no agent is connected")
    if host not in nodes.clear:
        who = f"the source{'s' if len(unknown) > 1 else ''} {' and '.join(unknown)}" if unknown else "the agent"
        verb = "have" if len(unknown) > 1 else "has"
        return MissingHost(host, Lack.SOURCE_UNKNOWN, f"{who} {verb} not answered whether the node will be reclaimed")
    if others:
        return MissingHost(host, Lack.IN_USE, f"used by job {others[0]}")
    return None


def _about(notice: ReclaimNotice) -> str:
    if notice.simulated:
        return "noticed by a drill"
    return f"drained by {notice.drained_by}" if notice.drains else f"noticed by {notice.source}"


def _shortfall(job: SupervisedJob, found: Sequence[MissingHost]) -> Iterator[str]:
    used, requested = len(job.workers), job.spec.requested_workers
    yield f"{used} of {requested} requested hosts {'is' if used == 1 else 'are'} in use."
    yield from _by_why(found)
    named = {one.host for one in found}
    if others := sorted(job.decision.exclusions - named):
        yield f"{_names(others)}: excluded."


def _summary(job: SupervisedJob, found: Sequence[MissingHost], nodes: Nodes) -> Iterator[str]:
    listed, launcher = len(job.observed.hosts), job.spec.launcher_host
    usable, needed = listed - len(found), least_to_start(job.spec)
    yield f"{usable} of {listed} listed hosts can be used, and {needed} {'is' if needed == 1 else 'are'} needed."
    if listed < needed:
        yield f"The launcher's host list is too short: it has {listed}."
    if launcher is not None and launcher in nodes.noticed:
        yield f"The launcher's own host {launcher} is {_about(nodes.noticed[launcher])}."
    yield from _by_why(found)
    unlisted = len(nodes.clear) - sum(host in nodes.clear for host in job.observed.hosts)
    if usable < needed and unlisted:
        yield f"Not in the list: {unlisted} {'node' if unlisted == 1 else 'nodes'} with an agent and without a notice."


def _by_why(found: Sequence[MissingHost]) -> Iterator[str]:
    by_why: dict[str, list[Host]] = {}
    for one in found:
        # Launchers read this, and need not know the jobs of others.
        why = "used by another job" if one.lack is Lack.IN_USE else one.why
        by_why.setdefault(why, []).append(one.host)
    for why, hosts in by_why.items():
        yield f"{_names(hosts)}: {why}."


def _names(hosts: Sequence[Host]) -> str:
    more = f" and {len(hosts) - _MAX_NAMES} more" if len(hosts) > _MAX_NAMES else ""
    return f"{', '.join(hosts[:_MAX_NAMES])}{more}"
