"""Whether the supervisor looks after the job at all."""

from collections.abc import Iterator

from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import CheckedJob, Kind
from supervisor.check.kinds import SUPERVISED
from supervisor.cluster.annotations import MANAGED, opts_in


@rule("kind-not-supervised", Severity.WARNING, "a kind that the supervisor does not look after")
def kind_not_supervised(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    if job.kind is not Kind.COMMAND and job.kind not in SUPERVISED:
        known = " or ".join(f"a {kind}" if kind is Kind.TRAINING_JOB else f"an {kind}" for kind in sorted(SUPERVISED))
        yield Problem(
            "kind",
            f"The supervisor does not look after {job.kind}s, so nothing saves this job before a reclaim.",
            f"Start its training command with kubeai-run, or make it {known}.",
        )


@rule("not-opted-in", Severity.ERROR, "a job without the annotation that opts in")
def not_opted_in(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    if job.kind in SUPERVISED and not job.opts_in:
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
