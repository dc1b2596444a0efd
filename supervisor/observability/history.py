"""What happened to each job since this supervisor began to lead: decisions, runs and acknowledgements, in order."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.domain.ids import JobName
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, SupervisedJob
from supervisor.observability.journal import Change, JobChanged, JobForgotten

if TYPE_CHECKING:
    from supervisor.domain.ids import Host

MAX_ENTRIES = 50
"""Of each job: a reclaim takes some five, so these are the last ten or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a job's timeline: `what` happened, and `text` says why. `at` is Unix seconds."""

    at: float
    what: str
    text: str
    run: int


class JobHistory:
    """A listener of the journal. It is not stored: a new leader begins with an empty history."""

    name = "history"

    def __init__(self) -> None:
        self._entries: dict[JobName, deque[Entry]] = {}

    def of(self, job: JobName) -> Sequence[Entry]:
        """The last entries of a job, the latest first."""
        return tuple(reversed(self._entries.get(job, ())))

    def on_change(self, change: Change) -> None:
        match change:
            case JobChanged(before, after, at):
                kept = self._entries.setdefault(after.name, deque(maxlen=MAX_ENTRIES))
                kept.extend(_entries(before, after, at))
            case JobForgotten(before, _):
                self._entries.pop(before.name, None)


def stored(job: SupervisedJob) -> Sequence[Entry]:
    """What the stored job itself tells of its past, whoever led then; the latest first."""
    observed, decision = job.observed, job.decision
    found = [Entry(at=observed.registered_at, what="Registered", text="The job became known.", run=0)]
    if observed.acknowledgement is not None:
        found.append(_acknowledged(observed.acknowledgement))
    if decision.stop is not None:
        found.append(Entry(at=decision.stop.since, what="Stopping", text=decision.reason, run=decision.stop.run))
    if decision.waiting_since is not None:
        found.append(Entry(at=decision.waiting_since, what="Waits since", text=decision.reason, run=decision.run))
    return sorted(found, key=lambda entry: -entry.at)


def _entries(before: SupervisedJob | None, after: SupervisedJob, at: float) -> Iterator[Entry]:
    if before is None:
        yield Entry(at=at, what=after.decision.phase, text=after.decision.reason, run=after.decision.run)
        return
    answer = after.observed.acknowledgement
    if answer is not None and answer != before.observed.acknowledgement:
        yield _acknowledged(answer)
    yield from _runs(before, after, at)
    old, new = before.decision, after.decision
    if (new.phase, new.reason) != (old.phase, old.reason):
        excluded: frozenset[Host] = new.exclusions - old.exclusions
        hosts = f" Newly excluded: {len(excluded)}." if excluded else ""
        yield Entry(at=at, what=new.phase, text=f"{new.reason}{hosts}", run=new.run)


def _runs(before: SupervisedJob, after: SupervisedJob, at: float) -> Iterator[Entry]:
    old, new = before.observed, after.observed
    if new.running and (not old.running or new.run != old.run):
        yield Entry(at=at, what="Run began", text=f"Run {new.run} began.", run=new.run)
    if old.running and not new.running:
        code = "" if new.exit_code is None else f" with code {new.exit_code}"
        yield Entry(at=at, what="Run ended", text=f"Run {old.run} ended{code}.", run=old.run)


def _acknowledged(answer: Acknowledgement) -> Entry:
    did = "saved a checkpoint" if answer.kind is AcknowledgementKind.SAVED else "left"
    step = "" if answer.step is None else f" at step {answer.step}"
    return Entry(at=answer.at, what="Checkpoint", text=f"Rank 0 {did}{step}.", run=answer.run)
