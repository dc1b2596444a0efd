"""The table of answers: what each thing that a metadata service may say amounts to, where it names instants."""

import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aioresponses import aioresponses

from node_agent.notices import Answer, Clear, MetadataMode, Noticed, NoticeSource, SourceUnavailable
from node_agent.sources import termination_time
from node_agent.sources.aws import AwsSource
from node_agent.sources.termination_time import TerminationTimeSource
from tests.testkit.clocks import HandClock

TIME = "2026-01-05T18:02:00Z"
NOW = datetime(2026, 1, 5, 17, 57, tzinfo=UTC).timestamp()
BASE = "http://metadata.test"
TOKEN_URL = f"{BASE}/latest/api/token"
REBALANCE_URL = f"{BASE}/latest/meta-data/events/recommendations/rebalance"


@dataclass(frozen=True)
class Cloud:
    make: Callable[[], NoticeSource]
    url: str
    write: Callable[[str], bytes]


ALIYUN = Cloud(
    lambda: TerminationTimeSource(termination_time.ALIYUN, BASE, HandClock(NOW), MetadataMode.HARDENED),
    f"{BASE}/latest/meta-data/instance/spot/termination-time",
    str.encode,
)
AWS = Cloud(
    lambda: AwsSource(BASE, HandClock(NOW)),
    f"{BASE}/latest/meta-data/spot/instance-action",
    lambda time: json.dumps({"action": "terminate", "time": time}).encode(),
)
VOLCENGINE = Cloud(
    lambda: TerminationTimeSource(termination_time.VOLCENGINE, BASE, HandClock(NOW), MetadataMode.HARDENED),
    f"{BASE}/latest/spot_instance_termination_time",
    str.encode,
)


def in_china(text: str) -> bytes:
    """The text with each UTC time in it as Tencent Cloud writes it; what is no time stays as it is."""

    def local(found: re.Match[str]) -> str:
        try:
            return f"{datetime.fromisoformat(found[0]) + timedelta(hours=8):%Y-%m-%d %H:%M:%S}".rjust(19, "0")
        except (ValueError, OverflowError):
            return found[0]

    return re.sub(r"(?a:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)", local, text).encode()


TENCENT = Cloud(
    lambda: TerminationTimeSource(termination_time.TENCENT, BASE, HandClock(NOW)),
    f"{BASE}/latest/meta-data/spot/termination-time",
    in_china,
)
CLOUDS = {"aliyun": ALIYUN, "aws": AWS, "volcengine": VOLCENGINE, "tencent": TENCENT}


@dataclass(frozen=True)
class SourceAnswer:
    """An answer of the service: a time in the cloud's own form, or a body as it is, or a failure instead of either."""

    status: int = 200
    time: str | None = None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    failure: Exception | None = None

    def register(self, mocked: aioresponses, method: str, url: str, write: Callable[[str], bytes]) -> None:
        body = self.body if self.time is None else write(self.time)
        getattr(mocked, method)(
            url, status=self.status, body=body, headers=self.headers, exception=self.failure, repeat=True
        )


def at(time: str, **headers: str) -> SourceAnswer:
    return SourceAnswer(time=time, headers=headers)


def dated(date: str) -> SourceAnswer:
    return at(TIME, Date=date)


def status(number: int, **headers: str) -> SourceAnswer:
    """A status other than 200, with an announcement in its body that must not be believed."""
    return SourceAnswer(number, time=TIME, headers={name.replace("_", "-"): value for name, value in headers.items()})


def body(text: bytes, **headers: str) -> SourceAnswer:
    return SourceAnswer(body=text, headers={name.replace("_", "-"): value for name, value in headers.items()})


CLEAR, UNKNOWN, MALFORMED = "clear", "unknown: ", "unknown: malformed"

