"""Carries the actions of decisions out, for jobs with our own launcher and for those of a cluster's controllers."""

from collections.abc import Sequence
from typing import Protocol

from supervisor.domain.ids import STANDALONE, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.order import Action


class Adapter(Protocol):
    """Carries actions out; every action may be repeated."""

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Does what is still to be done; returns whether nobody needs to ask for it again before the job changes."""


class Adapters:
    """The adapter of all jobs; `cluster` is None where there is no cluster."""

    def __init__(self, standalone: Adapter, cluster: Adapter | None = None) -> None:
        self._standalone = standalone
        self._cluster = cluster

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Has the job's adapter do what is still to be done; a job without one is left alone."""
        adapter = self._standalone if kind_of(job.name) == STANDALONE else self._cluster
        return adapter is None or await adapter.carry_out(job, actions)
