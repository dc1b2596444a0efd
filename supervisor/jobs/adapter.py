"""Passes the actions of a job on to its adapter: that of a cluster, or that of jobs that `kubeai-run` launches."""

from collections.abc import Sequence
from typing import Protocol

import structlog

from supervisor.decide.directives import order_for
from supervisor.domain.ids import STANDALONE, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.order import Action, Order

_log = structlog.get_logger()


class Adapter(Protocol):
    """Executes actions; every action may be repeated."""

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Executes the outstanding actions; returns False if they must be requested again."""


class LauncherChannel(Protocol):
    """The connection to launchers that `kubeai-run` started."""

    def publish(self, job: SupervisedJob, order: Order) -> None:
        """Sends an order unless it was the last one sent; a disconnected launcher gets it when it reconnects."""


class Adapters:
    """Selects the adapter of a job.

    Args:
        launchers: Gets one order for all actions on a job that `kubeai-run` launches.
        cluster: The adapter of all other jobs; None stand-alone.
    """

    def __init__(self, launchers: LauncherChannel, cluster: Adapter | None = None) -> None:
        self._launchers = launchers
        self._cluster = cluster

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Passes the actions on; those of a job without an adapter are dropped."""
        if kind_of(job.name) != STANDALONE:
            return self._cluster is None or await self._cluster.carry_out(job, actions)
        for action in actions:
            _log.debug("job.action", job=job.name, action=type(action).__name__, generation=job.decision.generation)
        self._launchers.publish(job, order_for(job))
        return True
