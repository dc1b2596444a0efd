"""Classifies changes of a job, for metrics, groups and Events alike. Pure."""

from collections.abc import Callable, Mapping

from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import ReclaimNotice

NoticedHosts = Callable[[JobName], Mapping[Host, ReclaimNotice]]
"""The hosts that a job must not use at present, each with its most urgent notice."""

LIVE = frozenset({Phase.RUNNING, Phase.SHRINKING, Phase.RESUMING})
SUSPENDED = frozenset({Phase.SUSPENDED, Phase.RESUMING})


def is_stopped(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether a STOP was decided; if the run had already ended, the same decision suspends the job."""
    if after.decision.phase is Phase.STOPPING:
        return before.decision.phase is not Phase.STOPPING
    return before.decision.phase in LIVE and is_suspended(before, after)


def is_suspended(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether a STOP has ended in a suspension. A failed resume does not count: the job was suspended before it.

    Two decisions may be reported as one change, so the job may already be resuming.
    """
    was, now = before.decision, after.decision
    if was.phase not in {Phase.STOPPING, *LIVE} or now.phase not in SUSPENDED or was.phase is now.phase:
        return False
    return now.failed_resumes == was.failed_resumes
