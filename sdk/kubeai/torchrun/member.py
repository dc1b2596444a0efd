"""The state of a member, and pure functions from it and the last line to what it reports and does next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rounds import Line, Round, StoreAddress


@dataclass(frozen=True)
class MemberState:
    """The state of one elastic agent and its workers.

    Attributes:
        member: The random id of the agent.
        processes: The number of its workers.
        address: Where the other members reach it, as `HOST:PORT`.
        round: The last round that it has entered; 0 for none.
        waits: It is inside `next_rendezvous` and wants a newer round.
        failed: Its workers have failed.
        store: It holds the store of this round; None if it holds none.
        unreachable: The newest round whose store it could not reach; 0 for none.
        ready: The newest round in which all its workers train, after joining or regrouping in process.
        started: Its workers have started and wait to join in process.
        ended: Its workers have ended normally.
        known: The round that it is in.
        joins: Its workers were started to join a later round in process.
        stranded: Its workers have lost a rank of this round, and wait for the next one in process. Only the other
            members are told.
    """

    member: str
    processes: int
    address: str
    round: int = 0
    waits: bool = False
    failed: bool = False
    store: tuple[int, StoreAddress] | None = None
    unreachable: int = 0
    ready: int = 0
    started: bool = False
    ended: bool = False
    known: Round | None = None
    joins: bool = False
    stranded: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the state as JSON."""
        store = None if self.store is None else {"round": self.store[0], **vars(self.store[1])}
        return {
            "processes": self.processes,
            "address": self.address,
            "round": self.round,
            "waits": self.waits,
            "failed": self.failed,
            "store": store,
            "unreachable": self.unreachable,
            "ready": self.ready,
            "started": self.started,
            "ended": self.ended,
            "known": _known(self.known),
        }


@dataclass(frozen=True)
class Enter:
    """Enter this round and start the workers."""

    round: Round


@dataclass(frozen=True)
class StartToJoin:
    """Start the workers, which join a later round in process."""


@dataclass(frozen=True)
class Exit:
    """Leave `next_rendezvous` by ending the agent with this code."""

    code: int


def wait(state: MemberState, line: Line | None) -> MemberState:
    """Return the state of a member whose agent has called `next_rendezvous`.

    The agent calls it for a newer round, or because its workers have failed.
    """
    has_failed = (state.round > 0 or state.joins) and not must_rejoin(state, line)
    has_failed = state.failed or has_failed
    return replace(state, waits=True, failed=has_failed, started=False, joins=False, stranded=False)


def next_step(state: MemberState, line: Line | None) -> Enter | StartToJoin | Exit | None:
    """Return what a waiting member does now; None: it goes on waiting."""
    if line is None:
        return None
    if line.release is not None:
        return Exit(line.release)
    # Below `wanted`, the round is one that this member has been taken off.
    newest = line.round
    if newest is not None and newest.number == line.wanted > max(state.round, state.unreachable):
        # New workers cannot enter a round in process: the supervisor has not heard yet that the old ones are gone.
        is_open = newest.store is not None or newest.index_of(state.member) == 0
        return Enter(newest) if is_open and not newest.in_process else None
    return StartToJoin() if line.starts else None


def enter(state: MemberState, entered: Round) -> MemberState:
    """Return the state of a member that has entered a round, with new workers or in process."""
    return replace(
        state,
        round=entered.number,
        known=entered,
        waits=False,
        failed=False,
        started=False,
        joins=False,
        stranded=False,
    )


def start_to_join(state: MemberState) -> MemberState:
    """Return the state of a member that starts workers which join later."""
    return replace(state, waits=False, failed=False, started=False, joins=True)


def must_rejoin(state: MemberState, line: Line | None) -> bool:
    """Return whether the agent has to stop its workers and call `next_rendezvous`."""
    if line is None or line.wanted <= state.round or regroups(state, line) is not None:
        return False
    return not (state.joins and line.starts)


def regroups(state: MemberState, line: Line) -> Round | None:
    """Return the newer round that this member's running workers enter in process, None if there is none."""
    newest = line.round
    is_entered = newest is not None and newest.number == line.wanted > state.round and newest.in_process
    return newest if is_entered and not state.waits and (state.round > 0 or state.joins) else None


def adopt(state: MemberState, line: Line) -> MemberState:
    """Return the state after a line: in a newer round that the running workers enter in process, or with its store."""
    newer = regroups(state, line)
    if newer is not None:
        return enter(state, newer)
    if state.waits and line.wanted <= state.round:
        return replace(state, failed=True)  # nobody has formed the round that it waits for
    known, told = state.known, line.round
    has_store = told is not None and told.store is not None and told.number == state.round
    return replace(state, known=told) if has_store and known is not None and known.store is None else state


def _known(known: Round | None) -> dict[str, Any] | None:
    if known is None:
        return None
    hosts = [member.host for member in known.members]
    return {"number": known.number, "hosts": hosts, "in_process": known.in_process}
