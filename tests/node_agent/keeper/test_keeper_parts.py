"""Parts over real HTTP, in real files: whole or not there, within bounds, and no longer than their time."""

import asyncio
import resource
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest

from node_agent.keeper.ledger import Tenant
from node_agent.keeper.metrics import KeeperMetrics
from node_agent.keeper.refusals import RefusalCode
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from tests.node_agent.keeper.keeper_world import MIB, KeeperClock, KeeperScene, Reviews, a_state, head, keeping, memory
from tests.testkit.waiting import until

STATE = "5a" * 32


@pytest.fixture
async def scene() -> AsyncIterator[KeeperScene]:
    with memory() as directory:
        async with keeping(directory) as running:
            yield running


async def test_what_is_put_can_be_read_by_who_knows_the_state(scene: KeeperScene) -> None:
    """Without a token: the pods of a resumed job are new ones. Nobody else finds it."""
    data = secrets.token_bytes(3 * MIB + 17)
    assert await scene.put(STATE, 3, data) == (201, {})
    assert await scene.get(STATE, 3) == data
    assert await scene.get(STATE, 4) is None
    assert await scene.get(a_state(), 3) is None
    assert await scene.put(STATE, 4, b"") == (201, {})
    assert await scene.get(STATE, 4) == b""


async def test_a_second_put_replaces_a_part(scene: KeeperScene) -> None:
    before = await scene.room()
    for data in (b"first", b"the second"):
        assert (await scene.put(STATE, 0, data))[0] == 201
    assert await scene.get(STATE, 0) == b"the second"
    await until(lambda: scene.free == before - 4096)
    assert len(scene.files) == 1


async def test_delete_removes_a_state_and_gives_its_room_back(scene: KeeperScene) -> None:
    before = await scene.room()
    for part in (0, 1):
        await scene.put(STATE, part, bytes(MIB))
    other = a_state()
    await scene.put(other, 0, b"other")
    assert await scene.room() == before - 2 * MIB - 4096
    for _ in range(2):
        assert await scene.delete(STATE) == 204
    assert [await scene.get(STATE, part) for part in (0, 1)] == [None, None]
    assert await scene.get(other, 0) == b"other"
    await until(lambda: scene.free == before - 4096)


async def test_an_upload_that_is_cut_leaves_nothing(scene: KeeperScene) -> None:
    """Its room is taken before its first byte, and given back when its connection is gone."""
    before = await scene.room()
    writer = await scene.begin(STATE, 0, 4 * MIB)
    await until(lambda: scene.free == before - 4 * MIB)
    writer.write(bytes(2 * MIB))
    await writer.drain()
    [draft] = scene.files
    assert draft.startswith("draft-")
    writer.transport.abort()
    await until(lambda: scene.free == before)
    assert scene.files == []
    assert await scene.get(STATE, 0) is None


async def test_the_older_part_stays_while_the_one_that_replaces_it_is_cut(scene: KeeperScene) -> None:
    await scene.put(STATE, 0, b"older")
    before = scene.free
    writer = await scene.begin(STATE, 0, MIB)
    await until(lambda: scene.free < before)
    writer.transport.abort()
    await until(lambda: scene.free == before)
    assert await scene.get(STATE, 0) == b"older"


async def test_an_upload_that_stalls_is_ended() -> None:
    """A part whose body stops does not hold its room."""
    with memory() as directory:
        async with keeping(directory, stall_seconds=0.3) as impatient:
            before = await impatient.room()
            reader, writer = await impatient.connect()
            writer.write(head(STATE, 0, 4 * MIB) + b"begun")
            assert await asyncio.wait_for(reader.readline(), 20) == b"HTTP/1.1 408 Request Timeout\r\n"
            writer.close()
            await until(lambda: impatient.free == before)
            assert (impatient.refused[RefusalCode.TOO_SLOW], impatient.files) == (1, [])


async def test_concurrent_uploads_stay_within_the_bounds_of_tenant_and_host() -> None:
    """Twelve uploads of a mebibyte at once: each tenant gets at most three in, and the host five."""
    with memory() as directory:
        async with keeping(directory, host=5 * MIB, tenant=3 * MIB) as scene:
            states = {token: a_state() for token in ("of-a", "of-b")}
            answers = await asyncio.gather(
                *(scene.put(states[token], part, bytes(MIB), token) for part in range(6) for token in states)
            )
            codes = [status for status, _ in answers]
            assert codes.count(201) == 5
            assert {status for status in codes if status != 201} == {HTTPStatus.INSUFFICIENT_STORAGE}
            assert {refusal["code"] for status, refusal in answers if status != 201} == {"no_room"}
            assert all(refusal["bytes"] < MIB for status, refusal in answers if status != 201)
            for state in states.values():
                whole = [part for part in range(6) if await scene.get(state, part) is not None]
                assert len(whole) <= 3
            assert (await scene.room("of-a"), await scene.room("of-b")) == (0, 0)


