"""The scenarios of `python -m simulator replay`: recorded and synthetic capacity, each with a demanding job."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from simulator.cloud.schedule import KillNode, ReclaimSchedule, ScheduledNotice, SchedulePace, plan
from simulator.cloud.shorten import shortened, topped_up
from simulator.cloud.synthetic import (
    AGREED_MINIMUM,
    AGREED_MULTIPLE,
    AGREED_NODES,
    HARD_MINIMUM,
    HARD_NODES,
    SHORT_MINIMUM,
    SHORT_NODES,
    Rates,
    agreed,
    fixed_rate,
    hard,
    short,
)
from simulator.cloud.trace import DEFAULT_TRACE, Node, TraceCut, cut, load
from simulator.guarantees import GuaranteeCosts, validate_schedule
from simulator.job import JobFault
from simulator.runner import ReplayScenario, enough_steps, fault_arguments
from simulator.services import ServedJobPlan

# With a lead of 7.5 s on the clock, a group is collected before the margin of 5 s, which would cut its window short:
# announced times are whole seconds, polls are 1 s apart, and the members of a group come within 0.2 s.
CLOCK_LEAD_SECONDS = 7.5
LEADS = (30.0, 120.0)
# In leads: the next group is noticed while the nodes of the last one are reclaimed.
GAP_LEADS = 0.8
STEP_SECONDS = 0.2
# The recording has at most 24 nodes, drops below ten four times, and ends with five.
TRACE_MIN, TRACE_MAX = 10, 24
# This piece starts with ten nodes, loses two and one, and gains two: a shrink, a STOP, a resume and a growth.
CI_FROM, CI_TO, CI_MIN, CI_MAX = 18840.0, 20160.0, 8, 12
# Sixteen nodes in groups of up to four. With a minimum of 13, a large group or two small ones mean STOP.
RATES, RATES_MIN, RATES_MAX = Rates(), 13, 16
# As short as possible: one of three nodes is reclaimed, with a shorter lead than a group would need.
TINY_MIN, TINY_MAX, TINY_LEAD = 2, 3, 8.0


class ScenarioPart(StrEnum):
    """The selection of scenarios."""

    ALL = "all"
    """AGREED, TRACE, RATES and HARD."""
    TRACE = "trace"
    """The whole recording, once per lead."""
    RATES = "rates"
    """Removals at a fixed rate, once per seed."""
    HARD = "hard"
    """Events at the worst moments, once per seed."""
    CI = "ci"
    """A short piece of the recording per lead: a shrink, a suspension and a resume."""
    SHORT = "short"
    """Synthetic: a shrink, a withdrawal, an arrival, a suspension, and a resume while another host has a notice."""
    AGREED = "agreed"
    """Synthetic: a job that trains with two, four or six hosts, and whose ranks all save at one agreed step."""
    TINY = "tiny"
    """One removal, as a smoke test."""


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """Options of a replay. `gap` is in seconds of the trace, `speed` in trace seconds per second on the clock."""

    part: ScenarioPart = ScenarioPart.ALL
    trace: Path = DEFAULT_TRACE
    seeds: tuple[int, ...] = (1, 2, 3)
    leads: tuple[float, ...] = LEADS
    gap: float | None = None
    speed: float | None = None
    step_seconds: float = STEP_SECONDS
    fault: JobFault | None = None


def scenarios(options: ScenarioOptions, costs: GuaranteeCosts) -> list[ReplayScenario]:
    """Return the selected scenarios in order.

    Raises:
        TraceError: The trace cannot be read.
        ScheduleError: A notice would come too late for the guarantees, or the job could not finish.
    """
    chosen = list(_scenarios(options, costs))
    for scenario in chosen:
        validate_schedule(scenario.schedule, scenario.job.min_workers, costs)
    return chosen


def _scenarios(options: ScenarioOptions, costs: GuaranteeCosts) -> Iterator[ReplayScenario]:
    match options.part:
        case ScenarioPart.ALL:
            yield _agreed(options)
            yield from _recorded(options, costs)
            yield from _fixed_rate(options, costs)
            yield from _hard(options)
        case ScenarioPart.TRACE:
            yield from _recorded(options, costs)
        case ScenarioPart.RATES:
            yield from _fixed_rate(options, costs)
        case ScenarioPart.HARD:
            yield from _hard(options)
        case ScenarioPart.CI:
            yield from _piece(options, costs)
        case ScenarioPart.SHORT:
            yield _scenario("short", short(), SHORT_MINIMUM, SHORT_NODES, options)
        case ScenarioPart.AGREED:
            yield _agreed(options)
        case ScenarioPart.TINY:
            yield _tiny(options)


def _recorded(options: ScenarioOptions, costs: GuaranteeCosts) -> Iterator[ReplayScenario]:
    records = load(options.trace)
    whole = cut(records, 0.0, max((record.at for record in records), default=0.0))
    for lead in options.leads:
        schedule = _paced(whole, TRACE_MIN, options, _pace(lead, options, costs))
        yield _scenario(f"whole trace, lead {lead:g} s", schedule, TRACE_MIN, TRACE_MAX, options)


def _piece(options: ScenarioOptions, costs: GuaranteeCosts) -> Iterator[ReplayScenario]:
    piece = cut(load(options.trace), CI_FROM, CI_TO)
    for lead in options.leads:
        schedule = _paced(piece, CI_MIN, options, _pace(lead, options, costs))
        yield _scenario(f"piece of the trace, lead {lead:g} s", schedule, CI_MIN, CI_MAX, options)


def _fixed_rate(options: ScenarioOptions, costs: GuaranteeCosts) -> Iterator[ReplayScenario]:
    for number, seed in enumerate(options.seeds):
        lead = options.leads[number % len(options.leads)]
        schedule = _paced(fixed_rate(RATES, seed), RATES_MIN, options, _pace(lead, options, costs, seed))
        yield _scenario(f"fixed rate, seed {seed}, lead {lead:g} s", schedule, RATES_MIN, RATES_MAX, options)


def _hard(options: ScenarioOptions) -> Iterator[ReplayScenario]:
    for seed in options.seeds:
        yield _scenario(f"hard, seed {seed}", hard(seed), HARD_MINIMUM, HARD_NODES, options)


def _agreed(options: ScenarioOptions) -> ReplayScenario:
    scenario = _scenario("agreed", agreed(), AGREED_MINIMUM, AGREED_NODES, options)
    return replace(scenario, job=replace(scenario.job, worker_multiple=AGREED_MULTIPLE, agrees=True))


def _tiny(options: ScenarioOptions) -> ReplayScenario:
    present = tuple(Node(f"node{number}") for number in range(1, TINY_MAX + 1))
    steps = (ScheduledNotice(0.1, present[-1], TINY_LEAD, "only"), KillNode(0.1 + TINY_LEAD, present[-1]))
    return _scenario("tiny", ReclaimSchedule(present, steps, steps[-1].at), TINY_MIN, TINY_MAX, options)


def _pace(lead: float, options: ScenarioOptions, costs: GuaranteeCosts, seed: int = 1) -> SchedulePace:
    speed = options.speed or lead / CLOCK_LEAD_SECONDS
    return SchedulePace(speed, lead, seed, withdrawal=False, least=costs.minimum_lead)


def _paced(whole: TraceCut, minimum: int, options: ScenarioOptions, pace: SchedulePace) -> ReclaimSchedule:
    gap = options.gap or GAP_LEADS * pace.lead
    return plan(topped_up(shortened(whole, gap), minimum, gap), pace)


def _scenario(
    name: str, schedule: ReclaimSchedule, minimum: int, most: int, options: ScenarioOptions
) -> ReplayScenario:
    job = ServedJobPlan(
        min_workers=minimum,
        max_workers=most,
        steps=enough_steps(schedule, minimum, options.step_seconds),
        step_seconds=options.step_seconds,
        seed=options.seeds[0],
        job_arguments=fault_arguments(options.fault),
    )
    return ReplayScenario(name, schedule, job)
