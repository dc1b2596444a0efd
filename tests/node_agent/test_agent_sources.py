"""The sources: what each answer of the outside world means."""

import asyncio
import gzip
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest
import pytest_asyncio

from node_agent.notices import Clear, MetadataMode, NodeIdentity, Noticed, SourceUnavailable
from node_agent.sources.file import FileSource
from node_agent.sources.termination_time import ALIYUN, TerminationTimeSource
from servicekit.clock import Clock
from tests.node_agent.fake_metadata import IDENTITY, TERMINATION, FakeMetadata, Reply, metadata
from tests.testkit.clocks import HandClock

STAMP = b"2026-01-05T18:02:00Z"
DEADLINE = datetime(2026, 1, 5, 18, 2, tzinfo=UTC)

MALFORMED = [
    b"soon",
    b"2026-01-05T18:02:00",
    b"2026-01-05 18:02:00Z",
    b"2026-1-5T18:02:00Z",
    b"2026-13-05T18:02:00Z",
    b"2026-01-05T18:02:00.5Z",
    b"2026-01-05T18:02:00+00:00",
    b"2026-01-05T18:02:00Z 2026-01-05T18:02:00Z",
    b'{"action":"terminate","time":"2026-01-05T18:02:00Z"}',
    b"<html>captive portal</html>",
    "\uff12\uff10\uff12\uff16-01-05T18:02:00Z".encode(),
    b"\xff\xfe",
    b"x" * 5000,
    b" " * 5000,
    STAMP + b" " * 5000 + b"junk",
]


NOW = DEADLINE.timestamp() - 300


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeMetadata]:
    async with metadata() as service:
        yield service


@pytest_asyncio.fixture
async def aliyun(fake: FakeMetadata) -> AsyncIterator[Callable[..., TerminationTimeSource]]:
    sources: list[TerminationTimeSource] = []

    def make(
        mode: MetadataMode = MetadataMode.AUTO, clock: Clock | None = None, url: str = ""
    ) -> TerminationTimeSource:
        sources.append(TerminationTimeSource(ALIYUN, url or fake.url, clock or HandClock(NOW), mode))
        return sources[-1]

    yield make
    for source in sources:
        await source.close()


Aliyun = Callable[..., TerminationTimeSource]


@pytest.mark.parametrize("reply", [Reply(404), Reply(404, STAMP), Reply(200), Reply(200, b"\n")])
async def test_nothing_is_announced(fake: FakeMetadata, aliyun: Aliyun, reply: Reply) -> None:
    """404, and an empty answer in older services, mean: no release is planned."""
    fake.replies[TERMINATION] = reply
    assert await aliyun().poll() == Clear()


async def test_a_release_is_announced(fake: FakeMetadata, aliyun: Aliyun) -> None:
    fake.replies[TERMINATION] = Reply(
        200, STAMP + b"\n", date=format_datetime(datetime.fromtimestamp(NOW, UTC), usegmt=True)
    )
    answer = await aliyun().poll()
    assert answer == Noticed(DEADLINE, 300.0, "the spot instance will be released")


@pytest.mark.parametrize("body", MALFORMED)
async def test_a_malformed_answer_is_unknown(fake: FakeMetadata, aliyun: Aliyun, body: bytes) -> None:
    fake.replies[TERMINATION] = Reply(200, body)
    with pytest.raises(SourceUnavailable, match=r"malformed|larger"):
        await aliyun().poll()


