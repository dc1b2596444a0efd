"""Compares what jobs have trained with what other ways to handle the same reclaims would have made of the same hosts.

The command and the status page both print what comes out of it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from servicekit.wording import duration, listed
from supervisor.domain.ids import JobName
from supervisor.domain.ledger import Account
from supervisor.domain.stays import HostStay, WantedSpan
from supervisor.domain.worker_time import ShareRange, WorkerTime, hours
from supervisor.goodput.model import GoodputCase, GoodputCosts
from supervisor.goodput.policies import OtherPolicy, simulated
from supervisor.goodput.rebuilt import rebuilt
from supervisor.goodput.schedule import KillNode

AS_IT_WAS = "as it was"

MOST_WORK = 100_000
"""Changes of hosts times workers, beyond which the supervisor is not simulated: so many took 45 s in the tests."""

MOST_HOST_MINUTES = 200_000_000
"""Minutes of simulated time times workers, of all jobs: so many take half a minute, however few hosts change."""
MOST_PIECES = 10_000_000
"""Times in which a job wanted one size, each times its stays, likewise: so many take 20 s to put together."""

MOST_JOBS = 100
"""Jobs whose hosts are read for one comparison, the largest first."""

MOST_READ = 20_000
"""Stays and spans beyond which no further job is read; the last one may have 20,000 of each."""

OUT_OF_MEMORY = 3
"""The exit code of a process that compares jobs, if it may not have as much memory as it needs."""

MEASURES = ("step", "checkpoint", "restart")
"""The costs that processes measure in every job, as `GoodputCosts` names them."""
CHANGE = "change"
"""The one that they measure as well if they enter rounds in process."""

NOTHING_KNOWN = "the record has none of its hosts in that time"
TOO_LARGE = "to simulate it would take minutes; choose a shorter time"
NOT_COMPARED = "What other policies would have trained is not known: {why}."

_SEED = 1
_DIFFERENT_SHARE = 0.01


class SeenHosts(Protocol):
    """When a job wanted workers, and which hosts were there for it, between two instants; as the record is read."""

    @property
    def since(self) -> float: ...
    @property
    def until(self) -> float: ...
    @property
    def spans(self) -> Sequence[WantedSpan]: ...
    @property
    def stays(self) -> Sequence[HostStay]: ...
    @property
    def cut(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """Holds what the record has of a job between two instants (Unix seconds), and what the ledger has counted of it.

    Attributes:
        since: The first instant.
        until: The last one.
        spans: When the job wanted workers.
        stays: Which hosts were there. Each has an end.
        wanted: The worker-seconds that it wanted.
        trained: Those of them that trained.
        unmeasured: Those of them of which no process has said whether they trained.
        cut: Whether the earliest spans and stays were left out.
    """

    since: float
    until: float
    spans: Sequence[WantedSpan]
    stays: Sequence[HostStay]
    wanted: float
    trained: float
    unmeasured: float = 0.0
    cut: bool = False

    @classmethod
    def of(cls, seen: SeenHosts, time: WorkerTime) -> "RecordedJob":
        """Puts what the record and the ledger have of a job together."""
        return cls(
            since=seen.since,
            until=seen.until,
            spans=seen.spans,
            stays=seen.stays,
            wanted=time.wanted,
            trained=time.spent(Account.TRAINING),
            unmeasured=time.spent(Account.UNMEASURED),
            cut=seen.cut,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJobs:
    """The jobs that are compared together, the largest first, and the number of those that nobody has read."""

    jobs: Sequence[RecordedJob]
    unread: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """Says what a policy makes of the time in which jobs wanted workers, in worker-seconds and steps; None is unknown.

    `unmeasured` are worker-seconds that may have trained as well: no process has said what they were.
    """

    policy: str
    wanted: float
    trained: float
    restarts: int
    steps_lost: float | None
    unmeasured: float = 0.0

    @property
    def share(self) -> ShareRange | None:
        """The part of what was wanted that trained; None if nothing was."""
        if not self.wanted:
            return None
        return ShareRange(self.trained / self.wanted, (self.trained + self.unmeasured) / self.wanted)

    @property
    def counted(self) -> bool:
        """Whether the row is what has happened; the others are simulated."""
        return self.policy == AS_IT_WAS


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """How many of several jobs are in no row, by reason.

    Attributes:
        unknown: The record has none of their hosts.
        assumed: Their processes have not measured what a step, a checkpoint and a restart take.
        beyond: With them the simulations would take minutes.
    """

    unknown: int = 0
    assumed: int = 0
    beyond: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Says what has happened to jobs, and what other policies would have made of the same hosts and notices.

    Attributes:
        rows: The first one is what has happened. There is none if no job can be compared.
        jobs: How many jobs the rows sum up.
        costs: The costs that the simulations of a job used; None for several jobs, of which each has its own.
        measured: Those of them that the job's processes have measured; the others are assumed.
        known_seconds: For how long it is known which hosts were there while a job wanted workers.
        cut: Whether the earliest of that time was left out.
        skipped: The policies that would have taken too long.
        left_out: The other jobs.
        gone: How many hosts went in that time; None if nobody has counted.
    """

    rows: Sequence[ComparedRow]
    jobs: int
    costs: GoodputCosts | None = None
    measured: Sequence[str] = ()
    known_seconds: float = 0.0
    cut: bool = False
    skipped: Sequence[str] = ()
    left_out: LeftOut = LeftOut()
    gone: int | None = None

    @property
    def all_costs(self) -> Mapping[str, float]:
        """The costs of the one job that the simulations used, in seconds by name."""
        if self.costs is None:
            return {}
        costs = {name: getattr(self.costs, name) for name in MEASURES}
        return {**costs, CHANGE: self.costs.change} if self.costs.in_process else costs


