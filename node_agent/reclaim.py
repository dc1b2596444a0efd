"""The report on a pod that is taken away. Pure."""

from node_agent.notices import Announcement, NoticeReport, SourceName, Subject, SubjectKind
from node_agent.pod import Pod
from servicekit import disruption
from servicekit.disruption import Reclaim, Withdrawn

SOURCE = SourceName("kubernetes")


def classify(pod: Pod) -> Reclaim | Withdrawn | None:
    """Reads a reclaim from the present state of a pod; None where there is none, or the pod is not opted in."""
    return disruption.classify(pod.state) if pod.opted_in else None


def report(
    last: NoticeReport | None, pod: Pod, said: Reclaim | Withdrawn | None, now: float, wall: float
) -> NoticeReport | None:
    """What is news to the supervisor.

    Args:
        last: The last report about this pod in this agent's life, None before the first.
        pod: Which pod it is about.
        said: The verdict on it.
        now: The monotonic instant of the verdict.
        wall: The same in Unix seconds of the API server's clock.
    """
    subject = Subject(SubjectKind.POD, f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.uid)
    revision = last.revision + 1 if last else 1
    match said:
        case Reclaim():
            left = None if said.deadline is None else min(said.deadline.timestamp() - wall, said.lead)
            deadline = None if left is None else now + left
            new = NoticeReport(SOURCE, subject, revision, Announcement.ACTIVE, deadline, said.deadline, said.message)
        case Withdrawn():
            # Also where this agent announced nothing: the one before it may have.
            new = NoticeReport(SOURCE, subject, revision, Announcement.WITHDRAWN)
        case None:
            return None
    return None if last is not None and _same(last, new) else new


def _same(old: NoticeReport, new: NoticeReport) -> bool:
    return (old.announcement, old.announced, old.message) == (new.announcement, new.announced, new.message)
