"""Jobs whose launcher is our own `kubeai-run`: every action is said by one order, repeated in every later one."""

from collections.abc import Sequence
from typing import Protocol

import structlog

from supervisor.decide.orders import order_for
from supervisor.domain.job import SupervisedJob
from supervisor.domain.order import Action, Order

_log = structlog.get_logger()


class Channel(Protocol):
    """Where orders go."""

    def publish(self, job: SupervisedJob, order: Order) -> None:
        """Sends an order unless it was the last one sent."""


class StandaloneJobs:
    """The adapter."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Sends the order that leads to `actions`; a launcher that was away is sent it when it comes back."""
        for action in actions:
            _log.debug("job.action", job=job.name, action=type(action).__name__, generation=job.decision.generation)
        self._channel.publish(job, order_for(job))
        return True
