"""Selects what the pages of capacity pools show: all pools, and one. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from supervisor.domain.capacity import MachinePool, PriceClass
from supervisor.domain.ids import Host, JobName
from supervisor.domain.ledger import HeldOn
from supervisor.domain.notice import NoticeState
from supervisor.observability.page.node_contents import NodesRow, node_rows
from supervisor.observability.page.past import NOTICED, Reclaim, RecordRead, reclaims_of
from supervisor.observability.page.tables import TableColumn, TableFilter, TableLayout
from supervisor.observability.record.pool_counts import DAY, HOUR, POOL_DAYS, PoolCounts, first_day
from supervisor.observability.status_view import StatusSnapshot
from supervisor.observability.views import HistoryView

RECENT_SECONDS = 2 * DAY

_FEW_NOTICES = 10
"""A rate of fewer notices is rough: of ten, a third more or less is chance."""
_LEAST_DAYS = 1.0
"""Days of a worker from which on there is a rate: a notice in the first minute would be a thousand a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCount:
    """How many notices came in a time, and how many of the nodes are gone or were left alone."""

    noticed: int = 0
    gone: int = 0
    spared: int = 0


@dataclass(slots=True)
class PoolNodes:
    """What is now in a pool: how many nodes have an agent, and how many of these are connected or have a notice.

    `jobs` are those on its nodes, `prices` the classes of their prices.
    """

    count: int = 0
    connected: int = 0
    noticed: int = 0
    jobs: set[JobName] = field(default_factory=set)
    prices: set[PriceClass] = field(default_factory=set)

    def add(self, row: NodesRow) -> None:
        """Counts a node."""
        self.count += 1
        self.connected += row.silent_seconds is None
        self.noticed += row.notice is not None
        self.jobs.update(row.used_by)
        self.prices.add(row.machine.price_class)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """A capacity pool. The counts are None if the record cannot be read.

    `worker_days`: for how many days of one worker jobs have held hosts there in these 30 days; None if it is unknown.
    """

    pool: str
    nodes: PoolNodes
    recent: PoolCount | None
    month: PoolCount | None
    worker_days: float | None

    @property
    def jobs(self) -> Sequence[JobName]:
        """The jobs on its nodes, by name."""
        return sorted(self.nodes.jobs)

    @property
    def rate(self) -> float | None:
        """The notices for each day of a worker; None if that is unknown, or jobs held workers for less than a day."""
        if self.month is None or self.worker_days is None or self.worker_days < _LEAST_DAYS:
            return None
        return self.month.noticed / self.worker_days

    @property
    def is_rough(self) -> bool:
        """Whether the rate is of few notices."""
        return self.month is not None and self.month.noticed < _FEW_NOTICES


def _passes(row: PoolRow, wanted: str) -> bool:
    if wanted == "reclaimed":
        return row.month is not None and row.month.noticed > 0
    return row.nodes.count > 0


POOLS: TableLayout[PoolRow] = TableLayout(
    columns={
        "pool": TableColumn("Pool", lambda row: row.pool),
        "nodes": TableColumn("Nodes", lambda row: (row.nodes.connected, row.pool)),
        "noticed": TableColumn("Noticed now", lambda row: (row.nodes.noticed, row.pool)),
        "recent": TableColumn(
            "Notices in 48 hours", lambda row: None if row.recent is None else (row.recent.noticed, row.pool)
        ),
        "month": TableColumn(
            "Notices in 30 days", lambda row: None if row.month is None else (row.month.noticed, row.pool)
        ),
        "rate": TableColumn("Per worker and day", lambda row: None if row.rate is None else (row.rate, row.pool)),
    },
    filters={"shown": TableFilter("which have", {"nodes": "nodes now", "reclaimed": "notices"}, _passes)},
    words=lambda row: " ".join((row.pool, *row.nodes.prices, *row.nodes.jobs)),
)


def pool_rows(snapshot: StatusSnapshot, read: RecordRead) -> Sequence[PoolRow]:
    """Returns the pools with a node, and those of which the record knows a notice or the ledger a worker."""
    counts, held = read.counts, read.held
    nodes: dict[str, PoolNodes] = {}
    for node in node_rows(snapshot):
        if pool := node.pool:
            nodes.setdefault(pool, PoolNodes()).add(node)
    days = worker_days(held or {})
    names = {*nodes, *days, *(() if counts is None else (pool for _, pool, _ in counts))}
    return _rows({pool: nodes.get(pool, PoolNodes()) for pool in names}, read, snapshot.now)


