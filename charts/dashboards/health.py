"""Whether everybody is protected, and whether the protection itself is well."""

from charts.dashboards.frame import Page, Section
from charts.dashboards.panels import Query, Says, areas, bars, lines, number, rows, states
from charts.dashboards.queries import each, rate, rate_quantile, total

_UNCOVERED = "job_supervisor_uncovered_workers"
_REFUSED = "job_supervisor_refused_total"


def page() -> Page:
    """The dashboard."""
    about = "Whether all workers would be warned, how old what is known of nodes is, refusals, the store, the leader."
    return Page(
        "health", "Elastic jobs: health", about, (_now(), _coverage(), _agents(), _supervisor(), _on_a_cluster())
    )


def _now() -> Section:
    return Section(
        "Now",
        (
            number(
                Says("Leaders", "Supervisors that lead, of each installation: one, always."),
                Query("sum by (cluster, namespace, job) (job_supervisor_leader)", "{{cluster}} {{namespace}} {{job}}"),
                good_from=1,
                bad_from=2,
            ),
            number(Says("Agents", "Connected now."), Query('sum(job_supervisor_agents{state="connected"})', "")),
            number(
                Says(
                    "Agents unknown",
                    "Of the nodes that are not known to be reclaimed, those whose agent is silent. Nodes that were "
                    "removed without a notice count for a day.",
                    "percentunit",
                ),
                Query(
                    'sum(job_supervisor_agents{state="unknown"}) '
                    '/ (sum(job_supervisor_agents{state=~"connected|unknown"}) > 0)',
                    "",
                ),
                bad_from=0.5,
            ),
            number(Says("Workers", "Hosts of running jobs."), Query("sum(job_supervisor_workers)", "")),
            number(
                Says("Workers uncovered", "Without a live agent, or without a stream of the training process."),
                Query(f"max(sum by (missing) ({_UNCOVERED}))", ""),
                bad_from=1,
            ),
            number(
                Says("Store failures", "In the time that is shown."),
                Query(total("job_supervisor_store_failures_total"), ""),
                bad_from=1,
            ),
        ),
    )


def _coverage() -> Section:
    return Section(
        "Coverage",
        (
            lines(
                Says("Workers uncovered", "Of the hosts of running jobs, those that nobody would warn."),
                Query(f"sum by (missing) ({_UNCOVERED})", "no {{missing}}"),
                Query("sum(job_supervisor_workers)", "all"),
            ),
            areas(
                Says("Sources", "What each source of each agent says. Unknown is not clear."),
                Query("sum by (source, state) (job_supervisor_agent_sources)", "{{source}} {{state}}"),
            ),
            areas(
                Says("Agents", "Those the supervisor knows."),
                Query("sum by (state) (job_supervisor_agents)", "{{state}}"),
            ),
            lines(Says("Streams", "Open at the leader."), Query("sum by (peer) (job_supervisor_streams)", "{{peer}}")),
        ),
    )


def _agents() -> Section:
    return Section(
        "Node agents",
        (
            lines(
                Says("Age of answers", "Since the last usable answer of a source: the longest, and p99.", "s"),
                Query("max by (source) (node_agent_poll_age_seconds)", "max, {{source}}"),
                Query("quantile by (source) (0.99, node_agent_poll_age_seconds)", "p99, {{source}}"),
            ),
            lines(
                Says("Answers", "By what they say, a second.", "ops"),
                Query(rate("node_agent_polls_total", ["source", "result"]), "{{source}} {{result}}"),
            ),
            lines(
                Says("Time of a poll, p99", "Until the metadata service has answered.", "s"),
                Query(rate_quantile(0.99, "node_agent_poll_seconds", ["source"]), "{{source}}"),
            ),
            lines(
                Says("Report to acknowledgement, p99", "Until what an agent reports is durable.", "s"),
                Query(rate_quantile(0.99, "node_agent_acknowledgement_seconds"), "all"),
            ),
            lines(
                Says("Connections", "Agents that are connected, by their own word, and connections made."),
                Query("sum(node_agent_connected)", "connected"),
                Query(each("node_agent_connections_total"), "made"),
            ),
            lines(
                Says("Reports", "Not acknowledged yet, and made."),
                Query("sum(node_agent_outbox_reports)", "waiting"),
                Query(each("node_agent_reports_total", ["announcement"]), "made, {{announcement}}"),
            ),
        ),
    )


def _supervisor() -> Section:
    leads = (("0", "stands by", "blue"), ("1", "leads", "green"))
    return Section(
        "Supervisor",
        (
            states(
                Says("Who leads", "Each supervisor, over time."),
                Query("max by (instance) (job_supervisor_leader)", "{{instance}}"),
                leads,
            ),
            rows(
                Says("Versions", "Of all that run."),
                Query(
                    'count by (version, job) ({__name__=~"job_supervisor_build_info|node_agent_build_info"})',
                    "",
                ),
            ),
            lines(
                Says("Store, p99", "Until a change is durable, by operation.", "s"),
                Query(rate_quantile(0.99, "job_supervisor_store_seconds", ["operation"]), "{{operation}}"),
            ),
            lines(
                Says("Store failures and waiting notices", "What could not be made durable."),
                Query(each("job_supervisor_store_failures_total", ["operation"]), "failed, {{operation}}"),
                Query("sum(job_supervisor_unconfirmed_notices)", "notices waiting"),
            ),
            bars(
                Says("Refused", "Messages that were refused, by where they came and why."),
                Query(each(_REFUSED, ["wire", "code"]), "{{wire}} {{code}}"),
            ),
            lines(
                Says("Records dropped", "Changes that metrics, Events and the page have not heard of; decisions have."),
                Query(each("job_supervisor_journal_dropped_total"), "dropped"),
            ),
        ),
    )


def _on_a_cluster() -> Section:
    return Section(
        "On a cluster",
        (
            lines(
                Says("Webhook, p99", "Until a new pod has its answer.", "s"),
                Query(rate_quantile(0.99, "job_supervisor_webhook_seconds"), "all"),
            ),
            bars(
                Says("Webhook", "Reviews of new pods by what came of them."),
                Query(each("job_supervisor_webhook_reviews_total", ["outcome"]), "{{outcome}}"),
            ),
            bars(
                Says("Kubernetes Events", "By what became of them."),
                Query(each("job_supervisor_kubernetes_events_total", ["outcome"]), "{{outcome}}"),
                width=24,
            ),
        ),
    )
