"""What becomes of jobs."""

from charts.dashboards.frame import Page, Section
from charts.dashboards.panels import Query, Says, areas, bars, lines, number
from charts.dashboards.queries import each, each_quantile, rate, total

_JOBS = "job_supervisor_jobs"
_MARGIN = "job_supervisor_acknowledgement_margin_seconds"
_CHECKPOINT = "job_supervisor_acknowledgement_seconds"
_SUSPENDED = "job_supervisor_suspended_seconds"
_GPU = "job_supervisor_released_gpu_seconds_total"
_WORKER = "job_supervisor_released_worker_seconds_total"


def page() -> Page:
    """The dashboard."""
    about = "Jobs by phase, suspensions and what they gave back, and how much time checkpoints had left."
    return Page("jobs", "Elastic jobs: jobs", about, (_now(), _phases(), _checkpoints(), _suspensions()))


def _now() -> Section:
    return Section(
        "Now, and in the time that is shown",
        (
            number(
                Says("Jobs", "Supervised and not finished."), Query(f'sum({_JOBS}{{phase!~"Finished|TimedOut"}})', "")
            ),
            number(
                Says("Without their hosts", "Waiting or suspended now."),
                Query(f'sum({_JOBS}{{phase=~"Waiting|Suspended"}})', ""),
            ),
            number(
                Says("Suspensions", "Jobs that stopped with a checkpoint and gave their hosts back."),
                Query(total("job_supervisor_suspensions_total"), ""),
            ),
            number(Says("Resumes", "Jobs that went on from there."), Query(total("job_supervisor_resumes_total"), "")),
            number(
                Says("Timed out", "Jobs that waited longer than they may."),
                Query(total("job_supervisor_timeouts_total"), ""),
                bad_from=1,
            ),
            number(Says("GPU time given back", "While jobs were suspended.", "s"), Query(total(_GPU), "")),
        ),
    )


def _phases() -> Section:
    return Section(
        "Phases",
        (
            areas(
                Says("Jobs by phase", "See the status of a job for its reason."),
                Query(f"sum by (phase) ({_JOBS})", "{{phase}}"),
                width=24,
            ),
            bars(
                Says("Suspended, resumed, timed out", "When."),
                Query(each("job_supervisor_suspensions_total"), "suspended"),
                Query(each("job_supervisor_resumes_total"), "resumed"),
                Query(each("job_supervisor_timeouts_total"), "timed out"),
            ),
            lines(
                Says("Workers", "Hosts of running jobs, and hosts that are left out."),
                Query("sum(job_supervisor_workers)", "of running jobs"),
                Query("sum(job_supervisor_excluded_hosts)", "left out"),
            ),
        ),
    )


def _checkpoints() -> Section:
    return Section(
        "Checkpoints",
        (
            lines(
                Says("Time for a checkpoint", "From the decision to stop until rank 0 has acknowledged it.", "s"),
                Query(each_quantile(0.5, _CHECKPOINT), "p50"),
                Query(each_quantile(0.99, _CHECKPOINT), "p99"),
                exemplars=True,
            ),
            lines(
                Says("Margin", "Left until the deadline when it was acknowledged; 0 is too late.", "s"),
                Query(each_quantile(0.5, _MARGIN), "p50"),
                Query(each_quantile(0.05, _MARGIN), "p5"),
                exemplars=True,
            ),
            lines(
                Says(
                    "Waited for",
                    "Least time left of any STOP that is not acknowledged yet; empty while there is none.",
                    "s",
                ),
                Query("min(job_supervisor_unacknowledged_stop_seconds_left)", "left"),
            ),
            bars(
                Says("Acknowledgements", "By what acknowledged: a checkpoint, or the process that left."),
                Query(each("job_supervisor_acknowledgements_total", ["kind"]), "{{kind}}"),
            ),
        ),
    )


def _suspensions() -> Section:
    return Section(
        "Suspensions",
        (
            lines(
                Says("How long they lasted", "From the suspension until the job trains again.", "s"),
                Query(each_quantile(0.5, _SUSPENDED), "p50"),
                Query(each_quantile(0.9, _SUSPENDED), "p90"),
            ),
            lines(
                Says("Given back", "GPUs and workers that suspended jobs would have held."),
                Query(rate(_GPU), "GPUs"),
                Query(rate(_WORKER), "workers"),
            ),
        ),
    )