@dataclass(frozen=True, slots=True)
class _Simulated:
    """A job that is simulated, as cases and with its costs."""

    job: RecordedJob
    cases: Sequence[GoodputCase]
    costs: GoodputCosts
    measured: Sequence[str]


async def gathered(names: Sequence[JobName], read: Callable[[JobName], Awaitable[RecordedJob]]) -> RecordedJobs:
    """Reads what the record has of jobs, the first ones first, until it is as much as a comparison takes."""
    found, size = list[RecordedJob](), 0
    for name in names[:MOST_JOBS]:
        if size >= MOST_READ:
            break
        found.append(await read(name))
        size += len(found[-1].stays) + len(found[-1].spans)
    return RecordedJobs(jobs=found, unread=len(names) - len(found))


def measured_costs(spans: Sequence[WantedSpan]) -> tuple[GoodputCosts, Sequence[str]]:
    """Returns the costs of a job, and the names of those that were measured last; the others are assumed."""
    found = dict[str, float]()
    for span in spans:
        last = {
            "step": span.costs.step_seconds,
            "checkpoint": span.costs.checkpoint_seconds,
            "restart": span.costs.start_seconds,
            CHANGE: span.costs.change_seconds,
        }
        found |= {name: seconds for name, seconds in last.items() if seconds}
    costs = GoodputCosts(
        **found,
        # Processes that survived one change can do it again, although a run has begun or they were restarted since.
        in_process=any(span.in_process for span in spans),
        in_rounds=bool(spans) and spans[-1].in_rounds,
    )
    return costs, [name for name in (*MEASURES, CHANGE) if name in found]


def work(cases: Sequence[GoodputCase]) -> int:
    """Returns how much there is to simulate: the changes of hosts, each times the workers."""
    return sum(len(case.schedule.steps) * case.most for case in cases)


def compare(recorded: RecordedJobs) -> Comparison:
    """Simulates every policy for each job and sums up; of several jobs only those whose costs are measured."""
    alone = len(recorded.jobs) + recorded.unread == 1
    small = list(_of_a_size(recorded.jobs))
    known = [_simulated(job) for job in small]
    known = [each for each in known if each.cases]
    with_costs = [each for each in known if alone or set(MEASURES) <= set(each.measured)]
    taken = with_costs if alone else list(_within_bounds(with_costs))
    left_out = LeftOut(
        unknown=len(small) - len(known),
        assumed=len(known) - len(with_costs),
        beyond=len(recorded.jobs) - len(small) + len(with_costs) - len(taken) + recorded.unread,
    )
    if not taken:
        return Comparison(rows=[], jobs=0, left_out=left_out)
    too_much = sum(work(each.cases) for each in taken) > MOST_WORK
    skipped = [OtherPolicy.SUPERVISOR] if too_much else []
    return Comparison(
        rows=[_as_it_was(taken), *(_row(policy, taken) for policy in OtherPolicy if policy not in skipped)],
        jobs=len(taken),
        costs=taken[0].costs if alone else None,
        measured=taken[0].measured if alone else (),
        known_seconds=sum(case.schedule.seconds for each in taken for case in each.cases),
        cut=any(each.job.cut for each in taken),
        skipped=skipped,
        left_out=left_out,
        gone=sum(isinstance(step, KillNode) for each in taken for case in each.cases for step in case.schedule.steps),
    )


def _of_a_size(jobs: Sequence[RecordedJob]) -> Iterator[RecordedJob]:
    """Yields the jobs that are not too large even to begin with, the first ones first."""
    minutes, pieces = float(MOST_HOST_MINUTES), float(MOST_PIECES)
    for job in jobs:
        of_time = sum((span.ends - span.begins) / 60 * span.most for span in job.spans)
        changes = sum((one.least, one.most) != (two.least, two.most) for one, two in pairwise(job.spans))
        to_join = (changes + 1) * len(job.stays)
        if of_time <= minutes and to_join <= pieces:
            minutes -= of_time
            pieces -= to_join
            yield job


