"""Decides which jobs a pass plans: those with changed inputs, and those that are due."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from supervisor.control.facts import Announced, Facts
from supervisor.control.pool import JobIndex, Placements
from supervisor.decide.grant import Grant
from supervisor.domain.ids import JobName
from supervisor.domain.job import SupervisedJob


class PlanRequests:
    """Collects jobs until the next pass; `on_request` is called with every request."""

    def __init__(self, on_request: Callable[[], None]) -> None:
        self._jobs: set[JobName] = set()
        self._on_request = on_request

    def add(self, job: JobName) -> None:
        """Requests that the next pass plans the job."""
        self._jobs.add(job)
        self._on_request()

    def take(self) -> set[JobName]:
        """Returns all jobs that were added since the last call."""
        jobs, self._jobs = self._jobs, set()
        return jobs


V = TypeVar("V")


def _subjects(job: SupervisedJob, placements: Placements) -> frozenset[str]:
    """The subjects of notices that concern the job: nodes by name, pods by uid."""
    if placements is None:
        return job.own_hosts
    own = [placement for host, placement in placements.items() if host in job.own_hosts]
    return frozenset(subject for placement in own for subject in (placement.node, placement.pod))


class Schedule:
    """Compares the inputs of each job's plan with those of its last one.

    The inputs are the stored job, the placements of its hosts, the notices on them, and its grant. Other reasons to
    plan a job, such as a change of rank 0, are reported by `mark`.
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
        """Makes the job due in the next pass."""
        self._due.add(name)

    def changed(self, jobs: Mapping[JobName, SupervisedJob]) -> Collection[JobName]:
        """The jobs that are new, removed or changed, or whose notices changed; they become due."""
        changed = self._concerned.follow(jobs, self._facts.placements)
        before, self._announced = self._announced, self._facts.announced
        for known, announced in zip(before, self._announced, strict=False):  # In the first pass every job is new.
            changed |= self._concerned.of(set(_differing(known, announced)))
        if self._facts.caught_up_at != self._caught_up_at:
            self._caught_up_at = self._facts.caught_up_at
            changed |= jobs.keys()
        self._due |= changed
        return changed

    def due(
        self, jobs: Mapping[JobName, SupervisedJob], granted: Mapping[JobName, Grant], now: float
    ) -> Collection[JobName]:
        """The jobs to plan now."""
        self._due.update(_differing(self._granted, granted))
        self._due.update(name for name, at in self._wakes.items() if at <= now)
        due, self._due, self._granted = self._due, set(), granted
        for name in due - jobs.keys():
            self._wakes.pop(name, None)
        return due & jobs.keys()

    def planned(self, name: JobName, wake_at: float | None) -> None:
        """Records that the job was planned, and when it is due again."""
        if wake_at is None:
            self._wakes.pop(name, None)
        else:
            self._wakes[name] = wake_at

    @property
    def wake_at(self) -> float | None:
        """The earliest instant at which a job is due."""
        return min(self._wakes.values(), default=None)


def _differing(before: Mapping[Any, V], after: Mapping[Any, V]) -> Iterator[Any]:
    """The keys whose values differ, or that only one of the mappings has."""
    if before is after:
        return
    for key, value in after.items():
        known = before.get(key)
        # Identity first, as most objects are the same: comparing thousands of notices by value would be slow.
        if known is not value and known != value:
            yield key
    yield from before.keys() - after.keys()
