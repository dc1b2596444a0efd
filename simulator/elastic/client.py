"""The library that a training script uses under ``simulator.elastic.launcher``.

Its module-level functions follow Horovod elastic: ``init()`` once, ``allreduce()`` in every step, then
``State.commit()`` or ``State.check_host_updates()``, all inside ``run(state, train)``. Without a launcher it is a ring
of one.
"""

import os
import resource
import select
import socket
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.elastic.connection import WorkerConnection
from simulator.elastic.control import (
    RENDEZVOUS_VARIABLE,
    WORKER_VARIABLE,
    Leave,
    Message,
    Synced,
    Update,
    WorkerBroken,
    WorkerHello,
    WorkerPlace,
    WorkerReady,
)
from simulator.elastic.ring import Ring, RingBrokenError

_T = TypeVar("_T")


class NotInitialisedError(RuntimeError):
    """Call init() first."""


class HostsUpdatedError(Exception):
    """The hosts have changed and all ranks know it. ``run`` handles it: it keeps the state and waits for a new ring."""


class ElasticWorker:
    """This process's connection to the launcher and its place in the present ring."""

    def __init__(self, line: WorkerConnection | None, listener: socket.socket | None, ring: Ring) -> None:
        self._connection = line
        self._listener = listener
        self.ring = ring
        self.update_agreed = False
        """With the last sum, all ranks learned that the hosts have changed."""
        self._messages: list[Message] = []
        """Messages of the launcher since this process got its place in the present ring."""

    @classmethod
    def start(cls, rendezvous: str | None, number: int) -> "ElasticWorker":
        """Register with the launcher and wait for the first ring. Without a launcher it is alone."""
        if rendezvous is None:
            return cls(None, None, Ring.alone())
        listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        worker = cls(WorkerConnection(rendezvous), listener, Ring.alone())
        worker._send(WorkerHello(number, listener.getsockname()[1]))
        worker._join()
        return worker

    def rejoin(self) -> None:
        """Leave the present ring and wait for the next. Does not return in a worker that is dismissed."""
        self.ring.close()
        self.update_agreed = False
        self._send(WorkerReady(self.ring.epoch))
        self._join()

    def allreduce(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sum over all ranks. One extra element carries the launcher's update, so that all ranks react together."""
        total = self.ring.allreduce(np.append(values, np.int64(self._update_announced())))
        self.update_agreed = bool(total[-1] > 0)
        return total[:-1]

    def synced(self) -> None:
        """Tell the launcher that this process has the job's state."""
        self._send(Synced(self.ring.epoch))

    def _send(self, message: WorkerHello | WorkerReady | Synced) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _join(self) -> None:
        while self._connection is not None and self._listener is not None:
            place = self._next_place(self._connection)
            called_off = partial(self._called_off, place.epoch)
            try:
                self.ring = Ring.close_up(place, self._listener, called_off)
            except RingBrokenError:
                self._send(WorkerReady(place.epoch))
            else:
                return

    def _next_place(self, line: WorkerConnection) -> WorkerPlace:
        while True:
            message = line.next()
            if isinstance(message, WorkerPlace):
                self._messages.clear()
                return message
            if isinstance(message, Leave):
                _abort()

    def _called_off(self, epoch: int, seconds: float) -> bool:
        ends = [end.fileno() for end in (self._connection, self._listener) if end is not None]
        select.select(ends, [], [], seconds)
        return self._has_received(WorkerBroken(epoch))

    def _update_announced(self) -> bool:
        return self._has_received(Update(self.ring.epoch))

    def _has_received(self, message: Message) -> bool:
        if self._connection is not None:
            self._messages += self._connection.pending()
        return message in self._messages


class ElasticState:
    """The state that survives a change of the ring: the parameters and the number of applied steps."""

    def __init__(self, params: NDArray[np.float64], step: int = 0) -> None:
        self.params = params
        self.step = step
        self._committed = (params.copy(), step)

    def commit(self) -> None:
        """Save the present values, to which a broken ring returns, then ``check_host_updates``."""
        self._save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedError in all ranks alike if the hosts have changed. Loses nothing."""
        if _worker().update_agreed:
            raise HostsUpdatedError

    def restore(self) -> None:
        """Return to the last commit."""
        params, self.step = self._committed
        self.params = params.copy()

    def sync(self) -> None:
        """Receive rank 0's values. Raises RingBrokenError."""
        payload = self.step.to_bytes(8, "big") + self.params.tobytes()
        received = _worker().ring.broadcast(payload)
        self.step = int.from_bytes(received[:8], "big")
        self.params = np.frombuffer(received[8:], dtype=np.float64).reshape(self.params.shape)
        self._save()
        _worker().synced()

    def _save(self) -> None:
        self._committed = (self.params.copy(), self.step)


class _Session:
    """The worker of this process, because training scripts call module functions as with Horovod."""

    worker: ElasticWorker | None = None


def _worker() -> ElasticWorker:
    if _Session.worker is None:
        raise NotInitialisedError("call init() first")
    return _Session.worker


def init() -> None:
    """Join the job and wait for the first ring. Raises LauncherLostError. A second call has no effect."""
    if _Session.worker is None:
        rendezvous = os.environ.get(RENDEZVOUS_VARIABLE)
        _Session.worker = ElasticWorker.start(rendezvous, int(os.environ.get(WORKER_VARIABLE, "0")))


def rank() -> int:
    """Return this process's rank in the present or last ring."""
    return _worker().ring.rank


def size() -> int:
    """Return the number of workers in the present or last ring."""
    return _worker().ring.size


def epoch() -> int:
    """Return the number of the present or last ring of this launcher, from 1; 0 without a launcher."""
    return _worker().ring.epoch


def allreduce(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the exact sum over all ranks. Raises RingBrokenError, which ``run`` handles."""
    return _worker().allreduce(values)


def run(state: ElasticState, train: Callable[[ElasticState], _T]) -> _T:
    """Call ``train`` with the shared state, again after every change of the ring, until it returns.

    A change of hosts happens between two steps and loses nothing. After a broken ring, all steps since the last commit
    are
    repeated.
    """
    while True:
        try:
            state.sync()
            return train(state)
        except RingBrokenError:
            state.restore()
        except HostsUpdatedError:
            pass
        _worker().rejoin()


def _abort() -> None:
    # Like Horovod, a removed rank ends itself with SIGABRT. It leaves no core file, because this is the normal exit.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()
