"""Keeps what has happened to each job and to notices since this supervisor began to lead."""

import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.decide.reasons import outcome
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Acknowledgement, Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.observability.journal import Change, JobChanged, JobForgotten, NoticeChanged
from supervisor.store.conditions import sentence

MAX_ENTRIES = 50
"""Entries that are kept of each job. A reclaim makes about five, so these are about the last ten reclaims."""

MAX_NOTICE_ENTRIES = 1000
"""Entries that are kept of all notices together. Each notice has two, its beginning and its end."""

_STOPPED = frozenset({Phase.STOPPING, Phase.SUSPENDED, Phase.QUEUED, Phase.TIMED_OUT, Phase.FINISHED})

_SIGNALS: Mapping[int, str] = {each.value: each.name for each in signal.Signals}
_OURS = frozenset({-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGKILL})
"""The codes of a launcher that was told to end, and of one that did not and was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistoryEntry:
    """A line of a job's timeline: `what` happened, and `text` says why. `at` is Unix seconds."""

    at: float
    what: str
    text: str
    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeHistoryEntry:
    """The beginning or the end of a notice about `subject`, which is `node/NAME` or `pod/NAMESPACE/NAME`."""

    at: float
    subject: str
    what: str
    text: str


@dataclass(slots=True)
class JobHistory:
    """Keeps the last changes that the journal reports. It is not stored: a new leader begins with an empty history.

    Attributes:
        notices: The beginnings and ends of notices, all their episodes, the earliest first.
    """

    name = "history"
    notices: deque[NoticeHistoryEntry] = field(default_factory=lambda: deque(maxlen=MAX_NOTICE_ENTRIES))
    _entries: dict[JobName, deque[JobHistoryEntry]] = field(default_factory=dict)

    def of(self, job: JobName) -> Sequence[JobHistoryEntry]:
        """The last entries of a job, the latest first."""
        return tuple(reversed(self._entries.get(job, ())))

    def on_change(self, change: Change) -> None:
        match change:
            case JobChanged(before, after, at):
                kept = self._entries.setdefault(after.name, deque(maxlen=MAX_ENTRIES))
                kept.extend(_entries(before, after, at))
            case JobForgotten(before, _):
                self._entries.pop(before.name, None)
            case NoticeChanged(known, notice, at):
                self.notices.extend(_episode(known, notice, at))


def stored(job: SupervisedJob) -> Sequence[JobHistoryEntry]:
    """Reads the past of a job from its stored state, the latest first, also from the time of earlier leaders."""
    observed, decision = job.observed, job.decision
    found = [JobHistoryEntry(at=observed.registered_at, what="Registered", text="The job became known.", run=0)]
    if observed.acknowledgement is not None:
        found.append(_acknowledged(observed.acknowledgement))
    # The reason may be later than the instant beside it, as only the latest one is stored.
    text = f"The latest reason: {decision.reason}"
    if decision.stop is not None:
        found.append(JobHistoryEntry(at=decision.stop.since, what="Stopping", text=text, run=decision.stop.run))
    if decision.waiting_since is not None:
        found.append(JobHistoryEntry(at=decision.waiting_since, what="Waits since", text=text, run=decision.run))
    return sorted(found, key=lambda entry: -entry.at)


def _entries(before: SupervisedJob | None, after: SupervisedJob, at: float) -> Iterator[JobHistoryEntry]:
    if before is None:
        yield JobHistoryEntry(at=at, what=after.decision.phase, text=after.decision.reason, run=after.decision.run)
        return
    answer = after.observed.acknowledgement
    if answer is not None and answer != before.observed.acknowledgement:
        yield _acknowledged(answer)
    yield from _runs(before, after, at)
    old, new = before.decision, after.decision
    if (new.phase, new.reason) != (old.phase, old.reason):
        excluded: frozenset[Host] = new.exclusions - old.exclusions
        hosts = f" Newly excluded: {len(excluded)}." if excluded else ""
        yield JobHistoryEntry(at=at, what=new.phase, text=f"{new.reason}{hosts}", run=new.run)


def _runs(before: SupervisedJob, after: SupervisedJob, at: float) -> Iterator[JobHistoryEntry]:
    old, new = before.observed, after.observed
    if new.running and (not old.running or new.run != old.run):
        yield JobHistoryEntry(at=at, what="Run began", text=f"Run {new.run} began.", run=new.run)
    if old.running and not new.running:
        stopped = before.decision.phase in _STOPPED or after.decision.phase in _STOPPED
        yield JobHistoryEntry(
            at=at, what="Run ended", text=_ended(old.run, new.exit_code, stopped=stopped), run=old.run
        )


def _ended(run: int, code: int | None, *, stopped: bool) -> str:
    """Describes the end of a run. After a decided stop our own SIGTERM ends the launcher, so its code is not shown."""
    if code is None:
        return f"Run {run} ended."
    if stopped and code in _OURS:
        return f"Run {run} ended, as it was stopped."
    if code < 0:
        return f"Run {run} was ended by {_SIGNALS.get(-code, f'signal {-code}')}."
    return f"Run {run} ended with code {code}."


def _acknowledged(answer: Acknowledgement) -> JobHistoryEntry:
    text = f"Rank {answer.rank} {outcome(answer.kind, answer.step, answer.error)}."
    return JobHistoryEntry(at=answer.at, what="Checkpoint", text=text, run=answer.run)


def _episode(before: ReclaimNotice | None, after: ReclaimNotice, at: float) -> Iterator[NoticeHistoryEntry]:
    """Returns the entries for a change of a notice: when it began, and when it ended."""
    subject = f"{after.subject.kind}/{after.subject.name}"
    is_new = before is None or before.episode != after.episode
    if is_new:
        began = replace(after, state=NoticeState.ACTIVE)
        yield NoticeHistoryEntry(at=min(at, after.first_seen), subject=subject, what="noticed", text=sentence(began))
    if after.state is not NoticeState.ACTIVE and (is_new or (before is not None and before.state is not after.state)):
        ended = at if after.ended_at is None else min(at, after.ended_at)
        yield NoticeHistoryEntry(at=ended, subject=subject, what=after.state, text=sentence(after))


@dataclass(slots=True)
class PhaseTracker:
    """Remembers, as a listener of the journal, since when each job is in its phase.

    It knows phases that began earlier only if the decision contains the instant.
    """

    name = "phases"
    _since: dict[JobName, float] = field(default_factory=dict)

    def on_change(self, change: Change) -> None:
        match change:
            case JobChanged(before, after, at) if before is None or before.decision.phase is not after.decision.phase:
                self._since[after.name] = at
            case JobForgotten(before, _):
                self._since.pop(before.name, None)

    def since(self, job: SupervisedJob) -> float | None:
        """The instant at which the job's phase began (Unix seconds); None if it is unknown."""
        known = self._since.get(job.name)
        if known is None and job.decision.stop is not None:
            return job.decision.stop.since
        return known
