"""Our values as messages of the stream."""

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp
from reclaim.v1 import reclaim_pb2 as pb

from node_agent.notices import Announcement, NoticeReport, SourceState, SourceStatus, Subject, SubjectKind

# What the contract allows for a text meant for people, in characters.
_MAX_TEXT = 512

_KINDS = {SubjectKind.NODE: pb.SUBJECT_KIND_NODE, SubjectKind.POD: pb.SUBJECT_KIND_POD}
_ANNOUNCEMENTS = {
    Announcement.ACTIVE: pb.ANNOUNCEMENT_ACTIVE,
    Announcement.WITHDRAWN: pb.ANNOUNCEMENT_WITHDRAWN,
}
_STATES = {
    SourceState.UNKNOWN: pb.SOURCE_STATE_UNKNOWN,
    SourceState.CLEAR: pb.SOURCE_STATE_CLEAR,
    SourceState.NOTICED: pb.SOURCE_STATE_NOTICED,
    SourceState.NOT_SPOT: pb.SOURCE_STATE_NOT_SPOT,
}


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """Who says hello: the node, this life of its agent, the agent's version."""

    node: Subject
    session: int
    version: str


def hello(
    identity: AgentIdentity, statuses: Sequence[SourceStatus], reports: Sequence[NoticeReport], now: float
) -> pb.AgentMessage:
    """The first message of a stream; `now` is monotonic, as below."""
    return pb.AgentMessage(
        hello=pb.Hello(
            node=identity.node.name,
            node_uid=identity.node.uid,
            session=identity.session,
            agent_version=identity.version,
            sources=[_source(status, now) for status in statuses],
            notices=[_notice(report, now) for report in reports],
        )
    )


def notice(report: NoticeReport, now: float) -> pb.AgentMessage:
    """A report, with the seconds that are left now, when it is sent."""
    return pb.AgentMessage(notice=_notice(report, now))


def source(status: SourceStatus, now: float) -> pb.AgentMessage:
    """The state of a source, with the age of its last good poll now."""
    return pb.AgentMessage(source=_source(status, now))


def heartbeat() -> pb.AgentMessage:
    """Nothing new, and still here."""
    return pb.AgentMessage(heartbeat=pb.Heartbeat())


def goodbye(reason: str) -> pb.AgentMessage:
    """The stream ends on purpose."""
    return pb.AgentMessage(goodbye=pb.Goodbye(reason=reason))


def _notice(report: NoticeReport, now: float) -> pb.NoticeReport:
    subject = pb.Subject(kind=_KINDS[report.subject.kind], name=report.subject.name, uid=report.subject.uid)
    message = pb.NoticeReport(
        source=report.source,
        subject=subject,
        revision=report.revision,
        announcement=_ANNOUNCEMENTS[report.announcement],
        message=report.message[:_MAX_TEXT],
    )
    if report.deadline is not None:
        message.seconds_left = report.deadline - now
    if report.announced is not None:
        message.deadline.CopyFrom(Timestamp(seconds=int(report.announced.timestamp())))
    return message


def _source(status: SourceStatus, now: float) -> pb.SourceReport:
    message = pb.SourceReport(
        source=status.source,
        state=_STATES[status.state],
        detail=status.detail[:_MAX_TEXT],
        about=_KINDS[status.about],
    )
    if status.last_good is not None:
        message.last_good_poll_age = now - status.last_good
    return message
