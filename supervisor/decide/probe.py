"""Resumes a job without known room, as some capacity, such as autoscaled pools, only appears for pending pods.

The pods wait for a limited time, and the job is suspended again if no capacity appears.
"""

from supervisor.decide.policy import Policy
from supervisor.decide.size import least_to_start
from supervisor.domain.job import Decision, SupervisedJob

_MAX_DOUBLINGS = 5


def probe_at(decision: Decision, policy: Policy) -> float:
    """When a waiting job may probe: after the pause since it waits, after two pauses, four, and so on.

    After 32 pauses, every 16 pauses: a job that has waited for days should not wait for more days.
    """
    doublings = min(decision.failed_resumes, _MAX_DOUBLINGS)
    pauses = (1 << doublings) + 16 * (decision.failed_resumes - doublings)
    return max((decision.waiting_since or 0.0) + pauses * policy.probe_seconds, decision.not_before or 0.0)


def probe_size(job: SupervisedJob) -> int:
    """Alternates between the requested and the minimum size, as only a part of the capacity may appear."""
    return least_to_start(job.spec) if job.decision.failed_resumes % 2 else job.spec.requested_workers
