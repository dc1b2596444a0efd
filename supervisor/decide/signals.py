"""How signals of the cluster change notices.

A signal is level-triggered: it is repeated with every list, every restart and every other change of its object. Only
new content counts, so repetitions change nothing and cause no writes.
"""

from dataclasses import dataclass

from supervisor.decide.notices import apply_report
from supervisor.decide.policy import Policy
from supervisor.domain.ids import NoticeId, Source
from supervisor.domain.notice import Announcement, NoticeClass, NoticeState, ReclaimNotice, Report, Subject, notice_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What one source in the cluster says about one subject at present.

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
