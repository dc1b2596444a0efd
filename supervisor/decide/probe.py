"""Resuming a job though no node has room for it: some capacity only appears for pods that wait for it.

Autoscaled pools and virtual nodes are such. The pods wait for a bounded time and are suspended again if nothing came.
"""

from supervisor.decide.policy import Policy
from supervisor.domain.job import Decision, SupervisedJob

_MAX_DOUBLINGS = 5


def probe_at(decision: Decision, policy: Policy) -> float:
    """When a job that waits may try: after the pause, after twice, four times as long, and so on, since it waits.

    From 32 pauses on every 16 pauses: a job that has waited for days should not wait for more days.
    """
    doublings = min(decision.failed_resumes, _MAX_DOUBLINGS)
    pauses = (1 << doublings) + 16 * (decision.failed_resumes - doublings)
    return max((decision.waiting_since or 0.0) + pauses * policy.probe_seconds, decision.not_before or 0.0)


def probe_size(job: SupervisedJob) -> int:
    """All that was asked for and the least that is enough take turns: there may be some of it and never all."""
    return job.spec.start_workers if job.decision.failed_resumes % 2 else job.spec.requested_workers
