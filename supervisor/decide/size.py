"""The sizes that a run may have, by what its job wants when it loses workers. Pure.

A job that shrinks takes every multiple of `worker_multiple` from its minimum to its maximum; a job that holds takes
`requested_workers` alone. All counts are of hosts.
"""

from supervisor.domain.job import OnLoss, Spec


def takes_any_size(spec: Spec) -> bool:
    """Whether every size between minimum and maximum does."""
    return spec.on_loss is OnLoss.SHRINK and spec.worker_multiple == 1


def usable_workers(count: int, spec: Spec) -> int:
    """How many of `count` hosts a run may go on with, as many as possible; 0 if they are too few.

    The maximum of a job that shrinks is not a bound: hosts above it are not granted, and a controller that makes more
    hosts uses them.
    """
    if spec.on_loss is OnLoss.HOLD:
        return spec.requested_workers if count >= spec.requested_workers else 0
    size = _rounded_down(count, spec)
    return size if size >= spec.min_workers else 0


def startable_workers(count: int, spec: Spec) -> int:
    """How many of `count` hosts a run starts on, at most those that were requested; 0 if they are too few."""
    size = usable_workers(min(count, spec.requested_workers), spec)
    return size if size >= spec.start_workers else 0


def joining_workers(workers: int, count: int, spec: Spec) -> int:
    """How many of `count` further hosts a run takes that has `workers`, counting those that it cannot use alone."""
    most = usable_workers(min(workers + count, spec.max_workers), spec)
    return max(0, most - workers)


def least_workers(spec: Spec) -> int:
    """The fewest hosts with which a run goes on."""
    return spec.requested_workers if spec.on_loss is OnLoss.HOLD else _rounded_up(spec.min_workers, spec)


def least_to_start(spec: Spec) -> int:
    """The fewest hosts on which a run starts."""
    return spec.requested_workers if spec.on_loss is OnLoss.HOLD else _rounded_up(spec.start_workers, spec)


def most_workers(spec: Spec) -> int:
    """The most hosts that a run takes."""
    return spec.requested_workers if spec.on_loss is OnLoss.HOLD else _rounded_down(spec.max_workers, spec)


def _rounded_down(count: int, spec: Spec) -> int:
    return count - count % spec.worker_multiple


def _rounded_up(count: int, spec: Spec) -> int:
    return -(-count // spec.worker_multiple) * spec.worker_multiple
