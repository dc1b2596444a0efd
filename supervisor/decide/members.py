"""The members of a torchrun job's rendezvous, as its elastic agents have described them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.domain.ids import Host


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the members of `round` reach its store."""

    round: int
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRound:
    """The round that a member is in; a supervisor that was started in the middle takes it over."""

    number: int
    hosts: tuple[Host, ...]
    in_process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One connected elastic agent, as it has described itself last.

    Attributes:
        member: Its id, which another agent on the same host does not share.
        since: When it connected first (Unix seconds).
        processes: How many training processes it has.
        address: Where the other members reach it.
        round: The last round that it has entered; 0 is none.
        waits: It waits for a newer round.
        failed: Its training processes have failed.
        store: The store that it holds.
        unreachable: The newest round whose store it could not reach; 0 is none.
        ready: The newest round in which all its processes train, if they entered it in process.
        started: Its processes have started and wait to join in process.
        ended: Its processes have ended normally.
        known: The round that it is in.
    """

    member: str
    since: float
    processes: int
    address: str
    round: int = 0
    waits: bool = False
    failed: bool = False
    store: StoreAddress | None = None
    unreachable: int = 0
    ready: int = 0
    started: bool = False
    ended: bool = False
    known: KnownRound | None = None


@dataclass(frozen=True, slots=True)
class Members:
    """The connected members of a run by host, from the streams alone.

    A member whose stream has just ended still counts for a moment, as it may only have lost its connection.
    `have_ended`: training has ended normally, and no other round is formed.
    """

    by_host: Mapping[Host, Member] = field(default_factory=dict)
    have_ended: bool = False

    def __bool__(self) -> bool:
        return bool(self.by_host)


NO_MEMBERS = Members()
