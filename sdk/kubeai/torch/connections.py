"""Finds the TCP connections of gloo's process groups, shuts them down, and drops them in forks."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import Callable, Iterable, NamedTuple
from weakref import WeakSet

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from kubeai.elastic.integrations.torch import device_type

_DESCRIPTORS = Path("/proc/self/fd")
_PORTS = 32
"""How many process groups of a rank are known to the others, the default one and those of meshes."""


class _Socket(NamedTuple):
    descriptor: int
    inode: str


def gathered_ports(own: Iterable[int]) -> set[int]:
    """Return the ports of all ranks of the default group. Called in every rank."""
    listening = list(own)[:_PORTS]
    padded = torch.zeros(_PORTS, dtype=torch.int64, device=device_type())
    padded[: len(listening)] = torch.tensor(listening, dtype=torch.int64)
    told = [torch.zeros_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(told, padded)
    return {int(port) for each in told for port in each.tolist()} - {0}


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
        self._ports: set[int] = set()

    def note(self, told: Callable[[Iterable[int]], set[int]] = gathered_ports) -> None:
        """Find those that were opened meanwhile. Called in every rank, again after further groups were formed.

        A connection of gloo leads to a port at which it listens, in this process or in that of another rank. Anything
        else that the process has opened meanwhile is left alone.

        Args:
            told: Tells all ranks the ports of this one, and returns those of all.
        """
        self._find(told, self._opened())

    def note_later(self, told: Callable[[Iterable[int]], set[int]]) -> None:
        """Find those that are open now in the same way, in a thread, so that no step waits for the other ranks."""
        opened = self._opened()

        def run() -> None:
            with contextlib.suppress(RuntimeError):  # a rank is lost, and these connections are about to be shut down
                self._find(told, opened)

        with contextlib.suppress(RuntimeError):  # there are no threads left, and the others shut down theirs
            threading.Thread(target=run, name="kubeai-connections", daemon=True).start()

    def _opened(self) -> dict[_Socket, tuple[int, int | None]]:
        """Return both ports of the sockets that were opened meanwhile."""
        return {each: _ends(each.descriptor) for each in _sockets() if each not in self._before}

    def _find(self, told: Callable[[Iterable[int]], set[int]], opened: dict[_Socket, tuple[int, int | None]]) -> None:
        own = {port for port, other in opened.values() if other is None and port}
        # Until the others have told theirs: if each rank shuts down what leads to its own ports, that is all.
        self._take(own, opened)
        self._take(told(sorted(own)), opened)

    def _take(self, ports: set[int], opened: dict[_Socket, tuple[int, int | None]]) -> None:
        self._ports |= ports
        self._own = [each for each, (port, other) in opened.items() if other and {port, other} & self._ports]
        _noted.add(self)

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


_noted: WeakSet[Connections] = WeakSet()
"""This process has noted these. A process that it forks has them, too, and drops them."""


def _drop_inherited() -> None:
    for each in list(_noted):
        each.drop()


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
