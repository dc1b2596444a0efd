"""Every job is its own kind's adapter's."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from supervisor.domain.ids import kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.order import Action


class Adapter(Protocol):
    """Carries actions out for one kind of job; every action may be repeated."""

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Does what is still to be done; whether nobody needs to ask for it again before the job changes."""


class Kinds:
    """The adapter of all jobs; what nobody can carry out, as for a kind that is not there any more, is left.

    Args:
        adapters: By the lower-case kind.
    """

    def __init__(self, adapters: Mapping[str, Adapter]) -> None:
        self._adapters = adapters

    async def carry_out(self, job: SupervisedJob, actions: Sequence[Action]) -> bool:
        """Has the job's adapter do what is still to be done."""
        adapter = self._adapters.get(kind_of(job.name))
        return adapter is None or await adapter.carry_out(job, actions)
