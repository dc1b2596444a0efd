"""Applies reports, signals and the passing of time to notices."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from supervisor.decide.policy import Policy
from supervisor.decide.urgency import deadline_of, is_timeless
from supervisor.domain.ids import NoticeId, Source
from supervisor.domain.notice import (
    OPERATOR,
    SIMULATED,
    Announcement,
    NoticeClass,
    NoticeState,
    ReclaimNotice,
    Report,
    Subject,
    SubjectKind,
    notice_id,
)

_SOONER_SECONDS, _LATER_SECONDS = 0.5, 2.0
"""A repeated report whose deadline differs by less says nothing new: the transmission time of reports varies.

A report only ever arrives late, and then its deadline seems later than it is. So a sooner one is nearer to the truth,
while a later one tells of another clock only if it is that much later.
"""


def apply_report(known: ReclaimNotice | None, report: Report, now: float, policy: Policy) -> ReclaimNotice | None:
    """Applies a report: returns the notice to store, or `known` itself if the report changes nothing.

    Late and reordered reports are ignored by session and revision. A repeated one only updates the deadline.
    """
    if known is not None and (report.session, report.revision) <= (known.session, known.revision):
        return _recounted(known, report, now)
    # A drill whose deadline has passed must not start again.
    is_over = report.source == SIMULATED and report.seconds_left is not None and report.seconds_left <= 0
    if report.announcement is Announcement.WITHDRAWN or is_over:
        if known is None:
            return None
        # If the notice has already ended, only session and revision change, so that older reports lose.
        known = replace(known, session=report.session, revision=report.revision)
        return replace(known, state=NoticeState.WITHDRAWN, ended_at=now) if known.holds else known
    return _episode(report, 1, now, policy) if known is None else _announced(known, report, now, policy)


class Presence(StrEnum):
    """Whether the subject of a notice exists.

    THERE: it is visible, or its agent is connected. SILENT: it is not, which proves nothing before the deadline.
    GONE: the API server shows that it does not exist.
    """

    PRESENT = "there"
    SILENT = "silent"
    GONE = "gone"


def end_if_due(notice: ReclaimNotice, presence: Presence, now: float, policy: Policy) -> ReclaimNotice:
    """Ends an active notice if its time has come."""
    if notice.state is not NoticeState.ACTIVE or now < ends_at(notice, presence, policy):
        return notice
    return replace(notice, state=_end(notice, presence), ended_at=now)


def _end(notice: ReclaimNotice, presence: Presence) -> NoticeState:
    """Returns how a notice ends. If it names no time, the absence of its subject does not prove a reclaim."""
    if notice.simulated:
        return NoticeState.WITHDRAWN
    return NoticeState.EXPIRED if is_timeless(notice) or presence is Presence.PRESENT else NoticeState.GONE


def ends_at(notice: ReclaimNotice, presence: Presence, policy: Policy) -> float:
    """The instant at which `end_if_due` ends an active notice, if nothing else does before.

    A drill ends at its deadline, as its subject stays; a drain if the subject is gone. A notice that names no time to
    act stands until it is withdrawn or its subject is not seen any more.
    """
    if notice.simulated:
        return deadline_of(notice, policy)
    if presence is not Presence.GONE and notice.drains:
        return math.inf
    if presence is Presence.PRESENT and is_timeless(notice):
        return math.inf
    match presence:
        case Presence.PRESENT:
            return deadline_of(notice, policy) + policy.expire_seconds
        case Presence.SILENT:
            return deadline_of(notice, policy) + policy.gone_grace_seconds
        case Presence.GONE:
            # The cache may be a moment behind the source of the notice.
            return notice.first_seen + policy.gone_grace_seconds


def silence_grace(notice: ReclaimNotice, policy: Policy) -> float:
    """Returns how long the subject of a due notice must have been silent before the notice ends."""
    # An agent that is upgraded must not end a hint, which it would announce again as a new one.
    return policy.expire_seconds if is_timeless(notice) else policy.gone_grace_seconds


def replaced(notice: ReclaimNotice, uid: str, now: float) -> ReclaimNotice:
    """Ends a notice because a machine with another uid now has the node's name."""
    if notice.state is NoticeState.ACTIVE and notice.subject.uid != uid:
        return replace(notice, state=_end(notice, Presence.GONE), ended_at=now)
    return notice


def _recounted(known: ReclaimNotice, report: Report, now: float) -> ReclaimNotice:
    """Applies a repetition of the last report, such as one in a hello after a restart of the supervisor.

    The supervisor's clock may differ from the one that stored the deadline, and may even have ended the notice. The
    agent counted the remaining seconds when it sent the report, so they are right.
    """
    repeated = (report.session, report.revision) == (known.session, known.revision)
    if not repeated or report.announcement is not Announcement.ACTIVE or report.seconds_left is None:
        return known
    deadline = _deadline(report, now)
    if deadline is None:
        return known
    if known.state is NoticeState.ACTIVE:
        is_same = known.deadline is not None and -_SOONER_SECONDS <= deadline - known.deadline <= _LATER_SECONDS
        return known if is_same else replace(known, deadline=deadline)
    by_time = known.state in (NoticeState.EXPIRED, NoticeState.GONE)
    if by_time and known.subject.kind is SubjectKind.NODE and report.seconds_left > 0:
        # Time ended the notice although the node's agent reports that there is time left.
        return replace(known, state=NoticeState.ACTIVE, deadline=deadline, ended_at=None)
    return known


