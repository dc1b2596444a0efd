"""The dashboard for the phases of jobs."""

from charts.dashboards.frame import Page, Section
from charts.dashboards.panels import PanelText, Query, areas, bars, lines, number
from charts.dashboards.queries import each, each_quantile, rate, total

_JOBS = "job_supervisor_jobs"
_MARGIN = "job_supervisor_acknowledgement_margin_seconds"
_CHECKPOINT = "job_supervisor_acknowledgement_seconds"
_SUSPENDED = "job_supervisor_suspended_seconds"
_GPU = "job_supervisor_released_gpu_seconds_total"
_WORKER = "job_supervisor_released_worker_seconds_total"


def page() -> Page:
    about = "Jobs by phase, suspensions and released resources, and the time margin of checkpoints."
    return Page("jobs", "Elastic jobs: jobs", about, (_now(), _phases(), _checkpoints(), _suspensions()))


def _now() -> Section:
    return Section(
        "Now, and in the selected time range",
        (
            number(
                PanelText("Jobs", "Supervised jobs that have not finished."),
                Query(f'sum({_JOBS}{{phase!~"Finished|TimedOut"}})', ""),
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
                PanelText("Timed out", "Jobs that waited longer than their maximum."),
                Query(total("job_supervisor_timeouts_total"), ""),
                bad_from=1,
            ),
            number(
                PanelText("Released GPU time", "GPU time that suspended jobs released.", "s"), Query(total(_GPU), "")
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
