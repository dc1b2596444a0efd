"""Describes what has happened to jobs and notices in sentences, and keeps the latest of each job in memory."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.decide.reasons import DRILL, outcome
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Acknowledgement, Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice, SubjectKind
from supervisor.observability.journal import Change, JobChanged, JobForgotten, NoticeChanged, NoticedHosts
from supervisor.store.conditions import sentence

MAX_ENTRIES = 50
"""Entries that are kept of each job. A reclaim makes about five, so these are about the last ten reclaims."""

NEWLY_EXCLUDED = "Newly excluded: "
"""In the text of a decision that leaves out further hosts; their number follows."""

SUBJECT_KINDS = ("job", "node", "pod", "pool")
"""The kinds of subjects that entries have or concern, beside the record's own."""

_STOPPED = frozenset({Phase.STOPPING, Phase.SUSPENDED, Phase.QUEUED, Phase.TIMED_OUT, Phase.FINISHED})

_SIGNALS: Mapping[int, str] = {each.value: each.name for each in signal.Signals}
_OURS = frozenset({-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGKILL})
"""The codes of a launcher that was told to end, and of one that did not and was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One thing that happened at an instant (Unix seconds), and why.

    Attributes:
        at: The instant.
        subject: `job/NAME`, `node/NAME`, `pod/NAMESPACE/NAME`, or `record` for what concerns the history itself.
        what: A word or two, such as a phase.
        text: Why, in sentences.
        run: The run of a job; 0 for other subjects.
        concerns: Other subjects that it concerns: those of the notices about a job's hosts when it was decided, and
            `pool/CLOUD/ZONE/TYPE`, the capacity pool of each node with a notice, where it has a name.
        source: The source of a notice; empty for other subjects.
    """

    at: float
    subject: str
    what: str
    text: str
    run: int = 0
    concerns: tuple[str, ...] = ()
    source: str = ""

    @property
    def drill(self) -> bool:
        """Whether it belongs to a drill."""
        return self.text.startswith(DRILL)


@dataclass(slots=True)
class JobHistory:
    """Keeps the last entries of each job for its page. `seed` adds those from before this supervisor began to lead.

    Attributes:
        since: The instant (Unix seconds) since which the entries are complete, but for their number.
    """

    name = "history"
    since: float
    _entries: dict[JobName, deque[HistoryEntry]] = field(default_factory=dict)

    def of(self, job: JobName) -> Sequence[HistoryEntry]:
        """The last entries of a job, the latest first."""
        return tuple(reversed(self._entries.get(job, ())))

    def add(self, entry: HistoryEntry) -> None:
        """Adds an entry that no change tells, if it is about a known job."""
        kind, _, name = entry.subject.partition("/")
        if kind == "job" and (kept := self._entries.get(JobName(name))) is not None:
            kept.append(entry)

    def seed(self, earlier: Iterable[HistoryEntry], since: float) -> None:
        """Adds entries from before all that are here, the earliest first, which are complete since an instant."""
        self.since = min(self.since, since)
        by_job: dict[JobName, list[HistoryEntry]] = {}
        for entry in earlier:
            kind, _, name = entry.subject.partition("/")
            if kind == "job":
                by_job.setdefault(JobName(name), []).append(entry)
        for job, entries in by_job.items():
            self._entries[job] = deque((*entries, *self._entries.get(job, ())), maxlen=MAX_ENTRIES)

    def on_change(self, change: Change) -> None:
        match change:
            case JobChanged(_, after, _):
                kept = self._entries.setdefault(after.name, deque(maxlen=MAX_ENTRIES))
                kept.extend(entries_of(change))
            case JobForgotten(before, _):
                self._entries.pop(before.name, None)
            case NoticeChanged():
                pass


def entries_of(
    change: Change,
    noticed: NoticedHosts = lambda _job: {},
    machine: Callable[[Host], Machine] = lambda _node: UNKNOWN_MACHINE,
) -> Iterator[HistoryEntry]:
    """Yields what a change tells, in the order in which it happened.

    Args:
        change: A change of a job or a notice.
        noticed: Returns a job's hosts with a notice.
        machine: Returns the machine under a node, with as much of it as is known.
    """
    match change:
        case JobChanged(before, after, at):
            concerns = None
            for entry in _entries(before, after, at):
                if concerns is None:
                    own = after.own_hosts if before is None else before.own_hosts | after.own_hosts
                    # Stand-alone, the hosts that a job must not use include those of others.
                    notices = [notice for host, notice in noticed(after.name).items() if host in own]
                    subjects = {_subject(notice) for notice in notices}
                    concerns = tuple(sorted(subjects.union(*(_pools(notice, machine) for notice in notices))))
                yield replace(entry, concerns=concerns)
        case NoticeChanged(known, notice, at):
            for entry in _episode(known, notice, at):
                yield replace(entry, concerns=_pools(notice, machine))
        case JobForgotten(before, at) if not before.over:
            text = "The job was deleted, or is not supervised any more."
            yield HistoryEntry(at=at, subject=f"job/{before.name}", what="Gone", text=text, run=before.decision.run)


