"""How a person's request to suspend, resume or stop a stand-alone job changes it. Pure.

The requests about a cluster's jobs are annotations of their objects, which `supervisor.jobs.observation` reads.
"""

from dataclasses import replace

from supervisor.decide.registration import UnknownJobError
from supervisor.domain.ids import STANDALONE, kind_of
from supervisor.domain.job import Phase, RequestKind, SupervisedJob, UserRequest

_ENDED = (Phase.TIMED_OUT, Phase.FINISHED)


class JobIsOverError(Exception):
    """The job has ended: nothing can be asked of it any more."""


class JobEndsError(Exception):
    """The job is being ended, so that it cannot be suspended only."""


class ClusterJobError(Exception):
    """The job belongs to a cluster's controller: requests about it are annotations of its object."""


def with_request(known: SupervisedJob | None, request: UserRequest | None) -> SupervisedJob:
    """The job with a request in place of an earlier one; None takes it back. A repeated request changes nothing.

    Raises:
        UnknownJobError: There is no such job.
        ClusterJobError: See there.
        JobIsOverError: See there.
        JobEndsError: See there.
    """
    if known is None:
        raise UnknownJobError("no such job")
    if kind_of(known.name) != STANDALONE:
        raise ClusterJobError(f"{known.name} is steered by annotations of its object on the cluster")
    if known.over or known.decision.phase in _ENDED:
        raise JobIsOverError(f"{known.name} has ended")
    before = known.observed.request
    if before is None or request is None:
        return replace(known, observed=replace(known.observed, request=request))
    if before.kind is RequestKind.STOP and request.kind is RequestKind.SUSPEND:
        raise JobEndsError(f"{known.name} is being ended at the request of {before.by}; to resume it takes that back")
    since = before.at if before.kind is request.kind else request.at
    return replace(known, observed=replace(known.observed, request=replace(request, at=since)))
