"""The ring of sockets, with threads in place of processes."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import numpy as np
import pytest

from simulator.elastic import ring as ring_module
from simulator.elastic.control import (
    Leave,
    MalformedMessageError,
    Message,
    Synced,
    Update,
    WorkerBroken,
    WorkerHello,
    WorkerPlace,
    WorkerReady,
    decode,
    encode,
)
from simulator.elastic.ring import Ring, RingBrokenError

S = TypeVar("S")
T = TypeVar("T")


def never(seconds: float) -> bool:
    threading.Event().wait(min(seconds, 0.005))
    return False


@contextmanager
def listeners(count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]


@contextmanager
def rings(count: int) -> Iterator[list[Ring]]:
    with listeners(count) as ends, ExitStack() as stack:
        yield close_up(ends, 1, stack)


def together(call: Callable[[S], T], members: Sequence[S]) -> list[T]:
    """What the call returns for each member, all of them made at once."""
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(call, members))


def close_up(ends: Sequence[socket.socket], epoch: int, stack: ExitStack) -> list[Ring]:
    ports = tuple(end.getsockname()[1] for end in ends)

    def join(rank: int) -> Ring:
        return stack.enter_context(closing(Ring.close_up(WorkerPlace(epoch, rank, ports), ends[rank], never)))

    return together(join, range(len(ends)))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_everybody_gets_the_exact_sum(size: int) -> None:
    """Sums of integers are the same at every rank, in one round after another."""
    values = [np.array([2**40 + rank, -rank], dtype=np.int64) for rank in range(size)]
    with rings(size) as members:
        for _ in range(3):
            sums = together(lambda member: member.allreduce(values[member.rank]), members)
            assert all(np.array_equal(one, sum(values)) for one in sums)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_everybody_gets_the_payload_of_rank_0(size: int) -> None:
    payload = bytes(range(256)) * 8192
    with rings(size) as members:
        sent = together(lambda member: member.broadcast(payload if member.rank == 0 else b""), members)
    assert set(sent) == {payload}


def test_a_dead_neighbour_is_noticed_by_all() -> None:
    """One end of a connection after the other, the news goes round without a time-out."""

    def add(member: Ring) -> bool:
        try:
            member.allreduce(np.ones(4, dtype=np.int64))
        except RingBrokenError:
            member.close()
            return True
        return False

    with rings(4) as members:
        members[2].close()
        assert together(add, [member for member in members if member.rank != 2]) == [True, True, True]


def test_a_silent_neighbour_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour that is there but says nothing breaks the ring after the time-out."""
    monkeypatch.setattr(ring_module, "SILENCE_SECONDS", 0.1)
    with rings(2) as members, pytest.raises(RingBrokenError, match="said nothing for"):
        members[0].allreduce(np.ones(1, dtype=np.int64))


def test_a_ring_that_is_called_off_is_not_waited_for() -> None:
    """When the launcher says that a member is dead, closing up ends at once."""
    with listeners(2) as ends:
        ports = tuple(end.getsockname()[1] for end in ends)
        with pytest.raises(RingBrokenError, match="called off"):
            Ring.close_up(WorkerPlace(1, 0, ports), ends[0], lambda _: True)


def test_a_neighbour_that_is_gone_cannot_be_joined() -> None:
    with listeners(2) as ends:
        ports = tuple(end.getsockname()[1] for end in ends)
        ends[1].close()
        with pytest.raises(RingBrokenError, match="cannot be reached"):
            Ring.close_up(WorkerPlace(1, 0, ports), ends[0], never)


def test_a_neighbour_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "SETUP_SECONDS", 0.1)
    with listeners(2) as ends:
        ports = tuple(end.getsockname()[1] for end in ends)
        with pytest.raises(RingBrokenError, match="did not come"):
            Ring.close_up(WorkerPlace(1, 0, ports), ends[0], never)


def test_a_leftover_of_a_broken_ring_is_turned_away() -> None:
    """A connection of an earlier epoch, still in the queue, does not get into the ring."""
    with listeners(2) as ends, ExitStack() as stack:
        for end in ends:
            stale = stack.enter_context(socket.create_connection(end.getsockname()))
            stale.sendall((1).to_bytes(4, "big"))
        closed = close_up(ends, 2, stack)
        sums = together(lambda member: member.allreduce(np.array([member.rank + 1])), closed)
        assert [int(one[0]) for one in sums] == [3, 3]


@pytest.mark.parametrize(
    "message",
    [WorkerHello(3, 4711), WorkerReady(2), Synced(2), WorkerPlace(1, 0, (1, 2)), Update(3), WorkerBroken(3), Leave()],
    ids=repr,
)
def test_messages_survive_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"type": "Nonsense"}', b'{"type": "Ready"}', b"\xff"], ids=repr)
def test_nonsense_is_no_message(line: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode(line)
