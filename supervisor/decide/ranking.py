"""Which hosts to use first where there is a choice: those that are least likely to go soon.

The order, the first difference decides:

1. on-demand before unknown before spot: a cloud does not reclaim on-demand machines;
2. protected before unprotected: during its first hour, some clouds do not reclaim a spot machine either;
3. without a hint before with one;
4. zone and instance type without a reclaim at present before those with one: reclaims come in groups of one pool;
5. without a schedule before with one, and a later one before an earlier one;
6. by name, so that the same facts always give the same choice.

Where nothing is known, only the names decide.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from supervisor.domain.ids import Host
from supervisor.domain.machine import UNKNOWN_MACHINE, Machine, PriceClass
from supervisor.domain.notice import OF_PEOPLE, NoticeClass, NoticeState, ReclaimNotice

Rank = tuple[int, bool, bool, bool, float, Host]

CapacityPool = tuple[str, str, str]
"""Cloud, zone and instance type."""

_BY_PRICE = {PriceClass.ON_DEMAND: 0, PriceClass.UNKNOWN: 1, PriceClass.SPOT: 2}


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranks hosts at one moment.

    Attributes:
        machines: The machines of the hosts, as far as they are known.
        ahead: The notices on each host that are not acted on yet.
        noticed: The hosts with notices that are acted on; they show which pools are being reclaimed.
        now: Unix seconds.
    """

    machines: Mapping[Host, Machine] = field(default_factory=dict)
    ahead: Mapping[str, Sequence[ReclaimNotice]] = field(default_factory=dict)
    noticed: Mapping[Host, ReclaimNotice] = field(default_factory=dict)
    now: float = 0.0

    def best(self, hosts: Collection[Host], count: int) -> frozenset[Host]:
        """The `count` hosts to use first, or all if there are no more."""
        return frozenset(hosts) if len(hosts) <= count else frozenset(self.ordered(hosts)[:count])

    def ordered(self, hosts: Iterable[Host]) -> list[Host]:
        """The hosts, the one to use first at the beginning."""
        return sorted(hosts, key=self._rank)

    @cached_property
    def _reclaimed_pools(self) -> frozenset[CapacityPool]:
        # Only where there is a choice: 2,500 notices would otherwise be looked at in every pass.
        return reclaimed_pools(self.noticed, self.machines)

    def _rank(self, host: Host) -> Rank:
        machine, ahead = self.machines.get(host, UNKNOWN_MACHINE), self.ahead.get(host, ())
        return (
            _BY_PRICE[machine.price_class],
            machine.protected_until is None or machine.protected_until <= self.now,
            any(notice.notice_class is NoticeClass.HINT for notice in ahead),
            pool_of(machine) in self._reclaimed_pools,
            -min((_time(notice) for notice in ahead), default=math.inf),
            host,
        )


def pool_of(machine: Machine) -> CapacityPool | None:
    """The pool of a machine; None unless its zone and instance type are known."""
    if not machine.zone or not machine.instance_type:
        return None
    return machine.cloud, machine.zone, machine.instance_type


def reclaimed_pools(noticed: Mapping[Host, ReclaimNotice], machines: Mapping[Host, Machine]) -> frozenset[CapacityPool]:
    """The pools with a machine whose notice is acted on; what people announce says nothing of a pool."""
    affected = (
        pool_of(machines[host])
        for host, notice in noticed.items()
        if notice.state is NoticeState.ACTIVE and notice.source not in OF_PEOPLE and host in machines
    )
    return frozenset(pool for pool in affected if pool is not None)


def _time(notice: ReclaimNotice) -> float:
    """When the subject of a scheduled notice goes; a hint names no time."""
    return math.inf if notice.deadline is None else notice.deadline


BY_NAME = Ranking()
"""Nothing is known of any host."""
