"""The stores of rounds: opened by member 0, reached by the others, who find out quickly if it is gone."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[import-not-found,unused-ignore]

from .rounds import StoreAddress

_WAIT = timedelta(seconds=60)  # for a key that another agent writes
_CONNECT_SECONDS = 3.0


class CannotReach(Exception):  # noqa: N818 - the name describes the store
    """The store of a round cannot be reached."""


def open_store(address: str) -> tuple[TCPStore, StoreAddress]:
    """Open a store on a free port of this host, whose address is `address`. Each round has a store of its own."""
    store = TCPStore(address, 0, None, True, _WAIT, wait_for_workers=False)  # noqa: FBT003 - the name differs by version
    return store, StoreAddress(address, store.port)


def connect(where: StoreAddress) -> TCPStore:
    """Return a client of a store. Raises CannotReach after 6 s at the latest.

    TCPStore's constructor repeats its attempts for its whole timeout, in which no signal is handled. So the store's
    port is tried first.
    """
    try:
        with socket.create_connection((where.address, where.port), _CONNECT_SECONDS):
            pass
        limit = timedelta(seconds=_CONNECT_SECONDS)
        store = TCPStore(where.address, where.port, None, False, limit, wait_for_workers=False)  # noqa: FBT003 - as above
    except (OSError, RuntimeError) as error:  # torch's DistNetworkError is a RuntimeError
        raise CannotReach(f"{where.address}:{where.port}: {error}") from error
    store.set_timeout(_WAIT)
    return store
