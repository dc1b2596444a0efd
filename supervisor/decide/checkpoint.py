"""When a run is asked for a checkpoint although it continues: for a hint, and before a scheduled notice is acted on."""

import math
from collections.abc import Iterator
from dataclasses import replace

from supervisor.decide.classes import checkpoint_at
from supervisor.decide.reasons import saving
from supervisor.decide.situation import Situation
from supervisor.domain.ids import Host
from supervisor.domain.job import CheckpointRequest, Decision, Phase
from supervisor.domain.notice import ReclaimNotice


def with_checkpoint(s: Situation, decision: Decision) -> Decision:
    """The decision with a request for a checkpoint if a notice on a host of the run asks for one for the first time.

    A request covers every notice up to a pause after it, and so does not have to remember them: a group of hints costs
    one request, and no write for each.
    """
    if not _is_steady(s, decision) or not s.job.observed.running or not s.facts.ahead:
        return decision
    covered = -math.inf
    if decision.checkpoint is not None:
        covered = decision.checkpoint.since + s.policy.checkpoint_pause_seconds
    asking = {host: each for host, each in _ahead(s, decision) if covered < checkpoint_at(each, s.policy) <= s.now}
    if not asking:
        return decision
    # Rounded to the store's precision, so that the stored request still covers the notice that it was made for.
    request = CheckpointRequest(run=decision.run, generation=s.stored.generation, since=round(s.now, 6))
    return replace(decision, checkpoint=request, reason=saving(asking))


def _is_steady(s: Situation, decision: Decision) -> bool:
    """Whether the hosts do not change within a moment."""
    until = decision.window_until
    return decision.phase is Phase.RUNNING and (until is None or s.now < until - s.policy.window_seconds)


def _ahead(s: Situation, decision: Decision) -> Iterator[tuple[Host, ReclaimNotice]]:
    hosts, launcher = s.present - decision.exclusions, s.job.spec.launcher_host
    for host in sorted(hosts if launcher is None else hosts | {launcher}):
        for notice in s.facts.ahead.get(host, ()):
            yield host, notice
