"""Whether the supervisor looks after the job at all."""

from collections.abc import Iterator

from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import CheckedJob, Kind
from supervisor.check.jobset import training_jobs
from supervisor.check.values import Value, mapping, number, text
from supervisor.cluster.annotations import MANAGED, opts_in, opts_out, ours
from supervisor.jobs.annotated import misreadings
from supervisor.jobs.registry import annotations


@rule("kind-not-supervised", Severity.WARNING, "a job that the supervisor does not look after")
def kind_not_supervised(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for place, spec, mode in _batch_jobs(job):
        if not _is_one_run(spec, mode):
            yield Problem(
                place,
                "The supervisor looks after Jobs whose pods have an index and run at the same time, so nothing saves "
                "this job before a reclaim.",
                "Make completionMode Indexed, and parallelism equal to completions.",
            )


def _batch_jobs(job: CheckedJob) -> Iterator[tuple[str, Value, str]]:
    """The places and specs of the Jobs of Kubernetes in a manifest, and their mode where none is written."""
    if job.kind is Kind.JOB:
        yield "spec", job.spec, "NonIndexed"
    for path, replicated in training_jobs(job.spec) if job.kind is Kind.JOB_SET else ():
        yield f"spec.{path}", mapping(replicated, "template", "spec"), "Indexed"


def _is_one_run(spec: Value, mode: str) -> bool:
    together, all_of_them = number(spec, "parallelism"), number(spec, "completions")
    return (text(spec, "completionMode") or mode) == "Indexed" and (1 if together is None else together) == all_of_them


@rule("not-opted-in", Severity.ERROR, "a job without the annotation that opts in")
def not_opted_in(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    # One that opts out in so many words is meant to be left alone.
    if job.kind is not Kind.COMMAND and not job.opts_in and not opts_out(job.annotations):
        yield Problem(
            "metadata.annotations",
            "The job does not opt in, so the supervisor leaves it alone and nothing saves it before a reclaim.",
            f'Add the annotation {MANAGED}: "true" to the job and to each pod template.',
        )


@rule("annotation-ignored", Severity.WARNING, "an annotation that is misspelt, or whose value is not understood")
def annotation_ignored(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    found = [ours(each) for each in (job.annotations, *(role.annotations for role in job.roles))]
    for wrong in misreadings(found, annotations()):
        yield Problem("metadata.annotations", str(wrong), "Correct or remove it.")


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
