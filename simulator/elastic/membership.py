"""The membership of the job and the launcher's next actions, as pure functions.

The rules are those of Horovod elastic, as observed on 0.28.1. Rank 0 is the oldest survivor. A change of hosts waits
for the end of a step. A worker that dies without having been dismissed blacklists its host.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NewType

WorkerId = NewType("WorkerId", int)
"""Counted by the launcher: a smaller one is older."""


class Phase(Enum):
    """The phase of a worker process."""

    STARTING = auto()
    """Started, without a hello yet."""
    READY = auto()
    """Waits for a ring."""
    IN_RING = auto()
    LEAVING = auto()
    """Was told to leave; its exit means nothing."""


@dataclass(frozen=True, slots=True)
class Member:
    """A running worker process. There is one per host."""

    worker: WorkerId
    host: str
    phase: Phase = Phase.STARTING
    port: int = 0
    has_state: bool = False
    """Whether it has the job's state: it was rank 0 of the first ring, or has received it since."""


@dataclass(frozen=True, slots=True)
class Limits:
    min_workers: int
    max_workers: int
    start_workers: int
    """Number of hosts that must be listed before the start."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the launcher knows."""

    members: tuple[Member, ...] = ()
    """Oldest first."""
    listed: frozenset[str] = field(default_factory=frozenset)
    """Hosts in the last answer of the discovery script."""
    blacklist: frozenset[str] = field(default_factory=frozenset)
    epoch: int = 0
    """Number of the last ring; 0 = none yet."""
    called_off: bool = False
    """Whether the present ring was told of an update or is broken."""

    def member(self, worker: WorkerId) -> Member | None:
        return next((member for member in self.members if member.worker == worker), None)

    def in_phase(self, phase: Phase) -> tuple[Member, ...]:
        """Return the members in one phase, oldest first."""
        return tuple(member for member in self.members if member.phase is phase)

    def changed(self, member: Member) -> "Situation":
        """Return a copy with one member replaced."""
        return replace(self, members=tuple(member if m.worker == member.worker else m for m in self.members))

    def without(self, worker: WorkerId) -> "Situation":
        """Return a copy without one member."""
        return replace(self, members=tuple(m for m in self.members if m.worker != worker))


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a worker on a host."""

    host: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Tell a worker to leave for good."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class CallOff:
    """Tell the members of the ring that the hosts have changed."""


@dataclass(frozen=True, slots=True)
class Form:
    """Form the next ring of these workers, in rank order."""

    order: tuple[WorkerId, ...]


Action = Spawn | Dismiss | CallOff | Form


def decide(situation: Situation, limits: Limits) -> tuple[Action, ...]:
    """Return the actions to take now; none once everything is done."""
    hosts = chosen_hosts(situation, limits)
    return (*_spawns(situation, hosts), *_unwanted_joiners(situation, hosts), *_rebuild(situation, hosts, limits))


def chosen_hosts(situation: Situation, limits: Limits) -> tuple[str, ...]:
    """Return the hosts that should have a worker, up to the maximum: present ones by age, then new ones by name."""
    usable = situation.listed - situation.blacklist
    if not situation.members and not situation.epoch and len(usable) < limits.start_workers:
        return ()
    seated = [m.host for m in situation.members if m.phase is not Phase.LEAVING and m.host in usable]
    # A host whose last worker has not exited yet gets its next one afterwards.
    new = sorted(usable - {member.host for member in situation.members})
    return tuple((seated + new)[: limits.max_workers])


def state_is_lost(situation: Situation) -> bool:
    """Whether no remaining worker can continue, so that the job must restart from its checkpoint."""
    staying = [member for member in situation.members if member.phase is not Phase.LEAVING]
    return not staying or (situation.epoch > 0 and not any(member.has_state for member in staying))


def _spawns(situation: Situation, hosts: tuple[str, ...]) -> tuple[Spawn, ...]:
    occupied = {member.host for member in situation.members}
    return tuple(Spawn(host) for host in hosts if host not in occupied)


def _unwanted_joiners(situation: Situation, hosts: tuple[str, ...]) -> tuple[Dismiss, ...]:
    joiners = (*situation.in_phase(Phase.STARTING), *situation.in_phase(Phase.READY))
    return tuple(Dismiss(m.worker) for m in joiners if not m.has_state and m.host not in hosts)


def _rebuild(situation: Situation, hosts: tuple[str, ...], limits: Limits) -> tuple[Action, ...]:
    ring = situation.in_phase(Phase.IN_RING)
    starting = [m for m in situation.in_phase(Phase.STARTING) if m.host in hosts]
    ready = [m for m in situation.in_phase(Phase.READY) if m.host in hosts]
    if ring:
        left_out = any(member.host not in hosts for member in ring)
        # Workers that start together join together, because each change of the ring briefly stops all.
        joined = bool(ready) and not starting
        return (CallOff(),) if (left_out or joined) and not situation.called_off else ()
    if len(ready) < limits.min_workers or (starting and not situation.epoch):
        return ()
    return _form(situation, ready)


def _form(situation: Situation, ready: list[Member]) -> tuple[Action, ...]:
    order = tuple(member.worker for member in sorted(ready, key=lambda m: (not m.has_state, m.worker)))
    left_out = (m.worker for m in situation.in_phase(Phase.READY) if m.has_state and m.worker not in order)
    return (*(Dismiss(worker) for worker in left_out), Form(order))


def formed(situation: Situation, order: tuple[WorkerId, ...]) -> Situation:
    """Return the situation after these workers got their places. Rank 0 has the state and sends it to the others."""
    seated = tuple(
        replace(m, phase=Phase.IN_RING, has_state=m.has_state or m.worker == order[0]) if m.worker in order else m
        for m in situation.members
    )
    return replace(situation, members=seated, epoch=situation.epoch + 1, called_off=False)
