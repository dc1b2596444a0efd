"""How many jobs save in time, by how much time a notice leaves."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.goodput.cliff import all_costs, at_once, just_in_time, slack
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit
from supervisor.goodput.model import GoodputCosts

METHOD = """\
The simulation of `goodput`, with one job of four nodes that must stop when one of them goes. Every lead of 5 to 120 s
with every checkpoint of 1 to 60 s and every step of 0.5 to 30 s, each several times, as an agent sees a notice at a
random moment of its second. *At once* is a job's first stop, as no checkpoint of it was timed yet: its ranks agree on
the next step that all can reach. *Just in time*, the default from then on, is its second one: they train on until their
checkpoint just fits. *Slack* is the lead without a step and a checkpoint. Nothing can save a job without slack unless
its notice comes late in a step; the target is to save all that have two seconds of it."""

_LIMIT = 2.0
_BOUNDS = (-math.inf, 0.0, _LIMIT, 10.0, math.inf)
_SEEDS = 8
_WHY = """agents ask once a second, and a step of which most was trained already is not waited for twice."""

_Job = tuple[float, GoodputCosts]


async def run(root: Path, *, short: bool) -> ScenarioOutcome:  # noqa: ARG001 - every scenario has a directory
    """Measure the share that is saved, by slack."""
    jobs, seeds = all_costs()[:: 5 if short else 1], range(1 if short else _SEEDS)
    rows = [_row(least, most, jobs, seeds) for least, most in pairwise(_BOUNDS)]
    return ScenarioOutcome(scenario="cliff", title="Saved in time, by lead", method=METHOD, rows=tuple(rows))


def _row(least: float, most: float, jobs: Sequence[_Job], seeds: range) -> Row:
    cases = [(lead, costs, seed) for lead, costs in jobs if least <= slack(lead, costs) < most for seed in seeds]
    lost = [(bool(at_once(*case).steps_lost), bool(just_in_time(*case).steps_lost)) for case in cases]
    target = ResultTarget(at_most=0.0, why=_WHY) if least >= _LIMIT else None
    first, second = (sum(each) / len(cases) for each in zip(*lost, strict=True))
    return Row(
        case=f"slack {_bounds(least, most)}",
        figures=(
            Figure(label="stops", value=len(cases), unit=Unit.COUNT),
            Figure(label="lost steps, at once", value=first, unit=Unit.SHARE),
            Figure(label="lost steps, just in time", value=second, unit=Unit.SHARE, target=target),
        ),
    )


def _bounds(least: float, most: float) -> str:
    if least == -math.inf:
        return f"below {most:g} s"
    return f"{least:g} s or more" if most == math.inf else f"{least:g} to {most:g} s"
