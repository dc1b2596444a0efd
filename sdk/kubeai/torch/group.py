"""Makes the default process group that of a round, and leaves it so that no other rank waits for this one."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.integrations.torch import device_type
from kubeai.torchrun.member import RoundStoreAddress
from kubeai.torchrun.stores import CannotReach, connect

from .decisions import FIRST_PAUSE, PAUSE_FOR_EACH_RANK, NotFormed

if TYPE_CHECKING:
    from .decisions import WorkerRound

_DESCRIPTORS = Path("/proc/self/fd")
_PORTS = 32
"""How many process groups of a rank are known to the others, the default one and those of meshes."""


class FormedGroup(NamedTuple):
    """The store of a round, and the finished steps of each of its ranks."""

    store: Any
    steps: Sequence[int]


class _Socket(NamedTuple):
    descriptor: int
    inode: str


_present: Connections | None = None
"""The connections of the present round. A process that this one forks has them, too."""

_meshes: list[Any] = []
"""The meshes of the present round."""

_hooks: tuple[object, object] | None = None
"""`sys.excepthook` before torch has wrapped it with the prefix of a rank, and since."""


def form_group(  # noqa: PLR0913 - each is one fact about the group
    entered: WorkerRound,
    local_rank: int,
    step: int,
    *,
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
    try:
        store = dist.PrefixStore(f"kubeai/{entered.number}/", connect(RoundStoreAddress(entered.address, entered.port)))
        store.set(f"step/{rank}", str(step))
        store.add("arrived", 1)
        end, pause = time.monotonic() + seconds, FIRST_PAUSE
        while store.add("arrived", 0) < size:
            if is_over():
                raise NotFormed("a newer round has come")
            if time.monotonic() > end:
                raise NotFormed(f"not all ranks have come within {seconds:g} s")
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_FOR_EACH_RANK * size)
        # Torch wraps `sys.excepthook` each time; `leave_group` takes that back.
        before, limit = sys.excepthook, timedelta(seconds=timeout)
        try:
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        finally:
            if not dist.is_initialized():
                _forget_attempt()
        _hooks = before, sys.excepthook
        return FormedGroup(store, [int(store.get(f"step/{each}")) for each in range(size)])
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


class Connections:
    """The TCP connections of the process groups that this process forms from now on, with gloo.

    A destroyed group keeps its connections open while anything refers to it, such as a wrapper or a loss in a variable
    of the script, and the ranks at the other ends wait for this one. gloo has no function that closes them. So they are
    shut down from here, whoever refers to them. A process that is forked, such as a worker of a loader, has them too,
    and would keep them open when this one is killed: it drops them.
    """

    def __init__(self) -> None:
        self._before = set(_sockets())
        self._own: list[_Socket] = []

    def note(self) -> None:
        """Find those that were opened meanwhile. Called in every rank, again after further groups were formed.

        A connection of gloo leads to a port at which it listens, in this process or in that of another rank. Anything
        else that the process has opened meanwhile is left alone.
        """
        global _present  # noqa: PLW0603 - what a fork inherits is one for the process, too
        new = [each for each in _sockets() if each not in self._before]
        ends = {each: _ends(each.descriptor) for each in new}
        listening = [port for port, other in ends.values() if other is None and port]
        own = torch.zeros(_PORTS, dtype=torch.int64, device=device_type())
        own[: len(listening[:_PORTS])] = torch.tensor(listening[:_PORTS], dtype=torch.int64)
        told = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(told, own)
        ports = {int(port) for each in told for port in each.tolist()} - {0}
        self._own = [each for each, (port, other) in ends.items() if other and {port, other} & ports]
        _present = self

    def shut_down(self) -> None:
        """Shut them down, so that both ends fail."""
        for descriptor in self._open():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """Put the null device in their place, in a process that does not use them. Nobody else notices."""
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in self._open():
                os.dup2(null, descriptor)
            os.close(null)

    def _open(self) -> list[int]:
        """Return the descriptors of those that are still open: another file may have got the number of one."""
        now = set(_sockets())
        return [each.descriptor for each in self._own if each in now]


def _drop_inherited() -> None:
    if _present is not None:
        _present.drop()


os.register_at_fork(after_in_child=_drop_inherited)


def _sockets() -> list[_Socket]:
    """Return the open sockets of this process. An inode tells two sockets of one descriptor apart."""
    found = []
    with contextlib.suppress(OSError):
        for path in _DESCRIPTORS.iterdir():
            with contextlib.suppress(OSError):  # that of the listing itself
                target = os.readlink(path)
                if target.startswith("socket:"):
                    found.append(_Socket(int(path.name), target))
    return found


def _ends(descriptor: int) -> tuple[int, int | None]:
    """Return both ports of a TCP connection, (own, None) for a socket that listens, otherwise (0, None)."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
                return 0, None
            own = found.getsockname()[1]
            return (
                (own, None)
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                else (own, found.getpeername()[1])
            )
    except OSError:
        return 0, None
