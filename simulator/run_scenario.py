"""Plays one scenario in a directory of its own and judges it, for demo and replay."""

import time

from rich.console import Console

from simulator.cloud.paths import CloudPaths
from simulator.cloud.process import ProcessEnded, TooLate
from simulator.cloud.schedule import ReclaimSchedule
from simulator.cloud.synthetic import leads
from simulator.crashes import crashes
from simulator.guarantees import GuaranteeCosts, observed_costs
from simulator.harness import ProcessesLeft
from simulator.outcome import ReplayOutcome, measure_delay, shortcomings
from simulator.runner import ReplayScenario, play, work_directory


async def run_scenario(
    scenario: ReplayScenario, console: Console, prefix: str, *, keep: bool, invite: bool = False
) -> ReplayOutcome:
    """Play a scenario and judge it. Its directory is kept after a failure, or if `keep` is set.

    `invite` prints the address of the status page.
    """
    started, shortest = time.monotonic(), _shortest_lead(scenario.schedule)
    with work_directory(prefix, console) as place:
        async with measure_delay() as late:
            try:
                played = await play(scenario, place.root, console, invite=invite)
            except (ProcessEnded, TooLate, ProcessesLeft) as error:
                took, found = time.monotonic() - started, crashes(CloudPaths(place.root).logs)
                return ReplayOutcome(
                    scenario.name, None, (str(error),), GuaranteeCosts(0.0, 0.0), shortest, late.longest, took, found
                )
        costs = observed_costs(played.events)
        broken = () if played.broken is None else (played.broken,)
        found = crashes(CloudPaths(place.root).logs)
        wrong = (*broken, *shortcomings(played.verdict, costs, shortest), *(f"crashed: {each}" for each in found))
        took = time.monotonic() - started
        place.keep = keep or bool(wrong)
    return ReplayOutcome(scenario.name, played.verdict, wrong, costs, shortest, late.longest, took, found)


def _shortest_lead(schedule: ReclaimSchedule) -> float:
    return min(leads(schedule), default=float("inf"))