def _rows(nodes: Mapping[str, PoolNodes], read: RecordRead, now: float) -> Sequence[PoolRow]:
    """Returns the rows of these pools, each given with its nodes."""
    counts, held = read.counts, read.held
    recent, month = _counted(counts, now - RECENT_SECONDS), _counted(counts, first_day(now))
    days = worker_days(held or {})
    return [
        PoolRow(
            pool=pool,
            nodes=of_pool,
            recent=None if counts is None else recent.get(pool, PoolCount()),
            month=None if counts is None else month.get(pool, PoolCount()),
            worker_days=None if held is None else days.get(pool, 0.0),
        )
        for pool, of_pool in nodes.items()
    ]


def worker_days(held: Mapping[HeldOn, float]) -> Mapping[str, float]:
    """Returns for how many days of one worker jobs have held hosts in each pool, from worker-seconds."""
    found: dict[str, float] = {}
    for on, seconds in held.items():
        if pool := MachinePool.name_of(on):
            found[pool] = found.get(pool, 0.0) + seconds / DAY
    return found


def _counted(counts: PoolCounts | None, since: float) -> Mapping[str, PoolCount]:
    """Sums up the hours and days of each pool that begin after an instant, and the hour that it is in."""
    by_pool: dict[str, dict[str, int]] = {}
    for (begins, pool, what), count in (counts or {}).items():
        if begins > since - HOUR:
            of_pool = by_pool.setdefault(pool, {})
            of_pool[what] = of_pool.get(what, 0) + count
    return {pool: _count(found) for pool, found in by_pool.items()}


def _count(found: Mapping[str, int]) -> PoolCount:
    gone = found.get(NoticeState.GONE, 0)
    spared = found.get(NoticeState.WITHDRAWN, 0) + found.get(NoticeState.EXPIRED, 0)
    return PoolCount(noticed=found.get(NOTICED, 0), gone=gone, spared=spared)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDay:
    """A day, of UTC, that begins at an instant; `height` is its notices, of 100 for the most of any day."""

    begins: float
    count: PoolCount
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContents:
    """What the page of one pool shows at `now` (Unix seconds).

    `days` are the last 30, the earliest first, and empty without a record. `seconds` are the times from notice to gone
    of the latest notices, in order. `entries` are the latest of the record, the latest first.
    """

    now: float
    row: PoolRow
    nodes: Sequence[NodesRow]
    jobs: Mapping[JobName, Sequence[Host]]
    days: Sequence[PoolDay] = ()
    latest: Sequence[Reclaim] = ()
    seconds: Sequence[float] = field(default_factory=tuple)
    past: HistoryView | None

    @property
    def is_known(self) -> bool:
        """Whether anything is known of a pool of this name."""
        had = self.row.month is not None and self.row.month != PoolCount()
        is_recorded = self.past is None or bool(self.past.entries)
        return bool(self.nodes or had or self.row.worker_days or is_recorded)

    @property
    def median_seconds(self) -> float | None:
        """The median of the times from notice to gone; None if there is none."""
        return median(self.seconds) if self.seconds else None


def pool_contents(snapshot: StatusSnapshot, pool: str, read: RecordRead) -> PoolContents:
    """Returns what is known of a pool."""
    counts, notices = read.counts, read.notices
    nodes = list(node_rows(snapshot, pool))
    counted = None if counts is None else {key: count for key, count in counts.items() if key[1] == pool}
    present = PoolNodes()
    for node in nodes:
        present.add(node)
    (row,) = _rows({pool: present}, replace(read, counts=counted), snapshot.now)
    latest = (
        []
        if notices is None
        else [each for each in reclaims_of(notices.entries, snapshot.notices) if not each.of_people]
    )
    seconds = [each.seconds for each in latest if each.end == NoticeState.GONE and each.seconds is not None]
    return PoolContents(
        now=snapshot.now,
        row=row,
        nodes=nodes,
        jobs=_nodes_of_jobs(nodes),
        days=[] if counted is None else _days(counted, snapshot.now),
        latest=latest,
        seconds=sorted(seconds),
        past=read.past,
    )


def _nodes_of_jobs(nodes: Iterable[NodesRow]) -> Mapping[JobName, Sequence[Host]]:
    """Returns the nodes of each job, the jobs by name."""
    found: dict[JobName, list[Host]] = {}
    for node in nodes:
        for job in node.used_by:
            found.setdefault(job, []).append(node.node)
    return {job: found[job] for job in sorted(found)}


def _days(counts: PoolCounts, now: float) -> Sequence[PoolDay]:
    by_day: dict[float, dict[str, int]] = {}
    for (begins, _, what), count in counts.items():
        of_day = by_day.setdefault(begins // DAY * DAY, {})
        of_day[what] = of_day.get(what, 0) + count
    first = first_day(now)
    found = [(day, _count(by_day.get(day, {}))) for day in (first + number * DAY for number in range(POOL_DAYS))]
    most = max((count.noticed for _, count in found), default=0)
    return [
        PoolDay(begins=begins, count=count, height=100 * count.noticed / most if most else 0.0)
        for begins, count in found
    ]
