"""Defines the interface of all stores.

A change is a pure function from the stored value to the new one. The store applies the changes to one key in order,
each to the outcome of the one before, and returns when the outcome is durable. A peer is acknowledged only then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice

NoticeChange = Callable[[ReclaimNotice | None], ReclaimNotice | None]
"""Maps the newest episode (None = there was none) to the new value; None leaves things as they are."""

JobChange = Callable[[SupervisedJob | None], SupervisedJob | None]
"""Maps the job (None = no such job) to the new value. An exception refuses the change and reaches the caller."""

MAX_EPISODES = 100
"""Episodes of one notice that are kept at most, whatever the retention."""


class StoreError(Exception):
    """The store is unusable until a person acts; the message says how."""


class StoreUnavailableError(StoreError):
    """The change is not durable; the caller may try again."""


def decided_since(read: SupervisedJob, job: SupervisedJob) -> bool:
    """Returns whether `job` has another decision than `read`, or is another registration.

    A later registration begins with the same small generations, so its identity counts as well.
    """
    return (job.id, job.decision.generation) != (read.id, read.decision.generation)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest episode of every notice, and every job, at one version."""

    version: int = 0
    notices: Mapping[NoticeId, ReclaimNotice] = field(default_factory=dict)
    jobs: Mapping[JobName, SupervisedJob] = field(default_factory=dict)


class Store(Protocol):
    """Durable notices and jobs, with one owner."""

    async def run(self) -> None:
        """Root task: writes changes; once it has ended, every change is refused."""

    async def close(self) -> None:
        """Closes the store; changes that still wait are refused."""

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        """Changes a notice and returns the new value once it is durable.

        Raises:
            StoreUnavailableError: The change is not durable.
        """

    async def put_job(self, name: JobName, change: JobChange) -> SupervisedJob | None:
        """Changes a job, as `put_notice` does a notice."""

    async def decide(self, read: SupervisedJob, decision: Decision) -> bool:
        """Stores a decision if the job still has the registration and the generation of `read`; returns whether it has.

        Raises:
            StoreUnavailableError: The decision is not durable.
        """

    def snapshot(self) -> Snapshot:
        """Returns the durable state, at no cost. The caller must not change the mappings."""

    async def changed(self, since: int) -> Snapshot:
        """Waits for a version above `since` and returns the snapshot. All level-triggered work waits here."""

    async def forget_job(self, name: JobName, uid: str) -> None:
        """Deletes a job, unless a later one has its name.

        Raises:
            StoreUnavailableError: The deletion is not durable.
        """

    async def prune(self, before: float) -> int:
        """Deletes notices and jobs that ended before that instant (Unix seconds) and returns their number.

        A job counts from its end, however long it ran; one whose end is not known stays.
        """
