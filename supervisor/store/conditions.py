"""Derives the conditions of custom resources for `kubectl wait`, and the sentences about notices in them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from servicekit.bounds import instant_of
from supervisor.decide.reasons import following, left_out
from supervisor.domain.ids import Instant
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeClass, NoticeState, ReclaimNotice

_PHASES = {
    "Running": {Phase.RUNNING, Phase.SHRINKING},
    "Suspended": {Phase.SUSPENDED},
    "Finished": {Phase.FINISHED, Phase.TIMED_OUT},
}

_VERBS = {
    NoticeClass.SUDDEN: "will be",
    NoticeClass.SCHEDULED: "is scheduled to be",
    NoticeClass.HINT: "may be",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceCondition:
    """A condition in the usual form of Kubernetes.

    It has no observedGeneration: between a change of the spec and the next change of the status, `kubectl wait` would
    not believe it, and to update it would take one more write.
    """

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: Instant


def notice_condition(notice: ReclaimNotice) -> ResourceCondition:
    active = notice.state is NoticeState.ACTIVE
    return ResourceCondition(
        type="Active",
        status=str(active),
        reason="Announced" if active else notice.state.capitalize(),
        message=sentence(notice),
        last_transition_time=notice.first_seen if notice.ended_at is None else notice.ended_at,
    )


def job_conditions(
    job: SupervisedJob, before: Iterable[ResourceCondition], now: Instant
) -> Iterator[ResourceCondition]:
    """Yields the conditions at `now`. A condition with the same status as `before` keeps its transition time."""
    known = {(each.type, each.status): each.last_transition_time for each in before}

    def condition(kind: str, reason: str, message: str, *, holds: bool) -> ResourceCondition:
        status = str(holds)
        since = known.get((kind, status), now)
        return ResourceCondition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)

    decision, is_requested = job.decision, job.observed.request is not None
    phase, reason, message = decision.phase, decision.phase.value, decision.reason
    for kind, phases in _PHASES.items():
        yield condition(kind, phase, message, holds=phase in phases)
    held = is_requested and phase is Phase.SUSPENDED
    yield condition("Held", "Requested" if held else phase, message, holds=held)
    # A job is disrupted while a reclaim, or the loss of hosts, and not a person keeps it from what it asked for.
    disrupted = True
    if phase in {Phase.STOPPING, Phase.SUSPENDED}:
        disrupted = not is_requested
    elif decision.exclusions:
        reason, message = "HostsExcluded", following(message, left_out(decision.exclusions, job.spec))
    elif decision.window_until is not None:
        reason = "CollectingGroup"
    else:
        disrupted = False
    yield condition("Disrupted", reason, message, holds=disrupted)


def sentence(notice: ReclaimNotice) -> str:
    """Returns a sentence about a notice; instants are in UTC and cut to whole seconds."""
    subject, source = f"{notice.subject.kind.capitalize()} {notice.subject.name}", notice.source
    active = notice.state is NoticeState.ACTIVE
    deadline = "" if notice.deadline is None else f" at {instant_of(notice.deadline):%Y-%m-%dT%H:%M:%SZ}"
    words = f': "{notice.message}"' if notice.message else "."
    announced = f"{subject} {_VERBS[notice.notice_class]} reclaimed{deadline}, says {source}{words}"
    if notice.simulated:
        return f"Drill: {announced}" if active else f"Drill: {subject} stays; it is over."
    if notice.drains:
        empty = f" It has to be empty{deadline}." if deadline else ""
        by = notice.message.rstrip(".") or "an operator"
        return f"{subject} is drained by {by}.{empty}" if active else f"{subject} is not drained any more."
    match notice.state:
        case NoticeState.ACTIVE:
            return announced
        case NoticeState.WITHDRAWN:
            return f"{subject} will not be reclaimed after all, says {source}."
        case NoticeState.EXPIRED if notice.notice_class is NoticeClass.HINT:
            return f"{subject} is not watched any more; {source} had announced no end."
        case NoticeState.GONE:
            return f"{subject} is gone, as {source} had announced."
        case _:
            return f"{subject} is still there, though {source} had announced its end."
