"""What a change of a job means, said once for all who count, keep or show it. Pure."""

from collections.abc import Callable, Mapping

from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import ReclaimNotice

NoticedHosts = Callable[[JobName], Mapping[Host, ReclaimNotice]]
"""The hosts that a job must not use now, each by its most urgent notice."""

LIVE = frozenset({Phase.RUNNING, Phase.SHRINKING, Phase.RESUMING})
SUSPENDED = frozenset({Phase.SUSPENDED, Phase.RESUMING})


def is_stopped(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether a STOP was decided; a run that had ended by then is suspended in the same breath."""
    if after.decision.phase is Phase.STOPPING:
        return before.decision.phase is not Phase.STOPPING
    return before.decision.phase in LIVE and is_suspended(before, after)


def is_suspended(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether a STOP has ended in a suspension; a resume that is given up is none, the job was suspended before it.

    Two decisions that came together are heard of as one: the job may resume already.
    """
    was, now = before.decision, after.decision
    if was.phase not in {Phase.STOPPING, *LIVE} or now.phase not in SUSPENDED or was.phase is now.phase:
        return False
    return now.failed_resumes == was.failed_resumes
