"""Adds up on which kinds of machines the workers of each job are held, as a listener of the journal."""

from collections.abc import Callable, Iterable, Mapping

from servicekit.clock import Clock
from supervisor.domain.ids import JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import HeldOn
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.ledger.hours import HourlySums, LedgerHour

MachineHours = Mapping[LedgerHour, Mapping[HeldOn, float]]
"""The worker-seconds on each kind of machine in hours of jobs."""


class MachineBook:
    """The worker-seconds that jobs hold, by the kind of machine, in the time in which this supervisor leads.

    Args:
        clock: As for the ledger.
        held_on: Returns how many workers a job holds on each kind of machine.
    """

    name = "machines"

    def __init__(self, clock: Clock, held_on: Callable[[SupervisedJob], Mapping[HeldOn, int]]) -> None:
        self._sums = HourlySums[HeldOn](clock)
        self._held_on = held_on
        self._jobs = dict[JobName, SupervisedJob]()

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
                self._jobs.pop(before.name, None)

    def waiting(self) -> MachineHours:
        """Counts until now, and returns the hours that have changed since they were written, whole.

        Machines of which nothing was known, because their agent or pod was not there yet, are looked at again.
        """
        for job in self._sums.jobs:
            stretches = self._sums.count(job)
            if any(not held.is_known for _, workers, _ in stretches for held in workers):
                self._put(self._jobs[job])
        return self._sums.waiting()

    def written(self, hours: MachineHours) -> None:
        """Hears that hours were written as `waiting` has returned them."""
        self._sums.written(hours)

    def _put(self, job: SupervisedJob) -> None:
        self._jobs[job.name] = job
        self._sums.put(job.name, self._held_on(job))
