"""Reports on pods that are reclaimed. Pure."""

from node_agent.notices import Announcement, NoticeReport, SourceName, Subject, SubjectKind
from node_agent.pod import Pod
from servicekit import disruption
from servicekit.disruption import Reclaim, Withdrawn

SOURCE = SourceName("kubernetes")


def classify(pod: Pod) -> Reclaim | Withdrawn | None:
    """Classifies an opted-in pod by the rule of `servicekit.disruption`; None for every other pod."""
    return disruption.classify(pod.state) if pod.opted_in else None


def report(
    last: NoticeReport | None, pod: Pod, reclaim: Reclaim | Withdrawn | None, now: float, wall: float
) -> NoticeReport | None:
    """Makes a report where there is something new for the supervisor.

    Args:
        last: The last report about this pod in this agent's life; None before the first.
        pod: The pod.
        reclaim: Its classification.
        now: The monotonic instant of the classification.
        wall: The same instant in Unix seconds of the API server's clock.
    """
    subject = Subject(SubjectKind.POD, f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.uid)
    revision = last.revision + 1 if last else 1
    match reclaim:
        case Reclaim(message, announced, lead):
            left = None if announced is None else min(announced.timestamp() - wall, lead)
            deadline = None if left is None else now + left
            new = NoticeReport(SOURCE, subject, revision, Announcement.ACTIVE, deadline, announced, message)
        case Withdrawn():
            # Also where this agent announced nothing: an earlier agent of this node may have.
            new = NoticeReport(SOURCE, subject, revision, Announcement.WITHDRAWN)
        case None:
            return None
    return None if last is not None and _same(last, new) else new


def _same(old: NoticeReport, new: NoticeReport) -> bool:
    return (old.announcement, old.announced, old.message) == (new.announcement, new.announced, new.message)
