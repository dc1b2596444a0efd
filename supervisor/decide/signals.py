"""How a word that stands in the cluster changes what is known.

Such a word is told whole, again and again: with every list, every restart and every other change of the object that
holds it. Only what is new in it counts, so a repetition changes nothing and nothing is written for it.
"""

from dataclasses import dataclass

from supervisor.decide.notices import accept
from supervisor.decide.policy import Policy
from supervisor.domain.ids import NoticeId, Source
from supervisor.domain.notice import Announcement, NoticeState, ReclaimNotice, Report, Subject, notice_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What one source in the cluster says about one subject at present.

    Attributes:
        source: Who says so.
        subject: What it is about.
        announcement: That it will be gone, or that it will not.
        session: With `revision`, orders the words: later ones win.
        revision: The version of the object that the word stands in.
        deadline: When the subject is gone, in Unix seconds of the cluster's clock; None where nobody says.
        announced: The same for people.
        lead: The most seconds that there can be left until then, however the clocks differ.
        message: For people.
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

    @property
    def id(self) -> NoticeId:
        """The notice that this word belongs to."""
        return notice_id(self.source, self.subject)


def weigh(
    known: ReclaimNotice | None, word: Signal, now: float, cluster_now: float, policy: Policy
) -> ReclaimNotice | None:
    """The notice to store, or `known` itself where the word is no news.

    Args:
        known: What is known of it, None if nothing.
        word: What is said at present.
        now: Unix seconds of the supervisor's clock.
        cluster_now: The same instant by the cluster's clock.
        policy: The usual lead, and when a notice has expired.
    """
    return accept(known, _report(word, cluster_now), now, policy) if _is_news(known, word) else known


def _is_news(known: ReclaimNotice | None, word: Signal) -> bool:
    if word.announcement is Announcement.WITHDRAWN:
        return known is not None and known.holds
    if known is None or known.state is NoticeState.WITHDRAWN:
        return True
    if known.state is NoticeState.ACTIVE:
        return (known.announced, known.message) != (word.announced, word.message)
    # It has ended, and what led to that stands there still.
    return known.announced != word.announced


def _report(word: Signal, cluster_now: float) -> Report:
    left = None if word.deadline is None else word.deadline - cluster_now
    if left is not None and word.lead is not None:
        left = min(left, word.lead)
    return Report(
        source=word.source,
        subject=word.subject,
        session=word.session,
        revision=word.revision,
        announcement=word.announcement,
        seconds_left=left,
        announced=word.announced,
        message=word.message,
    )
