"""Bounds the connections that are open at once: all of them, and those of one peer.

A peer is known by its address alone before it has said who it is. Where connections have to be closed for newer ones,
those that are used stay.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class OpenConnection(Protocol):
    """A connection, to those who bound their number."""

    @property
    def is_in_use(self) -> bool:
        """Whether it carries a stream, which a newer connection must not end."""

    def give_way(self) -> None:
        """Closes it, because a newer connection takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """The most connections that are open at once.

    Attributes:
        all: Of all peers.
        of_peer: Of one address.
    """

    all: int
    of_peer: int


@dataclass(eq=False, slots=True)
class OpenConnections:
    """Lists the connections that are open, and decides which ones may be.

    A new connection beyond a bound takes the place of the oldest one that is not in use: of its own peer where this is
    the peer's bound, otherwise of any. If all are in use, the new one is closed. So connections on which nothing is
    asked keep nobody out, and none that carries a part is closed for one that has not even asked.

    Attributes:
        bounds: Are never exceeded.
        on_crowded: Called with the address of the peer whose connection is closed.
    """

    bounds: ConnectionBounds
    on_crowded: Callable[[str], None]
    _open: dict[OpenConnection, str] = field(init=False, default_factory=dict)
    _peers: dict[str, dict[OpenConnection, None]] = field(init=False, default_factory=dict)

    def add(self, connection: OpenConnection, peer: str) -> bool:
        """Adds a connection; returns False if there is no place for it, and it has to be closed."""
        for held, most in ((self._peers.get(peer, {}), self.bounds.of_peer), (self._open, self.bounds.all)):
            if len(held) < most:
                continue
            oldest = next((each for each in held if not each.is_in_use), None)
            if oldest is None:
                self.on_crowded(peer)
                return False
            self.on_crowded(self._open[oldest])
            self.remove(oldest)
            oldest.give_way()
        self._open[connection] = peer
        self._peers.setdefault(peer, {})[connection] = None
        return True

    def remove(self, connection: OpenConnection) -> None:
        """Forgets a connection that has ended, if it is listed."""
        peer = self._open.pop(connection, None)
        if peer is not None:
            del self._peers[peer][connection]
            if not self._peers[peer]:
                del self._peers[peer]
