"""Implements `explain`: describes a job in sentences, with its phase, its notices, its prospects and its coverage."""

from collections.abc import Iterator, Sequence

import msgspec

from job_supervisor.cli.backend import SeenStatus
from servicekit.wording import duration, listed
from supervisor.decide.ranks import RankCounts
from supervisor.decide.reasons import outcome, remains
from supervisor.domain.job import AcknowledgementKind
from supervisor.domain.notice import NoticeClass
from supervisor.observability.views import AcknowledgementView, AgreementView, HostView, JobView, NoticeView

_MAX_NAMES = 5
_MAX_ROWS = 50
_WAITS = ("Waiting", "Suspended")
_ACTS = {
    "checkpoint": "save and continue",
    "rendezvous": "save and hold for the next round",
    "regroup": "hold for the next round",
}
"""The action of the ranks at an agreed step, unless they stop."""


def is_drained(notice: NoticeView) -> bool:
    """Whether a drain's time is over: the node stands empty until somebody ends the drain."""
    return notice.drains and notice.active and notice.seconds_left == 0


def going(notice: NoticeView) -> str:
    """Returns what will happen to the subject and who says so, as a sentence that begins with its verb."""
    when = "at an unknown time" if notice.seconds_left is None else f"in {duration(notice.seconds_left)}"
    if notice.drains:
        by = f"drained by {notice.message or 'an operator'}"
        return f"is {by}" if is_drained(notice) else f"is being {by}, and has to be empty {when}"
    will = (
        f"will be gone {when}" if notice.overdue_seconds is None else f"was due {duration(notice.overdue_seconds)} ago"
    )
    return f"{will}, says {notice.source}{' (a drill: the machine stays)' if notice.simulated else ''}"


def has_ended(notice: NoticeView) -> str:
    """Returns the sentence that the notice has ended."""
    return "The drain has ended." if notice.drains else f"The notice of {notice.source} has ended."


def source_label(notice: NoticeView) -> str:
    """Names the source, and marks a drill, a drain, and a notice with time to prepare."""
    if notice.simulated:
        return f"{notice.source} (drill)"
    if notice.drains:
        return f"{notice.source} (drain)"
    return notice.source if notice.notice_class is NoticeClass.SUDDEN else f"{notice.source} ({notice.notice_class})"


def rank_fault(ranks: RankCounts) -> str:
    """Explains in a sentence why nobody can answer a STOP for the job; empty if rank 0 can, or if nothing is known."""
    if ranks.processes and not ranks.ranked:
        return f"No process is rank 0: none of the {ranks.processes} that are connected knows its rank."
    if ranks.processes and not ranks.zeros:
        return f"No process is rank 0: {ranks.processes} are connected, and none of them is it."
    if ranks.zeros > 1:
        return f"{ranks.zeros} processes say that they are rank 0: the first one to answer ends the run of all."
    return ""


def explain(job: JobView, status: SeenStatus) -> list[str]:
    return [
        *_phase(job),
        *_missing_hosts(job),
        *_noticed_hosts(job, status),
        *_ahead(job, status),
        *_prospects(job),
        *_coverage(job),
        *([] if job.over else status.limits),
    ]


def _phase(job: JobView) -> Iterator[str]:
    since = "" if job.since_seconds is None else f" for {duration(job.since_seconds)}"
    yield f"{job.job} is {job.phase}{since}."
    # The reason of a suspended job says why it was stopped; what it waits for follows below.
    yield f"  {'Last decision' if job.phase == 'Suspended' else 'Why'}: {job.reason}"
    yield from (f"  {sentence}" for sentence in job.faults)
    if job.over:
        return
    requested = _request(job)
    if job.running:
        excluded = f" (excluded: {_names(job.exclusions)})" if job.exclusions else ""
        yield f"  Run {job.run} is running on {_count(len(job.workers), 'host')}{excluded}. {requested}"
    else:
        yield f"  No run is active. {requested}"
    if job.round is not None:
        how = ", which their processes entered without a restart" if job.round.in_process else ""
        agents = _count(job.round.size, "elastic agent")
        yield f"  {agents} of torchrun train together in round {job.round.number}{how}."
    if job.agreement is not None:
        yield f"  {agreement_sentence(job.agreement)}"
    if job.acknowledgement is not None:
        yield f"  {acknowledgement_sentence(job.acknowledgement)}"


def _request(job: JobView) -> str:
    """Lists the requests of the job and of its gang, also those that the supervisor did not understand."""
    # The size of a job that a hub holds back may be unknown.
    sentences = [f"The job asks for {job.min_workers} to {job.max_workers} hosts."] if job.max_workers else []
    if job.on_loss == "hold":
        sentences = [f"The job holds its size of {_count(job.requested_workers, 'host')}."]
    elif job.worker_multiple > 1:
        sentences.append(f"Their number must be a multiple of {job.worker_multiple}.")
    return " ".join([*sentences, *filter(None, [job.gang]), *job.ignored])


