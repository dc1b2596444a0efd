"""`status`: all jobs, what will be gone, and the agents, as a table."""

from collections.abc import Iterator

from supervisor.cli.text import duration, table
from supervisor.cli.view import Job, Notice, View

_MOST_NAMES = 10


def overview(view: View) -> list[str]:
    """Lines for people."""
    return [*_jobs(view), "", *_notices(view), "", *_agents(view), *(f"Not seen: {each}" for each in view.unseen)]


def _jobs(view: View) -> list[str]:
    if not view.jobs:
        return ["No job is known."]
    heads = ("JOB", "PHASE", "RUN", "WORKERS", "EXCLUDED", "MIN", "MAX", "REASON")
    return table(heads, (_job(job) for job in sorted(view.jobs, key=lambda job: job.job)))


def _job(job: Job) -> tuple[str, ...]:
    numbers = (job.run, len(job.workers), len(job.exclusions), job.min_workers, job.max_workers)
    return (job.job, job.phase, *map(str, numbers), job.reason)


def _notices(view: View) -> list[str]:
    active = [notice for notice in view.notices if notice.active]
    if not active:
        return ["Nothing will be reclaimed, as far as anybody has said."]
    active.sort(key=lambda notice: (notice.seconds_left is None, notice.seconds_left or 0.0, notice.subject))
    return table(("GOES", "LEFT", "SAYS", "JOBS", "MESSAGE"), (_notice(notice) for notice in active))


def _notice(notice: Notice) -> tuple[str, ...]:
    left = "unknown" if notice.seconds_left is None else duration(notice.seconds_left)
    source = f"{notice.source} (a drill)" if notice.drill else notice.source
    return (f"{notice.kind}/{notice.subject}", left, source, ",".join(notice.jobs) or "-", notice.message)


def _agents(view: View) -> Iterator[str]:
    if view.agents is None:
        return
    silent = sorted(agent.node for agent in view.agents if not agent.connected)
    more = f" and {len(silent) - _MOST_NAMES} more" if len(silent) > _MOST_NAMES else ""
    unknown = f"; unknown: {', '.join(silent[:_MOST_NAMES])}{more}" if silent else ""
    connected = len(view.agents) - len(silent)
    yield f"{connected} {'agent is' if connected == 1 else 'agents are'} connected{unknown}."
