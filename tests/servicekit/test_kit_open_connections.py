"""Which connections may be open at once."""

from collections import Counter
from dataclasses import dataclass, field

from servicekit.open_connections import ConnectionBounds, OpenConnections


@dataclass(eq=False)
class HeldConnection:
    is_in_use: bool = False
    has_given_way: bool = False

    def give_way(self) -> None:
        self.has_given_way = True


@dataclass
class Crowd:
    """At most four connections, of one peer two."""

    crowded: Counter[str] = field(default_factory=Counter)
    connections: OpenConnections = field(init=False)

    def __post_init__(self) -> None:
        self.connections = OpenConnections(ConnectionBounds(all=4, of_peer=2), lambda peer: self.crowded.update([peer]))

    def add(self, peer: str, *, is_in_use: bool = False) -> HeldConnection | None:
        added = HeldConnection(is_in_use)
        return added if self.connections.add(added, peer) else None

    def opened(self, peer: str, *, is_in_use: bool = False) -> HeldConnection:
        added = self.add(peer, is_in_use=is_in_use)
        assert added is not None
        return added


def test_a_peer_replaces_its_own_oldest_connection_that_is_not_in_use() -> None:
    crowd = Crowd()
    other = crowd.opened("other")
    used, oldest = crowd.opened("peer", is_in_use=True), crowd.opened("peer")
    newest = crowd.opened("peer")
    assert [each.has_given_way for each in (other, used, oldest, newest)] == [False, False, True, False]
    assert crowd.crowded == {"peer": 1}


def test_a_peer_whose_connections_are_all_in_use_gets_no_other_one() -> None:
    crowd = Crowd()
    held = [crowd.opened("peer", is_in_use=True) for _ in range(2)]
    assert crowd.add("peer") is None
    assert not any(each.has_given_way for each in held)
    assert crowd.crowded == {"peer": 1}
    assert crowd.add("other") is not None


def test_where_all_places_are_taken_the_oldest_unused_connection_of_any_peer_gives_way() -> None:
    crowd = Crowd()
    used, oldest, later = crowd.opened("a", is_in_use=True), crowd.opened("b"), crowd.opened("c")
    crowd.opened("a")
    assert crowd.add("d") is not None
    assert [each.has_given_way for each in (used, oldest, later)] == [False, True, False]
    assert crowd.crowded == {"b": 1}


def test_where_all_places_are_in_use_a_newcomer_is_refused() -> None:
    crowd = Crowd()
    held = [crowd.opened(peer, is_in_use=True) for peer in "aabb"]
    assert crowd.add("c") is None
    crowd.connections.remove(held[0])
    assert crowd.add("c") is not None


def test_a_connection_that_has_ended_leaves_its_place() -> None:
    """However often its end is told, and also that of one that had no place."""
    crowd = Crowd()
    for _ in range(10):
        ended = crowd.opened("peer", is_in_use=True)
        crowd.connections.remove(ended)
        crowd.connections.remove(ended)
    assert crowd.crowded == {}
