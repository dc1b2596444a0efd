"""The state of this member and the last line, shared by the agent's main thread and the threads of the link."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from . import member
from .rounds import Line

if TYPE_CHECKING:
    from collections.abc import Callable

    from .member import Enter, Exit, MemberState, StartToJoin
    from .rounds import Round

_RUN_IS_OVER = 1  # A code of success would tell an operator that the whole job has succeeded.


class Membership:
    """Shared state. Its parts are immutable and replaced as a whole, so they are read without the lock.

    Attributes:
        state: This member's state.
        line: The last line, of the supervisor or of other members.
        told: The supervisor's last line.
        version: Grows with each change of the state.
    """

    def __init__(self, state: MemberState) -> None:
        self.state = state
        self.line: Line | None = None
        self.told: Line | None = None
        self.version = 0
        self._changed = threading.Condition()
        self._absent_since: float | None = time.monotonic()

    @property
    def must_rejoin(self) -> bool:
        """Whether the agent has to stop its workers and call `next_rendezvous`. Read from memory only."""
        return member.must_rejoin(self.state, self.line)

    @property
    def newest(self) -> Round | None:
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
            self._set(change(self.state))

    def wait(self) -> None:
        """Record that the agent has called `next_rendezvous`."""
        with self._changed:
            self._set(member.wait(self.state, self.line))

    def next_step(self, seconds: float) -> Enter | StartToJoin | Exit | None:
        """Return what a waiting member does; None if there was nothing to do for `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: member.next_step(self.state, self.line), seconds)

    def receive(self, line: Line) -> None:
        """Apply a line. A round that the running workers enter in process is entered at once."""
        with self._changed:
            self.told = line
            self._apply(line)

    def receive_from_peers(self, wanted: int, formed: Round | None = None) -> None:
        """Apply what other members say while the supervisor is away: the newest round, and its members if formed."""
        with self._changed:
            line = self.line or Line(run=0, wanted=0)
            if wanted > line.wanted:
                self._apply(replace(line, wanted=wanted, round=formed or line.round, starts=False))
            elif formed is not None and wanted == line.wanted:
                self._apply(replace(line, round=formed, starts=False))

    def end_run(self) -> None:
        """Record that a later run has begun: a waiting member has nothing more to wait for."""
        with self._changed:
            self.line = replace(self.line or Line(run=0, wanted=0), release=_RUN_IS_OVER)
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

    def _apply(self, line: Line) -> None:
        self.line = line
        self._set(member.adopt(self.state, line))
        self._changed.notify_all()

    def _set(self, state: MemberState) -> None:
        if state != self.state:
            self.state = state
            self.version += 1
            self._changed.notify_all()
