"""What every store does.

A change is a pure function from what is stored to what shall be. The store applies changes to one key in order, each to
the outcome of the one before, and returns when the outcome is durable: acknowledging a peer means just that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice

NoticeChange = Callable[[ReclaimNotice | None], ReclaimNotice | None]
"""From the newest episode (None = never noticed) to what is to be known; None stands for "nothing to know"."""

JobChange = Callable[[SupervisedJob | None], SupervisedJob | None]
"""From the job (None = no such job) to the job. An exception refuses the change and reaches the caller."""

MAX_EPISODES = 100
"""Kept of one notice, whatever the retention."""


class StoreError(Exception):
    """The store cannot be used: the operator has to act. The message says how."""


class StoreUnavailableError(StoreError):
    """This change is not durable; the caller may try again."""


def decided_since(read: SupervisedJob, job: SupervisedJob) -> bool:
    """Whether `job` is no longer what was read: its decision is a later one, or it is a later job of the same name.

    Such a job begins with the same small generations: its uid tells it apart.
    """
    return (job.uid, job.decision.generation) != (read.uid, read.decision.generation)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is stored, at one version: the newest episode of every notice, and every job."""

    version: int = 0
    notices: Mapping[NoticeId, ReclaimNotice] = field(default_factory=dict)
    jobs: Mapping[JobName, SupervisedJob] = field(default_factory=dict)


class Store(Protocol):
    """Durable notices and jobs, with one owner."""

    async def run(self) -> None:
        """Root task: makes the changes; once it has ended, every change is refused."""

    async def close(self) -> None:
        """Lets go of everything."""

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        """Changes one notice and returns it once it is durable.

        Raises:
            StoreUnavailableError: It is not.
        """

    async def put_job(self, name: JobName, change: JobChange) -> SupervisedJob | None:
        """Registers or observes one job; the same promise as `put_notice`."""

    async def decide(self, read: SupervisedJob, decision: Decision) -> bool:
        """Stores a decision if job and generation are still the ones that were read; False where they are not.

        Raises:
            StoreUnavailableError: It is not durable.
        """

    def snapshot(self) -> Snapshot:
        """What is durable now. Costs nothing; the mappings must not be changed."""

    async def changed(self, since: int) -> Snapshot:
        """The first snapshot with a version above `since`: the watch that everything level-triggered waits on."""

    async def forget_job(self, name: JobName, uid: str) -> None:
        """Forgets one job, if it is still that one.

        Raises:
            StoreUnavailableError: It is not durable.
        """

    async def prune(self, before: float) -> int:
        """Forgets notices and jobs that ended before that instant (Unix seconds); returns how many."""
