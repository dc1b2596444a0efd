"""Adds up on which kinds of machines the workers of each job are held, as a listener of the journal."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from servicekit.clock import Clock
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import HeldOn
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.ledger.accounts import held_hosts
from supervisor.observability.ledger.hours import HourlySums, LedgerHour

MachineHours = Mapping[LedgerHour, Mapping[HeldOn, float]]
"""The worker-seconds on each kind of machine in hours of jobs."""

HeldOnEach = Callable[[JobName, Collection[Host]], Mapping[HeldOn, int]]
"""Returns how many of these hosts of a job are of each kind of machine."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The hosts that a job holds, by the kind of machine."""

    hosts: frozenset[Host]
    kinds: Mapping[HeldOn, int]

    @property
    def is_known(self) -> bool:
        return all(kind.is_known for kind in self.kinds)


class MachineBook:
    """The worker-seconds that jobs hold, by the kind of machine, in the time in which this supervisor leads.

    Args:
        clock: As for the ledger.
        held_on: Looks at machines, which takes 3 µs each: only hosts that have changed, or are not known yet, are
            looked at.
    """

    name = "machines"

    def __init__(self, clock: Clock, held_on: HeldOnEach) -> None:
        self._sums = HourlySums[HeldOn](clock)
        self._held_on = held_on
        self._held = dict[JobName, _Held]()

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """Starts from the stored jobs."""
        for job in jobs:
            self._put(job)

    def on_change(self, change: Change) -> None:
        match change:
            case JobChanged(_, after, _):
                self._sums.count(after.name)
                self._put(after)
            case JobForgotten(before, _):
                self._sums.count(before.name)
                self._sums.forget(before.name)
                self._held.pop(before.name, None)

    def waiting(self) -> MachineHours:
        """Counts until now, and returns the hours that have changed since they were written, whole.

        Machines of which nothing was known, because their agent or pod was not there yet, are looked at again.
        """
        for job, held in list(self._held.items()):
            self._sums.count(job)
            if not held.is_known:
                self._look(job, held.hosts)
        return self._sums.waiting()

    def written(self, hours: MachineHours) -> None:
        """Hears that hours were written as `waiting` has returned them."""
        self._sums.written(hours)

    def _put(self, job: SupervisedJob) -> None:
        hosts, known = held_hosts(job), self._held.get(job.name)
        if known is None or known.hosts != hosts or not known.is_known:
            self._look(job.name, hosts)

    def _look(self, job: JobName, hosts: frozenset[Host]) -> None:
        held = self._held[job] = _Held(hosts, self._held_on(job, hosts))
        self._sums.put(job, held.kinds)
