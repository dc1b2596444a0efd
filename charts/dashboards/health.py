"""The dashboard for coverage and for the health of the supervisor and its agents."""

from charts.dashboards.frame import DashboardPage, Section
from charts.dashboards.panels import PanelText, Query, areas, bars, lines, number, rows, states
from charts.dashboards.queries import each, rate, rate_quantile, total

_UNCOVERED = "job_supervisor_uncovered_workers"
_REFUSED = "job_supervisor_refused_total"
_FILLED = "state_keeper_bytes / (state_keeper_capacity_bytes > 0)"


def page() -> DashboardPage:
    about = "Coverage of the workers, age of the data about nodes, refusals, the store, the leader, and state keepers."
    sections = (_now(), _coverage(), _agents(), _supervisor(), _on_a_cluster(), _keepers())
    return DashboardPage("health", "Elastic jobs: health", about, sections)


def _now() -> Section:
    return Section(
        "Now",
        (
            number(
                PanelText(
                    "Leaders",
                    "Leading supervisors of each installation. It must always be one.",
                    runbook="JobSupervisorNoLeader",
                ),
                Query("sum by (cluster, namespace, job) (job_supervisor_leader)", "{{cluster}} {{namespace}} {{job}}"),
                good_from=1,
                bad_from=2,
            ),
            number(
                PanelText("Agents", "Agents that are connected now."),
                Query('sum(job_supervisor_agents{state="connected"})', ""),
            ),
            number(
                PanelText(
                    "Agents unknown",
                    "Ratio of nodes without a notice whose agent is silent. Nodes that were removed without a notice "
                    "count for one day.",
                    "percentunit",
                    "JobSupervisorAgentsUnknown",
                ),
                Query(
                    'sum(job_supervisor_agents{state="unknown"}) '
                    '/ (sum(job_supervisor_agents{state=~"connected|unknown"}) > 0)',
                    "",
                ),
                bad_from=0.5,
            ),
            number(PanelText("Workers", "Hosts of running jobs."), Query("sum(job_supervisor_workers)", "")),
            number(
                PanelText(
                    "Workers uncovered",
                    "Workers without a live agent, or whose training process has no stream.",
                    runbook="JobSupervisorWorkersUncovered",
                ),
                Query(f"max(sum by (missing) ({_UNCOVERED}))", ""),
                bad_from=1,
            ),
            number(
                PanelText("Store failures", "In the selected time range.", runbook="JobSupervisorStoreFailing"),
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
                PanelText("Workers uncovered", "Hosts of running jobs that would get no warning."),
                Query(f"sum by (missing) ({_UNCOVERED})", "no {{missing}}"),
                Query("sum(job_supervisor_workers)", "all"),
            ),
            areas(
                PanelText("Sources", "State of each source of each agent. Unknown does not mean clear."),
                Query("sum by (source, state) (job_supervisor_agent_sources)", "{{source}} {{state}}"),
            ),
            areas(
                PanelText("Agents", "Agents that the supervisor knows."),
                Query("sum by (state) (job_supervisor_agents)", "{{state}}"),
            ),
            lines(
                PanelText("Streams", "Open streams of the leader."),
                Query("sum by (peer) (job_supervisor_streams)", "{{peer}}"),
            ),
        ),
    )


def _agents() -> Section:
    return Section(
        "Node agents",
        (
            lines(
                PanelText(
                    "Age of answers",
                    "Time since the last usable answer of a source: maximum and p99.",
                    "s",
                    "JobSupervisorPollsOld",
                ),
                Query("max by (source) (node_agent_poll_age_seconds)", "max, {{source}}"),
                Query("quantile by (source) (0.99, node_agent_poll_age_seconds)", "p99, {{source}}"),
                limit=30,
            ),
            lines(
                PanelText("Answers", "Answers per second by result.", "ops"),
                Query(rate("node_agent_polls_total", ["source", "result"]), "{{source}} {{result}}"),
            ),
            lines(
                PanelText("Time of a poll, p99", "Time until the metadata service answers.", "s"),
                Query(rate_quantile(0.99, "node_agent_poll_seconds", ["source"]), "{{source}}"),
            ),
            lines(
                PanelText("Report to acknowledgement, p99", "Time until a report of an agent is durable.", "s"),
                Query(rate_quantile(0.99, "node_agent_acknowledgement_seconds"), "all"),
            ),
            lines(
                PanelText("Connections", "Agents that report a connection, and new connections."),
                Query("sum(node_agent_connected)", "connected"),
                Query(each("node_agent_connections_total"), "made"),
            ),
            lines(
                PanelText("Reports", "Unacknowledged reports, and new reports."),
                Query("sum(node_agent_outbox_reports)", "waiting"),
                Query(each("node_agent_reports_total", ["announcement"]), "made, {{announcement}}"),
            ),
        ),
    )


