"""The adapter of jobs that `kubeai-run` launches: one order expresses all actions."""

from collections.abc import Sequence
from typing import Protocol

import structlog

from supervisor.decide.directives import order_for
from supervisor.domain.job import SupervisedJob
from supervisor.domain.order import Action, Order

_log = structlog.get_logger()


class Channel(Protocol):
    """The connection to launchers."""

    def publish(self, job: SupervisedJob, order: Order) -> None:
        """Sends an order unless it was the last one sent."""


class StandaloneJobs:
    """Implements `Adapter` for stand-alone jobs."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Sends the order for `actions`; a disconnected launcher gets it when it reconnects."""
        for action in actions:
            _log.debug("job.action", job=job.name, action=type(action).__name__, generation=job.decision.generation)
        self._channel.publish(job, order_for(job))
        return True
