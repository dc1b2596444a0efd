"""`status`: all jobs, active notices and agents, as tables."""

from collections.abc import Iterator, Sequence

from supervisor.cli.status import Job, Notice, Status
from supervisor.cli.text import duration, table

_MAX_NAMES = 10


def overview(status: Status) -> list[str]:
    unseen = (f"Not visible: {limit}" for limit in status.unseen)
    return [
        *_jobs(status),
        "",
        *_notices(status),
        "",
        *_agents(status),
        *unseen,
    ]


def _jobs(status: Status) -> list[str]:
    if not status.jobs:
        return ["No jobs."]
    heads = ("JOB", "PHASE", "RUN", "WORKERS", "EXCLUDED", "MIN", "MAX", "REASON")
    return table(heads, (_job(job) for job in sorted(status.jobs, key=lambda job: job.job)))


def _job(job: Job) -> tuple[str, ...]:
    numbers = (job.run, len(job.workers), len(job.exclusions), job.min_workers, job.max_workers)
    return (job.job, job.phase, *map(str, numbers), _reason(job))


def _reason(job: Job) -> str:
    """The reason of the phase; for a suspended job, whose reason says why it stopped, what it waits for."""
    if job.phase != "Suspended" or not job.prospects:
        return job.reason
    return f"{job.prospects[0].what[:1].upper()}{job.prospects[0].what[1:]}."


def _notices(status: Status) -> list[str]:
    active = [notice for notice in status.by_id.values() if notice.active]
    if not active:
        return ["No reclaim notices."]
    active.sort(key=lambda notice: (notice.seconds_left is None, notice.seconds_left or 0.0, notice.subject))
    heads = ("SUBJECT", "LEFT", "SOURCE", "JOBS", "MESSAGE")
    return table(heads, (_notice(notice, status) for notice in active))


def _notice(notice: Notice, status: Status) -> tuple[str, ...]:
    left = "unknown" if notice.seconds_left is None else duration(notice.seconds_left)
    source = f"{notice.source} (drill)" if notice.drill else notice.source
    source = f"{source} (not stored yet)" if status.is_unconfirmed(notice) else source
    return (f"{notice.kind}/{notice.subject}", left, source, ",".join(notice.jobs) or "-", notice.message)


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
