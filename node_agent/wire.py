"""Encodes reports and states as messages of the stream. `now` is monotonic throughout."""

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp
from reclaim.v1 import reclaim_pb2 as pb

from node_agent.notices import (
    Announcement,
    NoticeClass,
    NoticeReport,
    SourceState,
    SourceStatus,
    Subject,
    SubjectKind,
)
from node_agent.sources import NodeIdentity, PriceClass

# Characters that the contract allows for a text for people.
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
_CLASSES = {
    NoticeClass.SUDDEN: pb.NOTICE_CLASS_SUDDEN,
    NoticeClass.SCHEDULED: pb.NOTICE_CLASS_SCHEDULED,
    NoticeClass.HINT: pb.NOTICE_CLASS_HINT,
}
_PRICES = {
    PriceClass.UNKNOWN: pb.PRICE_CLASS_UNSPECIFIED,
    PriceClass.SPOT: pb.PRICE_CLASS_SPOT,
    PriceClass.ON_DEMAND: pb.PRICE_CLASS_ON_DEMAND,
}
_UNKNOWN_MACHINE = NodeIdentity("")


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The sender of a hello: the node, this run of its agent, its stream, and the machine under the node."""

    node: Subject
    session: int
    version: str
    machine: NodeIdentity = _UNKNOWN_MACHINE
    stream: int = 1


def hello(
    identity: AgentIdentity,
    sources: Sequence[pb.SourceReport],
    notices: Sequence[pb.NoticeReport],
    heartbeat: float,
) -> pb.AgentMessage:
    return pb.AgentMessage(
        hello=pb.Hello(
            node=identity.node.name,
            node_uid=identity.node.uid,
            session=identity.session,
            stream=identity.stream,
            agent_version=identity.version,
            machine=_machine(identity.machine),
            sources=sources,
            notices=notices,
            heartbeat_seconds=heartbeat,
        )
    )


def machine(known: NodeIdentity) -> pb.AgentMessage:
    return pb.AgentMessage(machine=_machine(known))


def heartbeat() -> pb.AgentMessage:
    return pb.AgentMessage(heartbeat=pb.Heartbeat())


def goodbye(reason: str) -> pb.AgentMessage:
    return pb.AgentMessage(goodbye=pb.Goodbye(reason=reason))


def _machine(machine: NodeIdentity) -> pb.Machine:
    return pb.Machine(
        cloud=machine.cloud,
        region=machine.region,
        zone=machine.zone,
        instance_type=machine.instance_type,
        price_class=_PRICES[machine.price_class],
        spot_strategy=machine.spot_strategy,
    )


def notice(report: NoticeReport, now: float) -> pb.NoticeReport:
    subject = pb.Subject(kind=_KINDS[report.subject.kind], name=report.subject.name, uid=report.subject.uid)
    message = pb.NoticeReport(
        source=report.source,
        subject=subject,
        revision=report.revision,
        announcement=_ANNOUNCEMENTS[report.announcement],
        message=report.message[:_MAX_TEXT],
        notice_class=_CLASSES[report.notice_class],
        cancellable=report.cancellable,
    )
    if report.deadline is not None:
        message.seconds_left = report.deadline - now
    if report.announced is not None:
        message.deadline.CopyFrom(Timestamp(seconds=int(report.announced.timestamp())))
    return message


def unknown_source(status: SourceStatus) -> pb.SourceReport:
    """The report of a source whose status cannot be encoded."""
    return pb.SourceReport(source=status.source, state=pb.SOURCE_STATE_UNKNOWN, about=_KINDS[status.about])


def source(status: SourceStatus, now: float) -> pb.SourceReport:
    message = pb.SourceReport(
        source=status.source,
        state=_STATES[status.state],
        detail=status.detail[:_MAX_TEXT],
        about=_KINDS[status.about],
    )
    if status.last_good is not None:
        message.last_good_poll_age = now - status.last_good
    return message
