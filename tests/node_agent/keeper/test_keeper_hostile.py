"""The keeper keeps nothing of what no honest client sends, and nobody else is disturbed by it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.node_agent.keeper.keeper_world import KeeperScene, a_state, keeping, memory
from tests.testkit.waiting import until

STATE = "5a" * 32


@pytest.fixture
async def scene() -> AsyncIterator[KeeperScene]:
    with memory() as directory:
        async with keeping(directory) as running:
            yield running
            # Whatever was sent, others are served.
            assert (await running.put(a_state(), 0, b"honest"))[0] == 201


async def _answered(scene: KeeperScene, *lines: str, body: bytes = b"") -> int:
    reader, writer = await scene.connect()
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
    answer = await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    return int(answer.split(b" ")[1])


def _put(path: str, *headers: str) -> tuple[str, ...]:
    return (f"PUT {path} HTTP/1.1", "Host: keeper", "Authorization: Bearer of-a", *headers)


@pytest.mark.parametrize(
    ("state", "part"),
    [
        ("0" * 63, "0"),
        ("0" * 65, "0"),
        ("G" * 64, "0"),
        ("A" * 64, "0"),
        ("..%2f" * 12, "0"),
        (STATE, "-1"),
        (STATE, "1048576"),
        (STATE, "9" * 5000),
        (STATE, "1e3"),
        (STATE, "%D9%A1"),
        (STATE, "%00"),
        (STATE, "0x1"),
    ],
)
async def test_paths_that_name_no_part(scene: KeeperScene, state: str, part: str) -> None:
    path = f"/v1/states/{state}/{part}"
    assert (await _answered(scene, *_put(path, "Content-Length: 1", "Keep-Seconds: 1"), body=b"x")) == 400
    assert (await _answered(scene, f"GET {path} HTTP/1.1", "Host: keeper")) == 400
    assert scene.files == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("Keep-Seconds: 1",), 411),
        (("Keep-Seconds: 1", "Transfer-Encoding: chunked"), 411),
        (("Keep-Seconds: 1", "Content-Length: 1", "Content-Length: 1"), 400),
        (("Keep-Seconds: 1", "Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (("Keep-Seconds: 1", "Content-Length: -1"), 400),
        (("Keep-Seconds: 1", "Content-Length: 1_0"), 400),
        (("Keep-Seconds: 1", f"Content-Length: {2**50 + 1}"), 400),
        (("Keep-Seconds: 1", f"Content-Length: {2**64}"), 400),
        (("Keep-Seconds: 1", f"Content-Length: {2**50}"), 507),
        (("Content-Length: 1",), 400),
        (("Content-Length: 1", "Keep-Seconds: 1", "Keep-Seconds: 2"), 400),
        *(
            (("Content-Length: 1", f"Keep-Seconds: {seconds}"), 400)
            for seconds in ("", "0", "0.0", "-1", "nan", "inf", "1e9", "1_0", "9" * 400, "1.", "0x1")
        ),
        (("Content-Length: 1", "Keep-Seconds: 1", "Expect: everything"), 417),
    ],
)
async def test_headers_that_say_nothing_usable(scene: KeeperScene, headers: tuple[str, ...], status: int) -> None:
    body = b"" if status == 411 else b"0"
    assert (await _answered(scene, *_put(f"/v1/states/{STATE}/0", *headers), body=body)) == status
    assert scene.files == []
    await until(lambda: scene.keeper.ledger.taken == 0)


@pytest.mark.parametrize("needed", [("-1",), ("x",), ("1", "1"), (str(2**64),), ("1_0",), ("",)])
async def test_a_need_that_is_no_number(scene: KeeperScene, needed: tuple[str, ...]) -> None:
    headers = (f"Needed-Bytes: {each}" for each in needed)
    assert (await _answered(scene, "GET /v1/room HTTP/1.1", "Host: keeper", *headers)) == 400


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("POST /v1/states HTTP/1.1", 404),
        ("PUT /v1/room HTTP/1.1", 405),
        ("GET /v1/states HTTP/1.1", 404),
        ("HEAD /v1/room HTTP/1.1", 405),
        ("GET / HTTP/1.1", 404),
        ("nonsense", 400),
        ("GET /v1/room HTTP/9.9", 400),
    ],
)
async def test_calls_that_there_are_not(scene: KeeperScene, line: str, status: int) -> None:
    assert (await _answered(scene, line, "Host: keeper")) == status


async def test_a_body_that_is_shorter_than_announced_is_not_kept(scene: KeeperScene) -> None:
    reader, writer = await scene.connect()
    writer.write(
        ("\r\n".join(_put(f"/v1/states/{STATE}/0", "Content-Length: 9", "Keep-Seconds: 9")) + "\r\n\r\n12345").encode()
    )
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await until(lambda: scene.keeper.ledger.taken == 0)
    assert scene.files == []


async def test_what_follows_a_part_is_not_a_part_of_it(scene: KeeperScene) -> None:
    """Bytes beyond the Content-Length are no further request: no honest client sends one before the answer."""
    reader, writer = await scene.connect()
    lines = _put(f"/v1/states/{STATE}/0", "Content-Length: 4", "Keep-Seconds: 9")
    writer.write(("\r\n".join(lines) + "\r\n\r\n12345678").encode())
    await asyncio.wait_for(reader.read(), 30)
    writer.close()
    assert await scene.get(STATE, 0) in {b"1234", None}


async def test_a_head_has_few_headers(scene: KeeperScene) -> None:
    """So that heads that never end take no memory that parts should have."""
    more = (f"X-{number}: {'x' * 8000}" for number in range(17))
    assert (await _answered(scene, "GET /v1/room HTTP/1.1", "Host: keeper", *more)) == 400
