"""The tables of the ledger, which `RecordDatabase` opens.

Hours are what is written. A day that is over is summed up once, so that a month of many jobs is read in the time of a
day. Nothing else knows of these sums: whoever writes an hour late takes the sum of its day back.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Float,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
)

from supervisor.domain.capacity import MachinePool, PriceClass
from supervisor.domain.ids import JobName
from supervisor.domain.ledger import Account, HeldOn
from supervisor.domain.worker_time import HourlyTime
from supervisor.observability.ledger.book import NOBODY, HeldHours, LedgerHours
from supervisor.observability.ledger.hours import HOUR, LedgerHour

K = TypeVar("K")

DAY = 86_400.0
_ROUNDING_SECONDS = 1e-6
"""As much as this is left of time that a process has told: it makes no row."""
_SETTLED_SECONDS = 7200.0
"""How long after its end a day is summed up: what is said of its last hour is written by then."""

METADATA = MetaData()
_KIND = ("cloud", "zone", "instance_type", "price_class", "gpus")
"""The columns of a kind of machine. `gpus` are those of a worker, -1 if they are unknown."""
_UNKNOWN_GPUS = -1.0
_POOL = _KIND[:-1]


def _sums(name: str, *key: str) -> Table:
    """Returns a table with worker-seconds for each value of its key."""
    columns = [Column(each, Float(53) if each in ("begins", "gpus") else Text(), nullable=False) for each in key]
    seconds = Column("worker_seconds", Float(53), nullable=False)
    return Table(name, METADATA, *columns, seconds, PrimaryKeyConstraint(*key), sqlite_with_rowid=False)


_hours = _sums("ledger_hours", "begins", "job", "writer", "account")
"""The ledger. Each supervisor that leads writes rows of its own, as often as it likes; an hour is the sum of all."""
_machines = _sums("machine_hours", "begins", "job", "writer", *_KIND)
"""The hours that jobs have held on each kind of machine, which are written like those of the ledger."""
_pools = _sums("pool_hours", "begins", "job", "writer", "account", *_POOL)
"""The same hours by pool and account. An earlier version writes none, so that there are fewer than in the others."""

_summed = Table("ledger_summed", METADATA, Column("begins", Float(53), primary_key=True))
"""The days, of UTC, of which the four tables below have the sums. What they have of other days is of no use."""
_days = _sums("ledger_days", "begins", "job", "account")
_machine_days = _sums("machine_days", "begins", "job", *_KIND)
_pool_days = _sums("pool_days", "begins", "job", "account", *_POOL)
_all_jobs = _sums("ledger_hours_of_all", "begins", "account")
"""The hours of these days, of all jobs together."""
_SUMS = (_days, _machine_days, _pool_days, _all_jobs)


def write(connection: Connection, hours: LedgerHours, held: HeldHours, writer: str) -> None:
    """Writes hours, instead of what the same writer has written of them before."""
    machines = _summed_up(held, lambda _account, on: on)
    pools = _summed_up(held, lambda account, on: (account, on.pool))
    _replace_hours(connection, _hours, hours, writer, lambda account: {"account": account})
    _replace_hours(connection, _machines, machines, writer, _machine_row)
    _replace_hours(connection, _pools, pools, writer, lambda key: {"account": key[0], **asdict(key[1])})
    days = {hour.begins // DAY * DAY for hour in (*hours, *held)}
    connection.execute(delete(_summed).where(_summed.c.begins.in_(days)))


def read_jobs(connection: Connection, since: float, until: float) -> Mapping[JobName, Mapping[Account, float]]:
    """Returns the worker-seconds of each job in the hours that begin between two instants (Unix seconds)."""
    found: dict[JobName, dict[Account, float]] = {}
    for job, name, seconds in _read(connection, since, until, (_hours, _days), ("job", "account")):
        if (account := _ACCOUNTS.get(name)) is not None:
            of_job = found.setdefault(JobName(job), {})
            of_job[account] = of_job.get(account, 0.0) + seconds
    return found


def read_machines(connection: Connection, since: float, until: float) -> Mapping[JobName, Mapping[HeldOn, float]]:
    """Returns the worker-seconds that each job held on each kind of machine, as `read_jobs` does."""
    found: dict[JobName, dict[HeldOn, float]] = {}
    for job, *kind, seconds in _read(connection, since, until, (_machines, _machine_days), ("job", *_KIND)):
        held, of_job = _held_on(*kind), found.setdefault(JobName(job), {})
        of_job[held] = of_job.get(held, 0.0) + seconds
    return found


def read_held(connection: Connection, since: float, until: float) -> Mapping[HeldOn, float]:
    """Returns the worker-seconds that all jobs together held on each kind of machine, as `read_jobs` does."""
    found: dict[HeldOn, float] = {}
    for *kind, seconds in _read(connection, since, until, (_machines, _machine_days), _KIND):
        held = _held_on(*kind)
        found[held] = found.get(held, 0.0) + seconds
    return found


def read_pools(
    connection: Connection, since: float, until: float
) -> Mapping[JobName, Mapping[MachinePool, Mapping[Account, float]]]:
    """Returns the worker-seconds that each job held in each pool, by account, as `read_jobs` does.

    Of hours that an earlier version has written there are none.
    """
    found: dict[JobName, dict[MachinePool, dict[Account, float]]] = {}
    tables = (_pools, _pool_days)
    for job, name, *parts, seconds in _read(connection, since, until, tables, ("job", "account", *_POOL)):
        if (account := _ACCOUNTS.get(name)) is not None:
            of_pool = found.setdefault(JobName(job), {}).setdefault(pool(*parts), {})
            of_pool[account] = of_pool.get(account, 0.0) + seconds
    return found


def read_hourly(connection: Connection, since: float, until: float, job: JobName | None) -> HourlyTime:
    """Returns the worker-seconds of one job, or of all, in each hour that begins between two instants."""
    if job is None:
        rows = _read(connection, since, until, (_hours, _all_jobs), ("begins", "account"), _hours.c.job != NOBODY)
    else:
        rows = _hours_of(connection, since, until, job)
    found: dict[float, dict[str, float]] = {}
    for begins, name, seconds in rows:
        if (account := _ACCOUNTS.get(name)) is not None:
            found.setdefault(begins, {})[account] = seconds
    return found


def _hours_of(connection: Connection, since: float, until: float, job: JobName) -> list[Any]:
    """Returns the sums by hour and account of one job.

    Rows are in the order of their hours, so each hour is looked up by itself: a month of 150 jobs would be read whole.
    """
    begins = _hours.c.begins
    within = select(begins).where(begins >= since, begins < until).limit(1)
    first, last = (connection.scalar(within.order_by(order)) for order in (begins, begins.desc()))
    if first is None:
        return []
    each = select(literal(first, Float(53)).label("begins")).cte("each_hour", recursive=True)
    each = each.union_all(select(each.c.begins + HOUR).where(each.c.begins < last))
    wanted = select(begins, _hours.c.account, func.sum(_hours.c.worker_seconds))
    wanted = wanted.join_from(each, _hours, (begins == each.c.begins) & (_hours.c.job == job))
    return list(connection.execute(wanted.group_by(begins, _hours.c.account)))


def sum_up_one(connection: Connection, now: float) -> bool:
    """Sums up the first day that is over and was not summed up since somebody has written an hour of it.

    Returns whether there was one.
    """
    first = connection.scalar(select(func.min(_hours.c.begins)))
    if first is None:
        return False
    done = set(connection.scalars(select(_summed.c.begins)))
    # The first day is read by its hours: it may be a part of one, of which more is deleted later.
    day = math.ceil(first / DAY) * DAY
    while day + DAY + _SETTLED_SECONDS <= now:
        if day not in done:
            _sum_up_day(connection, day)
            return True
        day += DAY
    return False


def prune(connection: Connection, before: float, most: int) -> None:
    """Deletes the hours from before an instant (Unix seconds), and the earliest of more than `most` rows.

    An hour goes whole, also that of the supervisor itself: the report then says that nobody has counted. Pools have
    more rows than the ledger, and a bound of their own: without them it is not known in which pools an hour was held.
    """
    # A day that is summed up goes with its first hour.
    for hours, others in ((_hours, (_machines, _pools, _summed, *_SUMS)), (_pools, (_pool_days,))):
        surplus = connection.scalar(select(hours.c.begins).order_by(hours.c.begins.desc()).offset(most).limit(1))
        if surplus is not None and hours is _pools:
            # A day of which some hours are left is read by these, and summed up again.
            connection.execute(delete(_summed).where(_summed.c.begins == surplus // DAY * DAY))
        for table in (hours, *others):
            gone = table.c.begins < before
            connection.execute(delete(table).where(gone if surplus is None else or_(gone, table.c.begins <= surplus)))


_ACCOUNTS = {account.value: account for account in Account}
"""The accounts that this version knows. A reader leaves those of a later version out."""
_PRICES = {price_class.value: price_class for price_class in PriceClass}


def _read(
    connection: Connection,
    since: float,
    until: float,
    tables: tuple[Table, Table],
    names: tuple[str, ...],
    *of_hours: ColumnElement[bool],
) -> list[Any]:
    """Returns the sums by these columns, of the hours in a table, and of the days in another one that has them."""
    hours, days = tables
    first, last = _whole_days(connection, since, until)
    found = list[Any]()
    # Each range has a query of its own, because SQLite reads every row between two ranges that are joined by an OR.
    for table, begin, end in ((hours, since, first), (days, first, last), (hours, last, until)):
        columns, conditions = [table.c[name] for name in names], of_hours if table is hours else ()
        wanted = select(*columns, func.sum(table.c.worker_seconds)).group_by(*columns)
        wanted = wanted.where(table.c.begins >= begin, table.c.begins < end, *conditions)
        found += connection.execute(wanted).all()
    return found


def _whole_days(connection: Connection, since: float, until: float) -> tuple[float, float]:
    """Returns the longest stretch of days between two instants that are summed up; an empty one if there is none."""
    found = select(_summed.c.begins).where(_summed.c.begins >= since, _summed.c.begins <= until - DAY)
    longest, stretch = (since, since), (since, since)
    for day in connection.scalars(found.order_by(_summed.c.begins)):
        stretch = (stretch[0] if day == stretch[1] and stretch[1] > stretch[0] else day, day + DAY)
        longest = max(longest, stretch, key=lambda each: each[1] - each[0])
    return longest


def _sum_up_day(connection: Connection, day: float) -> None:
    for table, hours, names in (
        (_days, _hours, ("job", "account")),
        (_machine_days, _machines, ("job", *_KIND)),
        (_pool_days, _pools, ("job", "account", *_POOL)),
        (_all_jobs, _hours, ("begins", "account")),
    ):
        connection.execute(delete(table).where(table.c.begins >= day, table.c.begins < day + DAY))
        columns = [hours.c[name] for name in names]
        begins = () if "begins" in names else (literal(day, Float(53)),)
        wanted = select(*begins, *columns, func.sum(hours.c.worker_seconds)).group_by(*columns)
        wanted = wanted.where(hours.c.begins >= day, hours.c.begins < day + DAY)
        if table is _all_jobs:
            wanted = wanted.where(hours.c.job != NOBODY)
        into = [*(("begins",) if begins else ()), *names, "worker_seconds"]
        connection.execute(insert(table).from_select(into, wanted))
    connection.execute(insert(_summed).values(begins=day))


def _replace_hours(
    connection: Connection,
    table: Table,
    hours: Mapping[LedgerHour, Mapping[K, float]],
    writer: str,
    columns: Callable[[K], Mapping[str, Any]],
) -> None:
    """Writes hours into a table, instead of those of the same writer."""
    if not hours:
        return
    of_hour = {"begins": bindparam("of_begins"), "job": bindparam("of_job"), "writer": writer}
    earlier = delete(table).where(*(table.c[name] == value for name, value in of_hour.items()))
    connection.execute(earlier, [{"of_begins": hour.begins, "of_job": hour.job} for hour in hours])
    rows = [
        {"begins": hour.begins, "job": hour.job, "writer": writer, **columns(key), "worker_seconds": seconds}
        for hour, counted in hours.items()
        for key, seconds in counted.items()
        if seconds > _ROUNDING_SECONDS
    ]
    if rows:
        connection.execute(insert(table), rows)


def _summed_up(held: HeldHours, key: Callable[[Account, HeldOn], K]) -> Mapping[LedgerHour, Mapping[K, float]]:
    """Returns what was held by another key."""
    found: dict[LedgerHour, dict[K, float]] = {}
    for hour, counted in held.items():
        of_hour = found[hour] = {}
        for (account, on), seconds in counted.items():
            new = key(account, on)
            of_hour[new] = of_hour.get(new, 0.0) + seconds
    return found


def _machine_row(held: HeldOn) -> Mapping[str, Any]:
    return {**asdict(held), "gpus": _UNKNOWN_GPUS if held.gpus is None else held.gpus}


def _held_on(cloud: str, zone: str, instance_type: str, price_class: str, gpus: float) -> HeldOn:
    return HeldOn(
        cloud=cloud,
        zone=zone,
        instance_type=instance_type,
        price_class=_PRICES.get(price_class, PriceClass.UNKNOWN),
        gpus=None if gpus == _UNKNOWN_GPUS else gpus,
    )


def pool(cloud: str, zone: str, instance_type: str, price_class: str) -> MachinePool:
    """Reads a pool. A price class of a later version is unknown."""
    return MachinePool(
        cloud=cloud,
        zone=zone,
        instance_type=instance_type,
        price_class=_PRICES.get(price_class, PriceClass.UNKNOWN),
    )
