"""Which jobs a pass has to plan: those of which something has changed, and those whose time has come."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from supervisor.control.facts import Announced, Facts
from supervisor.control.index import JobIndex, Placements
from supervisor.decide.grant import Grant
from supervisor.domain.ids import JobName
from supervisor.domain.job import SupervisedJob

V = TypeVar("V")


def _subjects(job: SupervisedJob, placements: Placements) -> frozenset[str]:
    """What notices about the job are about: nodes by name, pods by uid."""
    if placements is None:
        return job.own_hosts
    own = [placement for host, placement in placements.items() if host in job.own_hosts]
    return frozenset(subject for placement in own for subject in (placement.node, placement.pod))


class Schedule:
    """Remembers what each job was last planned from.

    What a plan depends on is compared with what it was: what is stored of the job, where its hosts are, the notices on
    them, and its grant. Whether rank 0 is connected is told by `mark`, as are the jobs that have to be looked at again.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._concerned = JobIndex(_subjects)
        self._announced: tuple[Announced, ...] = ()
        self._granted: Mapping[JobName, Grant] = {}
        self._caught_up_at = facts.caught_up_at
        self._due: set[JobName] = set()
        self._wakes: dict[JobName, float] = {}

    def mark(self, name: JobName) -> None:
        """This job is to be planned in the next pass."""
        self._due.add(name)

    def changed(self, jobs: Mapping[JobName, SupervisedJob]) -> Collection[JobName]:
        """The jobs that are new, gone, or stored differently, and those with other notices; they are due, too."""
        changed = self._concerned.follow(jobs, self._facts.placements)
        before, self._announced = self._announced, self._facts.announced
        for known, announced in zip(before, self._announced, strict=False):  # At first every job is new.
            changed |= self._concerned.of(set(_differing(known, announced)))
        if self._facts.caught_up_at != self._caught_up_at:
            self._caught_up_at = self._facts.caught_up_at
            changed |= jobs.keys()
        self._due |= changed
        return changed

    def due(
        self, jobs: Mapping[JobName, SupervisedJob], granted: Mapping[JobName, Grant], now: float
    ) -> Collection[JobName]:
        """Which of these jobs are to be planned now."""
        self._due.update(_differing(self._granted, granted))
        self._due.update(name for name, at in self._wakes.items() if at <= now)
        due, self._due, self._granted = self._due, set(), granted
        for name in due - jobs.keys():
            self._wakes.pop(name, None)
        return due & jobs.keys()

    def planned(self, name: JobName, wake_at: float | None) -> None:
        """The job was planned, and time alone changes nothing before that instant."""
        if wake_at is None:
            self._wakes.pop(name, None)
        else:
            self._wakes[name] = wake_at

    @property
    def wake_at(self) -> float | None:
        """The first of those instants."""
        return min(self._wakes.values(), default=None)


def _differing(before: Mapping[Any, V], after: Mapping[Any, V]) -> Iterator[Any]:
    """The keys whose values are different, or there in one of them only."""
    if before is after:
        return
    for key, value in after.items():
        known = before.get(key)
        # Mostly the very same objects: to compare thousands of notices by value would be felt.
        if known is not value and known != value:
            yield key
    yield from before.keys() - after.keys()
