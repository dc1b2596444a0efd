"""Applies all rules to a job. The page docs/guide/check.md lists them in this order."""

from collections.abc import Sequence

from supervisor.check.job import NO_FACTS, CheckedFacts, CheckedJob, CheckRule, FindingSeverity, JobFinding
from supervisor.check.rules import losses, saving, size

RULES: tuple[CheckRule, ...] = (
    saving.kind_not_supervised,
    saving.not_opted_in,
    saving.pods_not_opted_in,
    saving.annotation_ignored,
    saving.hub_undid_suspension,
    saving.grace_too_short,
    saving.save_grace_too_short,
    saving.flag_not_read,
    saving.no_rank_zero,
    saving.rank_unknown,
    saving.checkpoint_on_node,
    losses.exit_code_hidden,
    losses.one_success_ends_job,
    losses.loss_fails_job,
    losses.worker_not_replaced,
    losses.failure_is_final,
    losses.no_retries,
    losses.no_torchrun_restarts,
    losses.eviction_counts,
    losses.eviction_fails_job,
    losses.eviction_restarts_job,
    losses.preemption_ends_processes,
    size.rendezvous_standalone,
    size.rendezvous_store_on_worker,
    size.rendezvous_notices_late,
    size.fixed_processes,
    size.fixed_nodes,
    size.static_hosts,
    size.slots_unknown,
    size.no_room_to_shrink,
    size.gang_above_minimum,
    size.launcher_on_spot,
)


def check(job: CheckedJob, facts: CheckedFacts = NO_FACTS) -> Sequence[JobFinding]:
    """Returns what would go wrong at a reclaim of the job, the worst first."""
    found = [
        JobFinding(rule=rule.id, severity=rule.severity, job=str(job), where=one.where, problem=one.what, fix=one.fix)
        for rule in RULES
        for one in rule.look(job, facts)
    ]
    return sorted(found, key=lambda each: list(FindingSeverity).index(each.severity))
