"""Decides what may be kept: the room of tenants and of the host, whose a state is, and when parts expire. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NewType

from node_agent.keeper.refusals import RefusalCode, RequestRefusedError

Tenant = NewType("Tenant", str)
"""The namespace of a pod."""

StateKey = NewType("StateKey", str)
"""The SHA-256 of a state's name in hexadecimal digits. The name lets anybody read the state, so it is kept nowhere."""

MAX_PART = 2**20 - 1

_PAGE = 4096
_MAX_PARTS = 32_768
"""Parts on one host. Each takes 1 KiB of the kernel's memory and of this process's, whatever its size."""
_MAX_PARTS_OF_TENANT = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Describes one part of a state.

    Attributes:
        number: From 0 to `MAX_PART`.
        length: In bytes.
        until: When it expires, in Unix seconds.
    """

    tenant: Tenant
    state: StateKey
    number: int
    length: int
    until: float

    @property
    def room(self) -> int:
        """The memory that it takes, in bytes: whole pages, and at least one."""
        return max(1, -(-self.length // _PAGE)) * _PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most bytes that are kept at once: on this host, and of one tenant."""

    host: int
    tenant: int


@dataclass(eq=False, slots=True)
class _State:
    """The parts of a state that are whole, which of them were read, and how many are being received."""

    tenant: Tenant
    parts: dict[int, Part] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    drafts: int = 0


@dataclass(slots=True)
class _Usage:
    """Counts what is taken of a bound."""

    room: int = 0
    parts: int = 0

    def add(self, part: Part, sign: int) -> None:
        self.room += sign * part.room
        self.parts += sign


@dataclass(frozen=True, slots=True)
class ExpiredPart:
    """A part whose time has come, and whether somebody has read all of it."""

    part: Part
    was_read: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """A part that is being received. Its room is taken."""

    part: Part
    state: _State


class Ledger:
    """Lists the parts that are kept or being received, with the room that they take.

    A part that nobody can read any more takes its room until it is `released`, because its memory is given back later.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._states: dict[StateKey, _State] = {}
        self._host = _Usage()
        self._tenants: defaultdict[Tenant, _Usage] = defaultdict(_Usage)

    @property
    def taken(self) -> int:
        """The bytes that are taken on this host."""
        return self._host.room

    @property
    def states(self) -> int:
        """The number of states of which a part is kept or being received."""
        return len(self._states)

    def room(self, tenant: Tenant) -> int:
        """Returns the bytes that a tenant may still send."""
        of_tenant = self._tenants[tenant].room if tenant in self._tenants else 0
        return max(0, min(self._bounds.host - self._host.room, self._bounds.tenant - of_tenant))

    def part(self, state: StateKey, number: int, now: float) -> Part | None:
        """Returns a part that is whole and has not expired."""
        found = self._states.get(state)
        part = None if found is None else found.parts.get(number)
        return part if part is not None and now < part.until else None

    def reserve(self, part: Part) -> Draft:
        """Takes the room of a part before it is received. `commit` or `abandon` has to follow.

        Raises:
            RequestRefusedError: There is no room, there are too many parts, or the state is another tenant's.
        """
        state = self._states.get(part.state)
        if state is not None and state.tenant != part.tenant:
            raise RequestRefusedError(RefusalCode.FOREIGN_STATE, "the state is another tenant's")
        free = self.room(part.tenant)
        if part.room > free:
            raise RequestRefusedError(
                RefusalCode.NO_ROOM, f"the part needs {part.room} bytes, and {free} are free", free
            )
        if self._host.parts >= _MAX_PARTS or self._tenants[part.tenant].parts >= _MAX_PARTS_OF_TENANT:
            raise RequestRefusedError(RefusalCode.TOO_MANY, "too many parts are kept")
        if state is None:
            state = self._states[part.state] = _State(part.tenant)
        state.drafts += 1
        self._take(part, 1)
        return Draft(part, state)

    def check_expected(self, draft: Draft) -> None:
        """Checks that a part may still be kept.

        Raises:
            RequestRefusedError: Its state was deleted in the meantime.
        """
        if self._states.get(draft.part.state) is not draft.state:
            raise RequestRefusedError(RefusalCode.DELETED, "the state was deleted while the part was being sent")

    def commit(self, draft: Draft) -> Part | None:
        """Keeps a part that has been received and is expected; returns the part that it replaces, to be released."""
        draft.state.drafts -= 1
        replaced = draft.state.parts.get(draft.part.number)
        draft.state.parts[draft.part.number] = draft.part
        draft.state.read.discard(draft.part.number)
        return replaced

    def abandon(self, draft: Draft) -> None:
        """Forgets a part that was not received whole. Its room stays taken until it is released."""
        draft.state.drafts -= 1
        self._forget_if_empty(draft.part.state, draft.state)

    def restore(self, part: Part) -> None:
        """Lists a part that an earlier process has kept.

        It is listed also if the bounds are smaller by now: nothing is received then until it has expired.
        """
        self._states.setdefault(part.state, _State(part.tenant)).parts[part.number] = part
        self._take(part, 1)

    def note_read(self, part: Part) -> None:
        """Notes that somebody has read all of a part, if it is still there."""
        state = self._states.get(part.state)
        if state is not None and state.parts.get(part.number) is part:
            state.read.add(part.number)

    def delete(self, state: StateKey) -> Sequence[Part]:
        """Forgets a state; returns its parts, which have to be released."""
        found = self._states.pop(state, None)
        return () if found is None else tuple(found.parts.values())

    def expire(self, now: float) -> Sequence[ExpiredPart]:
        """Forgets the parts whose time has come; returns them, and they have to be released."""
        return tuple(self._expire(part) for part in tuple(self._parts()) if part.until <= now)

    def release(self, part: Part) -> None:
        """Gives the room of a part back, because its memory is free."""
        self._take(part, -1)

    def _expire(self, part: Part) -> ExpiredPart:
        state = self._states[part.state]
        del state.parts[part.number]
        was_read = part.number in state.read
        state.read.discard(part.number)
        self._forget_if_empty(part.state, state)
        return ExpiredPart(part, was_read)

    def _parts(self) -> Iterator[Part]:
        for state in self._states.values():
            yield from state.parts.values()

    def _take(self, part: Part, sign: int) -> None:
        self._host.add(part, sign)
        of_tenant = self._tenants[part.tenant]
        of_tenant.add(part, sign)
        if not of_tenant.parts:
            del self._tenants[part.tenant]

    def _forget_if_empty(self, key: StateKey, state: _State) -> None:
        if not state.parts and not state.drafts and self._states.get(key) is state:
            del self._states[key]
