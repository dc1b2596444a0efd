"""Reports every durable change to listeners, without delaying decisions, and classifies changes of jobs."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.decide.policy import Policy
from supervisor.decide.situation import JobFacts, Situation
from supervisor.decide.stopping import answers, failure
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import AcknowledgementKind, Phase, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.interface import Snapshot, Store

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NoticeChanged:
    """A notice became known (`before` is None) or changed; `at` is Unix seconds of the supervisor's clock."""

    before: ReclaimNotice | None
    after: ReclaimNotice
    at: float


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A job became known (`before` is None) or changed."""

    before: SupervisedJob | None
    after: SupervisedJob
    at: float


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """A job was removed from the store, whether it had ended or not."""

    before: SupervisedJob
    at: float


Change = NoticeChanged | JobChanged | JobForgotten


class ChangeListener(Protocol):
    """A consumer of changes; `name` is for the log."""

    name: str

    def on_change(self, change: Change) -> None:
        """Called for each change; must not block."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Compares the snapshots of a store, and reports to listeners what has changed since `run` started.

    It follows the store from outside, so nothing waits for it. Values that were stored before are not reported. Two
    changes to the same key between two snapshots are reported as one.

    Args:
        store: What to follow.
        listeners: They hear of every change.
        clock: For the instants of changes.
        bulkhead: Keeps what a listener raises with that listener.
    """

    store: Store
    listeners: Sequence[ChangeListener]
    clock: Clock
    bulkhead: Bulkhead

    async def run(self) -> None:
        """Root task: reports changes to the listeners."""
        known = self.store.snapshot()
        while True:
            snapshot = await self.store.changed(known.version)
            with self.bulkhead.guard("journal", retried=False):
                for change in changes(known, snapshot, self.clock.now()):
                    for listener in self.listeners:
                        with self.bulkhead.guard("journal", listener.name, retried=False):
                            listener.on_change(change)
            known = snapshot


def changes(before: Snapshot, after: Snapshot, at: float) -> Iterator[Change]:
    """Yields the changes between two snapshots: notices first, because decisions follow from them."""
    for known, notice in _others(before.notices, after.notices):
        yield NoticeChanged(known, notice, at)
    for earlier, job in _others(before.jobs, after.jobs):
        if earlier is not None and earlier.id != job.id:
            yield JobForgotten(earlier, at)
            yield JobChanged(None, job, at)
        else:
            yield JobChanged(earlier, job, at)
    for name in before.jobs.keys() - after.jobs.keys():
        yield JobForgotten(before.jobs[name], at)


def _others(before: Mapping[K, T], after: Mapping[K, T]) -> Iterator[tuple[T | None, T]]:
    # Identity first, as most objects are the same: comparing 10,000 notices by value at each change would be slow.
    for key, value in after.items():
        known = before.get(key)
        if known is not value and known != value:
            yield known, value


NoticedHosts = Callable[[JobName], Mapping[Host, ReclaimNotice]]
"""The hosts that a job must not use at present, each with its most urgent notice."""

LIVE = frozenset({Phase.RUNNING, Phase.SHRINKING, Phase.RESUMING})
SUSPENDED = frozenset({Phase.SUSPENDED, Phase.RESUMING})


def is_stopped(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether a STOP was decided; if the run had already ended, the same decision suspends the job."""
    if after.decision.phase is Phase.STOPPING:
        return before.decision.phase is not Phase.STOPPING
    return before.decision.phase in LIVE and is_suspended(before, after)


def is_suspended(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether a STOP has ended in a suspension. A failed resume does not count: the job was suspended before it.

    Two decisions may be reported as one change, so the job may already be resuming.
    """
    was, now = before.decision, after.decision
    if was.phase not in {Phase.STOPPING, *LIVE} or now.phase not in SUSPENDED or was.phase is now.phase:
        return False
    return now.failed_resumes == was.failed_resumes


def first_loss(job: SupervisedJob, noticed: NoticedHosts, now: float, policy: Policy) -> float | None:
    """The instant at which the first host that a job's run needs is gone; None if no such host has a notice."""
    view = JobFacts(notices=noticed(job.name))
    return Situation(job, job.decision, view, now, policy).breaks_at


def is_unsaved(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether a STOP ended in a suspension without a checkpoint: a save has failed, or there was no answer in time."""
    stop = before.decision.stop
    if stop is None or not is_suspended(before, after):
        return False
    answer = after.observed.acknowledgement
    # Without an answer of rank 0 the STOP ran out of time, unless the run has ended by itself.
    return failure(answer, stop) is not None or (after.observed.running and not answers(answer, stop))


def is_late(before: SupervisedJob, after: SupervisedJob, noticed: NoticedHosts, policy: Policy) -> bool:
    """Whether the change shows that a STOP was not acknowledged before its deadline, or that nothing was saved."""
    if is_unsaved(before, after):
        return True
    answer, stop = after.observed.acknowledgement, before.decision.stop or after.decision.stop
    if answer is None or stop is None or not answers(answer, stop) or answers(before.observed.acknowledgement, stop):
        return False
    if answer.kind is AcknowledgementKind.FAILED:
        return False  # the suspension shows it
    end = first_loss(before, noticed, answer.at, policy)
    return end is not None and answer.at > end
