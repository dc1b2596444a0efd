"""Decodes and checks the messages of agents; every refusal names the field."""

import math

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from reclaim.v1 import reclaim_pb2 as wire

from servicekit.bounds import one_line
from supervisor.domain.capacity import Machine, PriceClass
from supervisor.domain.ids import NAME_RULE, Host, Source, is_name
from supervisor.domain.notice import NOT_OF_AGENTS, Announcement, NoticeClass, Report, Subject, SubjectKind
from supervisor.ingest.agent_registry import AgentState, SourceState
from supervisor.ingest.errors import MalformedError, OversizedError

_MAX_NAMESPACE = 63
_MAX_SECONDS_LEFT = 366 * 86400.0
_MAX_SOURCES = 16
_MAX_NOTICES = 1024
_MAX_BYTES = 1024 * 1024
_MAX_NUMBER = 2**63 - 1  # Leaves a session room to be raised by one, and fits whatever a store counts with.

_ANNOUNCEMENTS = {
    wire.ANNOUNCEMENT_ACTIVE: Announcement.ACTIVE,
    wire.ANNOUNCEMENT_WITHDRAWN: Announcement.WITHDRAWN,
}
_CLASSES = {
    wire.NOTICE_CLASS_SCHEDULED: NoticeClass.SCHEDULED,
    wire.NOTICE_CLASS_HINT: NoticeClass.HINT,
}
"""All others are sudden: the class of an older agent, and one that only a newer agent knows."""

_PRICES = {wire.PRICE_CLASS_SPOT: PriceClass.SPOT, wire.PRICE_CLASS_ON_DEMAND: PriceClass.ON_DEMAND}

_STATES = {
    wire.SOURCE_STATE_CLEAR: SourceState.CLEAR,
    wire.SOURCE_STATE_NOTICED: SourceState.NOTICED,
    wire.SOURCE_STATE_NOT_SPOT: SourceState.NOT_SPOT,
}


Received = wire.AgentMessage | MalformedError | OversizedError
"""A message, or the error of decoding it: if decoding raised, gRPC would end the stream without counting it."""


def decode(data: bytes) -> Received:
    """Decodes a message; returns the error instead of raising it."""
    if len(data) > _MAX_BYTES:
        return OversizedError(f"more than {_MAX_BYTES} bytes")
    try:
        return wire.AgentMessage.FromString(data)
    except DecodeError:
        return MalformedError("the bytes are not a message")


def hello_view(hello: wire.Hello, now: float) -> AgentState:
    """The state of the agent that sent a hello, received `now`.

    Raises:
        MalformedError: A field is missing or wrong.
    """
    if len(hello.sources) > _MAX_SOURCES or len(hello.notices) > _MAX_NOTICES:
        raise MalformedError("too many sources or notices")
    if not 0 < hello.session < _MAX_NUMBER:
        raise MalformedError("session must be set, and below 2**63 - 1")
    if hello.stream > _MAX_NUMBER:
        raise MalformedError("stream must be below 2**63")
    return AgentState(
        node=Host(_name("node", hello.node)),
        uid=_name("node_uid", hello.node_uid),
        session=hello.session,
        stream=hello.stream,
        connected=True,
        sources=dict(source_state(each) for each in hello.sources if not about_pods(each)),
        pod_sources=dict(source_state(each) for each in hello.sources if about_pods(each)),
        machine=machine(hello.machine, now),
    )


def machine(message: wire.Machine, now: float) -> Machine:
    """The machine as a message that was received `now` describes it.

    Raises:
        MalformedError: A field is wrong.
    """
    return Machine(
        cloud=_word("machine.cloud", message.cloud),
        region=_word("machine.region", message.region),
        zone=_word("machine.zone", message.zone),
        instance_type=_word("machine.instance_type", message.instance_type),
        price_class=_PRICES.get(message.price_class, PriceClass.UNKNOWN),
        spot_strategy=_word("machine.spot_strategy", message.spot_strategy),
        protected_until=_protected_until(message, now),
    )


def _word(field: str, text: str) -> str:
    return _name(field, text) if text else ""


def _protected_until(message: wire.Machine, now: float) -> float | None:
    if not message.HasField("protected_seconds"):
        return None
    if not math.isfinite(message.protected_seconds):
        raise MalformedError("machine.protected_seconds must be a finite number")
    return now + max(-_MAX_SECONDS_LEFT, min(_MAX_SECONDS_LEFT, message.protected_seconds))


def about_pods(message: wire.SourceReport) -> bool:
    """Whether the source reports pods, not the node."""
    return message.about == wire.SUBJECT_KIND_POD


def source_state(message: wire.SourceReport) -> tuple[Source, SourceState]:
    """A source's name and state; a state of a newer agent counts as unknown.

    Raises:
        MalformedError: The name is missing or wrong.
    """
    return _source(message.source), _STATES.get(message.state, SourceState.UNKNOWN)


def report(message: wire.NoticeReport, speaker: AgentState) -> Report:
    """A report of an agent about its own node, or about a pod, whose node is not checked here.

    Raises:
        MalformedError: A field is missing or wrong, or the report is about another node.
    """
    if message.announcement not in _ANNOUNCEMENTS:
        raise MalformedError("announcement must be active or withdrawn")
    if not 0 < message.revision <= _MAX_NUMBER:
        raise MalformedError("revision must be set, and below 2**63")
    return Report(
        source=_source(message.source),
        subject=_subject(message.subject, speaker),
        session=speaker.session,
        revision=message.revision,
        announcement=_ANNOUNCEMENTS[message.announcement],
        seconds_left=_seconds_left(message),
        notice_class=_CLASSES.get(message.notice_class, NoticeClass.SUDDEN),
        cancellable=message.cancellable,
        announced=_instant(message.deadline) if message.HasField("deadline") else "",
        message=one_line(message.message),
    )


def _subject(subject: wire.Subject, speaker: AgentState) -> Subject:
    if subject.kind == wire.SUBJECT_KIND_POD:
        namespace, _, name = subject.name.partition("/")
        # A second slash would make the name ambiguous.
        if len(namespace) > _MAX_NAMESPACE or "/" in name:
            raise MalformedError("the name of a pod must be namespace/name")
        full = f"{_name('namespace', namespace)}/{_name('pod', name)}"
        return Subject(SubjectKind.POD, full, _name("uid", subject.uid))
    if subject.kind != wire.SUBJECT_KIND_NODE or (subject.name, subject.uid) != (speaker.node, speaker.uid):
        raise MalformedError(f"the agent of {speaker.node} reports its own node and pods only")
    return Subject(SubjectKind.NODE, subject.name, subject.uid)


def _source(name: str) -> Source:
    source = Source(_name("source", name))
    if source in NOT_OF_AGENTS:
        raise MalformedError(f"{source} is not a source of agents")
    return source


def _name(field: str, text: str) -> str:
    if not is_name(text):
        raise MalformedError(f"{field} must have {NAME_RULE}")
    return text


def _seconds_left(message: wire.NoticeReport) -> float | None:
    if not message.HasField("seconds_left"):
        return None
    if not math.isfinite(message.seconds_left):
        raise MalformedError("seconds_left must be a finite number")
    return max(-_MAX_SECONDS_LEFT, min(_MAX_SECONDS_LEFT, message.seconds_left))


def _instant(deadline: Timestamp) -> str:
    try:
        return deadline.ToJsonString()
    except ValueError as error:
        raise MalformedError("deadline is not a valid timestamp") from error
