"""The membership of the job and the launcher's next actions, as pure functions.

The rules are those of Horovod elastic, as observed on 0.28.1. Rank 0 is the oldest survivor. A change of hosts waits
for the end of a step. A worker that dies without having been dismissed blacklists its host.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NewType

WorkerId = NewType("WorkerId", int)
"""Counted by the launcher: a smaller one is older."""


class MemberPhase(Enum):
    """The phase of a worker process."""

    STARTING = auto()
    """Started, without a hello yet."""
    READY = auto()
    """Waits for a ring."""
    IN_RING = auto()
    LEAVING = auto()
    """Was told to leave; its exit means nothing."""


@dataclass(frozen=True, slots=True)
class ElasticMember:
    """A running worker process. There is one per host."""

    worker: WorkerId
    host: str
    phase: MemberPhase = MemberPhase.STARTING
    port: int = 0
    has_state: bool = False
    """Whether it has the job's state: it was rank 0 of the first ring, or has received it since."""


@dataclass(frozen=True, slots=True)
class ElasticLimits:
    min_workers: int
    max_workers: int
    start_workers: int
    """Number of hosts that must be listed before the start."""


@dataclass(frozen=True, slots=True)
class ElasticSituation:
    """Everything that the launcher knows."""

    members: tuple[ElasticMember, ...] = ()
    """Oldest first."""
    listed: frozenset[str] = field(default_factory=frozenset)
    """Hosts in the last answer of the discovery script."""
    blacklist: frozenset[str] = field(default_factory=frozenset)
    epoch: int = 0
    """Number of the last ring; 0 = none yet."""
    called_off: bool = False
    """Whether the present ring was told of an update or is broken."""

    def member(self, worker: WorkerId) -> ElasticMember | None:
        return next((member for member in self.members if member.worker == worker), None)

    def in_phase(self, phase: MemberPhase) -> tuple[ElasticMember, ...]:
        """Return the members in one phase, oldest first."""
        return tuple(member for member in self.members if member.phase is phase)

    def changed(self, member: ElasticMember) -> "ElasticSituation":
        """Return a copy with one member replaced."""
        return replace(self, members=tuple(member if m.worker == member.worker else m for m in self.members))

    def without(self, worker: WorkerId) -> "ElasticSituation":
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
class FormRing:
    """Form the next ring of these workers, in rank order."""

    order: tuple[WorkerId, ...]


Action = Spawn | Dismiss | CallOff | FormRing


def decide(situation: ElasticSituation, limits: ElasticLimits) -> tuple[Action, ...]:
    """Return the actions to take now; none once everything is done."""
    hosts = chosen_hosts(situation, limits)
    return (*_spawns(situation, hosts), *_unwanted_joiners(situation, hosts), *_rebuild(situation, hosts, limits))


def chosen_hosts(situation: ElasticSituation, limits: ElasticLimits) -> tuple[str, ...]:
    """Return the hosts that should have a worker, up to the maximum: present ones by age, then new ones by name."""
    usable = situation.listed - situation.blacklist
    if not situation.members and not situation.epoch and len(usable) < limits.start_workers:
        return ()
    seated = [m.host for m in situation.members if m.phase is not MemberPhase.LEAVING and m.host in usable]
    # A host whose last worker has not exited yet gets its next one afterwards.
    new = sorted(usable - {member.host for member in situation.members})
    return tuple((seated + new)[: limits.max_workers])


def state_is_lost(situation: ElasticSituation) -> bool:
    """Whether no remaining worker can continue, so that the job must restart from its checkpoint."""
    staying = [member for member in situation.members if member.phase is not MemberPhase.LEAVING]
    return not staying or (situation.epoch > 0 and not any(member.has_state for member in staying))


def _spawns(situation: ElasticSituation, hosts: tuple[str, ...]) -> tuple[Spawn, ...]:
    occupied = {member.host for member in situation.members}
    return tuple(Spawn(host) for host in hosts if host not in occupied)


def _unwanted_joiners(situation: ElasticSituation, hosts: tuple[str, ...]) -> tuple[Dismiss, ...]:
    joiners = (*situation.in_phase(MemberPhase.STARTING), *situation.in_phase(MemberPhase.READY))
    return tuple(Dismiss(m.worker) for m in joiners if not m.has_state and m.host not in hosts)


def _rebuild(situation: ElasticSituation, hosts: tuple[str, ...], limits: ElasticLimits) -> tuple[Action, ...]:
    ring = situation.in_phase(MemberPhase.IN_RING)
    starting = [m for m in situation.in_phase(MemberPhase.STARTING) if m.host in hosts]
    ready = [m for m in situation.in_phase(MemberPhase.READY) if m.host in hosts]
    if ring:
        left_out = any(member.host not in hosts for member in ring)
        # Workers that start together join together, because each change of the ring briefly stops all.
        joined = bool(ready) and not starting
        return (CallOff(),) if (left_out or joined) and not situation.called_off else ()
    if len(ready) < limits.min_workers or (starting and not situation.epoch):
        return ()
    return _form(situation, ready)


def _form(situation: ElasticSituation, ready: list[ElasticMember]) -> tuple[Action, ...]:
    order = tuple(member.worker for member in sorted(ready, key=lambda m: (not m.has_state, m.worker)))
    left_out = (m.worker for m in situation.in_phase(MemberPhase.READY) if m.has_state and m.worker not in order)
    return (*(Dismiss(worker) for worker in left_out), FormRing(order))


def formed(situation: ElasticSituation, order: tuple[WorkerId, ...]) -> ElasticSituation:
    """Return the situation after these workers got their places. Rank 0 has the state and sends it to the others."""
    seated = tuple(
        replace(m, phase=MemberPhase.IN_RING, has_state=m.has_state or m.worker == order[0]) if m.worker in order else m
        for m in situation.members
    )
    return replace(situation, members=seated, epoch=situation.epoch + 1, called_off=False)
