"""Makes the default process group that of a round, and leaves it so that no other rank waits for this one."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.torchrun.member import RoundStoreAddress
from kubeai.torchrun.stores import CannotReach, connect

from .decisions import NotFormed
from .early_group import made_by_torch
from .ranks_in_store import await_all

if TYPE_CHECKING:
    from .connections import Connections
    from .decisions import WorkerRound
    from .early_group import EarlyGroup


class FormedGroup(NamedTuple):
    """The group of a round.

    Attributes:
        store: The round's.
        steps: For each rank the number of its finished steps.
        connections: Those of the group if they were made early, otherwise None.
    """

    store: Any
    steps: Sequence[int]
    connections: Connections | None


_meshes: list[Any] = []
"""The meshes of the present round."""

_hooks: tuple[object, object] | None = None
"""`sys.excepthook` before torch has wrapped it with the prefix of a rank, and since."""


def form_group(  # noqa: PLR0913 - each is one fact about the group
    entered: WorkerRound,
    local_rank: int,
    step: int,
    *,
    early: EarlyGroup | None,
    backend: str,
    timeout: float,
    seconds: float,
    is_over: Callable[[], bool],
) -> FormedGroup:
    """Make the default process group that of a round.

    Torch waits for the other ranks where nothing can interrupt it. So all of them say in the store that they are there
    before any begins.

    Args:
        entered: The round.
        local_rank: Added to the round's base rank.
        step: This process's number of finished steps.
        early: A group for this round or another one, whose connections may have been made before.
        backend: As for `init_process_group`.
        timeout: Of collectives, in seconds.
        seconds: How long to wait for the other ranks.
        is_over: Returns whether a newer round has come.

    Raises:
        NotFormed: The round is not complete after this time, or over.
    """
    global _hooks  # noqa: PLW0603 - see `leave_group`
    rank, size = entered.base_rank + local_rank, entered.world_size
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    connected = None if early is None else early.taken_for(entered)
    try:
        client = connect(RoundStoreAddress(entered.address, entered.port)) if connected is None else connected.store
        store = dist.PrefixStore(f"kubeai/{entered.number}/", client)
        store.set(f"step/{rank}", str(step))
        if connected is not None:
            store.add(f"connected/{connected.epoch}", 1)
        await_all(store, "arrived", size, seconds=seconds, is_over=is_over)
        if connected is not None and store.add(f"connected/{connected.epoch}", 0) < size:
            connected = None  # another rank has no part of that group, so all form another one
        # Torch wraps `sys.excepthook` each time; `leave_group` takes that back.
        before, limit = sys.excepthook, timedelta(seconds=timeout)
        try:
            with made_by_torch(connected):
                dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        finally:
            if not dist.is_initialized():
                _forget_attempt()
        _hooks = before, sys.excepthook
        steps = store.multi_get([f"step/{each}" for each in range(size)])
        return FormedGroup(store, [int(each) for each in steps], None if connected is None else connected.connections)
    except (CannotReach, RuntimeError) as error:
        raise NotFormed(f"round {entered.number}: {error}") from error


def _forget_attempt() -> None:
    """Have torch number its groups from 0 again, as in ranks whose last attempt has not failed.

    Their number is part of the keys in the store. Only the end of a default group sets it back.
    """
    hook = sys.excepthook
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    sys.excepthook = hook


def form_alone(backend: str, timeout: float) -> None:
    """Make the default process group from the variables that a launcher sets, or of this process without any."""
    limit = timedelta(seconds=timeout)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=limit)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=limit)


def leave_group(connections: Connections | None) -> list[Any]:
    """Destroy the default process group, if there is one. Ranks that wait for this one then fail, too.

    Returns what has to be let go last, once nothing else refers to a group: its backends. The end of a backend waits
    for its threads, and one of these may need the GIL to free the tensor of a collective that has failed. A backend
    releases the GIL meanwhile. A group does not before some torch later than 2.7, so with it as the last one both
    would wait for ever.
    """
    global _hooks  # noqa: PLW0603 - sys.excepthook is one for the process, too
    if _hooks is not None and sys.excepthook is _hooks[1]:
        sys.excepthook = _hooks[0]  # type: ignore[assignment]
    _hooks = None
    if connections is not None:
        connections.shut_down()
    backends = _backends()
    if dist.is_initialized():
        _end_groups()
    _forget_meshes()
    return backends


def _backends() -> list[Any]:
    """Return the backends of all process groups of this process."""
    groups = list(dist.distributed_c10d._world.pg_map)  # noqa: SLF001 - nothing public lists them
    return [group._get_backend(device) for group in groups for device in group._device_types]  # noqa: SLF001


def remember_mesh(mesh: Any) -> None:
    """Note a mesh of the present round."""
    _meshes.append(mesh)


def _forget_meshes() -> None:
    """Let go of the process groups of this round's meshes, which are not used any more.

    What torch caches for DTensors refers to meshes for ever, and with torch 2.15 a mesh refers to its process groups.
    So each round would leave descriptors and threads of gloo behind.
    """
    for mesh in _meshes:
        getattr(mesh, "_pg_registry", {}).clear()
    _meshes.clear()


def _end_groups() -> None:
    """End all process groups of this process, without the other ranks.

    NCCL ends a communicator together with the other ranks, and raises when one of them has gone (`ncclRemoteError`,
    with torch 2.11). So it is aborted, as `destroy_process_group` did before torch 2.6, which has the function below.
    """
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if abort is not None and "nccl" in dist.get_backend_config():
        abort(dist.group.WORLD)  # Torch 2.6 takes None for a group that is not the default one.
    else:
        dist.destroy_process_group()
