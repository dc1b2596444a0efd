"""Implements `plan`: what a job would have made of its own history if something were different."""

import argparse
import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from job_supervisor.cli.backend import Backend, short_names
from job_supervisor.cli.errors import CliExitCode, CliUsageError, NotNowError, UnknownError
from job_supervisor.cli.output import Block, Table, job_names, show
from servicekit.wording import duration, listed
from supervisor.domain.ids import JobName
from supervisor.domain.worker_time import percent, share
from supervisor.goodput.comparison import MOST_WORK, measured_costs, work
from supervisor.goodput.model import GoodputCase, GoodputCosts, Score
from supervisor.goodput.pools import PoolError, PoolHistory, pool_history
from supervisor.goodput.rebuilt import rebuilt
from supervisor.goodput.whatif import WhatIf, checkpoint_interval, losses, planned

_AS_IT_IS = "as it is"
_SEED = 1
_WORK_OF_A_SAVE = 1.0
"""As much as a change of hosts for one worker: 100,000 took a minute."""
_HOUR = 3600.0

_NAMES: Mapping[str, Callable[[Any], str]] = {
    "least": lambda value: f"a minimum of {value:g} workers",
    "most": lambda value: f"{value:g} workers wanted",
    "lead": lambda value: f"notices {duration(value)} ahead",
    "window": lambda value: f"a window of {value:g} s",
    "save_every": lambda value: f"a checkpoint every {duration(value)}",
    "checkpoint": lambda value: f"checkpoints of {value:g} s",
    "restart": lambda value: f"restarts of {value:g} s",
    "in_process": lambda value: "changes in process" if value else "changes by restarts",
    "pool": lambda pool: f"hosts of {pool.name}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What a job would have made of the time, in worker-seconds and steps."""

    what: str
    wanted: float
    trained: float
    restarts: int
    steps_lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlan:
    """What was simulated, and of what.

    Attributes:
        rows: The first one is as it is.
        seconds: How much time the history covers.
        gone: How many groups of hosts have gone.
        sudden: How many of them with less notice than a step and a checkpoint take.
        interval: The best time between two checkpoints by these, in seconds; None if there were none.
        costs: The costs that were used.
        measured: Those of them that the job's processes have measured; the others are assumed.
        pools: The pools whose hosts a row has.
        changes_in_process: Whether a row has changes of hosts in process.
    """

    rows: Sequence[PlanRow]
    seconds: float
    gone: int
    sudden: int
    interval: float | None
    costs: GoodputCosts
    measured: Sequence[str]
    pools: Sequence[PoolHistory] = ()
    changes_in_process: bool = False


async def plan(backend: Backend, given: argparse.Namespace) -> CliExitCode:
    """Simulates a job as it is, with each change alone, and with all of them.

    Raises:
        UnknownError: The record has nothing of that job.
        NotNowError: The supervisor is too old to know.
        CliUsageError: It would take too long, or needs hosts that were not there.
    """
    pools = [await _pool(backend, name, given) for name in given.pool or ()]
    name = await _job(backend, given)
    seen = await backend.capacity(name, given.since, given.until)
    if seen is None:
        raise NotNowError("The supervisor is older than this command, and does not know which hosts were there.")
    cases = rebuilt(seen.spans, seen.stays, seen.since, seen.until)
    if not cases:
        raise UnknownError(f"The record has none of the hosts of {given.job} in that time.")
    costs, measured = measured_costs(seen.spans)
    changes = list(_changes({**vars(given), "pool": pools}))
    wanted = max(case.most for case in cases)
    if any(what.most is not None and what.most > wanted for what in changes):
        raise CliUsageError(f"{given.job} wanted {wanted} workers at most: of more hosts nothing is known.")
    try:
        works = await asyncio.to_thread(lambda: [_work(what, cases, costs) for what in (WhatIf(), WhatIf(), *changes)])
    except PoolError as error:
        raise UnknownError(str(error)) from error
    if sum(works) > MOST_WORK:
        raise CliUsageError("That would take minutes: choose a shorter --since, or fewer changes.")
    found = await asyncio.to_thread(_simulated, cases, costs, measured, changes)
    if given.output.for_people:
        show(*_for_people(found))
    else:
        given.output.value(_for_programs(found, name), job_names([name]))
    return CliExitCode.DONE


async def _pool(backend: Backend, name: str, given: argparse.Namespace) -> PoolHistory:
    seen = await backend.pool_capacity(name, given.since, given.until)
    return replace(pool_history(name, seen.stays, seen.since, seen.until), cut=seen.cut)


async def _job(backend: Backend, given: argparse.Namespace) -> JobName:
    """Finds the job by its whole or short name among those of the ledger."""
    ledger = await backend.ledger(given.since, given.until)
    found = [job.job for job in ledger.jobs if given.job == job.job or given.job in short_names(job.job)]
    if len(found) > 1:
        raise CliUsageError(f"{given.job} may be {listed(sorted(found))}: name one in full.")
    if not found:
        raise UnknownError(f"The ledger has no job {given.job} in that time.")
    return found[0]


def _changes(given: Mapping[str, Any]) -> Iterator[WhatIf]:
    """Yields each change alone, and then all together, if each has one value."""
    values: dict[str, list[Any]] = {name: given[name] or [] for name in _NAMES}
    for name, each in values.items():
        for value in each:
            yield _with({name: value})
    chosen = {name: each[0] for name, each in values.items() if len(each) == 1}
    if len(chosen) > 1 and all(len(each) <= 1 for each in values.values()):
        yield _with(chosen)


def _with(changed: Mapping[str, Any]) -> WhatIf:
    """Returns a change of what is named, with the types of its fields."""
    whole = {name: int(changed[name]) for name in ("least", "most") if name in changed}
    return WhatIf(**{**changed, **whole})


def _name(what: WhatIf) -> str:
    values = ((name, getattr(what, name)) for name in _NAMES)
    return listed([_NAMES[name](value) for name, value in values if value is not None]) or _AS_IT_IS


def _simulated(
    cases: Sequence[GoodputCase], costs: GoodputCosts, measured: Sequence[str], changes: Sequence[WhatIf]
) -> FoundPlan:
    seconds = sum(case.schedule.seconds for case in cases)
    gone, sudden = losses(cases, costs.step + costs.checkpoint)
    # What is saved more often than once in a second costs more to simulate than it tells.
    interval = max(1.0, costs.step, checkpoint_interval(seconds / sudden, costs.checkpoint)) if sudden else None
    best = [WhatIf(save_every=interval)] if interval is not None else []
    best = [what for what in best if _saves(what, cases, costs) <= MOST_WORK]
    rows = [_row(what, cases, costs) for what in (WhatIf(), *changes, *best)]
    return FoundPlan(
        rows=rows,
        seconds=seconds,
        gone=gone,
        sudden=sudden,
        interval=interval,
        costs=costs,
        measured=measured,
        pools=[what.pool for what in changes if what.pool is not None and what == WhatIf(pool=what.pool)],
        changes_in_process=any(what.in_process for what in changes),
    )


def _work(what: WhatIf, cases: Sequence[GoodputCase], costs: GoodputCosts) -> float:
    return work([what.case(case, _SEED) for case in cases]) + _saves(what, cases, costs)


def _saves(what: WhatIf, cases: Sequence[GoodputCase], costs: GoodputCosts) -> float:
    """Returns how much work the checkpoints of a job add, of which each is a decision."""
    each = what.costs(costs)
    if each.save_every is None:
        return 0.0
    seconds = sum(case.schedule.seconds for case in cases)
    return _WORK_OF_A_SAVE * seconds / (each.save_every + each.checkpoint)


def _row(what: WhatIf, cases: Sequence[GoodputCase], costs: GoodputCosts) -> PlanRow:
    score: Score = planned(what, cases, costs, _SEED)
    return PlanRow(
        what=_name(what),
        wanted=sum(what.case(case, _SEED).most * case.schedule.seconds for case in cases),
        trained=score.useful * costs.step,
        restarts=score.restarts,
        steps_lost=score.steps_lost,
    )


def _for_people(found: FoundPlan) -> list[Block]:
    rows = [
        (
            row.what,
            percent(share(row.trained, row.wanted)),
            f"{row.trained / _HOUR:,.1f} h",
            str(row.restarts),
            f"{row.steps_lost:,.0f}",
        )
        for row in found.rows
    ]
    heads = ("IF IT HAD BEEN", "TRAINING", "TRAINED", "RESTARTS", "STEPS LOST")
    times = "once" if found.gone == 1 else f"{found.gone} times"
    history = (
        f"In {duration(found.seconds)} of this job's own history hosts went {times}, {found.sudden} of them with less "
        "notice than a step and a checkpoint take."
    )
    return [
        history,
        "",
        Table(heads, rows),
        "",
        _interval(found),
        *(_drawn(pool) for pool in found.pools),
        f"All rows are simulated, with {_costs(found)}, unless a row says otherwise.",
    ]


def _interval(found: FoundPlan) -> str:
    if found.interval is None:
        return "None went too suddenly to save: checkpoints without a notice protect from other failures only."
    between = duration(found.seconds / found.sudden)
    return (
        f"The best time between two checkpoints is {duration(found.interval)}: the square root of 2 times {between} "
        f"between two sudden losses times {found.costs.checkpoint:g} s for a checkpoint (Young, 1974)."
    )


def _drawn(pool: PoolHistory) -> str:
    lives, gaps = pool.lives, pool.gaps
    came = f"{len(gaps.ended)} times another one came" if gaps.ended else "no other one came"
    return (
        f"Hosts of {pool.name} are drawn at random from the {len(lives)} that were there for jobs: {len(lives.ended)} "
        f"of them went, and {came}. Each lasts as long as one of them, with its notice, and goes by itself."
        + (" The record has more of them than one answer holds: these are the latest." if pool.cut else "")
    )


def _costs(found: FoundPlan) -> str:
    costs = {"step": found.costs.step, "checkpoint": found.costs.checkpoint, "restart": found.costs.restart}
    costs |= {"change": found.costs.change} if found.costs.in_process or found.changes_in_process else {}
    return listed(
        [
            f"a {name} of {seconds:.3g} s ({'measured' if name in found.measured else 'assumed'})"
            for name, seconds in costs.items()
        ]
    )


def _for_programs(found: FoundPlan, job: JobName) -> object:
    return {
        "job": job,
        "seconds": found.seconds,
        "gone": found.gone,
        "gone_suddenly": found.sudden,
        "checkpoint_interval": found.interval,
        "measured": [*found.measured],
        "pools": [
            {
                "pool": pool.name,
                "hosts": len(pool.lives),
                "went": len(pool.lives.ended),
                "another_came": len(pool.gaps.ended),
            }
            for pool in found.pools
        ],
        "rows": [
            {
                "if": row.what,
                "worker_seconds_trained": row.trained,
                "worker_seconds_wanted": row.wanted,
                "effective_training_time_ratio": share(row.trained, row.wanted),
                "restarts": row.restarts,
                "steps_lost": row.steps_lost,
            }
            for row in found.rows
        ],
    }
