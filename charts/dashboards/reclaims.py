"""The dashboard for reclaims, lead times and losses."""

from charts.dashboards.frame import DashboardPage, Section
from charts.dashboards.panels import PanelText, Query, areas, bars, lines, number, rows
from charts.dashboards.queries import POOL, POOL_LEGEND, each, each_quantile, rate, total, total_quantile

_NOTICES = "job_supervisor_notices_total"
_RECLAIMS = "job_supervisor_reclaims_total"
_LEAD = "job_supervisor_notice_lead_seconds"
_MARGIN = "job_supervisor_acknowledgement_margin_seconds"
_TOO_LATE = f'{_MARGIN}_bucket{{le=~"0|0.0"}}'
_IN_TIME = f"{total(f'{_MARGIN}_count')} - {total(_TOO_LATE)}"
_IN_TIME_EACH = f"{each(f'{_MARGIN}_count')} - {each(_TOO_LATE)}"
_DRILL = "The source `simulated` is a drill."


def page() -> DashboardPage:
    about = "Reclaims by source, zone, instance type and capacity pool, their lead times, and saved and lost work."
    return DashboardPage(
        "reclaims", "Elastic jobs: reclaim events", about, (_now(), _timeline(), _pools(), _decided(), _costs())
    )


def _now() -> Section:
    return Section(
        "In the selected time range",
        (
            number(PanelText("Reclaims", f"Received announcements. {_DRILL}"), Query(total(_RECLAIMS), "")),
            number(
                PanelText("Active", "Nodes and pods that have an active notice now."),
                Query("sum(job_supervisor_active_notices) or 0 * sum(job_supervisor_leader)", ""),
            ),
            number(
                PanelText("Lead time, p50", "Time from a notice's receipt to its deadline.", "s"),
                Query(total_quantile(0.5, _LEAD), ""),
            ),
            number(
                PanelText("Groups", "Groups of reclaims that shrank or stopped a job."),
                Query(total("job_supervisor_groups_total"), ""),
            ),
            number(
                PanelText("Saved in time", "Checkpoints acknowledged before the deadline."),
                Query(_IN_TIME, ""),
            ),
            number(
                PanelText("Steps lost", "Repeated steps of jobs that report their steps."),
                Query(total("job_supervisor_steps_lost_total"), ""),
                bad_from=1,
            ),
        ),
    )


def _timeline() -> Section:
    return Section(
        "Reclaims",
        (
            bars(
                PanelText("By source", f"The source of the announcement. {_DRILL}"),
                Query(each(_RECLAIMS, ["source"]), "{{source}}"),
            ),
            bars(
                PanelText("By zone", "The zone of the node, as its agent or its labels say."),
                Query(each(_RECLAIMS, ["zone"]), "{{zone}}"),
            ),
            bars(
                PanelText("By instance type", "The type of the node's machine, as its agent or its labels say."),
                Query(each(_RECLAIMS, ["instance_type"]), "{{instance_type}}"),
            ),
            rows(
                PanelText("By source, zone and instance type", "All reclaims in the selected time range."),
                Query(total(_RECLAIMS, ["source", "zone", "instance_type"]), ""),
            ),
            lines(
                PanelText(
                    "Lead time",
                    "Time from a notice's receipt to its deadline: p50 and p10.",
                    "s",
                ),
                Query(each_quantile(0.5, _LEAD, ["source"]), "p50, {{source}}"),
                Query(each_quantile(0.1, _LEAD, ["source"]), "p10, {{source}}"),
            ),
            bars(
                PanelText(
                    "Outcome of notices",
                    "Withdrawn: the reclaim was cancelled. Gone: it is gone. Expired: it was never reclaimed.",
                ),
                Query(each(_NOTICES, ["outcome"]), "{{outcome}}"),
            ),
        ),
    )


def _pools() -> Section:
    return Section(
        "Capacity pools",
        (
            bars(
                PanelText("Reclaims by pool", f"Received announcements. {_DRILL}"),
                Query(each(_RECLAIMS, POOL), POOL_LEGEND),
            ),
            bars(
                PanelText("Hosts gone by pool", "Hosts of jobs that wanted workers, with a notice before or without."),
                Query(
                    each("job_supervisor_pool_hosts_gone_total", [*POOL, "noticed"]),
                    f"{POOL_LEGEND}, notice: {{{{noticed}}}}",
                ),
            ),
            areas(
                PanelText("Workers held by pool", "Workers that jobs hold, by the machines that they are on."),
                Query(
                    rate("job_supervisor_pool_worker_seconds_total", [*POOL, "price_class"]),
                    f"{POOL_LEGEND}, {{{{price_class}}}}",
                ),
            ),
            rows(
                PanelText("Days of a worker for each host that went", "In the selected time range."),
                Query(
                    f"{total('job_supervisor_pool_worker_seconds_total', POOL)} / 86400 "
                    f"/ ({total('job_supervisor_pool_hosts_gone_total', POOL)} > 0)",
                    "",
                ),
            ),
        ),
    )


def _decided() -> Section:
    return Section(
        "Decisions",
        (
            bars(
                PanelText("Groups", "Reclaims handled together: the job shrank, or stopped with a checkpoint."),
                Query(each("job_supervisor_groups_total", ["outcome"]), "{{outcome}}"),
            ),
            lines(
                PanelText("Excluded hosts", "Hosts that launchers exclude now, and new exclusions."),
                Query("sum(job_supervisor_excluded_hosts)", "excluded"),
                Query(each("job_supervisor_exclusions_total"), "new"),
            ),
            lines(
                PanelText(
                    "Notice to decision, p99", "Time to the decision. A shrink waits for the rest of its group.", "s"
                ),
                Query(each_quantile(0.99, "job_supervisor_notice_to_decision_seconds", ["decision"]), "{{decision}}"),
                exemplars=True,
            ),
            lines(
                PanelText(
                    "Notice to directive, p99", "Time until the directive is on a training process's stream.", "s"
                ),
                Query(
                    each_quantile(0.99, "job_supervisor_notice_to_directive_seconds", ["directive"]), "{{directive}}"
                ),
                exemplars=True,
            ),
        ),
    )


def _costs() -> Section:
    return Section(
        "Saved and lost",
        (
            bars(
                PanelText("Checkpoints", "Checkpoints saved before the deadline, or too late."),
                Query(_IN_TIME_EACH, "saved in time"),
                Query(each("job_supervisor_late_stops_total"), "too late"),
            ),
            bars(
                PanelText("Steps lost", "Repeated steps of jobs that report their steps."),
                Query(each("job_supervisor_steps_lost_total"), "steps"),
            ),
        ),
    )
