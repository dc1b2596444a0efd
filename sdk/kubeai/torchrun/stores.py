"""Opens and reaches the stores of rounds. Member 0 opens a store; the others find out quickly if it is gone."""

from __future__ import annotations

import socket
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoResultError  # not the built-in one before Python 3.11
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Thread
from typing import Sequence

from torch.distributed import TCPStore  # type: ignore[import-not-found,unused-ignore]

from .member import RoundStoreAddress

# Private keys of torch's agents: they wait for each other at a normal end. A test for each version of torch reads them.
_EXIT_BARRIER = "torchelastic/agent/terminal_state"
_WAIT = timedelta(seconds=60)  # for a key that another agent writes
_CONNECT_SECONDS = 3.0
_CLIENT_SECONDS = 20.0
"""Torch asks DNS for the name of each address that it connects to, for its log, and this takes from the same time. A
resolver that gets no answer asks again after 5 s and gives up after 10 s for each server, with its usual times."""


class CannotReach(Exception):  # noqa: N818 - the name describes the store
    """The store of a round cannot be reached."""


def open_store(address: str) -> tuple[TCPStore, RoundStoreAddress]:
    """Open a store on a free port of this host, whose address is `address`. Each round has a store of its own."""
    store = TCPStore(address, 0, None, True, _WAIT, wait_for_workers=False)  # noqa: FBT003 - the name differs by version
    return store, RoundStoreAddress(address, store.port)


def connect(where: RoundStoreAddress) -> TCPStore:
    """Return a client of a store. Raises CannotReach, after 3 s at the latest if the store is gone.

    TCPStore's constructor repeats its attempts for its whole timeout, in which no signal is handled, and waits without
    an end for a process that is stopped: its host still accepts. So the store's port is tried first, and then a thread
    waits for the store.
    """
    made: Future[TCPStore] = Future()
    try:
        with socket.create_connection((where.address, where.port), _CONNECT_SECONDS):
            pass
        Thread(target=_make, args=(where, made), name="kubeai-store", daemon=True).start()
        store = made.result(_CLIENT_SECONDS + _CONNECT_SECONDS)
    except (OSError, RuntimeError, NoResultError) as error:  # torch's DistNetworkError is a RuntimeError
        raise CannotReach(f"{where.address}:{where.port}: {str(error) or 'it does not answer'}") from error
    store.set_timeout(_WAIT)
    return store


def _make(where: RoundStoreAddress, made: Future[TCPStore]) -> None:
    try:
        limit = timedelta(seconds=_CLIENT_SECONDS)
        made.set_result(TCPStore(where.address, where.port, None, False, limit, wait_for_workers=False))  # noqa: FBT003 - as above
    except RuntimeError as error:
        made.set_exception(error)


@dataclass(eq=False)
class RoundStores:
    """The stores that this agent holds open, from a round with new workers to the next one.

    Workers use the store of the round they are in. Agents wait for each other in that of the last round which they
    have entered with new workers, even if its holder has left since.

    Attributes:
        base: The store of the last round that all members have entered with new workers; None before the first one.
        alone: The store of workers that join later, beside those which other members use.
        regrouped: The stores of rounds in process; some workers may still be in the one before.
        following: The store of a round that may follow, its number and its address; None if this agent has opened none.
    """

    base: TCPStore | None = None
    alone: TCPStore | None = None
    regrouped: deque[TCPStore] = field(default_factory=lambda: deque(maxlen=2))
    following: tuple[int, TCPStore, RoundStoreAddress] | None = None

    def open_following(self, number: int, address: str) -> RoundStoreAddress:
        """Open the store of a round that may follow, unless it is open; returns where it is."""
        if self.following is None or self.following[0] != number:
            self.following = number, *open_store(address)
        return self.following[2]

    def regroup(self, number: int, address: str) -> RoundStoreAddress:
        """Hold the store of a round in process from now on; returns where it is."""
        where = self.open_following(number, address)
        if self.following is not None:
            self.regrouped.append(self.following[1])
        self.following = None
        return where


def count_out(where: RoundStoreAddress, members: Sequence[int], size: int) -> None:
    """Count `members` as ended in the exit barrier of a round of `size` members, because they have left in process.

    Otherwise the agents that remain would wait for them at their own end. Each of these may call it: a member is
    counted once. If the store is gone, nobody waits.
    """
    try:
        store = connect(where)
        for member in members:
            if store.add(f"kubeai/left/{member}", 1) == 1 and store.add(f"{_EXIT_BARRIER}/num_members", 1) == size:
                store.set(f"{_EXIT_BARRIER}/last_member", "")
    except (CannotReach, RuntimeError):
        return
