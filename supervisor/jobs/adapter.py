"""Passes actions on to the adapter of their job. Jobs of a cluster have one adapter, jobs of `kubeai-run` another."""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from supervisor.decide.directives import order_for
from supervisor.domain.ids import STANDALONE, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.order import Action, Order

_log = structlog.get_logger()


Adapter = Callable[[SupervisedJob, Sequence[Action]], Awaitable[bool]]
"""Executes the outstanding actions on a job, each of which may be repeated.

It returns False if they must be requested again.
"""


def adapter_by_job(publish: Callable[[SupervisedJob, Order], None], cluster: Adapter | None = None) -> Adapter:
    """Builds an adapter that chooses for each action the adapter of its job.

    Args:
        publish: Sends one order for all actions on a job that `kubeai-run` launches to the job's launcher, unless it
            was the last one sent. A disconnected launcher gets it when it reconnects.
        cluster: The adapter of all other jobs; None stand-alone, and then their actions are dropped.
    """

    async def carry_out(job: SupervisedJob, actions: Sequence[Action]) -> bool:
        if kind_of(job.name) != STANDALONE:
            return cluster is None or await cluster(job, actions)
        for action in actions:
            _log.debug("job.action", job=job.name, action=type(action).__name__, generation=job.decision.generation)
        publish(job, order_for(job))
        return True

    return carry_out
