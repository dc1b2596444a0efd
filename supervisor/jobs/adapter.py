"""Passes actions on to the adapter of a job: stand-alone or cluster."""

from collections.abc import Sequence
from typing import Protocol

from supervisor.domain.ids import STANDALONE, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.order import Action


class Adapter(Protocol):
    """Executes actions; every action may be repeated."""

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Executes the outstanding actions; returns False if they must be requested again."""


class Adapters:
    """The adapter of all jobs; `cluster` is None stand-alone."""

    def __init__(self, standalone: Adapter, cluster: Adapter | None = None) -> None:
        self._standalone = standalone
        self._cluster = cluster

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Passes the actions to the job's adapter; the actions of a job without one are dropped."""
        adapter = self._standalone if kind_of(job.name) == STANDALONE else self._cluster
        return adapter is None or await adapter.carry_out(job, actions)
