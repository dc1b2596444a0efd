"""Implements `history`: lists in order of time what has happened to jobs and their hosts, if it is still known."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from job_supervisor.cli.backend import Past, PastEntry, PastQuery, SeenStatus, pod_of
from job_supervisor.cli.errors import CliUsageError, UnknownError
from job_supervisor.cli.explain import acknowledgement_sentence, has_ended
from servicekit.wording import duration
from supervisor.decide.reasons import outcome
from supervisor.domain.ids import JobName
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import GroupView, HostView, JobView

_SAME_SECONDS = 2.0
_DECISIONS = ("Stopping", "Shrinking")


def history_of(status: SeenStatus, past: Past, wanted: PastQuery) -> list[PastEntry]:
    """Returns the wanted part of the known history, the oldest entry first."""
    if past.since is None:
        entries = [*past.entries, *_groups(status), *_phases(status), *_notices(status)]
        told = sorted(filter(wanted.wants, entries), key=lambda entry: (entry.at, entry.subject))
        return list(_without_repetition([entry for entry in told if _is_about(entry, wanted)]))
    # The record has answered what was asked. From the time before it, the notices are known that are stored.
    begin = past.since
    earlier = (entry for entry in _notices(status) if entry.at < begin and wanted.wants(entry))
    entries = [_completed(entry, status, wanted.job) for entry in past.entries]
    entries += (entry for entry in earlier if _is_about(entry, wanted))
    return sorted(entries, key=lambda entry: entry.at)


def _is_about(entry: PastEntry, wanted: PastQuery) -> bool:
    if wanted.pool is not None:  # Only a record has them.
        return False
    if wanted.node is not None:
        return entry.subject == f"node/{wanted.node}"
    return wanted.job is None or wanted.job in entry.jobs


class _Exported(msgspec.Struct, frozen=True):
    entries: list[PastEntry]


def exported(path: Path) -> Sequence[PastEntry]:
    """Reads the entries that `history -o json` has printed to a file, the oldest first.

    Raises:
        UnknownError: The file cannot be read.
        CliUsageError: It is not what `history -o json` prints.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Exported)
    except OSError as error:
        raise UnknownError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise CliUsageError(f"{path} is not what `job-supervisor history -o json` prints: {error}.") from error
    return sorted(found.entries, key=lambda entry: entry.at)


def selected(entries: Sequence[PastEntry], wanted: PastQuery) -> list[PastEntry]:
    """Selects from exported entries as a supervisor does from its record: a job comes with the notices of its nodes."""
    kept = [entry for entry in entries if wanted.wants(entry)]
    subject = next((f"{kind}/{name}" for kind, name in wanted.subjects if name is not None), None)
    if subject is None:
        return kept
    about = [subject in (entry.subject, *entry.concerns) for entry in kept]
    beside: set[str] = set()
    if wanted.job is not None:
        beside.update(*(entry.concerns for entry, is_about in zip(kept, about, strict=True) if is_about))
    return [entry for entry, is_about in zip(kept, about, strict=True) if is_about or entry.subject in beside]


def horizon(status: SeenStatus, past: Past) -> list[str]:
    """Returns in sentences how far back the history goes."""
    kept = (
        "Ended notices and jobs are listed for as long as the supervisor keeps them (24 h by default); of several "
        "notices of one source about a node, the latest."
    )
    if past.since is not None:
        cut = " Here the earliest are left out: --limit shows more." if past.is_cut else ""
        return [f"The record begins {duration(max(0.0, status.now - past.since))} ago.{cut}"]
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


def _completed(entry: PastEntry, status: SeenStatus, wanted: JobName | None) -> PastEntry:
    """Adds to an entry of a timeline the jobs that it concerns, and the outcome of its decision."""
    kind, _, name = entry.subject.partition("/")
    if kind != "job":
        jobs = [job.job for job in status.jobs if _concerns(kind, name, job)]
        return msgspec.structs.replace(entry, jobs=[wanted] if wanted is not None else jobs)
    found = (
        group
        for group in status.groups
        if group.job == name
        and entry.what in _DECISIONS
        and group.reason == entry.text.partition(" Newly excluded")[0]
        and abs(status.now - group.age_seconds - entry.at) <= _SAME_SECONDS
    )
    outcome = " ".join(part for group in found for part in _consequences(group))
    text = f"{entry.text} Outcome: {outcome}" if outcome else entry.text
    return msgspec.structs.replace(entry, text=text, jobs=[JobName(name)])


