"""Derives the directive of each training process from a job's decision."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, TypeGuard

from supervisor.decide.policy import Policy
from supervisor.decide.urgency import deadline_of
from supervisor.domain.agreement import Agreement, Purpose
from supervisor.domain.ids import Host
from supervisor.domain.job import Decision, Framework, Phase, Stop, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.domain.order import Order, OrderKind, ProcessDirective, ProcessDirectiveKind, Worker

_RELEASED = (Phase.QUEUED, Phase.SUSPENDED, Phase.TIMED_OUT, Phase.FINISHED)

_UNDECIDED_SECONDS = 1.0
"""Time for a decision about a notice, however short its lead: it takes milliseconds unless the store is unavailable."""


DirectiveKey = tuple[int, Host | None, bool]
"""The properties of a process that its directive depends on: its run, its host if noticed, whether it is rank 0."""


@dataclass(frozen=True, slots=True)
class JobDirectives:
    """Derives the directives of a job's processes at one moment, and computes once the part that they share."""

    job: SupervisedJob
    notices: Mapping[Host, ReclaimNotice]
    policy: Policy
    urgent: Host | None

    @classmethod
    def of(cls, job: SupervisedJob, notices: Mapping[Host, ReclaimNotice], policy: Policy) -> Self:
        """Makes the directives of a job.

        `notices` has all hosts that must not be used, including those of other jobs.
        """
        announced = (host for host in job.own_hosts if _announced(notices.get(host)))
        urgent = min(
            announced, key=lambda host: (deadline_of(notices[host], policy), notices[host].id, host), default=None
        )
        return cls(job, notices, policy, urgent)

    def key(self, worker: Worker) -> DirectiveKey:
        """The key of a process; processes with the same key get the same directive."""
        return worker.run, worker.host if worker.host in self.notices else None, worker.rank == 0

    def directive(self, worker: Worker) -> ProcessDirective:
        """The directive for one process."""
        job = self.job
        kind, generation, act_at = _kind(job, worker, self.notices, self.policy)
        # The worker's own host if it has an active notice, else the host with the job's most urgent notice.
        host = worker.host if _announced(self.notices.get(worker.host)) else self.urgent
        # While the run's command is running, the exit of a process that waits in its exit hook would let the others
        # form a new ring and step past the checkpoint.
        has_stopped = job.decision.phase in _RELEASED and not job.observed.running
        return ProcessDirective(
            kind=kind,
            run=worker.run,
            generation=generation,
            reason=job.decision.reason,
            act_at=act_at,
            notice=None if host is None else self.notices[host],
            host=host,
            is_own=host is not None and host == worker.host,
            release=has_stopped or job.over or worker.run < max(job.observed.run, job.decision.run),
            agreement=_agreement(job, worker),
            max_wait_seconds=job.spec.max_wait_seconds,
        )


def _agreement(job: SupervisedJob, worker: Worker) -> Agreement | None:
    """The present agreement of the worker's run."""
    agreement = job.decision.agreement
    return None if agreement is None or job.over or agreement.run != worker.run else agreement


def _kind(
    job: SupervisedJob, worker: Worker, notices: Mapping[Host, ReclaimNotice], policy: Policy
) -> tuple[ProcessDirectiveKind, int, float | None]:
    decision = job.decision
    own = notices.get(worker.host)
    if decision.stop is not None and worker.run <= decision.stop.run:
        return _stopping(decision, decision.stop, worker, own, policy)
    # The ranks save and hold at an agreed step, and their elastic agents then start others.
    agreement = _agreement(job, worker)
    holds = agreement is not None and agreement.committed and agreement.purpose is Purpose.RENDEZVOUS
    if decision.phase in (Phase.QUEUED, Phase.SUSPENDED, Phase.TIMED_OUT) or holds:
        return ProcessDirectiveKind.STOP, decision.generation, None
    if own is not None and worker.host in decision.exclusions:
        return ProcessDirectiveKind.LEAVE, decision.excluded_at, deadline_of(own, policy) - policy.leave_margin_seconds
    if _announced(own) and not job.over:
        # A process leaves even if no decision about its notice has been made by then.
        last = max(deadline_of(own, policy) - policy.leave_margin_seconds, own.first_seen + _UNDECIDED_SECONDS)
        return ProcessDirectiveKind.LEAVE, decision.generation, last
    asked_at = _checkpoint_generation(job, worker)
    if asked_at is not None:
        return ProcessDirectiveKind.CHECKPOINT, asked_at, None
    return ProcessDirectiveKind.RUN, decision.generation, None


def _checkpoint_generation(job: SupervisedJob, worker: Worker) -> int | None:
    """Returns the generation of the last CHECKPOINT for a worker.

    It stays the same, because a new one is a new request.
    """
    decision, request = job.decision, job.decision.checkpoint
    restarts = decision.exclusions and job.spec.framework is Framework.TORCHRUN and decision.round is None
    asked_at = [decision.excluded_at] if restarts else []
    agreement = _agreement(job, worker)
    is_open = agreement is not None and agreement.purpose is Purpose.CHECKPOINT and not agreement.committed
    if request is not None and request.run == worker.run and not job.over and not is_open:
        asked_at.append(request.generation)
    return max(asked_at, default=None)


def _stopping(
    decision: Decision, stop: Stop, worker: Worker, own: ReclaimNotice | None, policy: Policy
) -> tuple[ProcessDirectiveKind, int, float | None]:
    """Returns STOP for rank 0, or for all. The others continue, and leave before their host is gone.

    Their LEAVE is later than the last moment at which a STOP goes to all processes, and stands in for it. While the
    ranks are still to agree on a step, rank 0 is one of the others.
    """
    is_alone = decision.agreement is None and worker.rank == 0
    if stop.everyone or is_alone or decision.agreed_stop is not None:
        return ProcessDirectiveKind.STOP, stop.generation, None
    if not _announced(own):
        return ProcessDirectiveKind.RUN, stop.generation, None
    end = max(deadline_of(own, policy), stop.since + policy.margin_seconds)
    return ProcessDirectiveKind.LEAVE, stop.generation, end - policy.leave_margin_seconds / 2


def _announced(own: ReclaimNotice | None) -> TypeGuard[ReclaimNotice]:
    return own is not None and own.state is NoticeState.ACTIVE


_KINDS = {
    Phase.QUEUED: OrderKind.WAIT,
    Phase.WAITING: OrderKind.WAIT,
    Phase.SUSPENDED: OrderKind.WAIT,
    Phase.TIMED_OUT: OrderKind.END,
    Phase.FINISHED: OrderKind.END,
}


def order_for(job: SupervisedJob) -> Order:
    """Returns the present order. It depends only on the decision, so sending it again changes nothing."""
    decision = job.decision
    return Order(
        kind=_KINDS.get(decision.phase, OrderKind.RUN),
        generation=decision.generation,
        phase=decision.phase,
        reason=decision.reason,
        run=decision.run,
        stopping=decision.phase is Phase.STOPPING,
        hosts=tuple(sorted(decision.hosts)),
        exclusions=tuple(sorted(decision.exclusions)),
    )
