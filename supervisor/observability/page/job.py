"""Selects what the page of one job shows. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from supervisor.observability.history import Entry
from supervisor.observability.page.contents import MAX_ROWS
from supervisor.observability.snapshot import JobStatus, StatusSnapshot
from supervisor.observability.status_view import status_view
from supervisor.observability.views import HostView, JobView, StatusView


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """One job: a snapshot with this job alone, and its history since `since`, when this supervisor began to lead."""

    status: StatusSnapshot
    history: Sequence[Entry]
    stored: Sequence[Entry]
    since: float

    @property
    def job(self) -> JobStatus:
        (job,) = self.status.jobs
        return job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContents:
    """The rows of a job's page. `entries` end with what the stored job tells of the time before the history."""

    view: StatusView
    job: JobView
    command: str
    hosts: Sequence[HostView]
    more_hosts: int
    entries: Sequence[Entry]
    since: float


def job_contents(snapshot: JobSnapshot) -> JobContents:
    view = status_view(snapshot.status)
    (job,) = view.jobs
    hosts = sorted(job.host_states, key=_urgency)
    return JobContents(
        view=view,
        job=job,
        command=f"job-supervisor explain {shlex.quote(job.job)}",
        hosts=hosts[:MAX_ROWS],
        more_hosts=max(0, len(hosts) - MAX_ROWS),
        entries=[*snapshot.history, *(entry for entry in snapshot.stored if entry.at < snapshot.since)],
        since=snapshot.since,
    )


def state(host: HostView) -> str:
    """What a host is to its job."""
    parts = [
        *(["launcher"] if host.launcher else []),
        *(["excluded"] if host.excluded else ["worker"] if host.worker else []),
        *(["not covered"] if host.uncovered else []),
    ]
    return ", ".join(parts) or "not in use"


def _urgency(host: HostView) -> tuple[float, bool, bool, str]:
    left = inf if host.seconds_left is None else host.seconds_left
    return left, not host.uncovered, not host.worker, host.host