# What is said · what it means with aliyun · what it means with aws, where that is something else. A notice is written
# as the seconds that are left.
TABLE: list[tuple[str, SourceAnswer, str | float, str | float | None]] = [
    ("nothing planned", status(404), CLEAR, None),
    ("announced", at(TIME), 300.0, None),
    ("empty", body(b""), CLEAR, MALFORMED),
    ("blanks", body(b" \r\n\t"), CLEAR, MALFORMED),
    ("204", SourceAnswer(204), "unknown: HTTP 204", None),
    ("a redirect", status(302, Location=f"{BASE}/elsewhere"), "unknown: HTTP 302", None),
    ("a permanent redirect", status(308, Location=f"{BASE}/elsewhere"), "unknown: HTTP 308", None),
    ("bad request", status(400), "unknown: HTTP 400", None),
    ("token refused twice", status(401), "unknown: HTTP 401", None),
    ("forbidden", status(403), "unknown: HTTP 403", None),
    ("too many requests", status(429), "unknown: HTTP 429", None),
    ("too many requests, wait", status(429, Retry_After="2"), "unknown: HTTP 429", None),
    ("broken", status(500), "unknown: HTTP 500", None),
    ("unavailable", status(503, Retry_After="2"), "unknown: HTTP 503", None),
    ("garbage", body(b"\x00\xff\xfe<html>"), MALFORMED, None),
    ("a captive portal", body(b"<html>TIME</html>"), MALFORMED, None),
    ("huge", body(b"x" * 5_000_000), "unknown: answer larger", None),
    ("a time, and huge blanks after it", body(TIME.encode() + b" " * 5000), "unknown: answer larger", None),
    ("cut off", body(b'{"action":"terminate","ti'), MALFORMED, None),
    ("half a time", at(TIME[:10]), MALFORMED, None),
    ("UTF-16", body(TIME.encode("utf-16")), MALFORMED, None),
    ("full-width digits", at("\uff12\uff10\uff12\uff16-01-05T18:02:00Z"), MALFORMED, None),
    ("another content type", at(TIME, **{"Content-Type": "image/png"}), 300.0, None),
    ("compressed by its own word", body(b"\x1f\x8b\x08", Content_Encoding="gzip"), MALFORMED, None),
    ("two times", at(f"{TIME} {TIME}"), MALFORMED, None),
    ("two times on two lines", at(f"{TIME}\n{TIME}"), MALFORMED, None),
    ("the time of another cloud", body(b'{"action":"terminate","time":"2026-01-05T18:02:00Z"}'), MALFORMED, 300.0),
    ("the bare time", body(TIME.encode()), 300.0, MALFORMED),
    ("blanks around it", at(f" {TIME}\n"), 300.0, None),
    ("just passed", at("2026-01-05T17:56:50Z"), -10.0, None),
    ("long past", at("2015-01-05T18:02:00Z"), -347_154_900.0, None),
    ("far in the future", at("9999-12-31T23:59:59Z"), 251_634_664_979.0, None),
    ("year 1", at("0001-01-01T00:00:00Z"), -63_903_232_620.0, None),
    ("year 0", at("0000-01-01T00:00:00Z"), MALFORMED, None),
    ("without a zone", at(TIME[:-1]), MALFORMED, None),
    ("with another zone", at("2026-01-06T02:02:00+08:00"), MALFORMED, None),
    ("with parts of a second", at("2026-01-05T18:02:00.5Z"), MALFORMED, None),
    ("a leap second", at("2026-01-05T23:59:60Z"), 21_780.0, None),
    ("a leap second at noon", at("2026-01-05T12:00:60Z"), MALFORMED, None),
    ("a leap second at the end of time", at("9999-12-31T23:59:60Z"), MALFORMED, None),
    ("no such day", at("2026-02-30T00:00:00Z"), MALFORMED, None),
    ("Unix seconds", body(b"1000000000"), MALFORMED, None),
    ("Unix seconds with an exponent", body(b"1e9"), MALFORMED, None),
    ("a Date that agrees", dated("Mon, 05 Jan 2026 17:57:00 GMT"), 300.0, None),
    ("a Date a minute earlier", dated("Mon, 05 Jan 2026 17:56:00 GMT"), 359.0, None),
    ("a Date a minute later", dated("Mon, 05 Jan 2026 17:58:00 GMT"), 240.0, None),
    ("a Date long after the time", dated("Mon, 05 Jan 2026 19:57:00 GMT"), 300.0, None),
    ("a Date of another day", dated("Thu, 01 Jan 1970 00:00:00 GMT"), 300.0, None),
    ("a Date that is none", dated("yesterday"), 300.0, None),
    ("a Date of year 99999", dated("Mon, 05 Jan 99999 17:57:00 GMT"), 300.0, None),
    ("no answer in time", SourceAnswer(failure=TimeoutError()), UNKNOWN, None),
    ("refused", SourceAnswer(failure=ConnectionRefusedError()), "unknown: no answer", None),
    ("reset", SourceAnswer(failure=aiohttp.ServerDisconnectedError()), "unknown: no answer", None),
    ("no HTTP", SourceAnswer(failure=aiohttp.ClientPayloadError("garbage")), "unknown: no answer", None),
]
# What the others take the same answer for, where that is not what it means with aliyun.
OTHERS: dict[str, dict[str, str | float]] = {
    "volcengine": {"with another zone": 300.0, "with parts of a second": 300.0},
    "tencent": {
        "the bare time": MALFORMED,
        "far in the future": MALFORMED,
        "a leap second": MALFORMED,
    },
}
# The same for one cloud alone: what is said, and what it means.
TENCENT_TABLE: list[tuple[str, SourceAnswer, str | float]] = [
    ("the day first", body(b"06/01/2026 02:02:00"), 300.0),
    ("the year first, with slashes", body(b"2026/1/6 02:02:00"), 300.0),
    ("no such month", body(b"01/13/2026 02:02:00"), MALFORMED),
    ("two digits of a year", body(b"06/01/26 02:02:00"), MALFORMED),
    ("one digit of an hour", body(b"2026-01-06 2:02:00"), MALFORMED),
    ("without seconds", body(b"2026-01-06 02:02"), MALFORMED),
    ("a zone", body(b"2026-01-06 02:02:00 +0800"), MALFORMED),
    ("before the first instant of UTC", body(b"0001-01-01 01:00:00"), MALFORMED),
    ("a word", body(b"none"), MALFORMED),
]
VOLCENGINE_TABLE: list[tuple[str, SourceAnswer, str | float]] = [
    ("China's zone", body(b"2026-01-06T02:02:00+08:00"), 300.0),
    ("a blank for the T", body(b"2026-01-06 02:02:00+08:00"), 300.0),
    ("a zone of 99 hours", body(b"2026-01-06T02:02:00+99:00"), MALFORMED),
    ("before the first instant of UTC", body(b"0001-01-01T00:00:00+08:00"), MALFORMED),
    ("a blank and no zone", body(b"2026-01-06 02:02:00"), MALFORMED),
]
AWS_TABLE: list[tuple[str, SourceAnswer, str | float]] = [
    ("stop", body(b'{"action":"stop","time":"2026-01-05T18:02:00Z"}'), 300.0),
    ("hibernate", body(b'{"action":"hibernate","time":"2026-01-05T18:02:00Z"}'), 300.0),
    ("more fields", body(b'{"action":"stop","time":"2026-01-05T18:02:00Z","why":["price"]}'), 300.0),
    ("another action", body(b'{"action":"dance","time":"2026-01-05T18:02:00Z"}'), MALFORMED),
    ("no action", body(b'{"time":"2026-01-05T18:02:00Z"}'), MALFORMED),
    ("no time", body(b'{"action":"terminate"}'), MALFORMED),
    ("an empty time", body(b'{"action":"terminate","time":""}'), MALFORMED),
    ("a null time", body(b'{"action":"terminate","time":null}'), MALFORMED),
    ("a time that is a number", body(b'{"action":"terminate","time":1767636120}'), MALFORMED),
    ("a lone surrogate", body(b'{"action":"terminate","time":"\\ud800"}'), MALFORMED),
    ("a list", body(b"[]"), MALFORMED),
    ("nested for ever", body(b"[" * 4000), MALFORMED),
    ("two objects", body(b'{"action":"stop","time":"2026-01-05T18:02:00Z"}' * 2), MALFORMED),
]
# What the token endpoint says · what that makes of a service that would announce.
TOKEN_TABLE: list[tuple[str, SourceAnswer, str]] = [
    ("bad request", SourceAnswer(400), "unknown: no session token: HTTP 400"),
    ("forbidden", SourceAnswer(403), "unknown: no session token: HTTP 403"),
    ("not found", SourceAnswer(404), "unknown: no session token: HTTP 404"),
    ("too many requests", SourceAnswer(429, headers={"Retry-After": "2"}), "unknown: no session token: HTTP 429"),
    ("broken", SourceAnswer(500), "unknown: no session token: HTTP 500"),
    ("a redirect", SourceAnswer(307, headers={"Location": f"{BASE}/t"}), "unknown: no session token: HTTP 307"),
    ("empty", SourceAnswer(), "unknown: no session token: HTTP 200"),
    ("several words", body(b"a b"), "unknown: no session token: HTTP 200"),
    ("a header of its own", body(b"a\r\nX-Forwarded-For: me"), "unknown: no session token: HTTP 200"),
    ("no ASCII", body("schl\u00fcssel".encode()), "unknown: no session token: HTTP 200"),
    ("a page", body(b"<html>" * 500), "unknown: no session token: HTTP 200"),
    ("huge", body(b"x" * 5_000_000), "unknown: answer larger"),
    ("refused", SourceAnswer(failure=ConnectionRefusedError()), "unknown: no answer"),
]