async def test_a_part_that_the_host_cannot_hold_is_refused_although_its_bound_allows_it() -> None:
    """Whether the file system says so before, or the memory ends while it arrives. Nothing is left of such a part."""
    with memory() as directory:
        async with keeping(directory, host=2**49, tenant=2**49) as scene:
            before = await scene.room()
            assert before < 2**49
            reader, writer = await scene.connect()
            writer.write(head(STATE, 0, 2**48, "of-a", "Expect: 100-continue"))
            assert await reader.readline() == b"HTTP/1.1 507 Insufficient Storage\r\n"
            writer.close()
            with _no_larger_files(20 * MIB):
                status, refusal = await scene.put(STATE, 0, bytes(40 * MIB))
                assert (status, refusal["code"]) == (507, "no_room")
            await until(lambda: scene.keeper.ledger.taken == 0)
            assert scene.files == []
            assert (await scene.put(STATE, 0, b"small"))[0] == 201


@contextmanager
def _no_larger_files(most: int) -> Iterator[None]:
    """The kernel takes no memory for a file beyond this size, as if there were none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_memory_is_taken_as_the_bytes_arrive(scene: KeeperScene) -> None:
    """To take all of it first would last longer than a request may, for parts of some gigabytes."""
    before = scene.free
    writer = await scene.begin(STATE, 0, 7 * MIB)
    writer.write(bytes(MIB))

    def taken() -> int:
        return sum(path.stat().st_blocks * 512 for path in scene.directory.glob("draft-*"))

    await until(lambda: taken() >= MIB)
    assert (taken(), scene.free) == (MIB, before - 7 * MIB)
    writer.transport.abort()


async def test_what_is_announced_is_not_free_although_no_byte_of_it_has_come() -> None:
    """Neither to its tenant nor to another one, where the file system has less than the bounds allow."""
    with memory() as directory:
        async with keeping(directory, host=2**49, tenant=2**49) as scene:
            free = scene.keeper.room(Tenant("b"))
            writer = await scene.begin(STATE, 0, 3 * free // 4)
            await until(lambda: scene.keeper.room(Tenant("b")) < free // 2)
            reader, second = await scene.connect()
            second.write(head(a_state(), 0, free // 2, "of-b", "Expect: 100-continue"))
            assert await reader.readline() == b"HTTP/1.1 507 Insufficient Storage\r\n"
            second.close()
            writer.transport.abort()


async def test_another_tenant_cannot_put_into_a_state(scene: KeeperScene) -> None:
    """Also when it knows its name. What it may do with it is to read and to delete."""
    await scene.put(STATE, 0, b"of a", "of-a")
    status, refusal = await scene.put(STATE, 1, b"of b", "of-b")
    assert (status, refusal["code"]) == (403, "foreign_state")
    assert (await scene.put(STATE, 1, b"of a", "of-a"))[0] == 201


async def test_a_part_is_gone_when_its_time_has_come(scene: KeeperScene) -> None:
    """Its seconds are the client's, at most the keeper's own."""
    before = await scene.room()
    await scene.put(STATE, 0, b"short", **{"Keep-Seconds": "5.5"})
    await scene.put(STATE, 1, b"long", **{"Keep-Seconds": "999999"})
    scene.clock.system += 5.4
    scene.keeper.expire()
    assert await scene.get(STATE, 0) == b"short"
    scene.clock.system += 0.2
    assert await scene.get(STATE, 0) is None, "nobody has swept yet"
    scene.keeper.expire()
    await until(lambda: len(scene.files) == 1)
    scene.clock.system += 594.0
    assert await scene.get(STATE, 1) == b"long"
    scene.clock.system += 1.0
    scene.keeper.expire()
    await until(lambda: scene.files == [])
    assert await scene.room() == before
    assert scene.keeper.ledger.states == 0


async def test_a_part_whose_file_somebody_else_has_removed_hinders_no_other(scene: KeeperScene) -> None:
    """Its memory is free, and the room of all parts comes back."""
    before = await scene.room()
    for number in range(3):
        await scene.put(STATE, number, b"part", **{"Keep-Seconds": "5"})
    (scene.directory / scene.files[1]).unlink()
    scene.clock.system += 6.0
    scene.keeper.expire()
    await until(lambda: scene.files == [])
    await until(lambda: scene.keeper.ledger.taken == 0)
    assert await scene.room() == before


async def test_a_removed_part_frees_its_memory_while_somebody_reads_it(scene: KeeperScene) -> None:
    """A reader that dawdles keeps no memory beyond the bounds, and sees that the rest is missing."""
    await scene.put(STATE, 0, bytes(8 * MIB - 4096))
    reader, writer = await scene.connect()
    writer.write(f"GET /v1/states/{STATE}/0 HTTP/1.1\r\nHost: keeper\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    await scene.delete(STATE)
    await until(lambda: scene.files == [])
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await asyncio.wait_for(reader.readexactly(8 * MIB - 4096), 20)
    writer.close()


async def test_a_state_that_is_deleted_while_a_part_arrives_stays_deleted(scene: KeeperScene) -> None:
    before = await scene.room()
    reader, writer = await scene.connect()
    writer.write(head(STATE, 0, 8) + b"1234")
    await until(lambda: scene.free < before)
    await scene.delete(STATE)
    writer.write(b"5678")
    assert await reader.readline() == b"HTTP/1.1 409 Conflict\r\n"
    writer.close()
    await until(lambda: scene.free == before)
    assert scene.files == []


async def test_another_process_goes_on_with_what_is_kept() -> None:
    """Whole parts keep their tenant and the rest of their time; drafts, and what has expired since, are gone."""
    clock, reviews = KeeperClock(1e9), Reviews()
    with memory() as directory:
        async with keeping(directory, clock=clock, reviews=reviews) as scene:
            await scene.put(STATE, 0, b"whole")
            await scene.put(STATE, 1, b"short", **{"Keep-Seconds": "5"})
        # As a process leaves them that was killed.
        (directory / "draft-7").write_bytes(bytes(MIB))
        (directory / "removed-8").write_bytes(bytes(MIB))
        clock.system += 10.0
        async with keeping(directory, clock=clock, reviews=reviews) as scene:
            await until(lambda: len(scene.files) == 1)
            assert await scene.get(STATE, 0) == b"whole"
            assert await scene.get(STATE, 1) is None
            assert await scene.room() == 8 * MIB - 4096
            assert (await scene.put(STATE, 2, b"", "of-b"))[0] == 403
            assert (await scene.put(STATE, 2, b""))[0] == 201
            clock.system += 50.1
            assert await scene.get(STATE, 0) is None


async def test_a_clock_that_was_set_back_keeps_nothing_for_longer() -> None:
    """A part whose time is far ahead after a restart is kept for the keeper's own seconds."""
    clock = KeeperClock(1e9)
    with memory() as directory:
        async with keeping(directory, clock=clock) as scene:
            await scene.put(STATE, 0, b"kept")
        clock.system -= 1e6
        async with keeping(directory, clock=clock, seconds=30.0) as scene:
            assert await scene.get(STATE, 0) == b"kept"
            clock.system += 30.0
            assert await scene.get(STATE, 0) is None


