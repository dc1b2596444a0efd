"""The pool of hosts that are nodes. It tracks which jobs hold hosts, and which jobs could use free ones."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from supervisor.decide.grant import BY_NAME, Grant, Ranking, grants, held, usable
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import STANDALONE, Host, JobName, kind_of
from supervisor.domain.job import SupervisedJob

Placements = Mapping[Host, Placement] | None
"""The placements of a job's hosts; None if they are nodes."""

Keys = Callable[[SupervisedJob, Placements], frozenset[str]]


@dataclass(slots=True)
class JobIndex:
    """Finds jobs by key.

    Attributes:
        keys: Returns the keys of a job.
        by_key: The jobs of each key, which `follow` keeps up to date.
    """

    keys: Keys
    by_key: dict[str, set[JobName]] = field(default_factory=dict)
    _known: dict[JobName, tuple[SupervisedJob, Placements, frozenset[str]]] = field(default_factory=dict)

    def follow(
        self, jobs: Mapping[JobName, SupervisedJob], placements: Callable[[JobName], Placements] | None = None
    ) -> set[JobName]:
        """Updates the index with the changes since the last call; returns the jobs that are new, different or gone.

        A job is different when it is another object, or its `placements` are: nothing else is compared. Without
        `placements` all hosts are nodes.
        """
        changed: set[JobName] = set()
        for name, job in jobs.items():
            known, where = self._known.get(name), None if placements is None else placements(name)
            if known is not None and known[0] is job and known[1] is where:
                continue
            keys, before = self.keys(job, where), known[2] if known is not None else frozenset[str]()
            self._known[name] = (job, where, keys)
            self._move(name, before, keys)
            changed.add(name)
        if len(self._known) > len(jobs):
            for name in self._known.keys() - jobs.keys():
                self._move(name, self._known.pop(name)[2], frozenset())
                changed.add(name)
        return changed

    def of(self, keys: Collection[str]) -> set[JobName]:
        """The jobs that have at least one of these keys."""
        return {name for key in self.by_key.keys() & keys for name in self.by_key[key]}

    def _move(self, name: JobName, before: frozenset[str], after: frozenset[str]) -> None:
        if before is after:
            return
        for key in before - after:
            names = self.by_key[key]
            names.discard(name)
            if not names:
                del self.by_key[key]
        for key in after - before:
            self.by_key.setdefault(key, set()).add(name)


class HostPool:
    """Grants free hosts to jobs; a job that lists no free host costs nothing.

    Attributes:
        holders: The jobs that hold each host, as of the last grant.
    """

    def __init__(self) -> None:
        self._held = JobIndex(lambda job, _: held(job) if kind_of(job.name) == STANDALONE else frozenset())
        self._usable = JobIndex(lambda job, _: usable(job) if kind_of(job.name) == STANDALONE else frozenset())
        self.holders: Mapping[str, Collection[JobName]] = self._held.by_key

    def granted(
        self,
        jobs: Mapping[JobName, SupervisedJob],
        available: frozenset[Host],
        noticed: Collection[Host],
        ranking: Ranking = BY_NAME,
    ) -> Mapping[JobName, Grant]:
        """The hosts that each job may start on, or grow by; see `supervisor.decide.grant.grants`."""
        self._held.follow(jobs)
        self._usable.follow(jobs)
        free = available.difference(self.holders)
        candidates = [jobs[name] for name in self._usable.of(free)]
        return {name: Grant(hosts) for name, hosts in grants(candidates, free, noticed, ranking).items()}