@pytest_asyncio.fixture
async def mocked() -> AsyncIterator[aioresponses]:
    with aioresponses() as mock:
        yield mock


def rows() -> list[Any]:
    """Every row of the tables, for each cloud that it is about."""
    shared = [
        pytest.param(cloud, said, _meaning(name, what, means, other), id=f"{name}-{what}")
        for what, said, means, other in TABLE
        for name, cloud in CLOUDS.items()
    ]
    own = (("aws", AWS_TABLE), ("tencent", TENCENT_TABLE), ("volcengine", VOLCENGINE_TABLE))
    return shared + [
        pytest.param(CLOUDS[name], said, means, id=f"{name}-{what}")
        for name, table in own
        for what, said, means in table
    ]


def _meaning(name: str, what: str, means: str | float, aws: str | float | None) -> str | float:
    if name == "aws":
        return means if aws is None else aws
    return OTHERS.get(name, {}).get(what, means)


async def outcome(cloud: Cloud) -> Answer | str:
    """What one poll gives: its answer, or why it is unknown."""
    source = cloud.make()
    try:
        return await source.poll()
    except (SourceUnavailable, TimeoutError) as unknown:  # The poller takes both as unknown.
        return f"unknown: {unknown}"
    finally:
        await source.close()


def check(found: Answer | str, means: str | float) -> None:
    if isinstance(means, float):
        assert isinstance(found, Noticed), found
        assert found.seconds_left == means
    elif means == CLEAR:
        assert found == Clear()
    else:
        assert isinstance(found, str), found
        assert found.startswith(means)


