"""Defines the state of a member of a rendezvous, the supervisor's lines about rounds, and a member's next step.

All but `Membership` is pure.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RUN_IS_OVER = 1  # A code of success would tell an operator that the whole job has succeeded.


class MalformedRendezvous(ValueError):  # noqa: N818 - the name describes the line
    """A line of type `rendezvous`, or a round in it, lacks a required field. It has no effect."""


@dataclass(frozen=True)
class RoundStoreAddress:
    """Where the members of a round reach its TCPStore."""

    address: str
    port: int


@dataclass(frozen=True)
class RoundMember:
    """One elastic agent of a round. `member` is its random id, `address` its `HOST:PORT` for the other members."""

    member: str
    host: str
    address: str
    processes: int


@dataclass(frozen=True)
class RendezvousRound:
    """Who trains together. Rounds are numbered from 1 in ascending order; member 0 holds the store.

    In an `in_process` round the processes of the round before go on without a restart. `store` is None until member 0
    has opened it.
    """

    number: int
    members: tuple[RoundMember, ...]
    in_process: bool = False
    store: RoundStoreAddress | None = None

    def index_of(self, member: str) -> int | None:
        """Return the index of a member id, None if it is not part of the round."""
        return next((index for index, one in enumerate(self.members) if one.member == member), None)

    def fields(self) -> dict[str, Any]:
        """Return the round as JSON, as it is in a line."""
        return {
            "number": self.number,
            "in_process": self.in_process,
            "members": [vars(member) for member in self.members],
            "store": None if self.store is None else vars(self.store),
        }


@dataclass(frozen=True)
class FollowingRound:
    """A round that begins in process after the next pause if nothing changes until then.

    `epoch` numbers the attempts to agree on that pause: each has a following round of its own.
    """

    epoch: int
    round: RendezvousRound


@dataclass(frozen=True)
class RendezvousLine:
    """A validated line of type `rendezvous`.

    `wanted` is the number of the newest round, `round` the newest one that this member is part of, `following` the one
    that its workers can already connect for. `starts`: it is not yet part of the newest round, but starts its workers,
    which join later. `release`: exit with this code.
    """

    run: int
    wanted: int
    round: RendezvousRound | None = None
    following: FollowingRound | None = None
    starts: bool = False
    release: int | None = None
    reason: str = ""


def parse_line(message: Mapping[str, Any]) -> RendezvousLine:
    """Return a line of type `rendezvous`. Raises MalformedRendezvous."""
    try:
        found, following, release = message.get("round"), message.get("following"), message.get("release")
        return RendezvousLine(
            _int(message["run"], 0),
            _int(message["wanted"], 0),
            None if found is None else parse_round(found),
            None if following is None else FollowingRound(_int(following["epoch"], 0), parse_round(following)),
            starts=bool(message.get("starts")),
            release=None if release is None else _int(release, 0),
            reason=str(message.get("reason", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedRendezvous(f"{type(error).__name__}: {error}") from error


def parse_round(fields: Mapping[str, Any]) -> RendezvousRound:
    """Return a round from its JSON. Raises MalformedRendezvous."""
    try:
        store = fields.get("store")
        members = tuple(
            RoundMember(str(one["member"]), str(one["host"]), str(one["address"]), _int(one["processes"], 1))
            for one in fields["members"]
        )
        _int(len(members), 1)
        return RendezvousRound(
            _int(fields["number"], 1),
            members,
            bool(fields.get("in_process")),
            None if store is None else RoundStoreAddress(str(store["address"]), _int(store["port"], 1)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedRendezvous(f"{type(error).__name__}: {error}") from error


def _int(value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is no integer from {least} on")
    return value


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
        following_store: It has opened the store of this round, which may follow; None if it has not.
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
    store: tuple[int, RoundStoreAddress] | None = None
    following_store: tuple[int, RoundStoreAddress] | None = None
    unreachable: int = 0
    ready: int = 0
    started: bool = False
    ended: bool = False
    known: RendezvousRound | None = None
    joins: bool = False
    stranded: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the state as JSON."""
        store, following_store = (
            None if opened is None else {"round": opened[0], **vars(opened[1])}
            for opened in (self.store, self.following_store)
        )
        known = None
        if self.known is not None:
            hosts = [member.host for member in self.known.members]
            known = {"number": self.known.number, "hosts": hosts, "in_process": self.known.in_process}
        return {
            "processes": self.processes,
            "address": self.address,
            "round": self.round,
            "waits": self.waits,
            "failed": self.failed,
            "store": store,
            "following_store": following_store,
            "unreachable": self.unreachable,
            "ready": self.ready,
            "started": self.started,
            "ended": self.ended,
            "known": known,
        }


@dataclass(frozen=True)
class Enter:
    """Enter this round and start the workers."""

    round: RendezvousRound


@dataclass(frozen=True)
class StartToJoin:
    """Start the workers, which join a later round in process."""


@dataclass(frozen=True)
class Exit:
    """Leave `next_rendezvous` by ending the agent with this code."""

    code: int


def wait(state: MemberState, line: RendezvousLine | None) -> MemberState:
    """Return the state of a member whose agent has called `next_rendezvous`.

    The agent calls it for a newer round, or because its workers have failed.
    """
    has_failed = state.failed or ((state.round > 0 or state.joins) and not must_rejoin(state, line))
    return replace(state, waits=True, failed=has_failed, started=False, joins=False, stranded=False)


