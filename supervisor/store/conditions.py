"""The conditions of custom resources, for `kubectl wait` and for people."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from supervisor.decide.reasons import following, left_out
from supervisor.domain.ids import Instant
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.store.sentences import sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of the usual form.

    It has no observedGeneration: between a change of the spec and the next change of the status, `kubectl wait` would
    not believe it, and to update it would take one more write.
    """

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: Instant


def notice_condition(notice: ReclaimNotice) -> Condition:
    active = notice.state is NoticeState.ACTIVE
    reason = "Announced" if active else notice.state.capitalize()
    since = notice.first_seen if notice.ended_at is None else notice.ended_at
    return _condition("Active", since, reason, sentence(notice), holds=active)


def job_conditions(job: SupervisedJob, before: Iterable[Condition], now: Instant) -> Iterator[Condition]:
    """Yields the conditions at `now`; one that has the status it had `before` keeps its transition time."""
    known = {(each.type, each.status): each.last_transition_time for each in before}
    for each in _job_conditions(job, now):
        yield replace(each, last_transition_time=known.get((each.type, each.status), now))


_PHASES = {
    "Running": {Phase.RUNNING, Phase.SHRINKING},
    "Suspended": {Phase.SUSPENDED},
    "Finished": {Phase.FINISHED, Phase.TIMED_OUT},
}


def _job_conditions(job: SupervisedJob, now: Instant) -> Iterator[Condition]:
    decision, is_requested = job.decision, job.observed.request is not None
    for kind, phases in _PHASES.items():
        yield _condition(kind, now, decision.phase, decision.reason, holds=decision.phase in phases)
    held = is_requested and decision.phase is Phase.SUSPENDED
    yield _condition("Held", now, "Requested" if held else decision.phase, decision.reason, holds=held)
    yield _disrupted(job, now, is_requested=is_requested)


def _disrupted(job: SupervisedJob, now: Instant, *, is_requested: bool) -> Condition:
    """Says whether a reclaim, or the loss of hosts, and not a person keeps the job from what it asked for."""
    decision = job.decision
    reason, message, holds = decision.phase.value, decision.reason, True
    if decision.phase in {Phase.STOPPING, Phase.SUSPENDED}:
        holds = not is_requested
    elif decision.exclusions:
        reason, message = "HostsExcluded", following(decision.reason, left_out(decision.exclusions, job.spec))
    elif decision.window_until is not None:
        reason = "CollectingGroup"
    else:
        holds = False
    return _condition("Disrupted", now, reason, message, holds=holds)


def _condition(kind: str, since: Instant, reason: str, message: str, *, holds: bool) -> Condition:
    status = "True" if holds else "False"
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)
