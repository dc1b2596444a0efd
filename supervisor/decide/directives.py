"""What a decision means for one training process."""

from collections.abc import Mapping

from supervisor.decide.notices import deadline_of
from supervisor.decide.policy import Policy
from supervisor.domain.directive import Directive, DirectiveKind, Worker
from supervisor.domain.ids import Host
from supervisor.domain.job import Framework, Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice

_RELEASED = (Phase.SUSPENDED, Phase.TIMED_OUT, Phase.FINISHED)


def directive_for(
    job: SupervisedJob, worker: Worker, notices: Mapping[Host, ReclaimNotice], policy: Policy
) -> Directive:
    """The directive for `worker`; `notices` are the hosts that must not be used, of whatever job."""
    kind, generation, act_at = _kind(job, worker, notices, policy)
    return Directive(
        kind=kind,
        run=worker.run,
        generation=generation,
        reason=job.decision.reason,
        act_at=act_at,
        notice=_notice(job, worker, notices, policy),
        release=_released(job, worker),
    )


def _released(job: SupervisedJob, worker: Worker) -> bool:
    """Whether a process that is held in its exit hook may go.

    As long as its run's command runs, its going would let the others form a new ring and step past the checkpoint.
    """
    ended = job.decision.phase in _RELEASED and not job.observed.running
    return ended or job.over or worker.run < max(job.observed.run, job.decision.run)


def _kind(
    job: SupervisedJob, worker: Worker, notices: Mapping[Host, ReclaimNotice], policy: Policy
) -> tuple[DirectiveKind, int, float | None]:
    decision = job.decision
    if decision.stop is not None and worker.run <= decision.stop.run:
        told = decision.stop.everyone or worker.rank == 0
        return (DirectiveKind.STOP if told else DirectiveKind.RUN), decision.stop.generation, None
    if decision.phase in (Phase.SUSPENDED, Phase.TIMED_OUT):
        return DirectiveKind.STOP, decision.generation, None
    if worker.host in decision.exclusions and worker.host in notices:
        at = deadline_of(notices[worker.host], policy) - policy.leave_margin_seconds
        return DirectiveKind.LEAVE, decision.excluded_at, at
    if decision.exclusions and job.spec.framework is Framework.TORCHRUN:
        return DirectiveKind.CHECKPOINT, decision.excluded_at, None
    return DirectiveKind.RUN, decision.generation, None


def _notice(
    job: SupervisedJob, worker: Worker, notices: Mapping[Host, ReclaimNotice], policy: Policy
) -> ReclaimNotice | None:
    """The notice on the worker's own host, else the job's most urgent one; only what is still announced."""
    hosts = job.decision.hosts | {worker.host, job.spec.launcher_host}
    active = {host: notice for host, notice in notices.items() if host in hosts and notice.state is NoticeState.ACTIVE}
    if worker.host in active:
        return active[worker.host]
    return min(active.values(), key=lambda notice: deadline_of(notice, policy), default=None)
