"""What is being taken away, how much warning there is, and what that costs."""

from charts.dashboards.frame import Page, Section
from charts.dashboards.panels import Query, Says, bars, lines, number, rows
from charts.dashboards.queries import each, each_quantile, total, total_quantile

_NOTICES = "job_supervisor_notices_total"
_RECLAIMS = "job_supervisor_reclaims_total"
_LEAD = "job_supervisor_notice_lead_seconds"
_MARGIN = "job_supervisor_acknowledgement_margin_seconds"
_TOO_LATE = f'{_MARGIN}_bucket{{le=~"0|0.0"}}'
_IN_TIME = f"{total(f'{_MARGIN}_count')} - {total(_TOO_LATE)}"
_IN_TIME_EACH = f"{each(f'{_MARGIN}_count')} - {each(_TOO_LATE)}"
_DRILL = "The source `simulated` is a drill."


def page() -> Page:
    """The dashboard."""
    about = "Reclaims by source, zone and instance type; how much warning there was; what was saved and what was lost."
    return Page("reclaims", "Elastic jobs: reclaim events", about, (_now(), _timeline(), _decided(), _costs()))


def _now() -> Section:
    return Section(
        "In the time that is shown",
        (
            number(Says("Reclaims", f"Announcements received. {_DRILL}"), Query(total(_RECLAIMS), "")),
            number(
                Says("Under way", "Nodes and pods with an active notice now."),
                Query("sum(job_supervisor_active_notices) or 0 * sum(job_supervisor_leader)", ""),
            ),
            number(
                Says("Lead time, median", "From a notice's receipt to its deadline.", "s"),
                Query(total_quantile(0.5, _LEAD), ""),
            ),
            number(
                Says("Groups", "Groups of reclaims that made a job smaller or stopped it."),
                Query(total("job_supervisor_groups_total"), ""),
            ),
            number(
                Says("Saved in time", "Checkpoints that were acknowledged before the deadline."), Query(_IN_TIME, "")
            ),
            number(
                Says("Steps lost", "Steps that had to be done again, where jobs report them."),
                Query(total("job_supervisor_steps_lost_total"), ""),
                bad_from=1,
            ),
        ),
    )


def _timeline() -> Section:
    return Section(
        "Reclaims",
        (
            bars(Says("By source", f"Who announced them. {_DRILL}"), Query(each(_RECLAIMS, ["source"]), "{{source}}")),
            bars(
                Says("By zone", "By the node's label topology.kubernetes.io/zone."),
                Query(each(_RECLAIMS, ["zone"]), "{{zone}}"),
            ),
            bars(
                Says("By instance type", "By the node's label node.kubernetes.io/instance-type."),
                Query(each(_RECLAIMS, ["instance_type"]), "{{instance_type}}"),
            ),
            rows(
                Says("Where they were", "All of them in the time that is shown."),
                Query(total(_RECLAIMS, ["source", "zone", "instance_type"]), ""),
            ),
            lines(
                Says(
                    "Lead time",
                    "From a notice's receipt to its deadline: the median, and what nine of ten have at least.",
                    "s",
                ),
                Query(each_quantile(0.5, _LEAD, ["source"]), "p50, {{source}}"),
                Query(each_quantile(0.1, _LEAD, ["source"]), "p10, {{source}}"),
            ),
            bars(
                Says(
                    "What became of notices",
                    "Withdrawn: it stays after all. Gone: it was taken. Expired: nobody took it.",
                ),
                Query(each(_NOTICES, ["outcome"]), "{{outcome}}"),
            ),
        ),
    )


def _decided() -> Section:
    return Section(
        "Decisions",
        (
            bars(
                Says("Groups", "Reclaims that came together: the job went on smaller, or stopped with a checkpoint."),
                Query(each("job_supervisor_groups_total", ["outcome"]), "{{outcome}}"),
            ),
            lines(
                Says("Hosts left out", "Hosts that launchers do not use now, and those newly left out."),
                Query("sum(job_supervisor_excluded_hosts)", "left out"),
                Query(each("job_supervisor_exclusions_total"), "newly"),
            ),
            lines(
                Says("Notice to decision, p99", "A shrink waits for the rest of its group.", "s"),
                Query(each_quantile(0.99, "job_supervisor_notice_to_decision_seconds", ["decision"]), "{{decision}}"),
                exemplars=True,
            ),
            lines(
                Says("Notice to directive, p99", "Until a training process's stream has it.", "s"),
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
                Says("Checkpoints", "In time, or not before the deadline."),
                Query(_IN_TIME_EACH, "saved in time"),
                Query(each("job_supervisor_late_stops_total"), "too late"),
            ),
            bars(
                Says("Steps lost", "Steps that had to be done again, where jobs report them."),
                Query(each("job_supervisor_steps_lost_total"), "steps"),
            ),
        ),
    )
