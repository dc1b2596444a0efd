"""`status`: all jobs, active notices and agents, as tables."""

from collections.abc import Iterator, Sequence

from job_supervisor.cli.status import Status, is_drained, source_label
from job_supervisor.cli.table import Block, Table
from job_supervisor.cli.text import age, duration
from supervisor.observability.views import JobView, NoticeView

_MAX_NAMES = 10


def overview(status: Status, *, wide: bool = False, namespace: str = "") -> list[Block]:
    """The tables; without `namespace`, jobs of a cluster have a column for theirs."""
    spaces = not namespace and any("/" in job.job for job in status.jobs)
    return [
        _jobs(status, wide=wide, spaces=spaces),
        "",
        _notices(status, wide=wide),
        "",
        *_agents(status),
        *status.limits,
    ]


def _jobs(status: Status, *, wide: bool, spaces: bool) -> Block:
    if not status.jobs:
        return "No jobs."
    heads = ("JOB", "PHASE", "RUN", "WORKERS", "EXCLUDED", "AGE")
    more = ("MIN", "MAX", "REQUESTED", "IN PHASE") if wide else ()
    heads = (*(("NAMESPACE",) if spaces else ()), *heads, *more, "REASON")
    jobs = sorted(status.jobs, key=lambda job: job.job)
    return Table(heads, [_job(job, wide=wide, spaces=spaces) for job in jobs], whole=wide)


def _job(job: JobView, *, wide: bool, spaces: bool) -> tuple[str, ...]:
    numbers = (job.run, len(job.workers), len(job.exclusions))
    limits = (job.min_workers, job.max_workers, job.requested_workers)
    more = (*map(str, limits), age(job.since_seconds)) if wide else ()
    space, _, name = job.job.rpartition("/")
    named = (space or "-", name) if spaces else (name,)
    return (*named, job.phase, *map(str, numbers), age(job.age_seconds), *more, _reason(job))


def _reason(job: JobView) -> str:
    """The reason of the phase; for a waiting job what it lacks, as the reason says why it stopped."""
    if job.waits_for:
        return job.waits_for
    if job.shortfall and job.phase == "Running":
        return f"{job.reason} {job.shortfall}"
    if job.phase != "Suspended" or job.request is not None or not job.prospects:
        return job.reason
    return f"{job.prospects[0].what[:1].upper()}{job.prospects[0].what[1:]}."


def _notices(status: Status, *, wide: bool) -> Block:
    active = status.active
    if not active:
        return "No reclaim notices."
    active.sort(key=lambda notice: (notice.seconds_left is None, notice.seconds_left or 0.0, notice.subject))
    heads = ("SUBJECT", "IN", "SOURCE", "AGE", "JOBS", "MESSAGE")
    return Table(heads, [_notice(notice, status) for notice in active], whole=wide)


def _notice(notice: NoticeView, status: Status) -> tuple[str, ...]:
    left = "unknown" if notice.seconds_left is None else duration(notice.seconds_left)
    left = "drained" if is_drained(notice) else left
    source = source_label(notice)
    source = f"{source} (not stored yet)" if status.is_unconfirmed(notice) else source
    subject = f"{notice.kind}/{notice.subject}"
    return subject, left, source, age(notice.age_seconds), ",".join(notice.jobs) or "-", notice.message


def _agents(status: Status) -> Iterator[str]:
    if status.agents is None:
        return
    connected = sum(agent.connected for agent in status.agents)
    unknown = sorted(agent.node for agent in status.agents if not agent.connected and not agent.reclaimed)
    reclaimed = sorted(agent.node for agent in status.agents if agent.reclaimed)
    silent = "".join(
        f"; {state}: {_names(names)}" for state, names in (("unknown", unknown), ("reclaimed", reclaimed)) if names
    )
    yield f"{connected} {'agent is' if connected == 1 else 'agents are'} connected{silent}."
    sharing = sorted(agent.node for agent in status.agents if agent.same_uid)
    if sharing:
        yield f"These nodes share a machine uid with another node: {_names(sharing)}."


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"
