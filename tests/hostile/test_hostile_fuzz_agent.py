"""A node agent survives arbitrary metadata and supervisor messages and reports only values of the contract."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from reclaim.v1 import reclaim_pb2 as pb

from node_agent.node import ThisNode
from node_agent.notices import (
    AnnouncementState,
    MetadataMode,
    NoticeReport,
    NoticeSource,
    NoticeSubject,
    NoticeSubjectKind,
    PollResult,
    SourceName,
)
from node_agent.outbox import NoticeOutbox
from node_agent.poller import Poller
from node_agent.sources.aws import AwsSource
from node_agent.sources.azure import AzureSource
from node_agent.sources.file import FileSource
from node_agent.sources.gcp import GcpSource
from node_agent.sources.termination_time import ALIYUN, TENCENT, VOLCENGINE, TerminationTimeSource
from node_agent.stream import (
    AgentIdentity,
    AgentStream,
    SessionSuperseded,
    StreamLost,
    encode_hello,
    encode_report,
    encode_status,
)
from node_agent.watchdog import Watchdog
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from tests.hostile.hostile_fuzz import each_field_odd, numbers, spoken
from tests.node_agent.fake_metadata import TERMINATION, FakeMetadata, Reply, metadata
from tests.testkit.properties import examples

CLASSES = set(pb.NoticeClass.values()) - {pb.NOTICE_CLASS_UNSPECIFIED}
NODE = NoticeSubject(NoticeSubjectKind.NODE, "n1", "uid-1")
SPEAKER = AgentIdentity(NODE, 1, "0")
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
STAMP = "2026-01-05T18:02:00Z"

digits = st.integers(-1, 99999).map(lambda number: f"{number:02}")
instants = st.builds("{}-{}-{}T{}:{}:{}Z".format, *[digits] * 6) | st.from_regex(r"\d{4}-[01]\d-[0-3]\dT23:59:60Z")
stamps = st.one_of(
    instants.map(str.encode),
    st.sampled_from([b"", b" \n", STAMP.encode(), b"0001-01-01T00:00:00Z", b"9999-12-31T23:59:60Z"]),
    st.binary(max_size=40),
)
# Words of a date in any number and order: where a reader of dates looks for the sixth of five.
words = st.sampled_from(["Mon,", "05", "Jan", "2026", "18:02:00", "GMT", "-0000", "+9999", "-", ",", "99999", "²", ":"])
dates = st.none() | st.lists(words, max_size=7).map(" ".join) | st.just("Mon, 05 Jan 2026 17:59:00 GMT")
statuses = st.sampled_from([200, 200, 200, 204, 404, 401, 403, 429, 500, 503])
waits = st.sampled_from([{}, {"Retry-After": "9" * 5000}, {"Retry-After": "-1"}, {"Retry-After": "²"}])
PLANNED = {"action": "terminate", "time": STAMP}
RECOMMENDED = {"noticeTime": STAMP}
actions, warnings = spoken(PLANNED), spoken(RECOMMENDED)


def replies(bodies: st.SearchStrategy[bytes]) -> st.SearchStrategy[Reply]:
    """Answers with such bodies; a header cannot hold everything that a body can."""
    latin = dates.map(lambda date: None if date is None else date.replace("²", "2\N{DEGREE SIGN}"))
    return st.builds(Reply, statuses, bodies, latin, waits)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[FakeMetadata]:
    async with metadata() as fake:
        yield fake


async def one_poll(source: NoticeSource) -> None:
    """Polls once as the agent does, and looks at what it would tell the supervisor."""
    outbox = NoticeOutbox(10)
    poller = Poller(source, ThisNode(NODE.name, NODE.uid), outbox, Clock(), 1.0, bulkhead=Bulkhead(Clock()))
    try:
        await poller.once()
    finally:
        await source.close()
    now = Clock().monotonic()
    sources = [encode_status(status, now) for status in outbox.statuses()]
    notices = [encode_report(report, now) for report in outbox.reports()]
    said = encode_hello(SPEAKER, sources, notices, 300.0).hello
    (state,) = said.sources
    assert state.state in set(pb.SourceState.values()) - {pb.SOURCE_STATE_UNSPECIFIED}
    assert len(said.notices) == (state.state == pb.SOURCE_STATE_NOTICED)
    assert (poller.tracked.status.state is PollResult.UNKNOWN) == (state.state == pb.SOURCE_STATE_UNKNOWN)
    for notice in said.notices:
        assert notice.announcement == pb.ANNOUNCEMENT_ACTIVE
        assert notice.notice_class in CLASSES
        assert math.isfinite(notice.seconds_left)
        # A hint has no time, and two clouds have a usual lead for some notices.
        timeless = notice.notice_class == pb.NOTICE_CLASS_HINT or notice.source in {"gcp", "azure"}
        assert timeless or notice.deadline.ToJsonString()


@examples(40)
@given(replies(stamps))
async def test_no_answer_of_aliyun_ends_the_agent(service: FakeMetadata, reply: Reply) -> None:
    service.replies[TERMINATION] = reply
    await one_poll(TerminationTimeSource(ALIYUN, service.url, Clock(), MetadataMode.AUTO))


@examples(40)
@given(replies(actions), replies(warnings))
async def test_no_answer_of_aws_ends_the_agent(service: FakeMetadata, action: Reply, warning: Reply) -> None:
    await one_poll_of_aws(service, action, warning)


async def test_no_odd_field_of_aws_ends_the_agent(service: FakeMetadata) -> None:
    """Each field and each value that some parser has met too late, in a notice and in a warning."""
    for body in each_field_odd(PLANNED):
        await one_poll_of_aws(service, Reply(body=body), Reply(404))
    for body in each_field_odd(RECOMMENDED):
        await one_poll_of_aws(service, Reply(404), Reply(body=body))


async def one_poll_of_aws(service: FakeMetadata, action: Reply, warning: Reply) -> None:
    service.replies |= {ACTION: action, REBALANCE: warning}
    service.token_reply = Reply(body=b"token")
    service.tokens = {"token"}
    await one_poll(AwsSource(service.url, Clock()))


local_stamps = st.one_of(
    st.builds("{}-{}-{} {}:{}:{}".format, *[digits] * 6),
    st.builds("{}/{}/{} {}:{}:{}".format, *[digits] * 6),
    st.builds("{}-{}-{}T{}:{}:{}{}{}:{}".format, *[digits] * 6, st.sampled_from("+-"), digits, digits),
).map(str.encode)


@examples(40)
@given(replies(stamps | local_stamps))
async def test_no_answer_of_tencent_or_volcengine_ends_the_agent(service: FakeMetadata, reply: Reply) -> None:
    service.replies |= {"/latest/meta-data/spot/termination-time": reply}
    await one_poll(TerminationTimeSource(TENCENT, service.url, Clock()))
    service.replies |= {"/latest/instance_id": Reply(body=b"i-1"), "/latest/spot_instance_termination_time": reply}
    await one_poll(TerminationTimeSource(VOLCENGINE, service.url, Clock(), MetadataMode.AUTO))


MAINTENANCE = {
    "can_reschedule": "true",
    "maintenance_status": "PENDING",
    "window_start_time": STAMP,
    "Upcoming maintenance": {"maintenance_status": "PENDING", "windowStartTime": STAMP},
}
GCP = "/computeMetadata/v1/instance"
words_of_gcp = st.sampled_from([b"TRUE", b"FALSE", b"NONE", b"MIGRATE_ON_HOST_MAINTENANCE"]) | st.binary(max_size=40)


def flavored(reply: Reply) -> Reply:
    return replace(reply, headers={**reply.headers, "Metadata-Flavor": "Google"})


@examples(40)
@given(replies(words_of_gcp), replies(words_of_gcp), replies(spoken(MAINTENANCE)))
async def test_no_answer_of_gcp_ends_the_agent(
    service: FakeMetadata, preempted: Reply, event: Reply, upcoming: Reply
) -> None:
    await one_poll_of_gcp(service, preempted, event, upcoming)


async def test_no_odd_field_of_gcp_ends_the_agent(service: FakeMetadata) -> None:
    for body in each_field_odd(MAINTENANCE):
        await one_poll_of_gcp(service, Reply(body=b"FALSE"), Reply(body=b"NONE"), Reply(body=body))


async def one_poll_of_gcp(service: FakeMetadata, preempted: Reply, event: Reply, upcoming: Reply) -> None:
    items = {
        "id": Reply(body=b"1"),
        "preempted": preempted,
        "maintenance-event": event,
        "upcoming-maintenance": upcoming,
    }
    service.replies |= {f"{GCP}/{name}": flavored(reply) for name, reply in items.items()}
    await one_poll(GcpSource(service.url, Clock()))


SCHEDULED = {
    "DocumentIncarnation": 1,
    "Events": [
        {
            "EventId": "e",
            "EventType": "Redeploy",
            "EventStatus": "Scheduled",
            "Resources": ["vm", "n1"],
            "NotBefore": "Mon, 05 Jan 2026 18:02:00 GMT",
        }
    ],
}


@examples(40)
@given(replies(spoken(SCHEDULED)))
async def test_no_answer_of_azure_ends_the_agent(service: FakeMetadata, events: Reply) -> None:
    await one_poll_of_azure(service, events)


async def test_no_odd_field_of_azure_ends_the_agent(service: FakeMetadata) -> None:
    for body in each_field_odd(SCHEDULED):
        await one_poll_of_azure(service, Reply(body=body))


async def one_poll_of_azure(service: FakeMetadata, events: Reply) -> None:
    items = {f"instance/compute/{name}": Reply(body=b"vm") for name in ("name", "vmId")}
    service.replies |= {f"/metadata/{name}": reply for name, reply in {**items, "scheduledevents": events}.items()}
    await one_poll(AzureSource(service.url, Clock(), lambda: True))


@examples(30)
@given(replies(stamps | st.text().map(str.encode)), replies(stamps))
async def test_no_identity_or_token_ends_the_agent(service: FakeMetadata, item: Reply, token: Reply) -> None:
    service.hardened = True
    service.token_reply = token
    service.replies["/latest/meta-data/instance-id"] = item
    await one_poll(TerminationTimeSource(ALIYUN, service.url, Clock(), MetadataMode.HARDENED))


@examples(60)
@given(content=stamps | actions)
async def test_no_file_ends_the_agent(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "announcement"
    file.write_bytes(content)
    await one_poll(FileSource(file, Clock()))


class FuzzedCall:
    """A stream on which a supervisor says all that it has to say, and then ends."""

    def __init__(self, messages: list[pb.SupervisorMessage]) -> None:
        self._messages = iter(messages)
        self.said: list[pb.AgentMessage] = []

    async def read(self) -> pb.SupervisorMessage | None:
        await asyncio.sleep(0)
        return next(self._messages, None)

    async def write(self, message: pb.AgentMessage) -> None:
        self.said.append(pb.AgentMessage.FromString(message.SerializeToString()))

    async def done_writing(self) -> None:
        """Nothing more is written."""

    def cancel(self) -> None:
        """It is over."""


unsigned = st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
doubles = st.floats() | numbers.filter(lambda number: abs(number) < 2**63).map(float)
entries = st.builds(
    pb.Acknowledgement.Entry, notice_id=st.sampled_from(["s/uid-1", "s/uid-2", "s/", ""]) | st.text(), revision=unsigned
)
said = st.one_of(
    st.builds(pb.SupervisorMessage, welcome=st.builds(pb.Welcome, heartbeat_seconds=doubles)),
    st.builds(
        pb.SupervisorMessage, acknowledgement=st.builds(pb.Acknowledgement, entries=st.lists(entries, max_size=5))
    ),
    st.builds(pb.SupervisorMessage, superseded=st.builds(pb.Superseded, session=unsigned)),
    st.builds(pb.SupervisorMessage, goodbye=st.builds(pb.Goodbye, reason=st.text())),
    st.just(pb.SupervisorMessage(heartbeat=pb.Heartbeat())),
    # A kind that a later supervisor has.
    st.binary(max_size=20).map(lambda body: pb.SupervisorMessage.FromString(b"\xfa\x01" + bytes([len(body)]) + body)),
)


def report(number: int, revision: int, announcement: AnnouncementState) -> NoticeReport:
    return NoticeReport(
        SourceName("s"), NoticeSubject(NoticeSubjectKind.NODE, "n1", f"uid-{number}"), revision, announcement
    )


KNOWN = [
    report(1, 1, AnnouncementState.ACTIVE),
    report(2, 3, AnnouncementState.ACTIVE),
    report(3, 2, AnnouncementState.WITHDRAWN),
]


@examples(100)
@given(st.lists(said, max_size=6))
async def test_no_supervisor_ends_an_agent_or_makes_it_forget(messages: list[pb.SupervisorMessage]) -> None:
    """The stream ends in one of two ways, and only what was acknowledged at its revision is settled."""
    outbox = NoticeOutbox(10)
    for each in KNOWN:
        outbox.put(each)
    call: Any = FuzzedCall(messages)
    stream = AgentStream(call, outbox, Clock(), 5.0, Watchdog(Clock()), Bulkhead(Clock()))
    with pytest.raises((StreamLost, SessionSuperseded)) as ended:
        await stream.run(SPEAKER, lambda: None, lambda: SPEAKER.machine)
    if isinstance(ended.value, SessionSuperseded):
        # What follows is a hello of the next one.
        assert encode_hello(AgentIdentity(NODE, ended.value.session + 1, "0"), [], [], 300.0)
    heard = {(entry.notice_id, entry.revision) for each in messages for entry in each.acknowledgement.entries}
    for each in KNOWN:
        settled = any(name == each.id and revision >= each.revision for name, revision in heard)
        assert settled or each in outbox.unacknowledged()
        assert each in outbox.reports() or (settled and each.announcement is AnnouncementState.WITHDRAWN)
