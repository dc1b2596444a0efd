"""The tables of when jobs wanted workers, and of the hosts that were there for them. `RecordDatabase` opens them.

A column that is added later may be null. Earlier versions, which may write again, name the columns that they know.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
)

from supervisor.domain.capacity import MachinePool
from supervisor.domain.ids import Host, JobName
from supervisor.domain.stays import HostStay, MeasuredCosts, WantedSpan
from supervisor.observability.ledger.stays import StayChanges
from supervisor.observability.record.ledger_tables import pool as pool_of

METADATA = MetaData()
_spans = Table(
    "wanted_spans",
    METADATA,
    Column("job", Text, nullable=False),
    Column("begins", Float(53), nullable=False),
    Column("writer", Text, nullable=False),
    Column("ends", Float(53), nullable=False),
    Column("least", Integer, nullable=False),
    Column("most", Integer, nullable=False),
    Column("in_process", Boolean, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("step_seconds", Float(53)),
    Column("checkpoint_seconds", Float(53)),
    Column("start_seconds", Float(53)),
    Column("change_seconds", Float(53)),
    Column("in_rounds", Boolean),
    PrimaryKeyConstraint("job", "begins", "writer"),
    Index("wanted_spans_by_time", "begins"),
    sqlite_with_rowid=False,
)
_POOL = ("cloud", "zone", "instance_type", "price_class")
"""The columns of a stay that name its pool. They were added later, and are null where nobody has looked."""
_stays = Table(
    "host_stays",
    METADATA,
    Column("job", Text, nullable=False),
    Column("begins", Float(53), nullable=False),
    Column("host", Text, nullable=False),
    Column("writer", Text, nullable=False),
    Column("ends", Float(53)),
    Column("gone", Boolean, nullable=False),
    Column("noticed", Float(53)),
    Column("deadline", Float(53)),
    *(Column(part, Text) for part in _POOL),
    PrimaryKeyConstraint("job", "begins", "host", "writer"),
    Index("host_stays_by_end", "ends"),
    sqlite_with_rowid=False,
)
"""When jobs wanted workers, and which hosts were there for them. A stay without an end goes on as long as its writer's
spans of that job."""


@dataclass(frozen=True, slots=True)
class JobCapacity:
    """When a job wanted workers, and which hosts were there, in the order of time. Every stay has an end.

    `is_cut`: there were more, and the earliest are left out.
    """

    spans: Sequence[WantedSpan]
    stays: Sequence[HostStay]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """Which hosts of a pool were there, by job, in the order in which they ended. Every stay has an end.

    `since`: nothing is left out that ended later. `is_cut`: there were more before.
    """

    stays: Mapping[JobName, Sequence[HostStay]]
    since: float
    is_cut: bool = False


def add_columns(connection: Connection) -> None:
    """Adds the columns that the tables of an earlier version lack."""
    for table in (_spans, _stays):
        there = {column["name"] for column in inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                kind = column.type.compile(connection.dialect)
                connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"))


def write(connection: Connection, changes: StayChanges, writer: str) -> None:
    """Writes spans and stays, instead of what the same writer has written of them before."""
    spans = [_span_row(job, writer, span) for (job, _), span in changes.spans.items()]
    stays = [_stay_row(job, writer, stay) for (job, _, _), stay in changes.stays.items()]
    for table, rows in ((_spans, spans), (_stays, stays)):
        key = [column.name for column in table.primary_key]
        earlier = delete(table).where(*(table.c[name] == bindparam(f"of_{name}") for name in key))
        if rows:
            connection.execute(earlier, [{f"of_{name}": row[name] for name in key} for row in rows])
            connection.execute(insert(table), rows)


def read_capacity(connection: Connection, job: JobName, since: float, until: float, most: int) -> JobCapacity:
    """Returns when a job wanted workers, and which hosts were there, between two instants (Unix seconds)."""
    spans = select(_spans).where(_spans.c.job == job, _spans.c.ends > since, _spans.c.begins < until)
    spans = spans.order_by(_spans.c.begins.desc()).limit(most + 1)
    last = select(func.max(_spans.c.ends)).where(_spans.c.job == job, _spans.c.writer == _stays.c.writer)
    ends = func.coalesce(_stays.c.ends, last.scalar_subquery()).label("until")
    stays = select(_stays, ends).where(_stays.c.job == job, ends > since, _stays.c.begins < until)
    stays = stays.order_by(ends.desc(), _stays.c.begins.desc(), _stays.c.host).limit(most + 1)
    found_spans = [_span(row) for row in connection.execute(spans)]
    found_stays = [_stay(row) for row in connection.execute(stays)]
    is_cut = len(found_spans) > most or len(found_stays) > most
    if len(found_stays) > most:
        # Of an hour of which a stay is left out, nothing is said.
        first = max((stay.ends for stay in found_stays[most:] if stay.ends is not None), default=since)
        found_spans = [span for span in found_spans if span.begins >= first]
    return JobCapacity(found_spans[:most][::-1], found_stays[:most][::-1], is_cut)


def read_pool_stays(connection: Connection, pool: MachinePool, since: float, until: float, most: int) -> PoolCapacity:
    """Returns which hosts of a pool, of whatever price class, were there between two instants (Unix seconds)."""
    last = select(func.max(_spans.c.ends)).where(_spans.c.job == _stays.c.job, _spans.c.writer == _stays.c.writer)
    ends = func.coalesce(_stays.c.ends, last.scalar_subquery()).label("until")
    of_pool = [_stays.c[part] == getattr(pool, part) for part in _POOL if part != "price_class"]
    wanted = select(_stays, ends).where(*of_pool, ends > since, _stays.c.begins < until)
    wanted = wanted.order_by(ends.desc(), _stays.c.begins.desc(), _stays.c.job, _stays.c.host).limit(most + 1)
    rows = connection.execute(wanted).all()
    found: dict[JobName, list[HostStay]] = {}
    for row in reversed(rows[:most]):
        found.setdefault(JobName(row.job), []).append(_stay(row))
    return PoolCapacity(found, since if len(rows) <= most else max(since, rows[most].until), len(rows) > most)


def read_gone(connection: Connection, since: float, until: float) -> Sequence[tuple[JobName, MachinePool, int, int]]:
    """Returns how often hosts of a job went between two instants (Unix seconds), by pool: in all, and with a notice."""
    parts = [_stays.c[part] for part in _POOL]
    went = select(_stays.c.job, *parts, func.count(), func.count(_stays.c.noticed)).where(
        _stays.c.gone, _stays.c.ends >= since, _stays.c.ends < until
    )
    rows = connection.execute(went.group_by(_stays.c.job, *parts))
    return [(JobName(job), _pool(*of) or MachinePool(), count, noticed) for job, *of, count, noticed in rows]


_IS_UNKNOWN = and_(
    _stays.c.ends.is_(None),
    ~select(_spans.c.job).where(_spans.c.job == _stays.c.job, _spans.c.writer == _stays.c.writer).exists(),
)
"""Of a stay without an end whose writer has no span of the job: nothing says how long it went on."""


def prune(connection: Connection, before: float, most: int) -> None:
    """Deletes spans and stays from before an instant, and some of more than `most` of each.

    Then every job has the same share, and the earliest go of those that have more: so the hosts of one job that come
    and go all the time push out what is known of no other job. In an hour without a span nothing is known, so the spans
    of a job go in which a stay of it is missing.
    """
    _delete(connection, before)
    surplus: dict[str, float] = {}
    for job, at in ((_spans.c.job, _spans.c.begins), (_stays.c.job, _stays.c.ends)):
        for name, until in _surplus_by_job(connection, job, at, most).items():
            surplus[name] = max(until, surplus.get(name, until))
    if surplus:
        _delete_of_jobs(connection, surplus)
    # With more jobs than may have one each, the earliest go of all.
    for at in (_spans.c.begins, _stays.c.ends):
        last = connection.scalar(select(at).where(at.is_not(None)).order_by(at.desc()).offset(most).limit(1))
        if last is not None:
            _delete(connection, last)


def _surplus_by_job(
    connection: Connection, job: ColumnElement[str], at: ColumnElement[float], most: int
) -> Mapping[str, float]:
    """Returns the jobs with more rows than their share of `most`, each with the last instant of those beyond it."""
    counts = connection.execute(select(job, func.count()).where(at.is_not(None)).group_by(job))
    share = fair_share([count for _, count in counts], most)
    if share is None:
        return {}
    crowded = select(job).where(at.is_not(None)).group_by(job).having(func.count() > share)
    place = func.row_number().over(partition_by=job, order_by=at.desc()).label("place")
    ranked = select(job, at.label("at"), place).where(at.is_not(None), job.in_(crowded)).subquery()
    beyond = (
        select(ranked.c.job, func.max(ranked.c.at).label("until")).where(ranked.c.place > share).group_by(ranked.c.job)
    )
    return {row.job: row.until for row in connection.execute(beyond)}


def fair_share(counts: Collection[int], most: int) -> int | None:
    """Returns the largest share with which no more than `most` are kept, at least one; None if all can be kept."""
    left, jobs = most, len(counts)
    for count in sorted(counts):
        if count * jobs > left:
            return max(1, left // jobs)
        left, jobs = left - count, jobs - 1
    return None


def _delete(connection: Connection, before: float) -> None:
    """Deletes the spans and stays of all jobs up to an instant."""
    connection.execute(delete(_spans).where(_spans.c.begins <= before))
    connection.execute(delete(_stays).where(_stays.c.ends <= before))
    connection.execute(delete(_stays).where(_IS_UNKNOWN, _stays.c.begins <= before))


def _delete_of_jobs(connection: Connection, until: Mapping[str, float]) -> None:
    """Deletes the spans and stays of some jobs, each up to an instant."""
    jobs = [{"of_job": job, "last": last} for job, last in until.items()]
    for table, at, *conditions in (
        (_spans, _spans.c.begins),
        (_stays, _stays.c.ends),
        (_stays, _stays.c.begins, _IS_UNKNOWN),
    ):
        gone = delete(table).where(table.c.job == bindparam("of_job"), at <= bindparam("last"), *conditions)
        connection.execute(gone, jobs)


def _span_row(job: JobName, writer: str, span: WantedSpan) -> dict[str, Any]:
    return {
        "job": job,
        "writer": writer,
        "begins": span.begins,
        "ends": span.ends,
        "least": span.least,
        "most": span.most,
        "in_process": span.in_process,
        "restarts": span.restarts,
        "in_rounds": span.in_rounds,
        **asdict(span.costs),
    }


def _span(row: Any) -> WantedSpan:
    return WantedSpan(
        begins=row.begins,
        ends=row.ends,
        least=row.least,
        most=row.most,
        in_process=row.in_process,
        restarts=row.restarts,
        costs=MeasuredCosts(
            step_seconds=row.step_seconds,
            checkpoint_seconds=row.checkpoint_seconds,
            start_seconds=row.start_seconds,
            change_seconds=row.change_seconds,
        ),
        in_rounds=bool(row.in_rounds),
    )


def _stay_row(job: JobName, writer: str, stay: HostStay) -> dict[str, Any]:
    row = asdict(stay)
    pool = row.pop("pool") or dict.fromkeys(_POOL)
    return {"job": job, "writer": writer, **row, **pool}


def _stay(row: Any) -> HostStay:
    return HostStay(
        host=Host(row.host),
        begins=row.begins,
        ends=row.until,
        gone=row.gone,
        noticed=row.noticed,
        deadline=row.deadline,
        pool=_pool(row.cloud, row.zone, row.instance_type, row.price_class),
    )


def _pool(
    cloud: str | None, zone: str | None, instance_type: str | None, price_class: str | None
) -> MachinePool | None:
    """Reads the pool of a stay; None if nobody has looked."""
    if cloud is None or zone is None or instance_type is None or price_class is None:
        return None
    return pool_of(cloud, zone, instance_type, price_class)
