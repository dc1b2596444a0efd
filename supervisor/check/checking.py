"""Applies all rules to a job."""

from collections.abc import Sequence

from supervisor.check.finding import Facts, Finding
from supervisor.check.job import CheckedJob
from supervisor.check.registry import RULES

NO_FACTS = Facts()


def check(job: CheckedJob, facts: Facts = NO_FACTS) -> Sequence[Finding]:
    """What would go wrong at a reclaim of the job, the worst first."""
    found = [
        Finding(rule=rule.id, severity=rule.severity, job=str(job), where=one.where, problem=one.what, fix=one.fix)
        for rule in RULES
        for one in rule.look(job, facts)
    ]
    return sorted(found, key=lambda each: each.severity.rank)