def stored(job: SupervisedJob) -> Sequence[HistoryEntry]:
    """Reads the past of a job from its stored state, the latest first, also from the time of earlier leaders."""
    observed, decision = job.observed, job.decision
    subject = f"job/{job.name}"
    text = "The job became known."
    found = [HistoryEntry(at=observed.registered_at, subject=subject, what="Registered", text=text)]
    if observed.acknowledgement is not None:
        found.append(_acknowledged(subject, observed.acknowledgement))
    # The reason may be later than the instant beside it, as only the latest one is stored.
    text = f"The latest reason: {decision.reason}"
    if decision.stop is not None:
        found.append(
            HistoryEntry(at=decision.stop.since, subject=subject, what="Stopping", text=text, run=decision.stop.run)
        )
    if decision.waiting_since is not None:
        found.append(
            HistoryEntry(at=decision.waiting_since, subject=subject, what="Waits since", text=text, run=decision.run)
        )
    return sorted(found, key=lambda entry: -entry.at)


def _entries(before: SupervisedJob | None, after: SupervisedJob, at: float) -> Iterator[HistoryEntry]:
    subject, new = f"job/{after.name}", after.decision
    if before is None:
        yield HistoryEntry(at=at, subject=subject, what=new.phase, text=new.reason, run=new.run)
        return
    answer = after.observed.acknowledgement
    if answer is not None and answer != before.observed.acknowledgement:
        yield _acknowledged(subject, answer)
    yield from _runs(before, after, at)
    old = before.decision
    if (new.phase, new.reason) != (old.phase, old.reason):
        excluded: frozenset[Host] = new.exclusions - old.exclusions
        hosts = f" {NEWLY_EXCLUDED}{len(excluded)}." if excluded else ""
        text = f"{new.reason}{hosts}"
        yield HistoryEntry(at=at, subject=subject, what=new.phase, text=text, run=new.run)


def _runs(before: SupervisedJob, after: SupervisedJob, at: float) -> Iterator[HistoryEntry]:
    subject, old, new = f"job/{after.name}", before.observed, after.observed
    if new.running and (not old.running or new.run != old.run):
        text = f"Run {new.run} began."
        yield HistoryEntry(at=at, subject=subject, what="Run began", text=text, run=new.run)
    if old.running and not new.running:
        stopped = before.decision.phase in _STOPPED or after.decision.phase in _STOPPED
        text = _ended(old.run, new.exit_code, stopped=stopped)
        yield HistoryEntry(at=at, subject=subject, what="Run ended", text=text, run=old.run)


def _ended(run: int, code: int | None, *, stopped: bool) -> str:
    """Describes the end of a run. After a decided stop our own SIGTERM ends the launcher, so its code is not shown."""
    if code is None:
        return f"Run {run} ended."
    if stopped and code in _OURS:
        return f"Run {run} ended, as it was stopped."
    if code < 0:
        return f"Run {run} was ended by {_SIGNALS.get(-code, f'signal {-code}')}."
    return f"Run {run} ended with code {code}."


def _acknowledged(subject: str, answer: Acknowledgement) -> HistoryEntry:
    text = f"Rank {answer.rank} {outcome(answer.kind, answer.step, answer.error)}."
    return HistoryEntry(at=answer.at, subject=subject, what="Checkpoint", text=text, run=answer.run)


def _episode(before: ReclaimNotice | None, after: ReclaimNotice, at: float) -> Iterator[HistoryEntry]:
    """Returns the entries for a change of a notice: when it began, and when it ended."""
    subject = _subject(after)
    is_new = before is None or before.episode != after.episode
    if is_new:
        began = replace(after, state=NoticeState.ACTIVE)
        yield HistoryEntry(
            at=min(at, after.first_seen), subject=subject, what="noticed", text=sentence(began), source=after.source
        )
    if after.state is not NoticeState.ACTIVE and (is_new or (before is not None and before.state is not after.state)):
        ended = at if after.ended_at is None else min(at, after.ended_at)
        yield HistoryEntry(at=ended, subject=subject, what=after.state, text=sentence(after), source=after.source)


def _subject(notice: ReclaimNotice) -> str:
    return f"{notice.subject.kind}/{notice.subject.name}"


def _pools(notice: ReclaimNotice, machine: Callable[[Host], Machine]) -> tuple[str, ...]:
    """The capacity pool of a node with a notice, as a subject; none if it is unknown, and none of a pod."""
    is_node = notice.subject.kind is SubjectKind.NODE
    pool = machine(Host(notice.subject.name)).pool_name if is_node else ""
    return (f"pool/{pool}",) if pool else ()


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
