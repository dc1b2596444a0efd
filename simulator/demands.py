"""Demands on the product, checked against the truth after every event. Each yields a finding for every violation."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from simulator.events import JobEvent, JobEventKind
from simulator.truth import ReplayTruth
from simulator.verdict import Expectations, Failure, VerdictBounds, VerdictFinding

_Key = TypeVar("_Key", bound=Hashable)


class JudgeDemand(Protocol):
    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        """Check the demand after `event`, which `truth` already includes."""
        ...


def demands(expectations: Expectations) -> tuple[JudgeDemand, ...]:
    """Return the demands for these expectations. Those on time are included only if there are bounds."""
    bounds = expectations.bounds
    undisturbed = bounds is not None
    always = (
        HostReleasedBeforeLoss(suspended=undisturbed),
        CheckpointSavedAtStop(),
        ExclusionsMatchNotices(lasting=undisturbed, multiple=expectations.worker_multiple),
        SingleRun(ended=undisturbed),
        RingsAreMultiples(expectations.worker_multiple),
        *((AllRanksSavedOneStep(),) if expectations.agreed else ()),
    )
    if bounds is None:
        return always
    return (*always, OrderlyRingChanges(), NoNoticedHostUsed(bounds.act), *_timely(expectations, bounds))


# Demands on single events.


class HostReleasedBeforeLoss:
    """An announced host is excluded, or its job stopped and suspended, before the host is gone.

    Args:
        suspended: Whether the run of a stopped job must have ended by then.
    """

    def __init__(self, *, suspended: bool) -> None:
        self._suspended = suspended

    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        if event.kind is not JobEventKind.NODE_GONE or not event.fields.get("announced") or not truth.is_live():
            return
        host = event.text("node")
        if host not in truth.ring:
            return
        if truth.is_training():
            yield VerdictFinding(Failure.NOT_EXCLUDED, f"{host} went while the ring of run {truth.run} was using it")
        elif self._suspended:
            yield VerdictFinding(
                Failure.NOT_SUSPENDED, f"{host} went while run {truth.run}, which was stopped, still ran"
            )


class CheckpointSavedAtStop:
    """A run that was told to STOP has saved a checkpoint when it ends."""

    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        if event.kind is JobEventKind.RUN_ENDED and (run := event.integer("run")) in truth.stopped - truth.saved:
            yield VerdictFinding(Failure.NOT_SAVED, f"run {run} was stopped without a checkpoint")


class AllRanksSavedOneStep:
    """All ranks of a ring that was told to STOP have saved at the same step when the run ends."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[int, int]] = defaultdict(dict)

    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        if event.kind is JobEventKind.CHECKPOINT_SAVED and event.integer("run") in truth.stopped:
            self._steps[event.integer("run")][event.integer("rank")] = event.integer("step")
        if event.kind is not JobEventKind.RUN_ENDED or (run := event.integer("run")) not in truth.stopped:
            return
        steps = self._steps[run]
        if len(set(steps.values())) > 1 or steps.keys() != set(range(len(truth.ring))):
            saved = ", ".join(f"rank {rank} at step {step}" for rank, step in sorted(steps.items())) or "no rank"
            yield VerdictFinding(Failure.NOT_AGREED, f"of the {len(truth.ring)} ranks of run {run}, {saved} saved")


class RingsAreMultiples:
    """A job trains with a multiple of so many hosts."""

    def __init__(self, multiple: int) -> None:
        self._multiple = multiple

    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        if event.kind is JobEventKind.RING_FORMED and len(truth.ring) % self._multiple:
            detail = f"run {truth.run} formed a ring of {len(truth.ring)} hosts, no multiple of {self._multiple}"
            yield VerdictFinding(Failure.NOT_A_MULTIPLE, detail)


class ExclusionsMatchNotices:
    """A host of the ring is excluded only if it has a notice, is gone or has failed, and stays excluded that long.

    Args:
        lasting: Whether a host must stay excluded as long as it has its notice.
        multiple: Fewer hosts than this may be excluded because they make no multiple.
    """

    def __init__(self, *, lasting: bool, multiple: int) -> None:
        self._lasting = lasting
        self._multiple = multiple
        self._excluded: frozenset[str] = frozenset()

    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        """Check each change. Hosts outside the ring may be withheld for other reasons."""
        if event.kind is not JobEventKind.EXCLUSIONS_CHANGED:
            return
        before, self._excluded = self._excluded, frozenset(event.texts("hosts"))
        if not truth.is_training():
            return
        unnoticed = {each for each in self._excluded & set(truth.ring) if not truth.justifies_exclusion(each, event.t)}
        if len(unnoticed) >= self._multiple:
            for host in sorted(unnoticed - before):
                yield VerdictFinding(
                    Failure.FALSE_EXCLUSION, f"{host} was excluded in run {truth.run} without a notice"
                )
        for host in sorted(before - self._excluded) if self._lasting else ():
            if truth.notice_of(host) is not None:
                yield VerdictFinding(
                    Failure.NOTICED_HOST_USED, f"run {truth.run} may use {host} again, which has its notice"
                )


class OrderlyRingChanges:
    """A training ring never loses a worker: a host leaves by the launcher's list, or the run is stopped."""

    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        if event.kind is JobEventKind.RING_BROKEN and truth.is_training():
            yield VerdictFinding(Failure.RING_BROKEN, f"the worker on {event.text('host')} was lost to run {truth.run}")


