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


class Adapters:
    """Selects the adapter of a job; `cluster` is None stand-alone."""

    def __init__(self, standalone: Adapter, cluster: Adapter | None = None) -> None:
        self._standalone = standalone
        self._cluster = cluster

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Passes the actions to the job's adapter; the actions of a job without one are dropped."""
        adapter = self._standalone if kind_of(job.name) == STANDALONE else self._cluster
        return adapter is None or await adapter.carry_out(job, actions)


class LauncherChannel(Protocol):
    """The connection to launchers."""

    def publish(self, job: SupervisedJob, order: Order) -> None:
        """Sends an order unless it was the last one sent."""


class StandaloneJobs:
    """Implements `Adapter` for jobs that `kubeai-run` launches: one order expresses all actions."""

    def __init__(self, channel: LauncherChannel) -> None:
        self._channel = channel

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Sends the order for `actions`; a disconnected launcher gets it when it reconnects."""
        for action in actions:
            _log.debug("job.action", job=job.name, action=type(action).__name__, generation=job.decision.generation)
        self._channel.publish(job, order_for(job))
        return True
