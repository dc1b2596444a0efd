"""All open connections of the library, so that a forked child can let go of them."""

from __future__ import annotations

import contextlib
import os
import socket

# A module variable, because a forked child must find them without an object of the parent's threads, whose locks may
# have been held during the fork. A closed socket in it is harmless.
_open: set[socket.socket] = set()


def adopt(sock: socket.socket) -> socket.socket:
    """Remember an open socket, and return it. Call it before the socket connects: a fork may happen meanwhile."""
    _open.add(sock)
    return sock


def disown(sock: socket.socket) -> None:
    """Forget a socket without closing it, because another object has taken its descriptor over."""
    _open.discard(sock)


def shut(sock: socket.socket) -> None:
    """Shut a connection down, from any thread: a thread that reads it wakes up, and so does the peer."""
    # Use the plain socket's shutdown also for TLS: SSLSocket's would remove the session that a reading thread uses.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def release(sock: socket.socket) -> None:
    """Close a socket and forget it."""
    # Shut down first, so that the peer sees the end even if a forked child still has a copy of the descriptor.
    shut(sock)
    sock.close()
    _open.discard(sock)


def abandon_in_child() -> None:
    """Release the parent's connections in a forked child, without sending anything on them.

    The child's copies of the descriptors would keep a dead parent's streams open, and the name of its relay taken. They
    cannot be closed cleanly here (locks may be held by threads that do not exist in the child), so /dev/null replaces
    them.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for sock in _open:
        if sock.fileno() >= 0:
            os.dup2(null, sock.fileno(), inheritable=False)
    os.close(null)
    _open.clear()