@pytest.mark.parametrize("status", [201, 204, 301, 400, 401, 403, 410, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("mode", list(MetadataMode))
async def test_other_statuses_are_unknown(fake: FakeMetadata, aliyun: Aliyun, status: int, mode: MetadataMode) -> None:
    """Refusals and failures never mean that nothing is announced, and a notice in their body is none."""
    fake.replies[TERMINATION] = Reply(status, b"" if status == 204 else STAMP, headers={"Location": "/elsewhere"})
    with pytest.raises(SourceUnavailable, match=f"HTTP {status}"):
        await aliyun(mode).poll()


async def test_a_redirect_is_not_followed(fake: FakeMetadata, aliyun: Aliyun) -> None:
    """Somebody else's 404 behind a redirect must not read as no notice."""
    fake.replies[TERMINATION] = Reply(302, headers={"Location": f"{fake.url}/nowhere"})
    with pytest.raises(SourceUnavailable, match="302"):
        await aliyun().poll()
    assert len(fake.requests) == 1


async def test_a_compressed_answer_is_not_unpacked(fake: FakeMetadata, aliyun: Aliyun) -> None:
    """Four kilobytes can unpack to any size, so not even a good timestamp is looked for in there."""
    fake.replies[TERMINATION] = Reply(200, gzip.compress(STAMP), headers={"Content-Encoding": "gzip"})
    with pytest.raises(SourceUnavailable):
        await aliyun().poll()


async def test_nobody_there_is_unknown(aliyun: Aliyun) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SourceUnavailable, match="no answer"):
        await aliyun(url=f"http://127.0.0.1:{port}").poll()


@pytest.mark.parametrize("said", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n2026"])
async def test_a_broken_answer_is_unknown(aliyun: Aliyun, said: bytes) -> None:
    """A connection that ends too early or speaks no HTTP is a failure; half a timestamp is no timestamp."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SourceUnavailable, match="no answer"):
            await aliyun(url=f"http://127.0.0.1:{port}").poll()


async def test_no_proxy_and_no_forwarding_header(
    fake: FakeMetadata, aliyun: Aliyun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's proxies are not for a link-local service, which refuses whatever was forwarded."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await aliyun().poll() == Clear()
    assert "X-Forwarded-For" not in fake.requests[0][2]


@pytest.mark.parametrize(
    ("node_clock", "date", "left"),
    [
        # Clocks agree: the node's clock tells the part of the Date's second that has passed.
        (NOW + 0.4, NOW, 299.6),
        # The node's clock is an hour off, either way: the Date's second bounds it.
        (NOW - 3600, NOW, 300.0),
        (NOW + 3600, NOW, 299.0),
        # No Date, or one that cannot be true: the node's clock.
        (NOW + 7, None, 293.0),
        (NOW + 7, 0.0, 293.0),
        # By the Date it should have been gone for an hour, and yet it runs: the Date is wrong.
        (NOW + 7, NOW + 3900, 293.0),
        # By the Date it is hours away, which nobody announces so early: the Date is wrong.
        (NOW + 7, NOW - 7200, 293.0),
        # The deadline has passed.
        (NOW + 310, NOW + 310, -10.0),
    ],
)
async def test_seconds_left_are_counted_by_the_clock_that_named_the_deadline(
    fake: FakeMetadata, aliyun: Aliyun, node_clock: float, date: float | None, left: float
) -> None:
    stamp = "not a date" if date is None else format_datetime(datetime.fromtimestamp(date, UTC), usegmt=True)
    fake.replies[TERMINATION] = Reply(200, STAMP, date=stamp)
    answer = await aliyun(clock=HandClock(node_clock)).poll()
    assert isinstance(answer, Noticed)
    assert answer.seconds_left == pytest.approx(left, abs=0.001)


@pytest.mark.parametrize("zone", ["GMT", "-0000", ""])
async def test_a_date_is_never_local_time(
    fake: FakeMetadata, aliyun: Aliyun, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """However its zone is written, HTTP's Date is GMT, on machines of every zone."""
    monkeypatch.setenv("TZ", "UTC-8")
    time.tzset()
    try:
        fake.replies[TERMINATION] = Reply(200, STAMP, date=f"Mon, 05 Jan 2026 17:57:00 {zone}".strip())
        answer = await aliyun(clock=HandClock(NOW + 77)).poll()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert isinstance(answer, Noticed)
    assert answer.seconds_left == 299.0


async def test_hardened_mode_uses_one_token_for_many_polls(fake: FakeMetadata, aliyun: Aliyun) -> None:
    fake.hardened = True
    source = aliyun(MetadataMode.HARDENED)
    for _ in range(3):
        assert await source.poll() == Clear()
    assert fake.asked == ["PUT token", *["GET termination-time"] * 3]


async def test_plain_mode_never_asks_for_a_token(fake: FakeMetadata, aliyun: Aliyun) -> None:
    fake.hardened = True
    with pytest.raises(SourceUnavailable, match="403"):
        await aliyun(MetadataMode.PLAIN).poll()
    assert fake.asked == ["GET termination-time"]


async def test_auto_mode_asks_plainly_while_that_works(fake: FakeMetadata, aliyun: Aliyun) -> None:
    source = aliyun()
    await source.poll()
    await source.poll()
    assert fake.asked == ["GET termination-time"] * 2


async def test_auto_mode_turns_to_tokens_and_stays_there(fake: FakeMetadata, aliyun: Aliyun) -> None:
    """Refused once, answered with a token in the same poll, and no refused request from then on."""
    fake.hardened = True
    source = aliyun()
    for _ in range(2):
        assert await source.poll() == Clear()
    assert fake.asked == ["GET termination-time", "PUT token", *["GET termination-time"] * 2]


async def test_a_refused_token_is_renewed_once(fake: FakeMetadata, aliyun: Aliyun) -> None:
    """401 costs one new token and one more request within the same poll."""
    fake.hardened = True
    source = aliyun(MetadataMode.HARDENED)
    await source.poll()
    fake.tokens.clear()
    assert await source.poll() == Clear()
    get = "GET termination-time"
    assert fake.asked == ["PUT token", get, get, "PUT token", get]


async def test_tokens_that_are_always_refused_are_not_tried_for_ever(fake: FakeMetadata, aliyun: Aliyun) -> None:
    """A second 401 in one poll is unknown."""
    fake.token_reply = Reply(200, b"bad")
    with pytest.raises(SourceUnavailable, match="401"):
        await aliyun(MetadataMode.HARDENED).poll()
    assert fake.asked == ["PUT token", "GET termination-time"] * 2


@pytest.mark.parametrize("reply", [Reply(400), Reply(403), Reply(404), Reply(500), Reply(200), Reply(200, b"a b")])
async def test_no_token_is_unknown(fake: FakeMetadata, aliyun: Aliyun, reply: Reply) -> None:
    """Without a usable token nothing is known: its 404 is not the 404 of no notice."""
    fake.hardened = True
    fake.token_reply = reply
    for mode in (MetadataMode.HARDENED, MetadataMode.AUTO):
        with pytest.raises(SourceUnavailable, match="token"):
            await aliyun(mode).poll()


async def test_a_token_is_renewed_before_it_expires(fake: FakeMetadata, aliyun: Aliyun) -> None:
    clock = HandClock(NOW)
    source = aliyun(MetadataMode.HARDENED, clock)
    await source.poll()
    clock.steady += 21600 - 301
    await source.poll()
    assert fake.asked.count("PUT token") == 1
    clock.steady += 2
    await source.poll()
    assert fake.asked.count("PUT token") == 2


async def test_an_old_token_serves_while_no_new_one_can_be_had(fake: FakeMetadata, aliyun: Aliyun) -> None:
    """A renewal that fails makes nothing unknown before the old token has expired."""
    clock = HandClock(NOW)
    source = aliyun(MetadataMode.HARDENED, clock)
    await source.poll()
    fake.token_reply = Reply(500)
    clock.steady += 21600 - 1
    assert await source.poll() == Clear()
    clock.steady += 1
    with pytest.raises(SourceUnavailable, match="token"):
        await source.poll()


@pytest.mark.parametrize(
    ("retry_after", "seconds"), [("3", 3.0), ("3600", 5.0), ("9" * 5000, 5.0), ("-1", 0.0), ("soon", 0.0), ("٣", 0.0)]
)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_wait_that_is_asked_for_is_kept_within_bounds(
    fake: FakeMetadata, aliyun: Aliyun, retry_after: str, seconds: float, status: int
) -> None:
    """No request is sent before that, but five seconds are the most: a notice may be waiting behind them."""
    clock = HandClock(NOW)
    source = aliyun(clock=clock)
    fake.replies[TERMINATION] = Reply(status, headers={"Retry-After": retry_after})
    with pytest.raises(SourceUnavailable, match=str(status)):
        await source.poll()
    fake.replies[TERMINATION] = Reply(404)
    if seconds:
        clock.steady += seconds - 0.001
        with pytest.raises(SourceUnavailable, match="waits"):
            await source.poll()
        clock.steady += 0.001
    assert await source.poll() == Clear()
    assert len(fake.requests) == 2


async def test_the_instance_is_asked_for_once(fake: FakeMetadata, aliyun: Aliyun) -> None:
    source = aliyun()
    for _ in range(2):
        assert await source.identify() == NodeIdentity("i-1", "cn-beijing", "cn-beijing-a", "ecs.gn6i", "aliyun")
    assert len(fake.requests) == 4


async def test_without_an_id_there_is_no_identity_and_it_is_asked_again(fake: FakeMetadata, aliyun: Aliyun) -> None:
    """An id that cannot be had now is asked for again; anything that is no id is none."""
    source = aliyun()
    path = "/latest/meta-data/instance-id"
    for reply in (Reply(404), Reply(500, b"i-1"), Reply(200), Reply(200, b"two words"), Reply(200, b"x" * 129)):
        fake.replies[path] = reply
        with pytest.raises(SourceUnavailable, match="instance-id"):
            await source.identify()
    fake.replies[path] = IDENTITY[path]
    assert (await source.identify()).uid == "i-1"


async def test_what_is_for_people_holds_nothing_up(fake: FakeMetadata, aliyun: Aliyun) -> None:
    """A region that cannot be had keeps neither the agent from its work nor the other facts away."""
    fake.replies["/latest/meta-data/region-id"] = Reply(500)
    assert await aliyun().identify() == NodeIdentity("i-1", "", "cn-beijing-a", "ecs.gn6i", "aliyun")


@pytest.mark.parametrize("content", [None, b"", b"  \n"])
async def test_no_file_or_an_empty_one_announces_nothing(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "notice"
    if content is not None:
        path.write_bytes(content)
    assert await FileSource(path, HandClock(NOW)).poll() == Clear()


async def test_a_file_with_a_timestamp_announces(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    path.write_bytes(STAMP + b"\n")
    source = FileSource(path, HandClock(NOW))
    assert await source.poll() == Noticed(DEADLINE, 300.0, "announced in a file")
    assert await source.identify() is None


@pytest.mark.parametrize("body", MALFORMED)
async def test_a_file_with_anything_else_is_unknown(tmp_path: Path, body: bytes) -> None:
    """What cannot be read as an announcement is neither a notice nor none."""
    path = tmp_path / "notice"
    path.write_bytes(body)
    with pytest.raises(SourceUnavailable, match=r"malformed|larger"):
        await FileSource(path, HandClock(NOW)).poll()


async def test_what_is_no_file_is_unknown_at_once(tmp_path: Path) -> None:
    """A directory, a pipe without a writer and a path through a file neither block nor mean clear."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    before = time.monotonic()
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "file" / "below"):
        with pytest.raises(SourceUnavailable, match="file"):
            await FileSource(path, HandClock(NOW)).poll()
    assert time.monotonic() - before < 15.0
