"""What is read of JobSets."""

from collections.abc import Iterator

from supervisor.check.values import Value, items, text


def training_jobs(spec: Value) -> Iterator[tuple[str, Value]]:
    """The paths and templates of the Jobs that train: those that others wait for to complete have ended before."""
    jobs = items(spec, "replicatedJobs")
    dependencies = [each for job in jobs for each in items(job, "dependsOn")]
    ended = {text(each, "name") for each in dependencies if text(each, "status") == "Complete"}
    for number, job in enumerate(jobs):
        if text(job, "name") not in ended:
            yield f"replicatedJobs[{number}].template.spec", job
