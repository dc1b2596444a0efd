"""Adds up what jobs held on each kind of machine, and how often hosts went, since this supervisor leads."""

from dataclasses import dataclass, field

from supervisor.domain.capacity import MachinePool
from supervisor.domain.ledger import HeldOn

MAX_KINDS = 1000
"""Kinds of machines that are told apart, and pools. Agents name them, so that there could be any number."""

OTHER = HeldOn(cloud="other", zone="other", instance_type="other")
"""The kind of all further machines."""


@dataclass(slots=True)
class PoolTotals:
    """Sums that only grow.

    Attributes:
        held: The worker-seconds that jobs held, by kind of machine.
        gone: How often a host went that was there for a job, by its pool and whether it had a notice. A host that
            two jobs used counts for both, as its hours do.
    """

    held: dict[HeldOn, float] = field(default_factory=dict)
    gone: dict[tuple[MachinePool, bool], int] = field(default_factory=dict)

    def add_held(self, on: HeldOn, worker_seconds: float) -> None:
        kind = on if on in self.held or len(self.held) < MAX_KINDS else OTHER
        self.held[kind] = self.held.get(kind, 0.0) + worker_seconds

    def add_gone(self, pool: MachinePool, *, noticed: bool) -> None:
        key = (pool, noticed)
        key = key if key in self.gone or len(self.gone) < MAX_KINDS else (OTHER.pool, noticed)
        self.gone[key] = self.gone.get(key, 0) + 1
