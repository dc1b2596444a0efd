"""Growth of a running job that was resumed smaller and whose controller makes its hosts.

The controller is asked to add workers, and they are the job's as soon as it lists them. An attempt ends when they are
listed or when its time is over, so nothing depends on an answer of the controller.
"""

from dataclasses import replace

from supervisor.decide.policy import Policy
from supervisor.decide.reasons import growing, grown, growth_failed
from supervisor.decide.situation import Situation
from supervisor.domain.job import Decision, Growth

_MAX_DOUBLINGS = 5


def grown_by_operator(s: Situation, before: Decision) -> Decision:
    """The next decision about growth, for a run that loses no hosts."""
    growth = before.growing
    if growth is not None:
        return _asked(s, before, growth)
    if not s.policy.growth_delay_seconds or not s.facts.more or before.exclusions & s.unusable:
        return replace(before, capacity_since=None)
    before = replace(before, capacity_since=s.now if before.capacity_since is None else before.capacity_since)
    if s.now < grows_at(before, s.policy):
        return before
    workers = len(before.hosts) + s.facts.more
    growth = Growth(
        workers=workers,
        number=s.stored.generation + 1,
        until=s.now + s.policy.resume_timeout_seconds,
        failed=0 if before.growth is None else before.growth.failed,
    )
    return replace(before, growth=growth, capacity_since=None, reason=growing(workers, s.job.spec))


def grows_at(decision: Decision, policy: Policy) -> float:
    """The instant at which room has lasted long enough and the last attempt was long enough ago."""
    since = decision.capacity_since or 0.0
    return max(since + policy.growth_delay_seconds, 0.0 if decision.growth is None else decision.growth.until)


def _asked(s: Situation, before: Decision, growth: Growth) -> Decision:
    if len(before.hosts) >= growth.workers:
        return replace(before, growth=None, reason=grown(len(before.hosts), s.job.spec))
    if s.now < growth.until:
        return before
    pause = s.policy.growth_delay_seconds * 2 ** min(growth.failed + 1, _MAX_DOUBLINGS)
    waits = replace(growth, workers=0, until=s.now + pause, failed=growth.failed + 1)
    return replace(before, growth=waits, reason=growth_failed(growth.workers, len(before.hosts)))
