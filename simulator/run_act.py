"""Playing one act in a directory of its own and judging it: the same for demo and replay."""

import time

from rich.console import Console

from simulator.cloud.process import ProcessEnded, TooLate
from simulator.cloud.schedule import Schedule
from simulator.cloud.synthetic import leads
from simulator.harness import ProcessesLeft
from simulator.outcome import Outcome, shortcomings, strain
from simulator.promise import Costs, observed_costs
from simulator.stage import Act, play, workplace


async def run_act(act: Act, console: Console, prefix: str, *, keep: bool, invite: bool = False) -> Outcome:
    """Play an act and judge it. A directory named after `prefix` stays where it failed, or where `keep` says so.

    `invite` shows the address of the status page meanwhile.
    """
    started, shortest = time.monotonic(), _shortest_lead(act.scene.schedule)
    with workplace(prefix, console) as place:
        async with strain() as late:
            try:
                played = await play(act.scene, place.root, console, invite=invite)
            except (ProcessEnded, TooLate, ProcessesLeft) as error:
                took = time.monotonic() - started
                return Outcome(act.name, None, (str(error),), Costs(0.0, 0.0), shortest, late.longest, took)
        costs = observed_costs(played.events)
        broken = () if played.broken is None else (played.broken,)
        wrong = (*broken, *shortcomings(played.verdict, costs, shortest))
        took = time.monotonic() - started
        place.keep = keep or bool(wrong)
    return Outcome(act.name, played.verdict, wrong, costs, shortest, late.longest, took)


def _shortest_lead(schedule: Schedule) -> float:
    return min(leads(schedule), default=float("inf"))
