"""Shows what jobs held in each capacity pool: how often hosts went there, and what became of the worker-hours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from job_supervisor.cli.output import Block, Table
from supervisor.domain.capacity import MachinePool, PriceClass
from supervisor.domain.ledger import HELD, Account
from supervisor.domain.worker_time import WorkerTime, hours, percent, share
from supervisor.observability.views import LedgerJobView

_NOTICEABLE_SECONDS = 1.0
"""Less is what sums of sums differ by."""
_IN_NO_POOL = (
    "All shares are of what was held. What was missing, waiting, queued or paused was in no pool. What a process says "
    "of its run counts for all of the run's workers."
)
_UNKNOWN = (
    "In which pool {held} were held is not known: an agent or a label did not say, an earlier version of the "
    "supervisor counted, or it was too much to be kept."
)

_Key = tuple[MachinePool, str]
"""A pool without its price class, and the class as the supervisor has written it, which may be of a later version."""
_NOTHING_KNOWN: _Key = (MachinePool(), PriceClass.UNKNOWN)


@dataclass(slots=True)
class HeldInPool:
    """Says what jobs held in one pool, and how often hosts went there."""

    seconds: dict[Account, float] = field(default_factory=dict)
    went: int = 0
    noticed: int = 0

    def add(self, seconds: Mapping[Account, float], went: int, noticed: int) -> None:
        """Adds what one job held."""
        for account, spent in seconds.items():
            self.seconds[account] = self.seconds.get(account, 0.0) + spent
        self.went, self.noticed = self.went + went, self.noticed + noticed

    @property
    def held(self) -> float:
        """The worker-seconds of all accounts."""
        return sum(self.seconds.values())


def pooled(jobs: Sequence[LedgerJobView]) -> Mapping[_Key, HeldInPool]:
    """Returns what the jobs held by pool, the most first.

    The pools add up to what the ledger has of the jobs. What it has of no pool is that of an unknown one.
    """
    found: dict[_Key, HeldInPool] = {}
    for job in jobs:
        time_of = WorkerTime(job.worker_seconds)
        left = {account: time_of.spent(account) for account in HELD}
        for pool in job.pools:
            seconds = {account: pool.worker_seconds.get(account, 0.0) for account in HELD}
            left = {account: left[account] - spent for account, spent in seconds.items()}
            named = MachinePool(cloud=pool.cloud, zone=pool.zone, instance_type=pool.instance_type)
            key = (named, pool.price_class)
            found.setdefault(key, HeldInPool()).add(seconds, pool.went, pool.noticed)
        rest = {account: spent for account, spent in left.items() if spent >= _NOTICEABLE_SECONDS}
        if rest:
            found.setdefault(_NOTHING_KNOWN, HeldInPool()).add(rest, 0, 0)
    return dict(sorted(found.items(), key=lambda each: -each[1].held))


def for_people(pools: Mapping[_Key, HeldInPool], limit: int) -> list[Block]:
    """Returns a table of the largest pools and the sum of all, and what it does not say."""
    keys, total = list(pools), _sum(pools.values())
    shown = [account for account in HELD if account is Account.TRAINING or total.seconds.get(account, 0.0) > 0]
    rows = [_row(MachinePool.label_of(pool), _CLASSES.get(of, of), pools[pool, of], shown) for pool, of in keys[:limit]]
    if rest := keys[limit:]:
        rows.append(_row(f"{len(rest)} more", "", _sum([pools[key] for key in rest]), shown))
    if len(keys) > 1:
        rows.append(_row("all", "", total, shown))
    heads = ("POOL", "CLASS", "HELD", "WENT", "WITH NOTICE", *(account.upper() for account in shown))
    told: list[Block] = [Table(heads, rows), "", _IN_NO_POOL]
    unknown = sum(held.held for (pool, _), held in pools.items() if not pool.name)
    if unknown >= _NOTICEABLE_SECONDS:
        told.append(_UNKNOWN.format(held=hours(unknown)))
    return told


def for_programs(pools: Mapping[_Key, HeldInPool]) -> object:
    """Returns the same for programs; unknown parts of a pool are empty."""
    return [
        {
            "cloud": pool.cloud,
            "zone": pool.zone,
            "instance_type": pool.instance_type,
            "price_class": price_class,
            "worker_seconds": {account: held.seconds.get(account, 0.0) for account in HELD},
            "went": held.went,
            "went_with_notice": held.noticed,
        }
        for (pool, price_class), held in pools.items()
    ]


_CLASSES = {"on_demand": "on demand"}


def _sum(pools: Iterable[HeldInPool]) -> HeldInPool:
    total = HeldInPool()
    for held in pools:
        total.add(held.seconds, held.went, held.noticed)
    return total


def _row(name: str, price_class: str, held: HeldInPool, shown: Sequence[Account]) -> tuple[str, ...]:
    shares = (percent(share(held.seconds.get(account, 0.0), held.held)) for account in shown)
    return (name, price_class, hours(held.held), str(held.went), str(held.noticed), *shares)
