"""Derives the order to a launcher from a job's decision."""

from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.order import Order, OrderKind

_KINDS = {
    Phase.QUEUED: OrderKind.WAIT,
    Phase.WAITING: OrderKind.WAIT,
    Phase.SUSPENDED: OrderKind.WAIT,
    Phase.TIMED_OUT: OrderKind.END,
    Phase.FINISHED: OrderKind.END,
}


def order_for(job: SupervisedJob) -> Order:
    """The present order. It follows from the decision alone, so repeating it changes nothing."""
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
