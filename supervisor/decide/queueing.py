"""The phase Queued: a queue holds the job back, and starts it. The supervisor changes nothing about it."""

from dataclasses import replace

from supervisor.decide.reasons import waiting
from supervisor.decide.situation import Situation
from supervisor.decide.waiting import wait
from supervisor.domain.job import Decision, Phase

_WAITING = (Phase.WAITING, Phase.SUSPENDED)
_WITH_A_RUN = (Phase.RESUMING, Phase.RUNNING, Phase.SHRINKING)


def enters_queue(s: Situation) -> bool:
    """Whether a job without a run is its queue's; what a person asks of the job counts more.

    A queue may also end a run before it can be told to save: its processes then have the grace of their pods.
    """
    observed, phase = s.job.observed, s.previous.phase
    has_no_run = phase in _WAITING or (phase in _WITH_A_RUN and not observed.running)
    return bool(observed.queue) and has_no_run and observed.request is None


def queued(s: Situation) -> Decision:
    """Handles the phase Queued: the job waits for its queue, and then for its controller as before its first run."""
    before, observed = s.previous, s.job.observed
    run = max(before.run, observed.run)
    decision = Decision(generation=before.generation, phase=Phase.QUEUED, reason=observed.queue, run=run)
    decision = replace(decision, epochs=before.epochs, short_runs=before.short_runs)
    if observed.queue and observed.request is None:
        return decision
    admitted = replace(decision, phase=Phase.WAITING, reason=waiting(s.job.spec), waiting_since=s.now)
    return admitted if observed.request is None else wait(replace(s, job=replace(s.job, decision=admitted)))
