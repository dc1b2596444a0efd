"""The source `aws`: tokens always, interruptions as notices, recommendations as hints."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aioresponses import aioresponses

from node_agent.node import ThisNode
from node_agent.notices import (
    AnnouncementState,
    Clear,
    MachinePrice,
    MetadataMode,
    NodeIdentity,
    Noticed,
    NoticeSource,
    NoticeUrgency,
    PollResult,
    SourceUnavailable,
)
from node_agent.outbox import NoticeOutbox
from node_agent.poller import Poller
from node_agent.sources.aws import AwsSource
from node_agent.sources.termination_time import ALIYUN, TerminationTimeSource
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from tests.testkit.clocks import HandClock

BASE = "http://metadata.test"
ITEMS = f"{BASE}/latest/meta-data"
ACTION = f"{ITEMS}/spot/instance-action"
REBALANCE = f"{ITEMS}/events/recommendations/rebalance"
HINT = Noticed(None, None, "rebalance recommended since 2026-01-05T17:00:00Z", NoticeUrgency.HINT, cancellable=True)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(1767635820.0)


@pytest_asyncio.fixture
async def aws(clock: HandClock) -> AsyncIterator[AwsSource]:
    source = AwsSource(BASE, clock)
    yield source
    await source.close()


@pytest_asyncio.fixture
async def mocked() -> AsyncIterator[aioresponses]:
    with aioresponses() as service:
        service.put(f"{BASE}/latest/api/token", body=b"t", repeat=True)
        service.get(ACTION, status=404, repeat=True)
        yield service


def asked(mocked: aioresponses, url: str) -> int:
    return sum(len(calls) for (_, called), calls in mocked.requests.items() if str(called) == url)


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
async def test_the_message_says_what_will_be_done(aws: AwsSource, action: str) -> None:
    """Each kind of interruption takes the node away; people see which it is."""
    with aioresponses() as mocked:
        mocked.put(f"{BASE}/latest/api/token", body=b"t")
        mocked.get(ACTION, payload={"action": action, "time": "2026-01-05T18:02:00Z"})
        answer = await aws.poll()
    assert isinstance(answer, Noticed)
    assert action.removesuffix("e") in answer.message
    assert answer.message.endswith("ed")


async def test_the_instance_is_identified(aws: AwsSource, mocked: aioresponses) -> None:
    items = {
        "instance-id": b"i-1",
        "placement/region": b"eu-west-1",
        "placement/availability-zone": b"eu-west-1a",
        "instance-type": b"g4dn.xlarge",
        "instance-life-cycle": b"spot",
    }
    for path, text in items.items():
        mocked.get(f"{ITEMS}/{path}", body=text)
    known = NodeIdentity("i-1", "eu-west-1", "eu-west-1a", "g4dn.xlarge", "aws", MachinePrice.SPOT)
    for _ in range(2):
        assert await aws.identify() == known


@pytest.mark.parametrize(
    ("told", "price"),
    [(b"on-demand", MachinePrice.ON_DEMAND), (b"barter", MachinePrice.UNKNOWN), (None, MachinePrice.UNKNOWN)],
)
async def test_an_unknown_price_costs_no_other_fact(
    aws: AwsSource, mocked: aioresponses, told: bytes | None, price: MachinePrice
) -> None:
    for path in ("instance-id", "placement/region", "placement/availability-zone", "instance-type"):
        mocked.get(f"{ITEMS}/{path}", body=b"x")
    mocked.get(f"{ITEMS}/instance-life-cycle", status=404 if told is None else 200, body=told or b"")
    assert await aws.identify() == NodeIdentity("x", "x", "x", "x", "aws", price)


async def test_every_request_carries_a_token(aws: AwsSource, mocked: aioresponses) -> None:
    mocked.get(REBALANCE, status=404)
    await aws.poll()
    headers = {str(url): calls[0].kwargs["headers"] for (_, url), calls in mocked.requests.items()}
    assert headers.keys() == {f"{BASE}/latest/api/token", ACTION, REBALANCE}
    assert headers[f"{BASE}/latest/api/token"]["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
    assert headers[ACTION]["X-aws-ec2-metadata-token"] == headers[REBALANCE]["X-aws-ec2-metadata-token"] == "t"
    assert asked(mocked, f"{BASE}/latest/api/token") == 1


async def test_a_recommendation_is_a_hint(aws: AwsSource, clock: HandClock, mocked: aioresponses) -> None:
    """One report, without a time to act by; it never looks like an interruption, and three clear answers end it."""
    mocked.get(REBALANCE, body=b'{"noticeTime": "2026-01-05T17:00:00Z"}')
    mocked.get(REBALANCE, status=404, repeat=True)
    outbox = NoticeOutbox(10)
    poller = Poller(aws, ThisNode("n1", "i-1"), outbox, clock, 1.0, bulkhead=Bulkhead(Clock()))
    mocked.get(f"{ITEMS}/instance-id", body=b"i-1")
    await poller.once()
    (report,) = outbox.reports()
    assert (report.announcement, report.notice_class) == (AnnouncementState.ACTIVE, NoticeUrgency.HINT)
    assert (report.deadline, report.announced, report.cancellable) == (None, None, True)
    for _ in range(3):
        clock.steady += 6.0
        await poller.once()
    assert [each.announcement for each in outbox.reports()] == [AnnouncementState.WITHDRAWN]


async def test_an_interruption_outranks_a_recommendation(aws: AwsSource, clock: HandClock) -> None:
    """The same notice becomes a sudden one at once."""
    outbox = NoticeOutbox(10)
    poller = Poller(aws, ThisNode("n1", "i-1"), outbox, clock, 1.0, bulkhead=Bulkhead(Clock()))
    with aioresponses() as service:
        service.put(f"{BASE}/latest/api/token", body=b"t")
        service.get(f"{ITEMS}/instance-id", body=b"i-1")
        service.get(REBALANCE, body=b'{"noticeTime": "2026-01-05T17:00:00Z"}')
        service.get(ACTION, status=404)
        service.get(ACTION, payload={"action": "stop", "time": "2026-01-05T17:58:00Z"})
        await poller.once()
        (hint,) = outbox.reports()
        await poller.once()
        (sudden,) = outbox.reports()
    assert (sudden.id, sudden.notice_class, sudden.revision) == (hint.id, NoticeUrgency.SUDDEN, hint.revision + 1)


async def test_a_hint_is_looked_for_every_few_seconds(aws: AwsSource, clock: HandClock, mocked: aioresponses) -> None:
    mocked.get(REBALANCE, status=404, repeat=True)
    for _ in range(11):
        assert await aws.poll() == Clear()
        clock.steady += 1.0
    assert (asked(mocked, ACTION), asked(mocked, REBALANCE)) == (11, 3)


async def test_a_hint_that_cannot_be_had_changes_nothing(
    aws: AwsSource, clock: HandClock, mocked: aioresponses
) -> None:
    """What was recommended before still is, until the service says otherwise."""
    mocked.get(REBALANCE, body=b'{"noticeTime": "2026-01-05T17:00:00Z"}')
    mocked.get(REBALANCE, status=500)
    mocked.get(REBALANCE, body=b"[]")
    mocked.get(REBALANCE, body=b'{"noticeTime": "soon"}')
    mocked.get(REBALANCE, exception=TimeoutError())
    mocked.get(REBALANCE, exception=ConnectionResetError())
    mocked.get(REBALANCE, status=404)
    for expected in [HINT] * 6 + [Clear()]:
        assert await aws.poll() == expected
        clock.steady += 6.0


async def test_two_clouds_on_one_node_do_not_know_each_other() -> None:
    """One is unknown for ever, and the other's notice is there all the same, with the other's state."""
    clock, outbox, node = Clock(), NoticeOutbox(10), ThisNode("n1", "")
    sources: list[NoticeSource] = [
        TerminationTimeSource(ALIYUN, "http://elsewhere.test", clock, MetadataMode.AUTO),
        AwsSource(BASE, clock),
    ]
    with aioresponses() as mocked:
        mocked.put(f"{BASE}/latest/api/token", body=b"t")
        mocked.get(f"{ITEMS}/instance-id", body=b"i-1")
        mocked.get(ACTION, body=b'{"action": "stop", "time": "2026-01-05T18:02:00Z"}', repeat=True)
        for source in sources * 2:
            await Poller(source, node, outbox, clock, 1.0, bulkhead=Bulkhead(Clock())).once()
    for source in sources:
        await source.close()
    assert {status.source: status.state for status in outbox.statuses()} == {
        "aliyun": PollResult.UNKNOWN,
        "aws": PollResult.NOTICED,
    }
    assert [report.id for report in outbox.unacknowledged()] == ["aws/i-1"]


async def test_nothing_is_asked_without_a_token(aws: AwsSource) -> None:
    """A service that has version 1 alone, or none, is unknown."""
    with aioresponses() as mocked:
        mocked.put(f"{BASE}/latest/api/token", status=404)
        with pytest.raises(SourceUnavailable, match="token"):
            await aws.poll()
        assert asked(mocked, ACTION) == 0