async def test_a_client_may_wait_until_there_is_room(scene: KeeperScene) -> None:
    """With `Expect: 100-continue` it sends no byte of a part that is refused."""
    reader, writer = await scene.connect()
    writer.write(head(STATE, 0, 4, "of-a", "Expect: 100-continue"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"data")
    assert await reader.readline() == b"HTTP/1.1 201 Created\r\n"
    writer.close()
    reader, writer = await scene.connect()
    writer.write(head(STATE, 1, 9 * MIB, "of-a", "Expect: 100-continue"))
    assert await reader.readline() == b"HTTP/1.1 507 Insufficient Storage\r\n"
    writer.close()


async def test_what_expires_is_counted_by_whether_it_was_read() -> None:
    """A job that resumes reads its parts, and removes them at its next checkpoint. All of a part has to be read."""
    metrics = KeeperMetrics("0", Bulkhead(Clock()))
    with memory() as directory:
        async with keeping(directory, host=64 * MIB, tenant=64 * MIB) as scene:
            scene.keeper.on_expired = metrics.on_expired
            for number in range(3):
                assert (await scene.put(STATE, number, bytes(16 * MIB)))[0] == 201
            assert await scene.get(STATE, 0) == bytes(16 * MIB)
            reader, writer = await scene.connect()
            writer.write(f"GET /v1/states/{STATE}/1 HTTP/1.1\r\nHost: keeper\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
            scene.clock.system += 60.0
            scene.keeper.expire()
    found = {
        read: metrics.registry.get_sample_value("state_keeper_expired_parts_total", {"read": read})
        for read in ("yes", "no")
    }
    assert found == {"yes": 1.0, "no": 2.0}
