"""Whatever one pod does with its connections, others keep and fetch their states.

A peer is an address of loopback here. Those who disturb send as tenants b0, b1 and so on; the honest one is tenant a.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from node_agent.keeper.refusals import RefusalCode
from tests.node_agent.keeper.keeper_world import MIB, KeeperScene, Reviews, a_state, head, keeping, memory
from tests.testkit.waiting import until

HONEST, HOSTILE = "127.0.0.1", "127.0.0.9"
STATE, PART = "5a" * 32, b"what a job needs"
ALL, OF_PEER = 512, 128
LONG = 120.0
"""Seconds for which a transfer may stand still here: longer than any test."""


@pytest.fixture
async def scene() -> AsyncIterator[KeeperScene]:
    tenants = {"of-a": "a", **{f"of-b{number}": f"b{number}" for number in range(8)}}
    with memory() as directory:
        async with keeping(directory, reviews=Reviews(tenants), stall_seconds=LONG) as running:
            yield running


class Visitors:
    """Connections of one tenant, which stay open."""

    def __init__(self, scene: KeeperScene) -> None:
        self._scene = scene
        self._open: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def arrive(self, count: int, peer: str) -> None:
        """Opens connections and asks nothing."""
        for _ in range(count):
            self._open.append(await self._scene.connect(peer))

    async def begin(self, count: int, peer: str, by: str) -> int:
        """Begins uploads that then stand still; returns how many the keeper goes on with."""
        before, refused = self._drafts(), self._refused()
        for _ in range(count):
            reader, writer = await self._scene.connect(peer)
            writer.write(head(a_state(), 0, 2, by) + b"1")
            self._open.append((reader, writer))
        await until(lambda: self._drafts() - before + self._refused() - refused == count)
        return self._drafts() - before

    async def leave(self) -> None:
        for _reader, writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for _reader, writer in self._open), return_exceptions=True)
        self._open.clear()

    def _drafts(self) -> int:
        return sum(name.startswith("draft-") for name in self._scene.files)

    def _refused(self) -> int:
        return self._scene.refused[RefusalCode.TOO_MANY] + self._scene.refused[RefusalCode.CROWDED]


@pytest.fixture
async def visitors(scene: KeeperScene) -> AsyncIterator[Visitors]:
    some = Visitors(scene)
    yield some
    await some.leave()


async def _kept_and_fetched(scene: KeeperScene, peer: str) -> bool:
    """Whether a job can use the keeper as if nobody else were there."""
    return await _put(scene, peer) == 201 and await _get(scene, peer) == PART


async def _put(scene: KeeperScene, peer: str, by: str = "of-a") -> int:
    answer = await _answer(scene, peer, head(STATE, 0, len(PART), by, "Connection: close") + PART)
    return int(answer.split(b" ")[1]) if answer else 0


async def _get(scene: KeeperScene, peer: str) -> bytes:
    asked = f"GET /v1/states/{STATE}/0 HTTP/1.1\r\nHost: keeper\r\nConnection: close\r\n\r\n"
    return (await _answer(scene, peer, asked.encode())).partition(b"\r\n\r\n")[2]


async def _answer(scene: KeeperScene, peer: str, request: bytes) -> bytes:
    reader, writer = await scene.connect(peer)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("peer", [HONEST, HOSTILE], ids=["elsewhere", "behind the same address"])
async def test_connections_that_ask_nothing_keep_nobody_out(scene: KeeperScene, visitors: Visitors, peer: str) -> None:
    """The oldest of them gives way, also to somebody with the same address."""
    await visitors.arrive(ALL + 100, HOSTILE)
    assert await _kept_and_fetched(scene, peer)
    assert scene.refused[RefusalCode.CROWDED] >= ALL + 100 - OF_PEER


async def test_connections_of_many_peers_that_ask_nothing_keep_nobody_out(
    scene: KeeperScene, visitors: Visitors
) -> None:
    for number in range(2, 8):
        await visitors.arrive(OF_PEER, f"127.0.0.{number}")
    await until(lambda: scene.refused[RefusalCode.CROWDED] == 6 * OF_PEER - ALL)
    assert await _kept_and_fetched(scene, HONEST)


async def test_one_peer_has_a_quarter_of_the_connections(scene: KeeperScene, visitors: Visitors) -> None:
    """It gets no more, whoever may be behind it, and although it uses each of them."""
    begun = [await visitors.begin(ALL // 8, HOSTILE, f"of-b{number}") for number in range(8)]
    assert sum(begun) == OF_PEER
    assert await _kept_and_fetched(scene, HONEST)
    await visitors.leave()
    await until(lambda: len(scene.files) == 1)
    assert await _kept_and_fetched(scene, HOSTILE)


async def test_one_tenant_has_half_of_the_connections(scene: KeeperScene, visitors: Visitors) -> None:
    """However many pods it has."""
    begun = [await visitors.begin(OF_PEER // 2, f"127.0.0.{number}", "of-b0") for number in range(2, 10)]
    assert sum(begun) == ALL // 2
    assert await _put(scene, "127.0.0.20", "of-b0") == 429
    assert await _kept_and_fetched(scene, HONEST)


async def test_one_tenant_has_half_of_the_connections_of_an_address(scene: KeeperScene, visitors: Visitors) -> None:
    """Pods of other tenants may have the same address, where the network hides theirs behind that of their node."""
    assert await visitors.begin(OF_PEER, HOSTILE, "of-b0") == OF_PEER // 2
    assert await _kept_and_fetched(scene, HOSTILE)


async def test_a_reader_counts_as_one_of_the_tenant_whose_state_it_reads(
    scene: KeeperScene, visitors: Visitors
) -> None:
    """It shows no token."""
    assert await _put(scene, HONEST, "of-b0") == 201
    assert await visitors.begin(OF_PEER // 2, HOSTILE, "of-b0") == OF_PEER // 2
    assert await _get(scene, HONEST) == PART
    assert b"too_many" in await _get(scene, HOSTILE)


@pytest.mark.parametrize(
    ("length", "first", "second"), [(4 * MIB, MIB, 2 * MIB), (4, 1, 3)], ids=["some of it", "all of it"]
)
async def test_a_sender_that_is_just_fast_enough_ends_when_its_time_has_ended(
    scene: KeeperScene, length: int, first: int, second: int
) -> None:
    """Its part could not be kept any more."""
    before = scene.free
    reader, writer = await scene.connect(HOSTILE)
    writer.write(head(STATE, 0, length) + bytes(first))
    await until(lambda: scene.free < before)
    scene.clock.system += 61.0
    writer.write(bytes(second))
    assert await asyncio.wait_for(reader.readline(), 30) == b"HTTP/1.1 408 Request Timeout\r\n"
    writer.close()
    await until(lambda: scene.files == [])


async def test_a_reader_that_stands_still_is_ended() -> None:
    """It holds its connection for no longer than the time in which it has to read something."""
    with memory() as directory:
        async with keeping(directory, host=64 * MIB, tenant=64 * MIB, stall_seconds=0.05) as scene:
            assert (await scene.put(STATE, 0, bytes(32 * MIB)))[0] == 201
            reader, writer = await scene.connect(HOSTILE)
            writer.write(f"GET /v1/states/{STATE}/0 HTTP/1.1\r\nHost: keeper\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # The stubs know the base class only.
            # The kernel would end it after 15 s, as nothing is acknowledged.
            await until(lambda: scene.refused[RefusalCode.TOO_SLOW] == 1, seconds=10.0)
            writer.transport.abort()
