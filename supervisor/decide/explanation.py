"""Explains a job to people: what happens next, and which hosts it lacks and why. Pure.

The sentences predict what `plan` and `grants` will do and decide nothing. Like reasons, they contain no number that
changes with time alone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor.decide.grant import least_workers, waits
from supervisor.decide.stopping import answers, failure
from supervisor.decide.waiting import run_is_possible
from supervisor.domain.ids import STANDALONE, Host, JobName, Source, kind_of
from supervisor.domain.job import Capability, Phase, RequestKind, SupervisedJob, UserRequest
from supervisor.domain.notice import ReclaimNotice


@dataclass(frozen=True, slots=True)
class Prospect:
    """A possible next event of a job, as a sentence without capital and full stop.

    `at` is the instant in Unix seconds; None if it depends on something else.
    """

    what: str
    at: float | None = None


_ENDING = Prospect("its launcher ends the job, which is not started again")


def prospects(job: SupervisedJob) -> tuple[Prospect, ...]:
    """Returns the prospects of a job, the most important first; none if it has ended."""
    if job.over:
        return ()
    match job.decision.phase:
        case Phase.QUEUED:
            return (Prospect("its queue starts it"),)
        case Phase.WAITING | Phase.SUSPENDED:
            return tuple(_waiting(job))
        case Phase.RUNNING | Phase.SHRINKING:
            return tuple(_live(job))
        case Phase.STOPPING:
            return tuple(_stopping(job))
        case Phase.RESUMING:
            what = f"the resume is given up and tried again unless run {job.decision.run} has started by then"
            return (Prospect(what, job.decision.resume_until),)
    return ()


def _waiting(job: SupervisedJob) -> Iterator[Prospect]:
    decision, spec = job.decision, job.spec
    if job.observed.ending:
        yield _ENDING
        return
    if run_is_possible(decision, decision, job.observed):
        yield Prospect(f"run {max(job.observed.run, decision.run)} has to end first; its launcher was told")
    elif job.observed.request is not None:
        yield _requested(job.observed.request)
        return
    elif decision.given_up_since is not None:
        yield Prospect("its hub is to move it to another cluster; if the hub does not, it waits here again")
        return
    elif job.observed.launcher_lost_since is not None:
        yield Prospect("it is suspended and resumed soon unless its operator starts another launcher")
    elif spec.can(Capability.STARTS_RUNS) and decision.phase is Phase.WAITING:
        yield Prospect("its operator starts the first run")
    else:
        yield _capacity(job)
    if decision.not_before is not None:
        yield Prospect("it may try again", decision.not_before)
    if spec.max_wait_seconds and decision.waiting_since is not None:
        end = decision.waiting_since + spec.max_wait_seconds
        what = "it times out and is not started again"
        if spec.can(Capability.MOVES):
            what = "its hub is to move it to another cluster"
        yield Prospect(f"{what} unless it has started by then", end)
    if job.observed.hub is not None and decision.resumes_from is not None:
        yield Prospect(f"its next run starts from the checkpoint of step {decision.resumes_from}")


def _capacity(job: SupervisedJob) -> Prospect:
    if job.decision.capacity_since is not None:
        return Prospect("there is capacity; it starts if that lasts a moment")
    least, verb = least_workers(job.spec, to_start=True), "starts" if job.decision.run == 0 else "resumes"
    if job.spec.can(Capability.MAKES_HOSTS):
        return Prospect(f"it {verb} when nodes without a notice have room for at least {least} of its workers")
    free = "are connected without a notice and not used by another job"
    return Prospect(f"it {verb} when at least {least} of its hosts {free}")


def _live(job: SupervisedJob) -> Iterator[Prospect]:
    decision, observed = job.decision, job.observed
    if decision.window_until is not None:
        yield Prospect("all hosts of this group are excluded in one change", decision.window_until)
    elif decision.exclusions and observed.applied < decision.excluded_at:
        yield Prospect("its launcher has to confirm the exclusion")
    elif decision.exclusions:
        yield Prospect("excluded hosts return if their notices are withdrawn")
    if decision.below_min_since is not None:
        yield Prospect(f"it stops soon unless at least {least_workers(job.spec)} hosts are back")
    growth = decision.growth
    if growth is not None and growth.workers:
        yield Prospect(f"the growth to {growth.workers} workers is given up unless they have joined", growth.until)
    elif growth is not None:
        yield Prospect("it may grow again", growth.until)
    elif decision.capacity_since is not None:
        yield Prospect("there is room for more workers; they join if that lasts a while")


def _stopping(job: SupervisedJob) -> Iterator[Prospect]:
    answer, stop = job.observed.acknowledgement, job.decision.stop
    told = "all processes were told to stop" if stop is not None and stop.everyone else "rank 0 was told to stop"
    failed = None if stop is None else failure(answer, stop)
    if failed is not None:
        yield Prospect(f"rank {failed.rank} could not save ({failed.error}); it is suspended unless a rank still saves")
    elif stop is not None and answers(answer, stop):
        yield Prospect("rank 0 has answered; the job is being suspended")
    else:
        yield Prospect(f"{told} and to save a checkpoint; the job is suspended as soon as rank 0 has answered")
    if job.observed.ending:
        yield _ENDING
    elif job.observed.request is not None:
        yield _requested(job.observed.request)
    else:
        yield Prospect("it resumes from its checkpoint as a new run when there is capacity")


def _requested(request: UserRequest) -> Prospect:
    if request.kind is RequestKind.STOP:
        return Prospect("it is ended for good and not started again")
    return Prospect("it stays suspended until somebody resumes it")


_MAX_NAMES = 5


class Lack(StrEnum):
    """Why a job cannot start on a host."""

    NO_AGENT = "no_agent"
    NOTICE = "notice"
    SOURCE_UNKNOWN = "source_unknown"
    IN_USE = "in_use"


@dataclass(frozen=True, slots=True)
class MissingHost:
    """A host that the job cannot use; `why` is text to follow the name of the host, or of several, and a colon."""

    host: Host
    lack: Lack
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAtPresent:
    """The facts about nodes that explain why a job lacks hosts.

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
NO_NODES = NodesAtPresent(clear=(), noticed={}, unknown=lambda _: None, holders={})


def missing(job: SupervisedJob, nodes: NodesAtPresent) -> Missing:
    """Finds the hosts that a job lacks to start, or to reach its requested size. It names them if they are nodes."""
    runs = job.decision.phase in (Phase.RUNNING, Phase.SHRINKING) and job.observed.running and not job.over
    is_short = runs and len(job.workers) < job.spec.requested_workers
    if kind_of(job.name) != STANDALONE:
        return Missing(shortfall=" ".join(_shortfall(job, ()))) if is_short else NOTHING
    if not waits(job) and not is_short:
        return NOTHING
    listed = sorted(job.observed.hosts - (frozenset() if waits(job) else job.workers))
    found = tuple(lack for host in listed if (lack := _lack(host, job, nodes)) is not None)
    if waits(job):
        return Missing(found, summary=" ".join(_summary(job, found, nodes)))
    return Missing(found, shortfall=" ".join(_shortfall(job, found)))


def _lack(host: Host, job: SupervisedJob, nodes: NodesAtPresent) -> MissingHost | None:
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


def _summary(job: SupervisedJob, found: Sequence[MissingHost], nodes: NodesAtPresent) -> Iterator[str]:
    listed, launcher = len(job.observed.hosts), job.spec.launcher_host
    usable, needed = listed - len(found), least_workers(job.spec, to_start=True)
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