def _groups(status: SeenStatus) -> Iterator[PastEntry]:
    for group in status.groups:
        at = status.now - group.age_seconds
        what = "Stopping" if group.outcome == "stopped" else "Shrinking"
        parts = [group.reason]
        if group.acknowledged is not None:
            parts.append(f"Rank {group.rank} {outcome(group.acknowledged, group.step, group.error)}.")
        text = " ".join([*parts, *_consequences(group)])
        yield PastEntry(at=at, subject=f"job/{group.job}", what=what, text=text, jobs=[group.job])
        if group.suspended and group.suspended_seconds is not None:
            at = status.now - group.suspended_seconds
            yield PastEntry(
                at=at, subject=f"job/{group.job}", what="Suspended", text="Its hosts are free.", jobs=[group.job]
            )


def _consequences(group: GroupView) -> Iterator[str]:
    if group.late:
        yield "That was too late."
    if group.steps_lost:
        steps = "1 step was" if group.steps_lost == 1 else f"{group.steps_lost} steps were"
        yield f"At least {steps} repeated."
    if not group.suspended and group.suspended_seconds is not None:
        yield f"It was suspended for {duration(group.suspended_seconds)}."


def _phases(status: SeenStatus) -> Iterator[PastEntry]:
    """Yields the registration, the present phase and the last acknowledgement of each job.

    Only the latest reason of a phase is known, which may be later than the phase's beginning.
    """
    for job in status.jobs:
        subject, jobs = f"job/{job.job}", [job.job]
        if job.age_seconds is not None:
            at = status.now - job.age_seconds
            yield PastEntry(at=at, subject=subject, what="Registered", text="The supervisor knows the job.", jobs=jobs)
        answer = job.acknowledgement
        if answer is not None and answer.age_seconds is not None:
            text = acknowledgement_sentence(msgspec.structs.replace(answer, age_seconds=None))
            yield PastEntry(at=status.now - answer.age_seconds, subject=subject, what="Answer", text=text, jobs=jobs)
        if job.since_seconds is not None:
            at, text = status.now - job.since_seconds, f"The latest reason: {job.reason}"
            yield PastEntry(at=at, subject=subject, what=job.phase, text=text, jobs=jobs)


def _notices(status: SeenStatus) -> Iterator[PastEntry]:
    for notice in status.by_id.values():
        subject = f"{notice.kind}/{notice.subject}"
        concerns = (job for job in status.jobs if job.job in notice.jobs or _concerns(notice.kind, notice.subject, job))
        jobs = [job.job for job in concerns]
        if notice.age_seconds is not None:
            drill = "Drill: it will" if notice.simulated else "Will"
            text = f"{drill} be reclaimed, says {notice.source}. {notice.message}".strip()
            if notice.drains:
                text = f"Drained by {notice.message or 'an operator'}."
            at = status.now - notice.age_seconds
            yield PastEntry(
                at=at,
                subject=subject,
                what="noticed",
                text=text,
                jobs=jobs,
                source=notice.source,
                drill=notice.simulated,
            )
        if notice.ended_seconds is not None:
            at = status.now - notice.ended_seconds
            yield PastEntry(
                at=at,
                subject=subject,
                what=notice.state.value,
                text=has_ended(notice),
                jobs=jobs,
                source=notice.source,
                drill=notice.simulated,
            )


def _concerns(kind: str, subject: str, job: JobView) -> bool:
    """Whether a notice about the subject is, or was, about a host that the job holds or lists."""
    states = {host.host: host for host in job.host_states}
    hosts = {*job.hosts, *job.workers, *job.exclusions, *states}
    if kind == SubjectKind.POD:
        return subject in {pod_of(job, states.get(host, HostView(host=host))) for host in hosts}
    return subject in hosts | {host.node for host in job.host_states}


def _without_repetition(entries: Sequence[PastEntry]) -> Iterator[PastEntry]:
    """Leaves out the later of two entries about one decision, such as a group and the present phase of its job."""
    told: dict[tuple[str, str], PastEntry] = {}
    for entry in entries:
        last = told.get((entry.subject, entry.what))
        if last is None or entry.at - last.at > _SAME_SECONDS:
            yield entry
        told[entry.subject, entry.what] = entry
