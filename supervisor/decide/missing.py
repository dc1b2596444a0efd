"""Which hosts a waiting job cannot start on, and what each of them lacks. Pure.

This explains `grants` for jobs whose hosts are nodes. It decides nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor.decide.grant import waits
from supervisor.decide.size import least_to_start
from supervisor.domain.ids import STANDALONE, Host, JobName, Source, kind_of
from supervisor.domain.job import SupervisedJob
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
    """One host that cannot be used; `why` is a sentence about it without its name, capital and full stop."""

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
    """The hosts that a waiting job lacks, and one sentence about all of them."""

    hosts: tuple[MissingHost, ...] = ()
    summary: str = ""


NOTHING = Missing()


def missing(job: SupervisedJob, nodes: Nodes) -> Missing:
    """What a waiting job lacks; nothing if it does not wait, or if its controller makes its hosts."""
    if kind_of(job.name) != STANDALONE or not waits(job):
        return NOTHING
    listed = sorted(job.observed.hosts)
    found = tuple(lack for host in listed if (lack := _lack(host, job, nodes)) is not None)
    return Missing(found, " ".join(_summary(job, found, nodes)))


def _lack(host: Host, job: SupervisedJob, nodes: Nodes) -> MissingHost | None:
    unknown, notice = nodes.unknown(host), nodes.noticed.get(host)
    others = sorted(name for name in nodes.holders.get(host, ()) if name != job.name)
    if notice is not None:
        return MissingHost(host, Lack.NOTICE, f"it has a notice of {notice.source}")
    if unknown is None:
        return MissingHost(host, Lack.NO_AGENT, "no agent is connected")
    if host not in nodes.clear:
        sources = f"source {' and '.join(unknown)} has" if unknown else "agent has"
        return MissingHost(host, Lack.SOURCE_UNKNOWN, f"its {sources} not answered whether it will be reclaimed")
    if others:
        return MissingHost(host, Lack.IN_USE, f"job {others[0]} uses it")
    return None


def _summary(job: SupervisedJob, found: Sequence[MissingHost], nodes: Nodes) -> Iterator[str]:
    listed, launcher = len(job.observed.hosts), job.spec.launcher_host
    usable, needed = listed - len(found), least_to_start(job.spec)
    yield f"{usable} of {listed} listed hosts can be used, and {needed} {'is' if needed == 1 else 'are'} needed."
    if listed < needed:
        yield f"The launcher's host list is too short: it has {listed}."
    if launcher is not None and launcher in nodes.noticed:
        yield f"The launcher's own host {launcher} has a notice of {nodes.noticed[launcher].source}."
    by_why: dict[str, list[Host]] = {}
    for one in found:
        # Launchers read the summary, and need not know the jobs of others.
        why = "another job uses it" if one.lack is Lack.IN_USE else one.why
        by_why.setdefault(why, []).append(one.host)
    for why, hosts in by_why.items():
        yield f"{_names(hosts)}: {why}."
    unlisted = len(nodes.clear) - sum(host in nodes.clear for host in job.observed.hosts)
    if usable < needed and unlisted:
        yield f"Not in the list: {unlisted} {'node' if unlisted == 1 else 'nodes'} with an agent and without a notice."


def _names(hosts: Sequence[Host]) -> str:
    more = f" and {len(hosts) - _MAX_NAMES} more" if len(hosts) > _MAX_NAMES else ""
    return f"{', '.join(hosts[:_MAX_NAMES])}{more}"
