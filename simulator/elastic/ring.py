"""A TCP ring between the worker processes for exact integer sums and broadcasts, on loopback or between hosts.

Rank r sends to rank r + 1 and receives from rank r - 1; the last rank sends to rank 0. A dead neighbour is noticed by
the end of its connection. A process that notices closes its own two, so that the news goes round.
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from simulator.elastic.control import WorkerPlace

SETUP_SECONDS = 10.0
"""Limit for closing a ring. Connecting on loopback takes under a millisecond; the rest is for a busy machine."""
SILENCE_SECONDS = 30.0
"""How long to wait for a silent connected neighbour: the timeout of gloo, Horovod's transport."""

_LOOPBACK = "127.0.0.1"
_GREETING = struct.Struct("!I")  # epoch
_HEADER = struct.Struct("!IIQ")  # epoch, number of the message on this connection, bytes that follow


class RingBrokenError(Exception):
    """A neighbour is gone or silent: return to the last commit and wait for a new ring."""


class Ring:
    """This process's place in a closed ring. Not thread-safe."""

    def __init__(self, place: WorkerPlace, incoming: socket.socket | None, outgoing: socket.socket | None) -> None:
        self.epoch = place.epoch
        self.rank = place.rank
        self.size = len(place.ports)
        self._incoming = incoming
        self._outgoing = outgoing
        self._sent = 0
        self._received = 0

    @classmethod
    def alone(cls) -> Self:
        """Return a ring of one, without a launcher."""
        return cls(WorkerPlace(epoch=0, rank=0, ports=(0,)), None, None)

    @classmethod
    def close_up(
        cls,
        place: WorkerPlace,
        listener: socket.socket,
        interrupted: Callable[[float], bool],
        hosts: Sequence[str] = (),
        seconds: float = SETUP_SECONDS,
    ) -> Self:
        """Connect to the next rank and wait for the previous one.

        Args:
            place: Epoch, rank and the ports of all ranks.
            listener: This process's listening socket.
            interrupted: Waits up to so many seconds for the listener or the launcher, and returns whether the launcher
                has called this epoch off.
            hosts: The hosts of all ranks; without any, all are on loopback.
            seconds: How long to wait for the neighbours.

        Raises:
            RingBrokenError: A neighbour is unreachable, or did not connect in time.
        """
        if len(place.ports) == 1:
            return cls(place, None, None)
        deadline = time.monotonic() + seconds
        outgoing = _connect(place, hosts, seconds)
        try:
            incoming = _accept(place.epoch, listener, deadline, interrupted)
        except RingBrokenError:
            outgoing.close()
            raise
        return cls(place, incoming, outgoing)

    def allreduce(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum over all ranks. Partial sums go up the ranks, the total goes round once: 2(N-1) messages.

        The values are integers, so the order of the ranks does not matter. Raises RingBrokenError.
        """
        if self.size == 1:
            return values.copy()
        last = self.size - 1
        if self.rank == 0:
            self._send(values.tobytes())
        else:
            values = values + self._receive_like(values)
            self._send(values.tobytes())
        if self.rank == last:
            return values
        total = self._receive_like(values)
        if self.rank != last - 1:
            self._send(total.tobytes())
        return total

    def broadcast(self, payload: bytes) -> bytes:
        """Return rank 0's payload in every rank. Raises RingBrokenError."""
        if self.rank > 0:
            payload = self._receive()
        if self.rank < self.size - 1:
            self._send(payload)
        return payload

    def close(self) -> None:
        """Close both connections, which the neighbours notice."""
        for connection in (self._incoming, self._outgoing):
            if connection is not None:
                connection.close()

    def _receive_like(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        payload = self._receive()
        if len(payload) != values.nbytes:
            raise RingBrokenError(f"{len(payload)} bytes from the previous rank, not {values.nbytes}")
        return np.frombuffer(payload, dtype=np.int64)

    def _send(self, payload: bytes) -> None:
        header = _HEADER.pack(self.epoch, self._sent, len(payload))
        self._sent += 1
        try:
            _present(self._outgoing).sendall(header + payload)
        except OSError as error:
            raise RingBrokenError("the next rank cannot be reached") from error

    def _receive(self) -> bytes:
        epoch, number, length = _HEADER.unpack(_read(_present(self._incoming), _HEADER.size))
        if (epoch, number) != (self.epoch, self._received):
            raise RingBrokenError(f"message {number} of epoch {epoch} where {self._received} of {self.epoch} was due")
        self._received += 1
        return _read(_present(self._incoming), length)


def _present(connection: socket.socket | None) -> socket.socket:
    if connection is None:
        raise RingBrokenError("a ring of one has no neighbours")
    return connection


def _connect(place: WorkerPlace, hosts: Sequence[str], seconds: float) -> socket.socket:
    following = (place.rank + 1) % len(place.ports)
    address = (hosts[following] if hosts else _LOOPBACK, place.ports[following])
    try:
        connection = socket.create_connection(address, timeout=seconds)
    except OSError as error:
        raise RingBrokenError(f"rank {place.rank + 1} cannot be reached") from error
    connection.settimeout(SILENCE_SECONDS)
    # A message is one small write that the neighbour waits for; Nagle's algorithm would delay it by 40 ms.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        connection.sendall(_GREETING.pack(place.epoch))
    except OSError as error:
        connection.close()
        raise RingBrokenError(f"rank {place.rank + 1} cannot be reached") from error
    return connection


def _accept(
    epoch: int, listener: socket.socket, deadline: float, interrupted: Callable[[float], bool]
) -> socket.socket:
    while (left := deadline - time.monotonic()) > 0:
        if interrupted(left):
            raise RingBrokenError(f"epoch {epoch} was called off")
        if select.select([listener], [], [], 0)[0]:
            connection, _ = listener.accept()
            if _greets(connection, epoch, left):
                connection.settimeout(SILENCE_SECONDS)
                return connection
            connection.close()
    raise RingBrokenError("the previous rank did not come in time")


def _greets(connection: socket.socket, epoch: int, seconds: float) -> bool:
    """Whether this is the previous rank in this epoch, not a leftover of a ring that broke during setup."""
    connection.settimeout(seconds)
    try:
        return bool(_GREETING.unpack(_read(connection, _GREETING.size))[0] == epoch)
    except RingBrokenError:
        return False


def _read(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    try:
        while len(received) < length:
            part = connection.recv(length - len(received))
            if not part:
                raise RingBrokenError("the previous rank has gone")
            received += part
    except TimeoutError as error:
        raise RingBrokenError(f"the previous rank has said nothing for {connection.gettimeout():g} s") from error
    except OSError as error:
        raise RingBrokenError("the previous rank has gone") from error
    return bytes(received)