def next_step(state: MemberState, line: RendezvousLine | None) -> Enter | StartToJoin | Exit | None:
    """Return the next step of a waiting member; None if it goes on waiting."""
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


def enter(state: MemberState, entered: RendezvousRound) -> MemberState:
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
        following_store=None,
    )


def start_to_join(state: MemberState) -> MemberState:
    """Return the state of a member that starts workers which join later."""
    return replace(state, waits=False, failed=False, started=False, joins=True)


def must_rejoin(state: MemberState, line: RendezvousLine | None) -> bool:
    """Return whether the agent has to stop its workers and call `next_rendezvous`."""
    if line is None or line.wanted <= state.round or regroups(state, line) is not None:
        return False
    return not (state.joins and line.starts)


def regroups(state: MemberState, line: RendezvousLine) -> RendezvousRound | None:
    """Return the newer round that this member's running workers enter in process, None if there is none."""
    newest = line.round
    is_entered = newest is not None and newest.number == line.wanted > state.round and newest.in_process
    return newest if is_entered and not state.waits and (state.round > 0 or state.joins) else None


def adopt(state: MemberState, line: RendezvousLine) -> MemberState:
    """Return the state after a line: in a newer round that the running workers enter in process, or with its store."""
    newer = regroups(state, line)
    if newer is not None:
        return enter(state, newer)
    if state.waits and line.wanted <= state.round:
        return replace(state, failed=True)  # nobody has formed the round that it waits for
    known, told = state.known, line.round
    has_store = told is not None and told.store is not None and told.number == state.round
    return replace(state, known=told) if has_store and known is not None and known.store is None else state


@dataclass(eq=False)
class Membership:
    """The state that the agent's threads share.

    Its parts are immutable and replaced as a whole, so they are read without the lock.

    Attributes:
        state: This member's state.
        line: The last line, of the supervisor or of other members.
        told: The supervisor's last line.
        version: Grows with each change of the state.
    """

    state: MemberState
    line: RendezvousLine | None = None
    told: RendezvousLine | None = None
    version: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _absent_since: float | None = field(default_factory=time.monotonic)

    @property
    def must_rejoin(self) -> bool:
        """Whether the agent has to stop its workers and call `next_rendezvous`. Read from memory only."""
        return must_rejoin(self.state, self.line)

    @property
    def newest(self) -> RendezvousRound | None:
        """The newest round that this member is or was to be part of."""
        told = None if self.line is None else self.line.round
        return max((one for one in (self.state.known, told) if one), key=lambda one: one.number, default=None)

    @property
    def is_parked(self) -> bool:
        """Whether the supervisor has formed a newer round without this member."""
        newest = self.newest
        return newest is None or (self.told is not None and self.told.wanted > newest.number)

    @property
    def absent_seconds(self) -> float:
        """For how long there has been no stream to the supervisor; 0 while there is one."""
        since = self._absent_since
        return 0.0 if since is None else time.monotonic() - since

    def change(self, change: Callable[[MemberState], MemberState]) -> None:
        """Replace the state by `change(state)`. It is reported if it differs."""
        with self._changed:
            state = change(self.state)
            if state != self.state:
                self.state = state
                self.version += 1
                self._changed.notify_all()

    def wait(self) -> None:
        """Record that the agent has called `next_rendezvous`."""
        self.change(lambda state: wait(state, self.line))

    def next_step(self, seconds: float) -> Enter | StartToJoin | Exit | None:
        """Return the next step of a waiting member; None if there was none for `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: next_step(self.state, self.line), seconds)

    def receive(self, line: RendezvousLine) -> None:
        """Apply a line. A round that the running workers enter in process is entered at once."""
        with self._changed:
            self.told = line
            self._apply(line)

    def receive_from_peers(self, wanted: int, formed: RendezvousRound | None = None) -> None:
        """Apply answers of other members while the supervisor is away: the newest round, and its members if formed."""
        with self._changed:
            line = self.line or RendezvousLine(run=0, wanted=0)
            if wanted > line.wanted:
                self._apply(replace(line, wanted=wanted, round=formed or line.round, starts=False))
            elif formed is not None and wanted == line.wanted:
                self._apply(replace(line, round=formed, starts=False))

    def end_run(self) -> None:
        """Record that a later run has begun: a waiting member has nothing more to wait for."""
        with self._changed:
            self.line = replace(self.line or RendezvousLine(run=0, wanted=0), release=_RUN_IS_OVER)
            self._changed.notify_all()

    def set_absent(self, *, absent: bool) -> None:
        """Record whether there is no stream to the supervisor."""
        with self._changed:
            if not absent:
                self._absent_since = None
            elif self._absent_since is None:
                self._absent_since = time.monotonic()
            self._changed.notify_all()

    def wake(self) -> None:
        """Let a caller of `wait_beyond` return."""
        with self._changed:
            self.version += 1
            self._changed.notify_all()

    def wait_beyond(self, version: int, seconds: float) -> None:
        """Wait until the version of the state differs from `version`, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != version, seconds)

    def _apply(self, line: RendezvousLine) -> None:
        """Adopt a line. The caller has the lock."""
        self.line = line
        self.change(lambda state: adopt(state, line))
        self._changed.notify_all()
