"""Growing while it runs, of a job that was resumed smaller and whose hosts an operator makes: it is asked to add some.

The operator has its own time for that, and what it has added are the job's hosts as soon as they are listed. So a try
ends with them or with its time, and nothing depends on the operator's word.
"""

from dataclasses import replace

from supervisor.decide.policy import Policy
from supervisor.decide.reasons import growing, grown, growth_failed
from supervisor.decide.situation import Situation
from supervisor.domain.job import Decision, Growth

_MAX_DOUBLINGS = 5


def grown_by_operator(s: Situation, before: Decision) -> Decision:
    """The next step of a run that goes on and from which no host is taken."""
    growth = before.growing
    if growth is not None:
        return _asked(s, before, growth)
    if not s.policy.growth_delay_seconds or not s.view.more or before.exclusions:
        return replace(before, capacity_since=None)
    before = replace(before, capacity_since=s.now if before.capacity_since is None else before.capacity_since)
    if s.now < grows_at(before, s.policy):
        return before
    workers = len(before.hosts) + s.view.more
    growth = Growth(
        workers=workers,
        number=s.stored.generation + 1,
        until=s.now + s.policy.resume_timeout_seconds,
        failed=0 if before.growth is None else before.growth.failed,
    )
    return replace(before, growth=growth, capacity_since=None, reason=growing(workers, s.job.spec))


def grows_at(decision: Decision, policy: Policy) -> float:
    """When room has lasted for long enough, and the last try was long enough ago."""
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