@pytest.mark.parametrize(("cloud", "said", "means"), rows())
async def test_what_an_answer_means(mocked: aioresponses, cloud: Cloud, said: SourceAnswer, means: str | float) -> None:
    """A documented answer is clear or a notice; everything else is unknown, with a reason."""
    SourceAnswer(body=b"token").register(mocked, "put", TOKEN_URL, cloud.write)
    SourceAnswer(404).register(mocked, "get", REBALANCE_URL, cloud.write)
    said.register(mocked, "get", cloud.url, cloud.write)
    check(await outcome(cloud), means)


@pytest.mark.parametrize("cloud", [ALIYUN, AWS, VOLCENGINE], ids=["aliyun", "aws", "volcengine"])
@pytest.mark.parametrize(("said", "means"), [pytest.param(*row[1:], id=row[0]) for row in TOKEN_TABLE])
async def test_without_a_token_nothing_is_known(
    mocked: aioresponses, cloud: Cloud, said: SourceAnswer, means: str
) -> None:
    """What is asked without a token, or with one that is none, is not asked at all."""
    said.register(mocked, "put", TOKEN_URL, cloud.write)
    check(await outcome(cloud), means)
    assert all(method == "PUT" for method, _ in mocked.requests)


@pytest.mark.parametrize("cloud", [ALIYUN, AWS, VOLCENGINE], ids=["aliyun", "aws", "volcengine"])
async def test_a_token_that_expires_in_mid_poll_costs_nothing(mocked: aioresponses, cloud: Cloud) -> None:
    """Refused for its token, the poll gets a new one and its answer."""
    for token in (b"old", b"new"):
        mocked.put(TOKEN_URL, body=token)
    mocked.get(cloud.url, status=401)
    mocked.get(cloud.url, body=cloud.write(TIME))
    check(await outcome(cloud), 300.0)


@pytest.mark.parametrize("cloud", [ALIYUN, AWS, VOLCENGINE], ids=["aliyun", "aws", "volcengine"])
async def test_a_new_token_that_cannot_be_had_in_mid_poll_is_unknown(mocked: aioresponses, cloud: Cloud) -> None:
    """A service that takes the old token back and grants no new one says nothing about notices."""
    mocked.put(TOKEN_URL, body=b"old")
    mocked.put(TOKEN_URL, status=503)
    mocked.get(cloud.url, status=401)
    check(await outcome(cloud), "unknown: no session token: HTTP 503")


def test_the_tables_are_about_every_cloud() -> None:
    names = [row.id for row in rows()]
    own = len(AWS_TABLE) + len(TENCENT_TABLE) + len(VOLCENGINE_TABLE)
    assert len(names) == len(set(names)) == len(CLOUDS) * len(TABLE) + own
    assert all(what in {row[0] for row in TABLE} for others in OTHERS.values() for what in others)
