"""Decides when further hosts join a run, whose processes all stop for that: for a restart, or a moment. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from supervisor.decide.ranks import ChangeCosts
from supervisor.decide.reasons import be, count, named, running
from supervisor.decide.situation import Situation
from supervisor.domain.ids import Host, Instant
from supervisor.domain.job import Decision

_CHECKPOINT_SECONDS = 5.0
_START_SECONDS = 30.0
"""Assumed until a process of the job has measured them."""

_CHANGE_SECONDS = 2.0
"""Assumed of a change in process until one was measured: 0.3 s with small states, and a few seconds with large ones."""

_READY = " ready; joining costs "
"""Marks the reason of a run for which hosts wait."""


def restart_seconds(costs: ChangeCosts) -> float:
    """How long a change of hosts by a restart stops a run: for a checkpoint, and for the start of all processes."""
    checkpoint = _CHECKPOINT_SECONDS if costs.checkpoint_seconds is None else costs.checkpoint_seconds
    return checkpoint + (_START_SECONDS if costs.start_seconds is None else costs.start_seconds)


def _seconds_in_process(costs: ChangeCosts) -> float:
    """How long a change of hosts in process stops a run."""
    return _CHANGE_SECONDS if costs.change_seconds is None else costs.change_seconds


def join_now(
    s: Situation, decision: Decision, workers: int, waiting: Mapping[Host, Instant], *, in_process: bool
) -> bool:
    """Whether hosts that wait since these instants now join a run of `workers` workers from which no host leaves now.

    In process they do, unless others are to leave soon: if they wait less for that, together, than a change of their
    own would stop the workers, both are one change. The moment is planned, so there is nothing to be guessed.
    """
    if not in_process:
        return s.reached(_pays_at(s, workers, waiting))
    leave = decision.window_until
    stop = workers * _seconds_in_process(s.facts.ranks.costs)
    return leave is None or not s.reached(leave - stop / len(waiting))


def _pays_at(s: Situation, workers: int, waiting: Mapping[Host, Instant]) -> float:
    """When hosts that wait since these instants join by a restart, if no host leaves before.

    By then they have waited for as long, together, as their joining stops the workers. A change because of a host that
    leaves takes them in without a stop of its own. As nobody knows when that comes, no rule can promise less than twice
    the least loss, and this one promises that. Hosts that come one after the other are taken in together.
    """
    due = (workers * restart_seconds(s.facts.ranks.costs) + sum(waiting.values())) / len(waiting)
    return max(due, max(waiting.values()) + s.policy.resume_delay_seconds)


def gathered(s: Situation, decision: Decision, workers: int, waiting: Mapping[Host, Instant]) -> Decision:
    """Returns the decision of a run that hosts wait to join, with what they wait for as its reason."""
    ready = f"{named(waiting)} {be(waiting)}{_READY}"
    if decision.reason.startswith(ready):
        return decision  # What processes measure changes a little all the time.
    seconds = restart_seconds(s.facts.ranks.costs)
    pays = f"{workers * seconds / len(waiting):.0f} s"
    reason = f"{ready}{count(workers)} about {seconds:.0f} s: they join when another host leaves, or after {pays}."
    return replace(decision, reason=reason)


def without_gathering(decision: Decision, run: int) -> Decision:
    """Returns the decision without a reason that says that hosts wait to join."""
    if _READY not in decision.reason:
        return decision
    return replace(decision, reason=running(run, len(decision.hosts - decision.exclusions)))