def _announced(known: ReclaimNotice, report: Report, now: float, policy: Policy) -> ReclaimNotice:
    if known.state is NoticeState.GONE and known.subject.kind is SubjectKind.POD:
        # A pod's uid is never reused: the next session repeats the same announcement.
        return replace(known, session=report.session, revision=report.revision)
    if known.state is NoticeState.ACTIVE:
        return _updated(known, report, now)
    if known.state is NoticeState.EXPIRED and _passed(report, policy):
        return _updated(known, report, now)  # The next session repeats the same old announcement.
    return _episode(report, known.episode + 1, now, policy)


def _updated(known: ReclaimNotice, report: Report, now: float) -> ReclaimNotice:
    deadline, is_same_class = _deadline(report, now), report.notice_class is known.notice_class
    names_no_instant = is_same_class and not known.announced and not report.announced
    if deadline is not None and known.deadline is not None and names_no_instant:
        # Neither names an instant: the usual lead counts from the first report, also after a restart of the agent.
        deadline = min(known.deadline, deadline)
    return replace(
        known,
        # A group of notices is collected, and an assumed lead counts, from when there was a reason to act.
        first_seen=known.first_seen if is_same_class else now,
        deadline=deadline,
        announced=report.announced,
        message=report.message,
        notice_class=report.notice_class,
        cancellable=report.cancellable,
        session=report.session,
        revision=report.revision,
    )


def _episode(report: Report, episode: int, now: float, policy: Policy) -> ReclaimNotice:
    expired = _passed(report, policy)
    return ReclaimNotice(
        source=report.source,
        subject=report.subject,
        episode=episode,
        state=NoticeState.EXPIRED if expired else NoticeState.ACTIVE,
        first_seen=now,
        deadline=_deadline(report, now),
        announced=report.announced,
        message=report.message,
        notice_class=report.notice_class,
        cancellable=report.cancellable,
        session=report.session,
        revision=report.revision,
        ended_at=now if expired else None,
    )


def _deadline(report: Report, now: float) -> float | None:
    if report.seconds_left is None or report.notice_class is NoticeClass.HINT:
        return None
    return now + report.seconds_left


def _passed(report: Report, policy: Policy) -> bool:
    stands = report.notice_class is NoticeClass.HINT or report.source == OPERATOR
    return not stands and report.seconds_left is not None and report.seconds_left <= -policy.expire_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Holds what one source in the cluster says about one subject at present.

    Attributes:
        source: The source of the signal.
        subject: The node or pod that it is about.
        announcement: Whether the subject will be gone, or will not.
        session: With `revision`, orders the signals: later ones win.
        revision: The version of the object that contains the signal.
        deadline: When the subject is gone, in Unix seconds of the cluster's clock; None if it is unknown.
        announced: The deadline as text for people.
        lead: An upper limit of the remaining seconds, however the clocks differ.
        message: Text for people.
        notice_class: How soon a job has to act on it.
    """

    source: Source
    subject: Subject
    announcement: Announcement
    session: int = 0
    revision: int
    deadline: float | None = None
    announced: str = ""
    lead: float | None = None
    message: str = ""
    notice_class: NoticeClass = NoticeClass.SUDDEN

    @property
    def id(self) -> NoticeId:
        """The notice that this signal belongs to."""
        return notice_id(self.source, self.subject)


def apply_signal(
    known: ReclaimNotice | None, signal: Signal, now: float, cluster_now: float, policy: Policy
) -> ReclaimNotice | None:
    """Applies a signal: returns the notice to store, or `known` itself if the signal changes nothing.

    Args:
        known: The stored notice, if there is one.
        signal: The present signal.
        now: Unix seconds of the supervisor's clock.
        cluster_now: The same instant by the cluster's clock.
        policy: Gives the default lead, and when a notice expires.
    """
    return apply_report(known, _report(signal, cluster_now), now, policy) if _is_news(known, signal) else known


def _is_news(known: ReclaimNotice | None, signal: Signal) -> bool:
    if signal.announcement is Announcement.WITHDRAWN:
        return known is not None and known.holds
    if known is None or known.state is NoticeState.WITHDRAWN:
        return True
    if known.state is NoticeState.ACTIVE:
        before = (known.announced, known.message, known.notice_class)
        return before != (signal.announced, signal.message, signal.notice_class)
    # The notice has ended, but its object still contains the announcement.
    return known.announced != signal.announced


def _report(signal: Signal, cluster_now: float) -> Report:
    left = None if signal.deadline is None else signal.deadline - cluster_now
    if left is not None and signal.lead is not None:
        left = min(left, signal.lead)
    return Report(
        source=signal.source,
        subject=signal.subject,
        session=signal.session,
        revision=signal.revision,
        announcement=signal.announcement,
        seconds_left=left,
        announced=signal.announced,
        message=signal.message,
        notice_class=signal.notice_class,
    )
