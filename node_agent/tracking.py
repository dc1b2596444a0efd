"""Turns the answers of one source into reports. Pure: state, answer and now give the next state and the report."""

from dataclasses import dataclass, replace

from node_agent.notices import Announcement, NoticeClass, NoticeReport, SourceName, SourceState, SourceStatus, Subject
from node_agent.sources import Answer, Clear, Noticed

# This many clear answers in a row withdraw a notice: a single one may be an error of the cloud's.
CLEARS_TO_WITHDRAW = 3
# A deadline that moved by more than this many seconds is reported again.
_DEADLINE_DRIFT = 1.0
# The same for an instant on our own clock: an estimate, which also jumps by the whole seconds of an HTTP date.
_ESTIMATE_DRIFT = 2.0


@dataclass(frozen=True, slots=True)
class Unknown:
    """A poll without a usable answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """No poll, as the source has nothing to announce."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tracked:
    """The state of one source since this agent started.

    Attributes:
        clears: Clear answers in a row.
        milder: Answers in a row that are clear, or name a less urgent class than the last report.
        reported: The last report about this node; None before the first.
    """

    status: SourceStatus
    clears: int = 0
    milder: int = 0
    reported: NoticeReport | None = None


def start(source: SourceName) -> Tracked:
    return Tracked(SourceStatus(source, SourceState.UNKNOWN, detail="not polled yet"))


def step(
    state: Tracked, answer: Answer | Unknown | Skipped, subject: Subject | None, now: float
) -> tuple[Tracked, NoticeReport | None]:
    """Handles one answer.

    Args:
        state: The state before.
        answer: The answer.
        subject: This node; None while its uid is not known, and then nothing is reported.
        now: The monotonic instant of the answer.

    Returns:
        The state after, and the report if there is one.
    """
    after = _after(state, answer, now)
    report = None if subject is None else _report(after, answer, subject, now)
    return (replace(after, reported=report), report) if report else (after, None)


def _after(state: Tracked, answer: Answer | Unknown | Skipped, now: float) -> Tracked:
    source = state.status.source
    match answer:
        case Clear():
            clear = SourceStatus(source, SourceState.CLEAR, now)
            return replace(state, status=clear, clears=state.clears + 1, milder=state.milder + 1)
        case Noticed():
            milder = state.milder + 1 if _is_milder(answer, state.reported) else 0
            return replace(state, status=SourceStatus(source, SourceState.NOTICED, now), clears=0, milder=milder)
        case Unknown(reason):
            unknown = SourceStatus(source, SourceState.UNKNOWN, state.status.last_good, reason)
            return replace(state, status=unknown, clears=0, milder=0)
        case Skipped(reason):
            idle = SourceStatus(source, SourceState.NOT_SPOT, state.status.last_good, reason)
            return replace(state, status=idle, clears=0, milder=0)


def _report(after: Tracked, answer: Answer | Unknown | Skipped, subject: Subject, now: float) -> NoticeReport | None:
    match answer:
        case Clear():
            return _withdrawal(after, subject)
        case Noticed() if _is_milder(answer, after.reported) and after.milder < CLEARS_TO_WITHDRAW:
            return None
        case Noticed():
            return _announcement(after, answer, subject, now)
        case Unknown() | Skipped():
            return None


def _is_milder(answer: Noticed, reported: NoticeReport | None) -> bool:
    """Whether the answer takes back a part of what is reported; like a withdrawal, it counts the third time."""
    if reported is None or reported.announcement is not Announcement.ACTIVE:
        return False
    return answer.notice_class < reported.notice_class


def _withdrawal(after: Tracked, subject: Subject) -> NoticeReport | None:
    """Reported once, also by an agent that announced nothing: an earlier agent of this node may have."""
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
        notice_class=answer.notice_class,
        cancellable=answer.cancellable,
    )
    return report if after.reported is None or _differs(after.reported, report) else None


def _deadline(reported: NoticeReport | None, answer: Noticed, now: float) -> float | None:
    """Counts the usual lead of a source that names no instant from the first answer: a repetition changes nothing."""
    if answer.seconds_left is None:
        return None
    deadline = now + answer.seconds_left
    if answer.announced is not None or reported is None or reported.announcement is not Announcement.ACTIVE:
        return deadline
    if reported.announced is not None or reported.deadline is None or reported.notice_class is not answer.notice_class:
        return deadline
    return min(reported.deadline, deadline)


def _next_revision(state: Tracked) -> int:
    return state.reported.revision + 1 if state.reported else 1


def _differs(old: NoticeReport, new: NoticeReport) -> bool:
    """Compares with the last report and not with the last answer, so that a slow drift adds up."""
    if _words(old) != _words(new):
        return True
    old_announced = old.announced.timestamp() if old.announced else None
    new_announced = new.announced.timestamp() if new.announced else None
    drift = _ESTIMATE_DRIFT if new.announced else _DEADLINE_DRIFT
    return _moved(old_announced, new_announced, _DEADLINE_DRIFT) or _moved(old.deadline, new.deadline, drift)


def _words(report: NoticeReport) -> tuple[Announcement, NoticeClass, bool, str]:
    return report.announcement, report.notice_class, report.cancellable, report.message


def _moved(old: float | None, new: float | None, tolerance: float) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) > tolerance
