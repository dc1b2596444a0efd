"""`history`: what happened to jobs and their hosts, in the order of time, from what is still known."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from supervisor.cli.explain import acknowledgement_sentence
from supervisor.cli.status import Group, Job, Notice, Status
from supervisor.cli.text import duration
from supervisor.domain.ids import JobName

_SAME_SECONDS = 2.0


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened; `at` is Unix seconds, `jobs` are the jobs that it concerned."""

    at: float
    subject: str
    what: str
    text: str
    jobs: list[JobName] = []


def history_of(status: Status, more: Iterable[Entry], job: Job | None) -> list[Entry]:
    """What the status still tells and `more`, of one job or of all, the oldest first."""
    entries = [*_groups(status), *_phases(status), *_notices(status), *more]
    wanted = [entry for entry in entries if job is None or job.job in entry.jobs]
    return list(_without_repetition(sorted(wanted, key=lambda entry: (entry.at, entry.subject))))


def horizon(status: Status) -> list[str]:
    """Sentences that tell how far back the history goes."""
    kept = "Ended notices and jobs are listed for as long as the supervisor keeps them (24 h by default)."
    if status.leader is None:
        decisions = (
            "Decisions are read from Kubernetes Events, which the API server keeps for an hour by default, and from "
            "each job's present state."
        )
    else:
        decisions = (
            "Decisions are known since this supervisor began to serve, "
            f"{duration(status.leader.serving_seconds)} ago, and at most the last 50 of them; of each job also its "
            "present state."
        )
    return [decisions, kept]


def _groups(status: Status) -> Iterator[Entry]:
    for group in status.groups:
        at = status.now - group.age_seconds
        what = "Stopping" if group.outcome == "stopped" else "Shrinking"
        yield Entry(at=at, subject=f"job/{group.job}", what=what, text=_outcome(group), jobs=[group.job])
        if group.suspended and group.suspended_seconds is not None:
            at = status.now - group.suspended_seconds
            yield Entry(
                at=at, subject=f"job/{group.job}", what="Suspended", text="Its hosts are free.", jobs=[group.job]
            )


def _outcome(group: Group) -> str:
    parts = [group.reason]
    if group.acknowledged is not None:
        step = "" if group.step is None else f" at step {group.step}"
        parts.append(f"Rank 0 {'saved a checkpoint' if group.acknowledged == 'saved' else 'left'}{step}.")
    if group.late:
        parts.append("That was too late.")
    if group.steps_lost:
        parts.append(f"At least {group.steps_lost} steps were repeated.")
    if not group.suspended and group.suspended_seconds is not None:
        parts.append(f"It was suspended for {duration(group.suspended_seconds)}.")
    return " ".join(parts)


def _phases(status: Status) -> Iterator[Entry]:
    """The registration, the present phase and the last acknowledgement of each job."""
    for job in status.jobs:
        subject, jobs = f"job/{job.job}", [job.job]
        if job.age_seconds is not None:
            at = status.now - job.age_seconds
            yield Entry(at=at, subject=subject, what="Registered", text="The supervisor knows the job.", jobs=jobs)
        answer = job.acknowledgement
        if answer is not None and answer.age_seconds is not None:
            text = acknowledgement_sentence(answer)
            yield Entry(at=status.now - answer.age_seconds, subject=subject, what="Answer", text=text, jobs=jobs)
        if job.since_seconds is not None:
            yield Entry(at=status.now - job.since_seconds, subject=subject, what=job.phase, text=job.reason, jobs=jobs)


def _notices(status: Status) -> Iterator[Entry]:
    for notice in status.by_id.values():
        subject = f"{notice.kind}/{notice.subject}"
        jobs = [job.job for job in status.jobs if _concerns(notice, job)]
        if notice.age_seconds is not None:
            text = f"Will be reclaimed, says {notice.source}. {notice.message}"
            at = status.now - notice.age_seconds
            yield Entry(at=at, subject=subject, what="noticed", text=text.strip(), jobs=jobs)
        if notice.ended_seconds is not None:
            at, text = status.now - notice.ended_seconds, f"The notice of {notice.source} has ended."
            yield Entry(at=at, subject=subject, what=notice.state.value, text=text, jobs=jobs)


def _concerns(notice: Notice, job: Job) -> bool:
    """Whether the notice is, or was, about a host that the job holds or lists."""
    if job.job in notice.jobs:
        return True
    nodes = {host.node or host.host for host in job.host_states}
    hosts = {*job.hosts, *job.workers, *job.exclusions, *nodes}
    return notice.subject.rpartition("/")[2] in hosts


def _without_repetition(entries: Sequence[Entry]) -> Iterator[Entry]:
    """A group and the present phase of its job tell of the same decision: the first one counts."""
    told: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        last = told.get((entry.subject, entry.what))
        if last is None or entry.at - last.at > _SAME_SECONDS:
            yield entry
        told[entry.subject, entry.what] = entry
