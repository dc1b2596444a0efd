"""Classifies changes of a job, for metrics, groups and Events alike. Pure."""

from collections.abc import Callable, Mapping

from supervisor.decide.policy import Policy
from supervisor.decide.situation import JobFacts, Situation
from supervisor.decide.stopping import answers, failure
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import AcknowledgementKind, Phase, SupervisedJob
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


def first_loss(job: SupervisedJob, noticed: NoticedHosts, now: float, policy: Policy) -> float | None:
    """The instant at which the first host that a job's run needs is gone; None if no such host has a notice."""
    view = JobFacts(notices=noticed(job.name))
    return Situation(job, job.decision, view, now, policy).breaks_at


def ran_out_of_time(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether a STOP ended in a suspension without an answer of rank 0 and without the end of the run."""
    stop = before.decision.stop
    if stop is None or not is_suspended(before, after):
        return False
    return after.observed.running and not answers(after.observed.acknowledgement, stop)


def is_unsaved(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether a STOP ended in a suspension without a checkpoint: a save has failed, or there was no answer in time."""
    stop = before.decision.stop
    if stop is None or not is_suspended(before, after):
        return False
    return failure(after.observed.acknowledgement, stop) is not None or ran_out_of_time(before, after)


def is_late(before: SupervisedJob, after: SupervisedJob, noticed: NoticedHosts, policy: Policy) -> bool:
    """Whether the change shows that a STOP was not acknowledged before its deadline, or that nothing was saved."""
    if is_unsaved(before, after):
        return True
    answer, stop = after.observed.acknowledgement, before.decision.stop or after.decision.stop
    if answer is None or stop is None or not answers(answer, stop) or answers(before.observed.acknowledgement, stop):
        return False
    if answer.kind is AcknowledgementKind.FAILED:
        return False  # the suspension shows it
    end = first_loss(before, noticed, answer.at, policy)
    return end is not None and answer.at > end
