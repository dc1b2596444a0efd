"""The dashboard for the phases of jobs."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import QueryVariable

from charts.dashboards.frame import DashboardPage, Panel, Section, label_variable
from charts.dashboards.panels import PanelText, Query, areas, bars, lines, number, rows
from charts.dashboards.queries import POOL, POOL_LEGEND, each, each_quantile, rate, said, time_share, total

_JOBS = "job_supervisor_jobs"
_HELD = ("running", "leaving", "joining", "stopping", "starting")
_OVER = "Finished|TimedOut"
_WITH_HOSTS = "Running|Shrinking|Stopping"
_MARGIN = "job_supervisor_acknowledgement_margin_seconds"
_CHECKPOINT = "job_supervisor_acknowledgement_seconds"
_SUSPENDED = "job_supervisor_suspended_seconds"
_COST = "job_supervisor_pool_cost_total"
_ON_DEMAND = "job_supervisor_pool_on_demand_cost_total"
_GPU = "job_supervisor_released_gpu_seconds_total"
_WORKER = "job_supervisor_released_worker_seconds_total"


def page() -> DashboardPage:
    about = "Jobs by phase, suspensions and released resources, costs, and the time margin of checkpoints."
    sections = (
        _now(),
        _hours(),
        _money(),
        _value(),
        _phases(),
        _named(),
        _checkpoints(),
        _agreements(),
        _suspensions(),
    )
    return DashboardPage("jobs", "Elastic jobs: jobs", about, sections, _variables())


def _variables() -> Sequence[QueryVariable]:
    phases = 'job_supervisor_job_phase{cluster=~"$cluster",namespace=~"$namespace"}'
    names = phases.replace("}", ',job_namespace=~"$job_namespace"}')
    return label_variable("job_namespace", "Namespace of the job", phases), label_variable("job_name", "Job", names)


def _chosen(metric: str) -> str:
    return f'{metric}{{job_namespace=~"$job_namespace",job_name=~"$job_name"}}'


def _value() -> Section:
    return Section(
        "Released capacity and saved work, in the selected time range",
        (
            number(
                PanelText("Released GPU hours", "GPU hours that suspended jobs left to others.", "h"),
                Query(f"{total(_GPU)} / 3600", ""),
                width=6,
            ),
            number(
                PanelText("Released worker hours", "Worker hours that suspended jobs left to others.", "h"),
                Query(f"{total(_WORKER)} / 3600", ""),
                width=6,
            ),
            number(
                PanelText(
                    "Time with hosts",
                    "Share of the time of all unfinished jobs in which they had hosts.",
                    "percentunit",
                ),
                Query(time_share(f'{_JOBS}{{phase=~"{_WITH_HOSTS}"}}', f'{_JOBS}{{phase!~"{_OVER}"}}'), ""),
                width=6,
            ).no_value("no jobs"),
            number(
                PanelText(
                    "Late stops",
                    "Jobs that were not saved before their deadline.",
                    runbook="JobSupervisorLateStops",
                ),
                Query(total("job_supervisor_late_stops_total"), ""),
                width=6,
                bad_from=1,
            ),
        ),
    )


def _seconds(*accounts: str, told: bool = False, without: bool = False) -> str:
    """The worker-seconds of some accounts of the chosen namespaces, or of all accounts without these."""
    metric = "job_supervisor_told_worker_seconds_total" if told else "job_supervisor_worker_seconds_total"
    of = f',account{"!" if without else "="}~"{"|".join(accounts)}"' if accounts else ""
    return f'{metric}{{job_namespace=~"$job_namespace"{of}}}'


def _share(title: str, means: str, part: str, whole: str) -> Panel:
    query = Query(f"{part} / ({total(whole)} > 0)", "")
    return number(PanelText(title, means, "percentunit"), query, width=6).no_value("no hours")


def _hours() -> Section:
    wanted, held = _seconds("queued", "paused", without=True), _seconds(*_HELD)
    training, running, told = _seconds("training", told=True), _seconds("running"), _seconds(told=True)
    unknown = f"clamp_min({total(running)} - {total(told)}, 0)"
    least = "at least, as processes say"
    return Section(
        "Where worker hours went, in the selected time range",
        (
            _share("Trained of wanted", f"Effective training time ratio; {least}.", total(training), wanted),
            _share("Held of wanted", "Scheduling goodput.", total(held), wanted),
            _share("Trained of held", f"Runtime goodput; {least}.", total(training), held),
            _share("Unmeasured of wanted", "What workers of runs did, no process has said.", unknown, wanted),
            areas(
                PanelText("What workers did", "Workers by account of the ledger, as an average of ten minutes."),
                Query(said(training), "training"),
                Query(f"clamp_min({said(running)} - {said(told)}, 0)", "unmeasured"),
                Query(said(_seconds("training", told=True, without=True), ["account"]), "{{account}}, in a run"),
                Query(said(_seconds("running", without=True), ["account"]), "{{account}}"),
                width=24,
            ),
        ),
    )


def _money() -> Section:
    cost, on_demand = total(_COST, ["currency"]), total(_ON_DEMAND, ["currency"])
    of_table = "By the table of prices; hours without both prices are in no sum."
    return Section(
        "What workers cost, in the selected time range",
        (
            number(PanelText("Cost", of_table), Query(cost, "{{currency}}"), width=6).no_value("no prices"),
            number(
                PanelText("Cost on demand", f"What the same hours would have cost on demand. {of_table}"),
                Query(on_demand, "{{currency}}"),
                width=6,
            ).no_value("no prices"),
            number(
                PanelText("Saved", "Share of the cost on demand that was not paid.", "percentunit"),
                Query(f"1 - {cost} / ({on_demand} > 0)", "{{currency}}"),
                width=6,
            ).no_value("no prices"),
            number(
                PanelText("Worker hours without a price", "Held hours that are in no cost.", "h"),
                Query(f"{total('job_supervisor_pool_unpriced_worker_seconds_total')} / 3600", ""),
                width=6,
            ),
            areas(
                PanelText("Cost of an hour by pool", "What is held now costs so much in an hour."),
                Query(f"3600 * {rate(_COST, [*POOL, 'currency'])}", f"{POOL_LEGEND}, {{{{currency}}}}"),
            ),
            areas(
                PanelText("Saved in an hour by pool", "Cost on demand of what is held now, less its cost."),
                Query(
                    f"3600 * ({rate(_ON_DEMAND, [*POOL, 'currency'])} - {rate(_COST, [*POOL, 'currency'])})",
                    f"{POOL_LEGEND}, {{{{currency}}}}",
                ),
            ),
        ),
    )


def _named() -> Section:
    labels = ["job_namespace", "job_name"]
    legend = "{{job_namespace}} {{job_name}}"
    return Section(
        "Jobs by name",
        (
            rows(
                PanelText("Phases", "The chosen jobs. The supervisor names a limited number of jobs."),
                Query(
                    f"max by (job_namespace, job_kind, job_name, phase) ({_chosen('job_supervisor_job_phase')})",
                    "",
                ),
            ),
            lines(
                PanelText("Workers by job", "Hosts that the run of each job uses."),
                Query(f"sum by ({', '.join(labels)}) ({_chosen('job_supervisor_job_workers')})", legend),
            ),
            bars(
                PanelText("Suspensions by job", "Jobs that stopped with a checkpoint and released their hosts."),
                Query(each(_chosen("job_supervisor_job_suspensions_total"), labels), legend),
            ),
            bars(
                PanelText("Steps lost and late stops by job", "Repeated steps, and checkpoints that came too late."),
                Query(each(_chosen("job_supervisor_job_steps_lost_total"), labels), f"{legend}: steps"),
                Query(each(_chosen("job_supervisor_job_late_stops_total"), labels), f"{legend}: late stops"),
            ),
        ),
    )


def _now() -> Section:
    return Section(
        "Now, and in the selected time range",
        (
            number(
                PanelText("Jobs", "Supervised jobs that have not finished."),
                Query(f'sum({_JOBS}{{phase!~"{_OVER}"}})', ""),
            ),
            number(
                PanelText("Without hosts", "Jobs that are waiting or suspended now."),
                Query(f'sum({_JOBS}{{phase=~"Waiting|Suspended"}})', ""),
            ),
            number(
                PanelText("Suspensions", "Jobs that stopped with a checkpoint and released their hosts."),
                Query(total("job_supervisor_suspensions_total"), ""),
            ),
            number(
                PanelText("Resumes", "Suspended jobs that continued."), Query(total("job_supervisor_resumes_total"), "")
            ),
            number(
                PanelText("Timed out", "Jobs that waited longer than their maximum.", runbook="JobSupervisorTimeouts"),
                Query(total("job_supervisor_timeouts_total"), ""),
                bad_from=1,
            ),
            number(
                PanelText("Unnamed jobs", "Jobs that are too many to have metrics of their own."),
                Query("sum(job_supervisor_unnamed_jobs)", ""),
            ),
        ),
    )


def _phases() -> Section:
    return Section(
        "Phases",
        (
            areas(
                PanelText("Jobs by phase", "The status of a job has the reason for its phase."),
                Query(f"sum by (phase) ({_JOBS})", "{{phase}}"),
                width=24,
            ),
            bars(
                PanelText("Suspended, resumed, timed out", "Events over time."),
                Query(each("job_supervisor_suspensions_total"), "suspended"),
                Query(each("job_supervisor_resumes_total"), "resumed"),
                Query(each("job_supervisor_timeouts_total"), "timed out"),
            ),
            lines(
                PanelText("Workers", "Hosts of running jobs, and excluded hosts."),
                Query("sum(job_supervisor_workers)", "of running jobs"),
                Query("sum(job_supervisor_excluded_hosts)", "excluded"),
            ),
        ),
    )


def _checkpoints() -> Section:
    return Section(
        "Checkpoints",
        (
            lines(
                PanelText("Checkpoint time", "Time from the decision to stop until rank 0 acknowledges it.", "s"),
                Query(each_quantile(0.5, _CHECKPOINT), "p50"),
                Query(each_quantile(0.99, _CHECKPOINT), "p99"),
                exemplars=True,
            ),
            lines(
                PanelText("Margin", "Time left until the deadline at the acknowledgement. 0 means too late.", "s"),
                Query(each_quantile(0.5, _MARGIN), "p50"),
                Query(each_quantile(0.05, _MARGIN), "p5"),
                exemplars=True,
            ),
            lines(
                PanelText(
                    "Pending STOPs",
                    "Shortest time left of any unacknowledged STOP; empty if there is none.",
                    "s",
                    "JobSupervisorStopNearDeadline",
                ),
                Query("min(job_supervisor_unacknowledged_stop_seconds_left)", "left"),
            ),
            bars(
                PanelText(
                    "Acknowledgements", "Acknowledgements by kind: a saved checkpoint, or the exit of the process."
                ),
                Query(each("job_supervisor_acknowledgements_total", ["kind"]), "{{kind}}"),
            ),
        ),
    )


def _agreements() -> Section:
    """Of jobs whose ranks all call `should_stop(step)`, and of torchrun's rounds."""
    return Section(
        "Agreed steps",
        (
            bars(
                PanelText(
                    "Agreements",
                    "Agreements of all ranks on a step, by purpose and outcome. Failed: they did not agree in time.",
                    runbook="JobSupervisorAgreementsFailing",
                ),
                Query(each("job_supervisor_agreements_total", ["purpose", "outcome"]), "{{purpose}} {{outcome}}"),
            ),
            lines(
                PanelText("Time to agree", "Time from the first poll of the ranks until the step is fixed.", "s"),
                Query(each_quantile(0.5, "job_supervisor_agreement_seconds"), "p50"),
                Query(each_quantile(0.99, "job_supervisor_agreement_seconds"), "p99"),
            ),
            lines(
                PanelText(
                    "Ranks that do not ask",
                    "Longest time for which a rank that is to agree has not asked whether to stop: 0 if all do.",
                    "s",
                    "JobSupervisorAgreementsFailing",
                ),
                Query("max(job_supervisor_unread_seconds) or vector(0)", "longest"),
            ),
            bars(
                PanelText("Rounds of torchrun", "Rounds that were decided, by how processes enter them."),
                Query(each("job_supervisor_rounds_total", ["mode"]), "{{mode}}"),
            ),
        ),
    )


def _suspensions() -> Section:
    return Section(
        "Suspensions",
        (
            lines(
                PanelText("Duration", "Time from the suspension until the job trains again.", "s"),
                Query(each_quantile(0.5, _SUSPENDED), "p50"),
                Query(each_quantile(0.9, _SUSPENDED), "p90"),
            ),
            lines(
                PanelText("Released", "GPUs and workers that suspended jobs released."),
                Query(rate(_GPU), "GPUs"),
                Query(rate(_WORKER), "workers"),
            ),
        ),
    )
