"""The judge: a pure function from the events of a simulation to a verdict, by the truth alone.

``judge(events, expectations)`` gets the events of the cloud and of one job, ordered by time. It uses nothing that the
product says about itself.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from simulator.demands import demands
from simulator.events import JobEvent, JobEventKind
from simulator.truth import ReplayTruth
from simulator.verdict import (
    Expectations,
    Failure,
    Figures,
    GroupMeaning,
    Latency,
    NoticeGroup,
    ReplayVerdict,
    VerdictFinding,
)

__all__ = [
    "Expectations",
    "Failure",
    "Figures",
    "GroupMeaning",
    "Latency",
    "NoticeGroup",
    "ReplayVerdict",
    "VerdictFinding",
    "judge",
]


def judge(events: Sequence[JobEvent], expectations: Expectations) -> ReplayVerdict:
    """Judge one job. Raises DamagedLogError if an event lacks a field."""
    log = _by_kind(events)
    findings = _follow(events, expectations)
    unmet = (*findings.unmet, *_split(expectations, findings.groups))
    steps = _AppliedSteps.of(log[JobEventKind.STEP_APPLIED])
    after_stop = _steps_after_stop(log)
    ends = log[JobEventKind.JOB_FINISHED]
    finished = any(end.integer("step") >= expectations.steps for end in ends)
    wrong_ends = [end for end in ends if end.text("digest") != expectations.digest]
    failures = (
        *unmet,
        *(VerdictFinding(Failure.STEP_LOST, detail) for detail in steps.lost),
        *(VerdictFinding(Failure.STEP_SKIPPED, f"step {step} was never applied") for step in steps.skipped),
        *(VerdictFinding(Failure.FALSE_STOP, detail) for detail in findings.false_stops),
        *(VerdictFinding(Failure.STEP_AFTER_STOP, f"run {run} applied step {step}") for run, step in after_stop),
        *(VerdictFinding(Failure.RANKS_DIFFER, f"step {step} has several digests") for step in steps.differing),
        *_ending(expectations, finished=finished, wrong_ends=wrong_ends),
    )
    figures = Figures(
        notices=sum(len(draft.hosts) for draft in findings.groups),
        groups=tuple(draft.group() for draft in findings.groups),
        notice_to_process=Latency.of(list(_notice_to_process(log))),
        notice_to_flag=Latency.of(findings.notice_to_flag),
        notice_to_host_list=Latency.of(list(_notice_to_host_list(findings.groups))),
        steps_applied=steps.last,
        steps_lost=len(steps.lost),
        steps_skipped=len(steps.skipped),
        steps_after_stop=len(after_stop),
        false_stops=len(findings.false_stops),
        unmet=len(unmet),
        suspensions=len(findings.stopped_runs),
        resumes=_resumes(log, findings.stopped_runs),
        hosts_blacklisted=len(log[JobEventKind.HOST_BLACKLISTED]),
        finished=finished,
        parameters_equal=finished and not wrong_ends,
    )
    return ReplayVerdict(figures, failures)


# Findings that depend on the order of events.


@dataclass(slots=True)
class _GroupDraft:
    name: str
    first_shown: float
    meaning: GroupMeaning
    run: int
    hosts: dict[str, None] = field(default_factory=dict)
    excluded_at: dict[str, float] = field(default_factory=dict)
    changes: int = 0

    def group(self) -> NoticeGroup:
        after = tuple(t - self.first_shown for t in self.excluded_at.values())
        return NoticeGroup(self.name, self.meaning, tuple(self.hosts), self.changes, after)


@dataclass(slots=True)
class _Findings:
    """The findings of one pass over the events."""

    groups: list[_GroupDraft] = field(default_factory=list)
    latest: dict[str, _GroupDraft] = field(default_factory=dict)
    """The newest group of each name, because hosts may be announced again under the same name."""
    stopped_runs: dict[int, None] = field(default_factory=dict)
    flagged_runs: set[int] = field(default_factory=set)
    """Runs whose rank 0 has received the STOP."""
    false_stops: list[str] = field(default_factory=list)
    unmet: list[VerdictFinding] = field(default_factory=list)
    """Violated demands."""
    notice_to_flag: list[float] = field(default_factory=list)
    excluded: frozenset[str] = frozenset()


def _follow(events: Iterable[JobEvent], expectations: Expectations) -> _Findings:
    truth = ReplayTruth(expectations.min_workers, expectations.withdrawal_seconds)
    findings, owed = _Findings(), demands(expectations)
    for event in events:
        if event.kind is JobEventKind.FLAG_SEEN:
            _handle_flag(findings, truth, event)
        is_news = event.kind is JobEventKind.NOTICE_SHOWN and truth.notice_of(event.text("node")) is None
        truth.apply(event)
        for demand in owed:
            findings.unmet.extend(demand.check(event, truth))
        if is_news:
            _handle_notice(findings, truth, event)
        elif event.kind is JobEventKind.NOTICE_WITHDRAWN:
            _handle_withdrawal(findings, event)
        elif event.kind is JobEventKind.EXCLUSIONS_CHANGED:
            _handle_exclusions(findings, truth, event)
    return findings


def _handle_flag(findings: _Findings, truth: ReplayTruth, event: JobEvent) -> None:
    run, host = event.integer("run"), event.text("host")
    if (directive := event.text("directive")) != "STOP":
        if directive != "LEAVE" or not truth.justifies_leave(host, event.t):
            findings.false_stops.append(f"{directive} lowered the flag on {host} in run {run} without a notice")
        return
    # One decision stops a run. The other processes are told of the same decision.
    if run not in findings.stopped_runs and not truth.justifies_stop(run, event.t):
        findings.false_stops.append(f"run {run} was stopped (on {host}) while enough hosts remained")
    findings.stopped_runs[run] = None
    _merge_pending_groups(findings, truth, run)
    if event.integer("rank") == 0 and run not in findings.flagged_runs:
        findings.flagged_runs.add(run)
        if truth.certain is not None and truth.certain.kind is JobEventKind.NOTICE_SHOWN:
            findings.notice_to_flag.append(event.t - truth.certain.t)


def _merge_pending_groups(findings: _Findings, truth: ReplayTruth, run: int) -> None:
    """A STOP freezes the host list, so a group that was still being collected becomes part of its reason."""
    for draft in findings.groups:
        waits = draft.meaning is GroupMeaning.SHRINK and draft.run == run and not draft.changes
        if waits and any(truth.notice_of(host) is not None for host in draft.hosts):
            draft.meaning = GroupMeaning.STOP


def _handle_notice(findings: _Findings, truth: ReplayTruth, event: JobEvent) -> None:
    name, node = event.text("group"), event.text("node")
    draft = findings.latest.get(name)
    if draft is None or node in draft.hosts:
        draft = _GroupDraft(name, event.t, GroupMeaning.IDLE, truth.run)
        findings.latest[name] = draft
        findings.groups.append(draft)
    draft.hosts[node] = None
    # A spare host, or one that was excluded before, does not matter to the job.
    if draft.meaning is GroupMeaning.IDLE and truth.is_training() and node in truth.ring:
        draft.meaning = GroupMeaning.IDLE if node in findings.excluded else GroupMeaning.SHRINK
    if draft.meaning is GroupMeaning.SHRINK and truth.certain is not None:
        draft.meaning = GroupMeaning.STOP


def _handle_withdrawal(findings: _Findings, event: JobEvent) -> None:
    """A group that was withdrawn before the list changed needs no change any more."""
    for draft in findings.groups:
        if draft.meaning is GroupMeaning.SHRINK and not draft.changes and event.text("node") in draft.hosts:
            draft.meaning = GroupMeaning.IDLE


def _handle_exclusions(findings: _Findings, truth: ReplayTruth, event: JobEvent) -> None:
    hosts = frozenset(event.texts("hosts"))
    added, findings.excluded = hosts - findings.excluded, hosts
    # Hosts are excluded for other reasons too. Only a host with a live notice belongs to a group.
    groups = {host: notice.group for host in added if (notice := truth.notice_of(host)) is not None}
    for name in set(groups.values()):
        findings.latest[name].changes += 1
    for host, name in groups.items():
        findings.latest[name].excluded_at.setdefault(host, event.t)


def _split(expectations: Expectations, groups: Iterable[_GroupDraft]) -> Iterator[VerdictFinding]:
    """Find groups that caused more than one change of the exclusions, if bounds apply."""
    for draft in groups if expectations.bounds is not None else ():
        if draft.meaning is GroupMeaning.SHRINK and draft.changes != 1:
            failure = Failure.GROUP_SPLIT if draft.changes else Failure.NOT_EXCLUDED
            hosts = ", ".join(draft.hosts)
            yield VerdictFinding(
                failure, f"{draft.name} ({hosts}) changed the exclusions {draft.changes} times, not once"
            )


def _notice_to_host_list(groups: Iterable[_GroupDraft]) -> Iterator[float]:
    for draft in groups:
        if draft.meaning is GroupMeaning.SHRINK:
            yield from draft.group().excluded_after


# Counts that do not depend on the order of events.


@dataclass(frozen=True, slots=True)
class _AppliedSteps:
    last: int
    lost: tuple[str, ...]
    skipped: tuple[int, ...]
    differing: tuple[int, ...]

    @classmethod
    def of(cls, applied: Iterable[JobEvent]) -> "_AppliedSteps":
        rings: dict[int, dict[tuple[int, int], None]] = defaultdict(dict)
        digests: dict[int, set[str]] = defaultdict(set)
        for event in applied:
            step = event.integer("step")
            rings[step][event.integer("run"), event.integer("epoch")] = None
            digests[step].add(event.text("digest"))
        last = max(rings, default=0)
        return cls(
            last=last,
            lost=tuple(_again(step, ring) for step in sorted(rings) for ring in list(rings[step])[1:]),
            skipped=tuple(step for step in range(1, last) if step not in rings),
            differing=tuple(step for step in sorted(digests) if len(digests[step]) > 1),
        )


def _again(step: int, ring: tuple[int, int]) -> str:
    return f"step {step} was repeated in run {ring[0]}, ring {ring[1]}"


def _steps_after_stop(log: dict[JobEventKind, list[JobEvent]]) -> list[tuple[int, int]]:
    """Return run and step of every step applied after the checkpoint of a STOP, in that run."""
    stopped_at = {
        event.integer("run"): event.t
        for event in reversed(log[JobEventKind.FLAG_SEEN])
        if event.text("directive") == "STOP"
    }
    saved = {
        event.integer("run"): event.integer("step")
        for event in log[JobEventKind.CHECKPOINT_SAVED]
        if event.t >= stopped_at.get(event.integer("run"), float("inf"))
    }
    applied = {(event.integer("run"), event.integer("step")) for event in log[JobEventKind.STEP_APPLIED]}
    return sorted((run, step) for run, step in applied if run in saved and step > saved[run])


def _notice_to_process(log: dict[JobEventKind, list[JobEvent]]) -> Iterator[float]:
    shown: dict[str, list[float]] = defaultdict(list)
    for event in log[JobEventKind.NOTICE_SHOWN]:
        shown[event.text("node")].append(event.t)
    seen: dict[str, list[float]] = defaultdict(list)
    for event in log[JobEventKind.NOTICE_SEEN]:
        seen[event.text("subject")].append(event.t)
    for node, times in shown.items():
        for begin, end in zip(times, [*times[1:], float("inf")], strict=True):
            if (first := min((t for t in seen[node] if begin <= t < end), default=None)) is not None:
                yield first - begin


def _resumes(log: dict[JobEventKind, list[JobEvent]], stopped_runs: Collection[int]) -> int:
    trained = sorted({event.integer("run") for event in log[JobEventKind.RING_FORMED]})
    # A run that follows a failure instead of a STOP is a restart.
    return sum(previous in stopped_runs for previous in trained[:-1])


def _ending(expectations: Expectations, *, finished: bool, wrong_ends: Sequence[JobEvent]) -> Iterator[VerdictFinding]:
    if not finished:
        yield VerdictFinding(Failure.UNFINISHED, f"step {expectations.steps} was never reached")
    for digest in sorted({end.text("digest") for end in wrong_ends}):
        yield VerdictFinding(Failure.PARAMETERS_DIFFER, f"{digest} at the end, not {expectations.digest}")


def _by_kind(events: Iterable[JobEvent]) -> dict[JobEventKind, list[JobEvent]]:
    log: dict[JobEventKind, list[JobEvent]] = defaultdict(list)
    for event in events:
        log[event.kind].append(event)
    return log
