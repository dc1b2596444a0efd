"""Sums up worker-seconds: the shares of what jobs wanted, exact or between two values, and one sentence."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from supervisor.domain.ledger import HELD, WANTED, Account

_HOUR = 3600.0
_MINUTE = 60.0

HourlyTime = Mapping[float, Mapping[str, float]]
"""The worker-seconds by account of each hour, which begins at an instant (Unix seconds)."""


@dataclass(frozen=True, slots=True)
class ShareRange:
    """A share that lies between two values, because processes have not said everything."""

    at_least: float
    at_most: float

    def __str__(self) -> str:
        least, most = percent(self.at_least), percent(self.at_most)
        return most if least == most else f"{least} to {most}"


def share(part: float, whole: float) -> float | None:
    """Returns a part of a whole; None of nothing."""
    return part / whole if whole else None


def percent(value: float | None) -> str:
    """Formats a share; one that is unknown as a dash."""
    return "-" if value is None else f"{value * 100:.1f} %"


def hours(seconds: float) -> str:
    """Formats worker-seconds as hours, and less than a tenth of an hour in whole minutes or seconds, at least one."""
    if not 0 < seconds < _HOUR / 10:
        return f"{seconds / _HOUR:,.1f} h"
    return f"{seconds / _MINUTE:.0f} min" if seconds >= _MINUTE else f"{max(1, int(seconds))} s"


@dataclass(frozen=True, slots=True)
class WorkerTime:
    """The worker-seconds of a job, or of several, by account."""

    seconds: Mapping[str, float]

    @classmethod
    def of(cls, jobs: Iterable[Mapping[str, float]]) -> "WorkerTime":
        """Returns the sum of the worker-seconds of jobs."""
        total = Counter[str]()
        for job in jobs:
            total.update(job)
        return cls(total)

    def spent(self, *accounts: Account) -> float:
        """Returns the worker-seconds of these accounts together."""
        return sum(self.seconds.get(account, 0.0) for account in accounts)

    @property
    def wanted(self) -> float:
        """The worker-seconds that the jobs could have used, while no queue and no person held them back."""
        return self.spent(*WANTED)

    @property
    def scheduling(self) -> float | None:
        """The share of what they wanted that they held; None if they wanted nothing."""
        return share(self.spent(*HELD), self.wanted)

    @property
    def runtime(self) -> ShareRange | None:
        """The share of what they held that trained; None if they held nothing."""
        return self._trained(self.spent(*HELD))

    @property
    def ratio(self) -> ShareRange | None:
        """The share of what they wanted that trained, the product of both; None if they wanted nothing."""
        return self._trained(self.wanted)

    def summary(self, when: str) -> str:
        """Sums up for a reader who wants one sentence; `when` begins it, as in `In the last 7 d`."""
        if self.ratio is None:
            return f"{when}, no job wanted workers."
        wanted = f"{when}, jobs wanted {hours(self.wanted)} of workers"
        if self.runtime is None:
            return f"{wanted}, and held none."
        return (
            f"{wanted} and held {percent(self.scheduling)} of them, of which {self.runtime} trained: "
            f"{self.ratio} together."
        )

    def _trained(self, whole: float) -> ShareRange | None:
        least, most = self.spent(Account.TRAINING), self.spent(Account.TRAINING, Account.UNMEASURED)
        return ShareRange(least / whole, most / whole) if whole else None