def _supervisor() -> Section:
    leads = (("0", "standby", "blue"), ("1", "leader", "green"))
    return Section(
        "Supervisor",
        (
            states(
                PanelText("Leader", "State of each supervisor over time."),
                Query("max by (instance) (job_supervisor_leader)", "{{instance}}"),
                leads,
            ),
            rows(
                PanelText("Versions", "Versions of all supervisors, agents and state keepers."),
                Query(
                    "count by (version, job) "
                    "(job_supervisor_build_info or node_agent_build_info or state_keeper_build_info)",
                    "",
                ),
            ),
            lines(
                PanelText("Store, p99", "Time until a change is durable, by operation.", "s"),
                Query(rate_quantile(0.99, "job_supervisor_store_seconds", ["operation"]), "{{operation}}"),
            ),
            lines(
                PanelText("Store failures and waiting notices", "Changes that could not be made durable."),
                Query(each("job_supervisor_store_failures_total", ["operation"]), "failed, {{operation}}"),
                Query("sum(job_supervisor_unconfirmed_notices)", "notices waiting"),
            ),
            bars(
                PanelText("Refused", "Refused messages by wire and reason.", runbook="JobSupervisorRefusals"),
                Query(each(_REFUSED, ["wire", "code"]), "{{wire}} {{code}}"),
            ),
            lines(
                PanelText(
                    "Internal errors",
                    "What nobody foresaw in one job, notice, object or listener, by the part that met it.",
                    runbook="JobSupervisorInternalErrors",
                ),
                Query(each("job_supervisor_internal_errors_total", ["where"]), "{{where}}"),
            ),
        ),
    )


def _on_a_cluster() -> Section:
    return Section(
        "On a cluster",
        (
            lines(
                PanelText("Webhook, p99", "Time to review a new pod.", "s", "JobSupervisorWebhookSlow"),
                Query(rate_quantile(0.99, "job_supervisor_webhook_seconds"), "all"),
                limit=1,
            ),
            bars(
                PanelText("Webhook", "Reviews of new pods by outcome."),
                Query(each("job_supervisor_webhook_reviews_total", ["outcome"]), "{{outcome}}"),
            ),
            bars(
                PanelText("Kubernetes Events", "Kubernetes Events by outcome."),
                Query(each("job_supervisor_kubernetes_events_total", ["outcome"]), "{{outcome}}"),
                width=24,
            ),
        ),
    )


def _keepers() -> Section:
    return Section(
        "State keepers",
        (
            lines(
                PanelText("Memory of kept states", "Memory of all nodes that states take, and may take.", "bytes"),
                Query("sum(state_keeper_bytes)", "taken"),
                Query("sum(state_keeper_capacity_bytes)", "may be taken"),
            ),
            lines(
                PanelText(
                    "Fullest state keepers",
                    "Share of the memory for states that is taken: maximum and p90.",
                    "percentunit",
                    "JobSupervisorStateKeepersFull",
                ),
                Query(f"max({_FILLED})", "max"),
                Query(f"quantile(0.9, {_FILLED})", "p90"),
            ),
            lines(
                PanelText("Kept states", "States of which a keeper has a part, once for each of its keepers."),
                Query("sum(state_keeper_states)", "states"),
            ),
            bars(
                PanelText(
                    "Parts of states",
                    "Parts that arrived, and parts whose time ended before their job removed them.",
                    runbook="JobSupervisorStatesExpired",
                ),
                Query(each("state_keeper_kept_parts_total"), "kept"),
                Query(each('state_keeper_expired_parts_total{read="yes"}'), "expired, read before"),
                Query(each('state_keeper_expired_parts_total{read="no"}'), "expired unread"),
            ),
            bars(
                PanelText(
                    "Refused by state keepers",
                    "Requests and connections by reason. Those without room were asked for by a job that stops.",
                    runbook="JobSupervisorStateKeeperRefusals",
                ),
                Query(each("state_keeper_refused_requests_total", ["code"]), "{{code}}"),
            ),
            lines(
                PanelText(
                    "Internal errors of state keepers",
                    "What nobody foresaw in one request, file or connection, by the part that met it.",
                    runbook="JobSupervisorStateKeeperErrors",
                ),
                Query(each("state_keeper_internal_errors_total", ["where"]), "{{where}}"),
            ),
        ),
    )
