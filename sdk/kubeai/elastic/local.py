"""Sockets between the processes of one user on one machine or in one pod.

Their names are in Linux's abstract namespace. They need no file, so a read-only file system does not matter, and the
kernel frees a name at once when its process dies. Anybody may take a name, so each side checks the user of the other.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from typing import TYPE_CHECKING

from . import sockets

if TYPE_CHECKING:
    from .identity import Identity

SCHEME = "unix:"
_PREFIX = "\0kubeai-"
_BACKLOG = 1024
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid


def name_of(own: Identity) -> str:
    """Return the name that all processes with this identity and user share. Raises OSError.

    The directory is told by its inode, not by its path: pods that use the host's network share the namespace of names,
    and all mount their directory at the same path.
    """
    found = own.directory.stat()
    key = (os.geteuid(), found.st_dev, found.st_ino, own.job, own.run)
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def listen(name: str) -> socket.socket:
    """Take a name and listen on it. Raises OSError if it is taken, or if the system has no such names."""
    sock = sockets.adopt(_socket())
    try:
        sock.bind(_PREFIX + name)
        sock.listen(_BACKLOG)
    except OSError:
        sockets.release(sock)
        raise
    return sock


def connect(name: str, timeout: float) -> socket.socket:
    """Connect to the process that listens on a name. Raises OSError, also if it is another user's."""
    sock = sockets.adopt(_socket())
    try:
        sock.settimeout(timeout)
        sock.connect(_PREFIX + name)
        if not is_own_user(sock):
            raise PermissionError("the name is taken by another user")
    except OSError:
        sockets.release(sock)
        raise
    return sock


def is_own_user(sock: socket.socket) -> bool:
    """Return whether the peer of a connection belongs to the user of this process. Raises OSError."""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def _socket() -> socket.socket:
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError("the system does not tell the user of a peer")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
