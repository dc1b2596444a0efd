"""Connects the processes of the round that may follow, in a thread, while those of the present round train.

Only with gloo. NCCL connects in the first collective of a group, which would use the GPU beside the training's.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, NamedTuple

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.torchrun.member import RoundStoreAddress
from kubeai.torchrun.stores import CannotReach, connect

from .connections import Connections
from .decisions import NotFormed
from .ranks_in_store import await_all, ports_of_all
from .stderr import say_once

if TYPE_CHECKING:
    from .decisions import ForetoldRound, WorkerRound

_ARRIVING_SECONDS = 120.0
"""How long to wait for the others, each of which looks for the round after its present step."""
_ARRIVING_PAUSE = 0.05
_CONNECTING_SECONDS = 1.0
"""How long the round waits for connections that are being made when it begins."""


class ConnectedGroup(NamedTuple):
    """The group of a round whose ranks are connected.

    Attributes:
        epoch: Of the attempt for which it was made. All ranks have a group of the same one, or none can use its own.
        store: A client of the round's store.
        backend: What torch would have made.
        connections: Its own.
    """

    epoch: int
    store: Any
    backend: Any
    connections: Connections


class EarlyGroup:
    """The group of a round that was foretold. Nothing waits for it, and it may never be used.

    Args:
        foretold: The round.
        local_rank: Added to the round's base rank.
        timeout: Of its collectives, in seconds.
    """

    def __init__(self, foretold: ForetoldRound, local_rank: int, timeout: float) -> None:
        self.foretold = foretold
        self._rank = foretold.round.base_rank + local_rank
        self._timeout = timedelta(seconds=timeout)
        self._is_dropped = False
        self._is_connecting = False
        self._connected: ConnectedGroup | None = None
        self._thread = threading.Thread(target=self._run, name="kubeai-early-group", daemon=True)
        with contextlib.suppress(RuntimeError):  # there are no threads left
            self._thread.start()

    def taken_for(self, entered: WorkerRound) -> ConnectedGroup | None:
        """Return the group if this is its round and all ranks are connected. Otherwise it is dropped."""
        is_due = self.foretold.round == entered
        if self._is_connecting:
            self._thread.join(_CONNECTING_SECONDS if is_due else 0)
        connected = self._connected if is_due and not self._thread.is_alive() else None
        self.drop()
        return connected

    def drop(self) -> None:
        """Let go of it. Called in the training thread."""
        self._is_dropped = True
        self._connected = None

    def _was_dropped(self) -> bool:
        return self._is_dropped

    def _run(self) -> None:
        try:
            self._connect()
        except (NotFormed, CannotReach):
            pass  # nobody needs it any more, or not all ranks have come
        except RuntimeError as error:  # of gloo or the store; the round forms another group
            say_once(f"no early group: {type(error).__name__}: {error}")

    def _connect(self) -> None:
        following, size = self.foretold.round, self.foretold.round.world_size
        client = connect(RoundStoreAddress(following.address, following.port))
        store = dist.PrefixStore(f"kubeai/{following.number}/early/{self.foretold.epoch}/", client)
        # Another process may have had this rank, and the others may be about to connect to that one.
        own = uuid.uuid4().hex
        if store.compare_set(f"process/{self._rank}", "", own).decode() != own:
            raise NotFormed("its rank is another process's")
        is_over = self._was_dropped
        await_all(store, "arrived", size, seconds=_ARRIVING_SECONDS, is_over=is_over, pause=_ARRIVING_PAUSE)
        self._is_connecting = True
        connections = Connections()
        backend = dist.ProcessGroupGloo(dist.PrefixStore("gloo/", store), self._rank, size, self._timeout)
        tell = ports_of_all(store, self._rank, size, is_over=is_over)

        def told(ports: Iterable[int]) -> set[int]:
            if len(list(ports)) > 1:
                raise NotFormed("the script has opened a port meanwhile, and nobody knows which one is the group's")
            return tell(ports)

        connections.note(told)
        if not self._is_dropped:
            self._connected = ConnectedGroup(self.foretold.epoch, client, backend, connections)


@contextlib.contextmanager
def made_by_torch(connected: ConnectedGroup | None) -> Iterator[None]:
    """Have torch take this backend for the one that it would make next. It has no public way to be given one."""
    if connected is None:
        yield
        return
    module = dist.distributed_c10d
    make: Callable[..., Any] = module.ProcessGroupGloo

    def take(*_: object, **__: object) -> Any:
        module.ProcessGroupGloo = make  # torch's debug mode makes a second one
        return connected.backend

    module.ProcessGroupGloo = take
    try:
        yield
    finally:
        module.ProcessGroupGloo = make