class SingleRun:
    """No earlier run trains once a later one has formed its ring.

    Args:
        ended: Whether the launcher of the earlier run must have ended by then. A killed launcher reports no end.
    """

    def __init__(self, *, ended: bool) -> None:
        self._ended = ended
        self._running: set[int] = set()

    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        match event.kind:
            case JobEventKind.RING_FORMED:
                self._running.add(truth.run)
                for run in sorted(self._running - {truth.run}) if self._ended else ():
                    yield VerdictFinding(Failure.TWO_RUNS, f"run {truth.run} formed a ring beside run {run}")
            case JobEventKind.RUN_ENDED:
                self._running.discard(event.integer("run"))
            case JobEventKind.STEP_APPLIED if (run := event.integer("run")) < truth.run:
                yield VerdictFinding(
                    Failure.TWO_RUNS, f"step {event.integer('step')} was applied in run {run} beside {truth.run}"
                )
            case _:
                pass


class NoNoticedHostUsed:
    """No ring is formed with a host whose notice is older than the product needs to react."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        if event.kind is JobEventKind.RING_FORMED:
            for host in truth.ring:
                notice = truth.notice_of(host)
                if notice is not None and (age := event.t - notice.shown_at) > self._seconds:
                    detail = f"run {truth.run} formed a ring with {host}, which had its notice for {age:.1f} s"
                    yield VerdictFinding(Failure.NOTICED_HOST_USED, detail)


# Demands on time.


class WithinBound(Generic[_Key]):
    """Nothing stays wrong for longer than a bound.

    Args:
        seconds: The bound.
        failure: The failure if the bound is exceeded.
        wrong: Returns everything that is wrong now. Each is reported once for as long as it stays wrong.
        detail: Describes one of these.
    """

    def __init__(
        self,
        seconds: float,
        failure: Failure,
        wrong: Callable[[ReplayTruth], Iterable[_Key]],
        detail: Callable[[_Key], str],
    ) -> None:
        self._seconds = seconds
        self._failure = failure
        self._wrong = wrong
        self._detail = detail
        self._since: dict[_Key, float] = {}
        self._found: set[_Key] = set()

    def check(self, event: JobEvent, truth: ReplayTruth) -> Iterator[VerdictFinding]:
        for key, since in self._since.items():
            if key not in self._found and event.t - since > self._seconds:
                self._found.add(key)
                yield VerdictFinding(self._failure, f"{self._detail(key)} for {event.t - since:.1f} s")
        wrong = set(self._wrong(truth))
        self._since = {key: self._since.get(key, event.t) for key in wrong}
        self._found &= wrong


@dataclass(frozen=True, slots=True)
class RunHost:
    run: int
    host: str


def _timely(expectations: Expectations, bounds: VerdictBounds) -> Iterator[JudgeDemand]:
    yield WithinBound(
        bounds.act,
        Failure.NOT_EXCLUDED,
        _noticed_and_used,
        lambda one: f"run {one.run} went on using {one.host}, which had a notice,",
    )
    yield WithinBound(
        bounds.act,
        Failure.NOT_STOPPED,
        lambda truth: _below_minimum(truth, expectations.min_workers),
        lambda run: f"run {run} was not stopped with fewer than {expectations.min_workers} hosts left",
    )
    yield WithinBound(
        bounds.suspend,
        Failure.NOT_SUSPENDED,
        _saved_and_not_ended,
        lambda run: f"run {run} went on after it was stopped and had saved its checkpoint",
    )
    yield WithinBound(
        bounds.withdraw,
        Failure.NOT_TAKEN_BACK,
        lambda truth: _still_excluded(truth, expectations.worker_multiple),
        lambda one: f"run {one.run} kept {one.host} excluded, which had no notice any more,",
    )
    yield WithinBound(
        bounds.join,
        Failure.NOT_TAKEN_BACK,
        lambda truth: _left_out(truth, expectations.max_workers, expectations.worker_multiple),
        lambda one: f"run {one.run} left out {one.host}, which had no notice,",
    )
    yield WithinBound(
        bounds.resume,
        Failure.NOT_RESUMED,
        lambda truth: _not_running(truth, expectations.min_workers),
        lambda run: f"nothing ran after run {run} with at least {expectations.min_workers} hosts free",
    )


def _noticed_and_used(truth: ReplayTruth) -> Iterator[RunHost]:
    if truth.is_training():
        for host in truth.ring:
            if truth.notice_of(host) is not None and host not in truth.excluded:
                yield RunHost(truth.run, host)


def _below_minimum(truth: ReplayTruth, least: int) -> Iterator[int]:
    # Count all nodes, not only the ring: a host that is joining may replace one that leaves.
    if truth.is_training() and len(truth.free()) < least:
        yield truth.run


def _saved_and_not_ended(truth: ReplayTruth) -> Iterator[int]:
    if truth.is_live() and truth.run in truth.saved:
        yield truth.run


def _still_excluded(truth: ReplayTruth, multiple: int) -> Iterator[RunHost]:
    excluded = truth.free() & truth.excluded
    if truth.is_training() and len(excluded) >= multiple:
        for host in excluded:
            yield RunHost(truth.run, host)


def _left_out(truth: ReplayTruth, most: int | None, multiple: int) -> Iterator[RunHost]:
    outside = truth.free() - set(truth.ring) - truth.blacklisted
    if truth.is_training() and (most is None or len(truth.ring) < most) and len(outside) >= multiple:
        for host in outside:
            yield RunHost(truth.run, host)


def _not_running(truth: ReplayTruth, least: int) -> Iterator[int]:
    if truth.run and not truth.is_live() and not truth.finished and len(truth.free()) >= least:
        yield truth.run
