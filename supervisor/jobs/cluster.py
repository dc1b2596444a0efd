"""The jobs of all kinds on a cluster: what is known of them, and the actions of their kinds."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import Host, JobName, kind_of
from supervisor.domain.placement import Placement
from supervisor.jobs.cache import JobCache
from supervisor.jobs.kind import ClusterContext, J, JobActions, JobKind, JobState, KindContext


@dataclass(frozen=True, slots=True)
class ConnectedKind:
    """One kind on one cluster."""

    cache: JobCache[Any]
    actions: JobActions[Any]


def connect(kind: JobKind[J], cache: JobCache[J], cluster: ClusterContext) -> ConnectedKind:
    """Connects the actions of a kind with a cluster."""
    return ConnectedKind(cache, kind.actions(KindContext(jobs=cache, client=cache.client, cluster=cluster)))


class ClusterJobs:
    """Answers for a job by asking its kind."""

    def __init__(self, kinds: Iterable[ConnectedKind]) -> None:
        self._kinds = {kind.cache.kind.name: kind for kind in kinds}

    def __iter__(self) -> Iterator[ConnectedKind]:
        return iter(self._kinds.values())

    def of(self, name: JobName) -> ConnectedKind | None:
        """Returns the kind of a job; None for one that is not supervised by this version."""
        return self._kinds.get(kind_of(name))

    def subscribe(self, on_change: Callable[[Collection[JobName]], None]) -> None:
        """Calls that whenever jobs, or pods of them, have changed."""
        for kind in self:
            kind.cache.subscribe(on_change)

    def state(self, name: JobName) -> JobState[Any] | None:
        """Returns a job and its pods; None where there is none of that name."""
        kind = self.of(name)
        return None if kind is None else kind.cache.state(name)

    def placements(self, name: JobName) -> Mapping[Host, Placement]:
        """Returns where the job's workers and its launcher are; the same object until that changes."""
        kind = self.of(name)
        return _NOWHERE if kind is None else kind.cache.placements(name)

    def resource_request(self, name: JobName) -> ResourceRequest | None:
        """Returns what the pods of a run of the job ask for; None where that is not known."""
        kind = self.of(name)
        return None if kind is None else kind.cache.resource_request(name)

    def growable(self, name: JobName) -> int:
        """Returns how many workers the job's controller can be asked to add now without harm."""
        kind, state = self.of(name), self.state(name)
        return 0 if kind is None or state is None else kind.actions.growable(state)


_NOWHERE: Mapping[Host, Placement] = {}
"""One object for all, as whoever asks compares it with what it was."""
