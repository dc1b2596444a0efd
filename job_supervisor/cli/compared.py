"""Compares what a job has trained with what other ways to handle the same reclaims would have trained."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from job_supervisor.cli.output import Block, Table, duration, listed
from supervisor.domain.stays import WantedSpan
from supervisor.domain.worker_time import ShareRange
from supervisor.goodput.model import GoodputCase, GoodputCosts, Score
from supervisor.goodput.policies import OtherPolicy, simulated
from supervisor.goodput.rebuilt import rebuilt
from supervisor.observability.views import CapacityView

AS_IT_WAS = "as it was"

MOST_WORK = 100_000
"""Changes of hosts times workers, beyond which the supervisor is not simulated: so many took 45 s in the tests."""

_SEED = 1
_HOUR = 3600.0
_DIFFERENT_SHARE = 0.01
_MEASURES = ("step", "checkpoint", "restart")
_NOT_THERE = "What other policies would have trained is not known: {why}."


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """What a policy makes of the time in which a job wanted workers, in worker-seconds and steps; None is unknown.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What has happened to a job, and what other policies would have made of the same hosts and notices.

    Attributes:
        rows: The first one is what has happened.
        costs: The costs that the simulations used.
        measured: Those of them that the job's processes have measured; the others are assumed.
        known_seconds: For how long it is known which hosts were there while the job wanted workers.
        cut: Whether the earliest of that time was left out.
        skipped: The policies that would have taken too long.
    """

    rows: Sequence[ComparedRow]
    costs: GoodputCosts
    measured: Sequence[str]
    known_seconds: float
    cut: bool = False
    skipped: Sequence[str] = ()


def measured_costs(spans: Sequence[WantedSpan]) -> tuple[GoodputCosts, Sequence[str]]:
    """Returns the costs of a job, and the names of those that were measured last; the others are assumed."""
    found = dict[str, float]()
    for span in spans:
        costs = span.costs
        last = {"step": costs.step_seconds, "checkpoint": costs.checkpoint_seconds, "restart": costs.start_seconds}
        found |= {name: seconds for name, seconds in last.items() if seconds}
    in_process = bool(spans) and spans[-1].in_process
    return GoodputCosts(**found, in_process=in_process), [name for name in _MEASURES if name in found]


def compare(seen: CapacityView, wanted: float, trained: float, unmeasured: float) -> Comparison | None:
    """Simulates every policy; None if nothing is known of the job's hosts.

    Args:
        seen: When the job wanted workers, and which hosts were there.
        wanted: The worker-seconds that it wanted, as the ledger has counted them.
        trained: Those of them that trained.
        unmeasured: Those of them of which no process has said whether they trained.
    """
    cases = rebuilt(seen.spans, seen.stays, seen.since, seen.until)
    if not cases:
        return None
    costs, measured = measured_costs(seen.spans)
    restarts = sum(span.restarts for span in seen.spans)
    first = ComparedRow(
        policy=AS_IT_WAS, wanted=wanted, trained=trained, restarts=restarts, steps_lost=None, unmeasured=unmeasured
    )
    rows = [first]
    skipped = list[str]()
    for policy in OtherPolicy:
        if policy is OtherPolicy.SUPERVISOR and work(cases) > MOST_WORK:
            skipped.append(policy)
        else:
            rows.append(_row(policy, cases, costs))
    return Comparison(
        rows=rows,
        costs=costs,
        measured=measured,
        known_seconds=sum(case.schedule.seconds for case in cases),
        cut=seen.cut,
        skipped=skipped,
    )


async def compared(
    seen: CapacityView | None, wanted: float, trained: float, unmeasured: float
) -> tuple[list[Block], object]:
    """Returns the comparison for people and for programs; `seen` is None if the supervisor is too old to know."""
    if seen is None:
        return ["", _NOT_THERE.format(why="this supervisor is older than the command")], None
    found = await asyncio.to_thread(compare, seen, wanted, trained, unmeasured)
    if found is None:
        return ["", _NOT_THERE.format(why="the record has none of its hosts in that time")], None
    return _for_people(found), _for_programs(found)


def work(cases: Sequence[GoodputCase]) -> int:
    """Returns how much there is to simulate: the changes of hosts, each times the workers."""
    return sum(len(case.schedule.steps) * case.most for case in cases)


def _row(policy: OtherPolicy, cases: Sequence[GoodputCase], costs: GoodputCosts) -> ComparedRow:
    scores: list[Score] = [simulated(policy, case, costs, _SEED) for case in cases]
    return ComparedRow(
        policy=policy,
        wanted=sum(case.most * case.schedule.seconds for case in cases),
        trained=sum(score.useful for score in scores) * costs.step,
        restarts=sum(score.restarts for score in scores),
        steps_lost=sum(score.steps_lost for score in scores),
    )


def _for_programs(found: Comparison) -> object:
    return {
        "costs": {
            name: {"seconds": seconds, "measured": name in found.measured} for name, seconds in _costs(found).items()
        },
        "in_process": found.costs.in_process,
        "known_seconds": found.known_seconds,
        "cut": found.cut,
        "skipped": [*found.skipped],
        "policies": [
            {**asdict(row), "effective_training_time_ratio": asdict(row.share) if row.share else None}
            for row in found.rows
        ],
    }


def _for_people(found: Comparison) -> list[Block]:
    rows = [
        (
            row.policy,
            _shown(row.share),
            f"{row.trained / _HOUR:,.1f} h",
            str(row.restarts),
            "-" if row.steps_lost is None else f"{row.steps_lost:,.0f}",
            "counted" if row.policy == AS_IT_WAS else "simulated",
        )
        for row in found.rows
    ]
    heads = ("THE SAME RECLAIMS WITH", "TRAINING", "TRAINED", "RESTARTS", "STEPS LOST", "")
    told: list[Block] = ["", _sentence(found), "", Table(heads, rows), "", _assumptions(found)]
    if found.skipped:
        told.append(f"Left out, as it would take minutes: {listed(found.skipped)}. Use a shorter --since.")
    if found.cut:
        told.append("The record has more than one answer holds: the earliest is left out of the simulations.")
    simulated_seconds = found.rows[-1].wanted
    if abs(simulated_seconds - found.rows[0].wanted) > _DIFFERENT_SHARE * found.rows[0].wanted:
        told.append(
            f"The simulations cover {simulated_seconds / _HOUR:,.1f} h of what was wanted: of "
            f"{duration(found.known_seconds)} it is known which hosts were there."
        )
    return told


def _sentence(found: Comparison) -> str:
    """Sums up for a reader who wants one sentence."""
    shares = {row.policy: _shown(row.share) for row in found.rows}
    others = (
        ("a termination handler", OtherPolicy.SIGTERM),
        ("a checkpoint every 10 minutes", OtherPolicy.EVERY_TEN_MINUTES),
        ("nothing but waiting", OtherPolicy.WAITING),
    )
    would = listed([f"{shares[policy]} with {name}" for name, policy in others])
    return f"Of what it wanted, {shares[AS_IT_WAS]} trained; with the same reclaims it would have been {would}."


def _costs(found: Comparison) -> Mapping[str, float]:
    costs = {name: getattr(found.costs, name) for name in _MEASURES}
    return {**costs, "change": found.costs.change} if found.costs.in_process else costs


def _assumptions(found: Comparison) -> str:
    """Names the costs that the simulations used: first those that were measured."""
    costs = _costs(found)
    measured = [f"a {name} of {costs[name]:.3g} s" for name in found.measured]
    assumed = [f"a {name} of {seconds:.3g} s" for name, seconds in costs.items() if name not in found.measured]
    parts = [f"{listed(each)} ({how})" for each, how in ((measured, "measured"), (assumed, "assumed")) if each]
    return f"Simulated with {', and '.join(parts)}."


def _shown(found: ShareRange | None) -> str:
    return "-" if found is None else str(found)
