"""Prints what jobs have trained beside what other ways to handle the same reclaims would have trained."""

import asyncio
from dataclasses import asdict

from job_supervisor.cli.output import Block, Table
from supervisor.domain.worker_time import hours
from supervisor.goodput.comparison import Comparison, RecordedJobs, assumptions, compare, remarks, shown, summary


async def compared(recorded: RecordedJobs) -> tuple[list[Block], object]:
    """Returns the comparison for people and for programs."""
    found = await asyncio.to_thread(compare, recorded)
    return _for_people(found), _for_programs(found) if found.rows else None


def _for_programs(found: Comparison) -> object:
    return {
        "jobs": found.jobs,
        "jobs_left_out": asdict(found.left_out),
        "costs": {
            name: {"seconds": seconds, "measured": name in found.measured} for name, seconds in found.all_costs.items()
        },
        "in_process": None if found.costs is None else found.costs.in_process,
        "known_seconds": found.known_seconds,
        "cut": found.cut,
        "skipped": [*found.skipped],
        "policies": [
            {**asdict(row), "effective_training_time_ratio": asdict(row.share) if row.share else None}
            for row in found.rows
        ],
    }


def _for_people(found: Comparison) -> list[Block]:
    if not found.rows:
        return ["", summary(found), *remarks(found)]
    rows = [
        (
            row.policy,
            shown(row.share),
            hours(row.trained),
            str(row.restarts),
            "-" if row.steps_lost is None else f"{row.steps_lost:,.0f}",
            "counted" if row.counted else "simulated",
        )
        for row in found.rows
    ]
    heads = ("THE SAME RECLAIMS WITH", "TRAINING", "TRAINED", "RESTARTS", "STEPS LOST", "")
    return ["", summary(found), "", Table(heads, rows), "", assumptions(found), *remarks(found)]
