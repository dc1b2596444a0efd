"""Tries all ways of binding pods to nodes, by rules written down a second time: for small scenes only."""

from collections.abc import Mapping, Sequence
from functools import cache

from supervisor.domain.capacity import Demand, NodeCapacity, ResourceRequest

Free = tuple[tuple[tuple[str, int], ...], ...]


def bindable(pods: Sequence[Demand], rooms: Sequence[NodeCapacity]) -> bool:
    """Whether all of those pods could be bound at once; `apart` is not looked at."""
    kinds = list(pods)

    @cache
    def rest(index: int, free: Free) -> bool:
        if index == len(kinds):
            return True
        for spot, room in enumerate(rooms):
            left = _bound(kinds[index], room, dict(free[spot]))
            if left is not None and rest(index + 1, (*free[:spot], tuple(sorted(left.items())), *free[spot + 1 :])):
                return True
        return False

    return rest(0, tuple(tuple(sorted(room.free.items())) for room in rooms))


def most_workers(request: ResourceRequest, most: int, rooms: Sequence[NodeCapacity]) -> int:
    """How many workers could be bound beside the launcher, at most."""
    return max((count for count in range(1, most + 1) if bindable(pods_of(request, count), rooms)), default=0)


def pods_of(request: ResourceRequest, workers: int) -> list[Demand]:
    """The pods of a run with so many workers."""
    beside = [demand for each in request.beside for demand in [each.demand] * each.count]
    return [*beside, *[request.worker] * (workers - request.fixed)]


def _bound(pod: Demand, room: NodeCapacity, free: dict[str, int]) -> Mapping[str, int] | None:
    """Return the node's remaining capacity after that pod, or None where the pod does not fit."""
    tolerated = {
        taint for taint in room.taints for each in pod.tolerations if each.exists and each.key in ("", taint.key)
    }
    if set(room.taints) - tolerated or dict(pod.selector).items() - dict(room.labels).items():
        return None
    for name, amount in {**pod.requests, "pods": 1000}.items():
        if amount and free.get(name, 0) < amount:
            return None
        free[name] = free.get(name, 0) - amount
    return free
