"""Counts the notices of each capacity pool, by the hour in the last days and by the day before.

Hours that are over are counted once and kept in memory, so that a month is read in the time of three hours.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

DAY, HOUR = 86_400.0, 3600.0
POOL_DAYS = 30
"""Days that are counted, of UTC, with today as the last one."""
_HOURLY_DAYS = 3
"""The last days of which the hours are told apart, as many as 48 hours are parts of."""
_SETTLED_SECONDS = 7200.0
"""How long after its end an hour is counted for good: what happened in it is written by then."""

PoolCounts = Mapping[tuple[float, str, str], int]
"""How many entries of notices there are, by the hour's or the day's begin, the pool (`CLOUD/ZONE/TYPE`) and their word.

With 20 pools a month by the hour has 28,000 of them, which take 40 ms to sum up; so it has 4,000.
"""

ReadPools = Callable[[float, float], Iterable[tuple[float, str, str]]]
"""Reads the instant, the pool and the word of each entry of a notice between two instants (Unix seconds)."""


@dataclass(frozen=True, slots=True)
class _CountedDay:
    """The counts of a day's hours before an instant, and of the whole day once that is its end."""

    until: float
    by_hour: PoolCounts
    whole: PoolCounts


@dataclass(slots=True)
class PoolDays:
    """Keeps the counts of days that are over. One thread uses it at a time."""

    _days: dict[float, _CountedDay] = field(default_factory=dict)

    def counted(self, read: ReadPools, now: float) -> PoolCounts:
        """Returns the counts of the last 30 days, up to now."""
        found: dict[tuple[float, str, str], int] = {}
        for day in _days(now):
            counted = self._day(read, day, now)
            is_late = day > now - _HOURLY_DAYS * DAY
            found.update(counted.by_hour if is_late else counted.whole)
        return found

    def missing(self, now: float) -> float | None:
        """Returns the begin of a day with an hour that is over and was not counted yet; None if there is none."""
        return next((day for day in _days(now) if self._known(day).until < _settled(day, now)), None)

    def count(self, read: ReadPools, day: float, now: float) -> None:
        """Counts a day, and forgets those that nobody asks for any more."""
        self._day(read, day, now)
        for old in [each for each in self._days if each < _days(now)[0]]:
            del self._days[old]

    def forget(self, until: float) -> None:
        """Forgets the counts of days that begin before an instant: some of what they counted is deleted."""
        self._days = {day: counted for day, counted in self._days.items() if day >= until}

    def written(self, instants: Iterable[float]) -> None:
        """Has days counted anew in which something was written after they were counted, as after an outage."""
        for at in instants:
            day = at // DAY * DAY
            if at < self._known(day).until:
                del self._days[day]

    def _known(self, day: float) -> _CountedDay:
        return self._days.get(day) or _CountedDay(day, {}, {})

    def _day(self, read: ReadPools, day: float, now: float) -> _CountedDay:
        known = self._known(day)
        if known.until == day + DAY:
            return known
        settled, by_hour = _settled(day, now), Counter(known.by_hour)
        kept = by_hour.copy()
        for at, pool, what in read(known.until, day + DAY):
            by_hour[at // HOUR * HOUR, pool, what] += 1
            if at < settled:
                kept[at // HOUR * HOUR, pool, what] += 1
        if known.until < settled:
            self._days[day] = _CountedDay(settled, kept, _whole(day, kept))
        return _CountedDay(settled, by_hour, _whole(day, by_hour))


def _whole(day: float, by_hour: PoolCounts) -> PoolCounts:
    found = Counter[tuple[float, str, str]]()
    for (_, pool, what), count in by_hour.items():
        found[day, pool, what] += count
    return found


def first_day(now: float) -> float:
    """Returns the begin of the first of the last 30 days, of which today is the last."""
    return now // DAY * DAY - (POOL_DAYS - 1) * DAY


def _days(now: float) -> list[float]:
    first = first_day(now)
    return [first + number * DAY for number in range(POOL_DAYS)]


def _settled(day: float, now: float) -> float:
    """Returns the instant up to which the hours of a day are counted for good."""
    return min(day + DAY, max(day, (now - _SETTLED_SECONDS) // HOUR * HOUR))
