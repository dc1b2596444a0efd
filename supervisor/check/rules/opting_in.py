"""Whether the supervisor looks after the job at all."""

from collections.abc import Iterator

from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import CheckedJob, Kind
from supervisor.check.values import number, text
from supervisor.cluster.annotations import MANAGED, opts_in


@rule("kind-not-supervised", Severity.WARNING, "a job that the supervisor does not look after")
def kind_not_supervised(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    if job.kind is Kind.JOB and not _is_one_run(job):
        yield Problem(
            "spec",
            "The supervisor looks after Jobs whose pods have an index and run at the same time, so nothing saves this "
            "job before a reclaim.",
            "Make completionMode Indexed, and parallelism equal to completions.",
        )


def _is_one_run(job: CheckedJob) -> bool:
    together, all_of_them = number(job.spec, "parallelism"), number(job.spec, "completions")
    return text(job.spec, "completionMode") == "Indexed" and (1 if together is None else together) == all_of_them


@rule("not-opted-in", Severity.ERROR, "a job without the annotation that opts in")
def not_opted_in(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    if job.kind is not Kind.COMMAND and not job.opts_in:
        yield Problem(
            "metadata.annotations",
            "The job does not opt in, so the supervisor leaves it alone and nothing saves it before a reclaim.",
            f'Add the annotation {MANAGED}: "true" to the job and to each pod template.',
        )


@rule("pods-not-opted-in", Severity.ERROR, "pod templates without the annotation that opts in")
def pods_not_opted_in(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    """The webhook sees pods, and the controllers copy annotations only from templates to pods."""
    for role in job.roles if job.opts_in else ():
        if not opts_in(role.annotations):
            yield Problem(
                f"{role.path}.template.metadata.annotations",
                f"The pods of {role.name} do not opt in, so they get no token and their processes cannot be told "
                "of a reclaim.",
                f'Add the annotation {MANAGED}: "true" to the template.',
            )
