"""A stand-in for Horovod's compiled core: the rendezvous with the driver, and sums over a ring of our own.

The driver's side of the rendezvous is real, and so is what drives this: `horovod.common.elastic`. As in the core, a
process that does not come through a rendezvous ends.
"""

import os
import pickle
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, TypeVar

import numpy as np
from horovod.common.exceptions import HorovodInternalError  # type: ignore[import-not-found]  # It has its own environment.
from numpy.typing import NDArray

from simulator.elastic.control import WorkerPlace
from simulator.elastic.ring import Ring, RingBrokenError
from simulator.events import EventLog, JobEventKind

_T = TypeVar("_T")

# The driver answers once all workers have come back and enough hosts are there: its own limit is 600 s.
_DRIVER_SECONDS = 630.0
# Gloo's own, for everybody to have said where to find them.
_STORE_SECONDS = 30.0
# What users give it where containers share busy machines: a rank that is too late is blacklisted with its host.
_HOSTS_SECONDS = 120.0
_LOOK_SECONDS = 0.02
_OK = 200


class CoreStoreError(ConnectionError):
    """The driver does not answer, or has nothing under this key."""


@dataclass(frozen=True, slots=True)
class CoreStore:
    address: str
    port: int

    def ask(self, method: str, scope: str, key: str, value: str | None = None) -> str:
        """One request.

        Raises:
            StoreError: The driver is gone, or refuses.
        """
        connection = HTTPConnection(self.address, self.port, timeout=_DRIVER_SECONDS)
        try:
            connection.request(method, f"/{scope}/{key}", value)
            answer = connection.getresponse()
            if answer.status != _OK:
                raise CoreStoreError(f"{method} {scope}/{key}: {answer.status}")
            return answer.read().decode()
        except OSError as error:
            raise CoreStoreError(f"{method} {scope}/{key}: {error}") from error
        finally:
            connection.close()

    def wait_for(self, scope: str, key: str, seconds: float) -> str:
        """A value, as soon as somebody has put it there.

        Raises:
            StoreError: Nobody has in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.ask("GET", scope, key)
            except CoreStoreError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_SECONDS)


class CompiledCore:
    """This process's part in the job. Made from the environment that the driver gives its workers.

    Args:
        environ: That environment.
        run: The run of the launcher.
        events: Where rank 0 writes each ring.
        on_loopback: All hosts are this machine, and their names resolve nowhere.
    """

    def __init__(self, environ: Mapping[str, str], run: int, events: EventLog, *, on_loopback: bool = True) -> None:
        self._store = CoreStore(environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
        self._host = environ["HOROVOD_HOSTNAME"]
        self._slot = environ["HOROVOD_LOCAL_RANK"]
        self._run = run
        self._events = events
        self._on_loopback = on_loopback
        self._listener = socket.create_server(("127.0.0.1" if on_loopback else "", 0), backlog=16)
        self._ring = Ring.alone()
        self._join(int(environ["HOROVOD_RANK"]), int(environ["HOROVOD_SIZE"]))

    def rank(self) -> int:
        return self._ring.rank

    def size(self) -> int:
        return self._ring.size

    def epoch(self) -> int:
        """Which ring of this run the present one is, counted from 1."""
        return self._ring.epoch

    def reset(self) -> None:
        """Leave the ring and take the driver's place in the next; does not return in a worker that is left out."""
        self._ring.close()
        # Blocks until every worker of the old ring has asked, or has ended.
        place = self._store.ask("GET", "rank_and_size", f"{self._host}:{self._slot}")
        rank, size = (int(number) for number in place.split(",")[:2])
        if rank < 0:
            os.abort()
        self._join(rank, size)

    def allreduce(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        return _translated(lambda: self._ring.allreduce(values))

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, at every rank; raises HorovodInternalError."""
        return pickle.loads(_translated(lambda: self._ring.broadcast(pickle.dumps(value))))  # noqa: S301 - from a peer.

    def _join(self, rank: int, size: int) -> None:
        port = self._listener.getsockname()[1]
        self._store.ask("PUT", "global", str(rank), f"{self._host} {port} {self._ring.epoch + 1}")
        seconds = _STORE_SECONDS if self._on_loopback else _HOSTS_SECONDS
        members = [self._store.wait_for("global", str(other), seconds).split() for other in range(size)]
        # Rank 0 is the oldest, so it has been in every ring so far; who has just come has not.
        epoch = int(members[0][2])
        if rank == 0:
            self._events.write(
                JobEventKind.RING_FORMED, run=self._run, epoch=epoch, hosts=[member[0] for member in members]
            )
        place = WorkerPlace(epoch, rank, tuple(int(member[1]) for member in members))
        if self._on_loopback:
            self._ring = Ring.close_up(place, self._listener, self._nobody_interrupts)
        else:
            hosts = [member[0] for member in members]
            self._ring = Ring.close_up(place, self._listener, self._nobody_interrupts, hosts, _HOSTS_SECONDS)
        self._store.ask("DELETE", "global", str(rank))

    def _nobody_interrupts(self, seconds: float) -> bool:
        select.select([self._listener], [], [], seconds)
        return False


def _translated(collective: Callable[[], _T]) -> _T:
    try:
        return collective()
    except RingBrokenError as error:
        raise HorovodInternalError(str(error)) from error