def _simulated(job: RecordedJob) -> _Simulated:
    cases = rebuilt(job.spans, job.stays, job.since, job.until)
    return _Simulated(job, cases, *measured_costs(job.spans))


def _within_bounds(jobs: Sequence[_Simulated]) -> Iterator[_Simulated]:
    """Yields the jobs that can be simulated within the bound of work, the first ones first."""
    left = MOST_WORK
    for each in jobs:
        needed = work(each.cases)
        if needed <= left:
            left -= needed
            yield each


def _as_it_was(taken: Sequence[_Simulated]) -> ComparedRow:
    return ComparedRow(
        policy=AS_IT_WAS,
        wanted=sum(each.job.wanted for each in taken),
        trained=sum(each.job.trained for each in taken),
        restarts=sum(span.restarts for each in taken for span in each.job.spans),
        steps_lost=None,
        unmeasured=sum(each.job.unmeasured for each in taken),
    )


def _row(policy: OtherPolicy, taken: Sequence[_Simulated]) -> ComparedRow:
    row = ComparedRow(policy=policy, wanted=0.0, trained=0.0, restarts=0, steps_lost=0.0)
    for each in taken:
        scores = [simulated(policy, case, each.costs, _SEED) for case in each.cases]
        row = replace(
            row,
            wanted=row.wanted + sum(case.most * case.schedule.seconds for case in each.cases),
            trained=row.trained + sum(score.useful for score in scores) * each.costs.step,
            restarts=row.restarts + sum(score.restarts for score in scores),
            steps_lost=(row.steps_lost or 0.0) + sum(score.steps_lost for score in scores),
        )
    return row


def summary(found: Comparison) -> str:
    """Sums up for a reader who wants one sentence; also if nothing could be compared."""
    if not found.rows:
        alone = sum(_counts(found.left_out)) == 1
        why = "of no job there are both its hosts and its costs"
        if alone:
            why = TOO_LARGE if found.left_out.beyond else NOTHING_KNOWN
        return NOT_COMPARED.format(why=why)
    shares = {row.policy: shown(row.share) for row in found.rows}
    others = (
        ("a termination handler", OtherPolicy.SIGTERM),
        ("a checkpoint every 10 minutes", OtherPolicy.EVERY_TEN_MINUTES),
        ("nothing but waiting", OtherPolicy.WAITING),
    )
    would = listed([f"{shares[policy]} with {name}" for name, policy in others])
    whose = "it" if found.costs is not None else "1 job" if found.jobs == 1 else f"{found.jobs} jobs"
    return f"Of what {whose} wanted, {shares[AS_IT_WAS]} trained; with the same reclaims it would have been {would}."


def assumptions(found: Comparison) -> str:
    """Names the costs that the simulations used: first those that were measured."""
    if found.costs is None:
        return (
            "Simulated with the step, checkpoint and restart that each job has measured, and with "
            f"{GoodputCosts().change:.3g} s for a change in process where a job has measured none."
        )
    costs = found.all_costs
    named = {name: f"a {name} of {seconds:.3g} s" for name, seconds in costs.items()}
    measured = [what for name, what in named.items() if name in found.measured]
    assumed = [what for name, what in named.items() if name not in found.measured]
    parts = [f"{listed(each)} ({how})" for each, how in ((measured, "measured"), (assumed, "assumed")) if each]
    return f"Simulated with {', and '.join(parts)}."


def remarks(found: Comparison) -> Sequence[str]:
    """Says in sentences what is in no row."""
    told = list[str]()
    if found.rows and found.gone == 0:
        told.append("No host has gone in that time: whoever does nothing about notices has lost nothing yet.")
    if found.skipped:
        told.append(f"Left out, as it would take minutes: {listed(found.skipped)}. Choose a shorter time.")
    if found.cut:
        told.append("The record has more than one answer holds: the earliest is left out of the simulations.")
    if found.rows:
        counted, replayed = found.rows[0].wanted, found.rows[-1].wanted
        if abs(replayed - counted) > _DIFFERENT_SHARE * counted:
            told.append(
                f"The simulations cover {hours(replayed)} of what was wanted: of {duration(found.known_seconds)} "
                "it is known which hosts were there."
            )
    reasons = (
        "the record has none of their hosts",
        "no process has measured their step, checkpoint and restart",
        "with them it would take minutes",
    )
    if found.costs is None and found.jobs + sum(_counts(found.left_out)) > 1:
        parts = [f"{count} ({why})" for count, why in zip(_counts(found.left_out), reasons, strict=True) if count]
        told += [f"Jobs that are left out: {listed(parts)}."] if parts else []
    return told


def shown(found: ShareRange | None) -> str:
    """Formats a share; one that is unknown as a dash."""
    return "-" if found is None else str(found)


def _counts(left_out: LeftOut) -> Sequence[int]:
    return (left_out.unknown, left_out.assumed, left_out.beyond)