def agreement_sentence(agreement: AgreementView) -> str:
    act = _ACTS.get(agreement.purpose, "stop")
    if agreement.committed:
        sentence = f"All ranks {act} after step {agreement.step}."
    elif agreement.step is not None:
        sentence = f"It is proposed that all ranks {act} after step {agreement.step}."
    else:
        sentence = f"The ranks are asked for a step after which all of them {act}."
    if agreement.waits_for and not agreement.committed:
        sentence += f" No answer yet: {agreement.waits_for}."
    if agreement.unread_seconds is not None and agreement.unread_seconds >= 1:
        sentence += f" Flag not read for {duration(agreement.unread_seconds)}."
    return sentence


def acknowledgement_sentence(answer: AcknowledgementView) -> str:
    ago = "" if answer.age_seconds is None else f", {duration(answer.age_seconds)} ago"
    said = outcome(answer.kind, answer.step, answer.error)
    from_step = f" {remains(answer.resumes_from)}" if answer.kind == AcknowledgementKind.FAILED else ""
    return f"Last answer to a STOP: rank {answer.rank} of run {answer.run} {said}{ago}.{from_step}"


def _missing_hosts(job: JobView) -> Iterator[str]:
    """Lists for each host why a waiting job cannot start, or why a running one does without it."""
    if not job.waits_for and not job.shortfall:
        return
    yield f"Waits for: {job.waits_for}" if job.waits_for else f"Smaller than requested: {job.shortfall}"
    shown = job.missing_hosts[:_MAX_ROWS]
    width = max((len(one.host) for one in shown), default=0)
    for one in shown:
        yield f"  {one.host.ljust(width)}  {one.why}"
    if len(job.missing_hosts) > len(shown):
        yield f"  and {len(job.missing_hosts) - len(shown)} more hosts, listed with -o json"


def _noticed_hosts(job: JobView, status: SeenStatus) -> Iterator[str]:
    known = status.by_id
    found = [(host, known.get(host.notice)) for host in status.hosts_of(job) if host.notice is not None]
    if not found:
        yield "None of its hosts has a notice."
        return
    yield f"{len(found)} of its hosts {'has' if len(found) == 1 else 'have'} a notice:"
    for host, notice in found:
        yield f"  {_noticed_host(host, notice)}"


def _noticed_host(host: HostView, notice: NoticeView | None) -> str:
    place = "" if host.node in (None, host.host) else f" on {host.node}"
    if notice is not None and not notice.active:
        return f"{host.host}{place}: the notice of {notice.source} has ended ({notice.state})."
    if notice is None:
        when = "at an unknown time" if host.seconds_left is None else f"in {duration(host.seconds_left)}"
        return f"{host.host}{place} will be gone {when}, says an unknown source."
    # A host's time is assumed where the source names none.
    return f"{host.host}{place} {going(msgspec.structs.replace(notice, seconds_left=host.seconds_left))}."


def _ahead(job: JobView, status: SeenStatus) -> Iterator[str]:
    """Lists the notices on the job's hosts that change nothing yet."""
    for notice in status.by_id.values():
        if not notice.active or notice.acted_on or job.job not in notice.jobs:
            continue
        subject = f"{notice.kind} {notice.subject}"
        if notice.notice_class is NoticeClass.HINT:
            yield f"A hint of {notice.source}: {subject} may be reclaimed. The job continues."
        else:
            when = "" if notice.seconds_left is None else f" in {duration(notice.seconds_left)}"
            yield f"Scheduled by {notice.source}: {subject} will be gone{when}. The job continues until that is near."


def _prospects(job: JobView) -> Iterator[str]:
    if not job.prospects:
        yield "Next: nothing, the job has ended." if job.over else "Next: the job continues."
        return
    yield "Next:"
    for prospect in job.prospects:
        if prospect.seconds is None:
            yield f"  {prospect.what[:1].upper()}{prospect.what[1:]}."
        else:
            yield f"  In {duration(prospect.seconds)}: {prospect.what}."


def _coverage(job: JobView) -> Iterator[str]:
    """Tells which workers have no agent that would notice a reclaim, or no process that receives directives."""
    workers = [host for host in job.host_states if host.worker]
    if (
        job.phase in _WAITS
        or job.over
        or not workers
        or any(host.agent is None or host.stream is None for host in workers)
    ):
        return
    silent = [host.host for host in workers if not host.agent]
    without_stream = [host.host for host in workers if not host.stream]
    fault = rank_fault(job.ranks)
    if not silent and not without_stream and not fault:
        workers_text = _count(len(workers), "worker")
        yield f"Covered: {workers_text}, each with a live agent and a process that receives directives."
        return
    yield "Not covered:"
    if silent:
        yield f"  No agent is connected for {_names(silent)}: a reclaim there would come without a notice."
    if without_stream:
        yield f"  No process on {_names(without_stream)} has a stream: it would not receive a LEAVE or STOP."
    if fault:
        yield f"  {fault} Pass rank= to init() or set RANK."


def _names(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMES:
        return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} more"
    return listed(names)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
