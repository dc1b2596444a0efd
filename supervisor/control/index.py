"""An index of jobs by key, updated at the cost of the changed jobs only."""

from collections.abc import Callable, Collection, Mapping

from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.placement import Placement

Placements = Mapping[Host, Placement] | None
"""The placements of a job's hosts; None if they are nodes."""

Keys = Callable[[SupervisedJob, Placements], frozenset[str]]


def on_nodes(_name: JobName) -> None:
    """The placements of jobs whose hosts are nodes."""


class JobIndex:
    """Finds jobs by key.

    Args:
        keys: Returns the keys of a job.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._known: dict[JobName, tuple[SupervisedJob, Placements, frozenset[str]]] = {}
        self._names: dict[str, set[JobName]] = {}

    @property
    def by_key(self) -> Mapping[str, Collection[JobName]]:
        """The jobs of each key; a live view."""
        return self._names

    def follow(
        self, jobs: Mapping[JobName, SupervisedJob], placements: Callable[[JobName], Placements] = on_nodes
    ) -> set[JobName]:
        """Takes in what has changed since the last call; returns the jobs that are new, different or gone.

        A job is different when it is another object, or its `placements` are: nothing else is looked at.
        """
        changed: set[JobName] = set()
        for name, job in jobs.items():
            known, where = self._known.get(name), placements(name)
            if known is None or known[0] is not job or known[1] is not where:
                self._put(name, job, where)
                changed.add(name)
        if len(self._known) > len(jobs):
            for name in self._known.keys() - jobs.keys():
                self._move(name, self._known.pop(name)[2], frozenset())
                changed.add(name)
        return changed

    def of(self, keys: Collection[str]) -> set[JobName]:
        """The jobs that have at least one of these keys."""
        return {name for key in self._names.keys() & keys for name in self._names[key]}

    def _put(self, name: JobName, job: SupervisedJob, where: Placements) -> None:
        before = self._known[name][2] if name in self._known else frozenset()
        keys = self._keys(job, where)
        self._known[name] = (job, where, keys)
        if keys is not before:
            self._move(name, before, keys)

    def _move(self, name: JobName, before: frozenset[str], after: frozenset[str]) -> None:
        for key in before - after:
            names = self._names[key]
            names.discard(name)
            if not names:
                del self._names[key]
        for key in after - before:
            self._names.setdefault(key, set()).add(name)
