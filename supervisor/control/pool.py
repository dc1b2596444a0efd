"""The pool of hosts that are nodes: tracks which jobs hold them and which could use free ones."""

from collections.abc import Collection, Mapping

from supervisor.control.index import JobIndex, Placements
from supervisor.decide.grant import Grant, grants, held, usable
from supervisor.decide.ranking import BY_NAME, Ranking
from supervisor.domain.ids import STANDALONE, Host, JobName, kind_of
from supervisor.domain.job import SupervisedJob


def _held(job: SupervisedJob, _places: Placements) -> frozenset[Host]:
    return held(job) if kind_of(job.name) == STANDALONE else frozenset()


def _usable(job: SupervisedJob, _places: Placements) -> frozenset[Host]:
    return usable(job) if kind_of(job.name) == STANDALONE else frozenset()


class Pool:
    """Grants free hosts to jobs; a job that lists no free host costs nothing."""

    def __init__(self) -> None:
        self._held = JobIndex(_held)
        self._usable = JobIndex(_usable)

    @property
    def holders(self) -> Mapping[str, Collection[JobName]]:
        """The jobs that hold each host, as of the last grant; a live view."""
        return self._held.by_key

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
        free = available.difference(self._held.by_key)
        candidates = [jobs[name] for name in self._usable.of(free)]
        return {name: Grant(hosts) for name, hosts in grants(candidates, free, noticed, ranking).items()}
