"""What the answers of one source amount to. Pure: state, answer and now give the next state and what to report."""

from dataclasses import dataclass, replace

from node_agent.notices import Announcement, NoticeReport, SourceName, SourceState, SourceStatus, Subject
from node_agent.sources import Answer, Clear, Noticed

# So many clear answers in a row withdraw a notice: one may be a slip of the cloud's.
CLEARS_TO_WITHDRAW = 3
# A deadline that moved by more than this many seconds is news.
_DEADLINE_DRIFT = 1.0
# The instant on our own clock is an estimate that jumps within the whole seconds of an HTTP date as well.
_ESTIMATE_DRIFT = 2.0


@dataclass(frozen=True, slots=True)
class Unknown:
    """A poll that got no usable answer, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """No poll, and why there is nothing to ask."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tracked:
    """Where one source stands, since this agent started.

    Attributes:
        clears: Clear answers in a row.
        reported: The last report about this node, None before the first.
    """

    status: SourceStatus
    clears: int = 0
    reported: NoticeReport | None = None


def start(source: SourceName) -> Tracked:
    """A source that was not polled yet."""
    return Tracked(SourceStatus(source, SourceState.UNKNOWN, detail="not polled yet"))


def step(
    state: Tracked, answer: Answer | Unknown | Skipped, subject: Subject | None, now: float
) -> tuple[Tracked, NoticeReport | None]:
    """Take one answer.

    Args:
        state: Where the source stood.
        answer: What it said.
        subject: This node; None while its uid is not known, and then nothing is reported.
        now: The monotonic instant of the answer.

    Returns:
        Where the source stands now, and the report that this makes, if any.
    """
    after = _after(state, answer, now)
    report = None if subject is None else _report(after, answer, subject, now)
    return (replace(after, reported=report), report) if report else (after, None)


def _after(state: Tracked, answer: Answer | Unknown | Skipped, now: float) -> Tracked:
    source = state.status.source
    match answer:
        case Clear(warning):
            return replace(state, status=SourceStatus(source, SourceState.CLEAR, now, warning), clears=state.clears + 1)
        case Noticed():
            return replace(state, status=SourceStatus(source, SourceState.NOTICED, now), clears=0)
        case Unknown(reason):
            unknown = SourceStatus(source, SourceState.UNKNOWN, state.status.last_good, reason)
            return replace(state, status=unknown, clears=0)
        case Skipped(reason):
            idle = SourceStatus(source, SourceState.NOT_SPOT, state.status.last_good, reason)
            return replace(state, status=idle, clears=0)


def _report(after: Tracked, answer: Answer | Unknown | Skipped, subject: Subject, now: float) -> NoticeReport | None:
    match answer:
        case Clear():
            return _withdrawal(after, subject)
        case Noticed():
            return _announcement(after, answer, subject, now)
        case Unknown() | Skipped():
            return None


def _withdrawal(after: Tracked, subject: Subject) -> NoticeReport | None:
    """Said once, also by an agent that announced nothing: the one before it may have."""
    if after.clears < CLEARS_TO_WITHDRAW:
        return None
    if after.reported and after.reported.announcement is Announcement.WITHDRAWN:
        return None
    return NoticeReport(after.status.source, subject, _next_revision(after), Announcement.WITHDRAWN)


def _announcement(after: Tracked, answer: Noticed, subject: Subject, now: float) -> NoticeReport | None:
    report = NoticeReport(
        source=after.status.source,
        subject=subject,
        revision=_next_revision(after),
        announcement=Announcement.ACTIVE,
        deadline=_deadline(after.reported, answer, now),
        announced=answer.announced,
        message=answer.message,
    )
    return report if after.reported is None or _is_news(after.reported, report) else None


def _deadline(reported: NoticeReport | None, answer: Noticed, now: float) -> float | None:
    """Without an instant that the source names, a usual lead counts from its first answer: repeated, it is no news."""
    if answer.seconds_left is None:
        return None
    deadline = now + answer.seconds_left
    if answer.announced is not None or reported is None or reported.announcement is not Announcement.ACTIVE:
        return deadline
    if reported.announced is not None or reported.deadline is None:
        return deadline
    return min(reported.deadline, deadline)


def _next_revision(state: Tracked) -> int:
    return state.reported.revision + 1 if state.reported else 1


def _is_news(old: NoticeReport, new: NoticeReport) -> bool:
    """Compared with what was last reported, so that a slow drift adds up."""
    if old.announcement is not new.announcement or old.message != new.message:
        return True
    old_announced = old.announced.timestamp() if old.announced else None
    new_announced = new.announced.timestamp() if new.announced else None
    drift = _ESTIMATE_DRIFT if new.announced else _DEADLINE_DRIFT
    return _moved(old_announced, new_announced, _DEADLINE_DRIFT) or _moved(old.deadline, new.deadline, drift)


def _moved(old: float | None, new: float | None, tolerance: float) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) > tolerance
