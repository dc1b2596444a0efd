"""Jobs that their own spec suspends, by the supervisor or by a person. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from servicekit.bounds import unix_seconds
from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.annotations import OURS, SUSPENDED_BY
from supervisor.decide.plan import first_decision
from supervisor.domain.ids import JobName
from supervisor.domain.job import Decision, Observed, Phase, Result, Spec, SupervisedJob
from supervisor.jobs.observation import STATUS_OF, marked_result

SUSPENSION: Mapping[str, str] = {SUSPENDED_BY: OURS}
"""The annotation that tells a suspension of the supervisor's from a person's."""

_SUSPENDED_BEFORE = "Was suspended before; waiting for capacity."


class SuspendableJob(Protocol):
    """A job whose spec has a field that suspends it."""

    @property
    def metadata(self) -> Metadata:
        """The name, namespace and uid."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """Those of its annotations that begin with our prefix."""

    @property
    def suspended(self) -> bool:
        """Whether the controller has been told to delete all pods."""

    @property
    def started_at(self) -> datetime | None:
        """When the controller first saw the job, or when it was last resumed."""

    @property
    def still_suspended(self) -> bool:
        """Whether its controller says that it is suspended, which it does for a moment after a resume, too."""


def suspended_here(job: SuspendableJob) -> bool:
    """Whether the supervisor has suspended the job."""
    return job.annotations.get(SUSPENDED_BY) == OURS


def is_freed(job: SuspendableJob, known: SupervisedJob) -> bool:
    """Whether a person has resumed a job that was to stay suspended: it is taken up anew."""
    if job.suspended:
        return False
    if known.observed.result in STATUS_OF:
        return True
    # It keeps its hosts until its suspension is in place.
    in_place = not known.decision.hosts or known.observed.applied >= known.decision.generation
    return known.decision.phase is Phase.SUSPENDED and in_place


def registered(name: JobName, job: SuspendableJob, spec: Spec, observed: Observed, now: float) -> SupervisedJob | None:
    """The job as it is stored first; None if it has ended already."""
    if observed.result is not None:
        return None
    decision = first_decision(spec, observed, _waits_since(job, now))
    if job.suspended:
        decision = Decision(generation=1, phase=Phase.SUSPENDED, reason=_SUSPENDED_BEFORE, waiting_since=now)
    return SupervisedJob(name=name, uid=job.metadata.uid, spec=spec, observed=observed, decision=decision)


def result_of(job: SuspendableJob, *, succeeded: bool, failed: bool) -> Result | None:
    """How a job ended: by the supervisor's mark while it is suspended, otherwise as its controller says."""
    if job.suspended and (marked := marked_result(job.annotations)) is not None:
        return marked
    if succeeded:
        return Result.SUCCEEDED
    return Result.FAILED if failed else None


def _waits_since(job: SuspendableJob, now: float) -> float:
    """Since when the controller waits for the pods of the job's present start; it notes a resume a moment later.

    Where a person has resumed a job and left the supervisor's mark, the start may be unknown: Volcano notes no resume.
    """
    began = unix_seconds(job.started_at or job.metadata.creation_timestamp)
    just_resumed = job.still_suspended or suspended_here(job)
    return now if began is None or just_resumed else min(now, began)
