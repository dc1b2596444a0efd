"""All rules: one line each. The page docs/guide/check.md lists them in this order."""

from supervisor.check.finding import Rule
from supervisor.check.rules import evictions, exits, grace, opting_in, placement, rendezvous, restarts, size, storage

RULES: tuple[Rule, ...] = (
    opting_in.kind_not_supervised,
    opting_in.not_opted_in,
    opting_in.pods_not_opted_in,
    grace.grace_too_short,
    grace.save_grace_too_short,
    grace.flag_not_read,
    storage.checkpoint_on_node,
    exits.exit_code_hidden,
    exits.one_success_ends_job,
    restarts.loss_fails_job,
    restarts.worker_not_replaced,
    restarts.failure_is_final,
    restarts.no_retries,
    restarts.no_torchrun_restarts,
    evictions.eviction_counts,
    evictions.eviction_fails_job,
    evictions.eviction_restarts_job,
    rendezvous.rendezvous_standalone,
    rendezvous.rendezvous_store_on_worker,
    rendezvous.rendezvous_notices_late,
    size.fixed_processes,
    size.fixed_nodes,
    size.static_hosts,
    size.no_room_to_shrink,
    placement.launcher_on_spot,
)
