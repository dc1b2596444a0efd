"""The library of a worker under ``simulator.elastic.launcher``: what a training script calls.

Shaped after Horovod elastic, down to module-level functions: ``init()`` once, ``allreduce()`` in every step,
``State.commit()`` or ``State.check_host_updates()`` behind it, all of it inside ``run(state, train)``. Without a
launcher it is a ring of one.
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

from simulator.elastic.connection import Connection
from simulator.elastic.control import (
    RENDEZVOUS_VARIABLE,
    WORKER_VARIABLE,
    Broken,
    Hello,
    Leave,
    Message,
    Place,
    Ready,
    Synced,
    Update,
)
from simulator.elastic.ring import Ring, RingBrokenError

_T = TypeVar("_T")


class NotInitialisedError(RuntimeError):
    """Call init() first."""


class HostsUpdatedError(Exception):
    """The hosts have changed and all ranks know it: keep the state and wait for a new ring. ``run`` handles it."""


class Worker:
    """This process's part in the job: its line to the launcher and its place in the present ring."""

    def __init__(self, line: Connection | None, listener: socket.socket | None, ring: Ring) -> None:
        self._connection = line
        self._listener = listener
        self.ring = ring
        self.update_agreed = False
        """All ranks learned with the last sum that the hosts have changed."""
        self._messages: list[Message] = []
        """What the launcher has said since it gave this process its place in the present ring."""

    @classmethod
    def start(cls, rendezvous: str | None, number: int) -> "Worker":
        """Introduce this process to the launcher and wait for its first ring; alone where there is no launcher."""
        if rendezvous is None:
            return cls(None, None, Ring.alone())
        listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        worker = cls(Connection(rendezvous), listener, Ring.alone())
        worker._send(Hello(number, listener.getsockname()[1]))
        worker._join()
        return worker

    def rejoin(self) -> None:
        """Leave the present ring and wait for the next; does not return in a worker that is left out of it."""
        self.ring.close()
        self.update_agreed = False
        self._send(Ready(self.ring.epoch))
        self._join()

    def allreduce(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sum over all ranks; one more element carries the launcher's news, so that all ranks act on it together."""
        total = self.ring.allreduce(np.append(values, np.int64(self._update_announced())))
        self.update_agreed = bool(total[-1] > 0)
        return total[:-1]

    def synced(self) -> None:
        """Tell the launcher that this process holds the job's state."""
        self._send(Synced(self.ring.epoch))

    def _send(self, message: Hello | Ready | Synced) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _join(self) -> None:
        while self._connection is not None and self._listener is not None:
            place = self._next_place(self._connection)
            called_off = partial(self._called_off, place.epoch)
            try:
                self.ring = Ring.close_up(place, self._listener, called_off)
            except RingBrokenError:
                self._send(Ready(place.epoch))
            else:
                return

    def _next_place(self, line: Connection) -> Place:
        while True:
            message = line.next()
            if isinstance(message, Place):
                self._messages.clear()
                return message
            if isinstance(message, Leave):
                _abort()

    def _called_off(self, epoch: int, seconds: float) -> bool:
        ends = [end.fileno() for end in (self._connection, self._listener) if end is not None]
        select.select(ends, [], [], seconds)
        return self._has_received(Broken(epoch))

    def _update_announced(self) -> bool:
        return self._has_received(Update(self.ring.epoch))

    def _has_received(self, message: Message) -> bool:
        if self._connection is not None:
            self._messages += self._connection.pending()
        return message in self._messages


class State:
    """What survives a change of the ring: the parameters and the number of applied steps."""

    def __init__(self, params: NDArray[np.float64], step: int = 0) -> None:
        self.params = params
        self.step = step
        self._committed = (params.copy(), step)

    def commit(self) -> None:
        """Remember the present values, to which a broken ring goes back; then as ``check_host_updates``."""
        self._save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedError, at all ranks alike, when the hosts have changed. Nothing is lost by it."""
        if _worker().update_agreed:
            raise HostsUpdatedError

    def restore(self) -> None:
        """Go back to the last commit."""
        params, self.step = self._committed
        self.params = params.copy()

    def sync(self) -> None:
        """Take rank 0's values; raises RingBrokenError."""
        payload = self.step.to_bytes(8, "big") + self.params.tobytes()
        received = _worker().ring.broadcast(payload)
        self.step = int.from_bytes(received[:8], "big")
        self.params = np.frombuffer(received[8:], dtype=np.float64).reshape(self.params.shape)
        self._save()
        _worker().synced()

    def _save(self) -> None:
        self._committed = (self.params.copy(), self.step)


class _Session:
    """The one worker of this process: training scripts call functions of a module, as they do with Horovod."""

    worker: Worker | None = None


def _worker() -> Worker:
    if _Session.worker is None:
        raise NotInitialisedError("call init() first")
    return _Session.worker


def init() -> None:
    """Join the job and wait for the first ring. Raises LauncherLostError; a second call changes nothing."""
    if _Session.worker is None:
        rendezvous = os.environ.get(RENDEZVOUS_VARIABLE)
        _Session.worker = Worker.start(rendezvous, int(os.environ.get(WORKER_VARIABLE, "0")))


def rank() -> int:
    """This process's rank in the present (or last) ring; changes with the ring."""
    return _worker().ring.rank


def size() -> int:
    """Number of workers in the present (or last) ring."""
    return _worker().ring.size


def epoch() -> int:
    """Which ring of this launcher the present (or last) one is, counted from 1; 0 without a launcher."""
    return _worker().ring.epoch


def allreduce(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum over all ranks, exact. Raises RingBrokenError, which ``run`` handles."""
    return _worker().allreduce(values)


def run(state: State, train: Callable[[State], _T]) -> _T:
    """Call ``train`` with a state that all ranks share, again after every change of the ring, until it returns.

    A change of hosts comes between two steps and loses nothing. A broken ring goes back to the last commit, and all
    steps since then are done again.
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
    # Horovod's removed rank ends itself with SIGABRT. No core file for it: this is the ordinary way to leave.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()
