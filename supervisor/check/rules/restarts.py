"""What the controller does with a pod that is gone, and how often."""

from collections.abc import Iterator

from supervisor.check.command import KUBEAI_RUN
from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import JOB_SETS, CheckedJob, Kind
from supervisor.check.kinds import SHAPES
from supervisor.check.torchrun import KUBEAI, agents
from supervisor.check.values import at, mapping, number, text


@rule("worker-not-replaced", Severity.WARNING, "a restart policy that replaces no worker")
def worker_not_replaced(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for role in job.roles if job.kind is Kind.TRAINING_JOB else ():
        if not role.leads and role.restart_policy != "Always":
            written = role.restart_policy or "Never, the default"
            yield Problem(
                f"{role.path}.restartPolicy",
                f"A worker that is lost is not replaced (restartPolicy is {written}), so the job stays smaller.",
                "Set restartPolicy of the workers to Always.",
            )


@rule("loss-fails-job", Severity.WARNING, "a controller that fails the job when one of its pods is lost")
def loss_fails_job(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for role in job.roles:
        if job.kind is Kind.PYTORCH_JOB and role.restart_policy == "Never":
            yield Problem(
                f"{role.path}.restartPolicy",
                f"A pod of {role.name} that is lost without a notice fails the job for good, because restartPolicy is "
                "Never.",
                "Set restartPolicy to OnFailure.",
            )
        elif job.kind is Kind.TF_JOB and not (_is_dynamic(job) and role.name.lower() == "worker"):
            yield Problem(
                role.path,
                f"A pod of {role.name} that is lost without a notice fails the job for good, whatever its "
                "restartPolicy is.",
                "Set spec.enableDynamicWorker to true."
                if role.name.lower() == "worker"
                else f"Keep the pods of {role.name} on nodes that are not reclaimed.",
            )


@rule(
    "failure-is-final",
    Severity.WARNING,
    "a job that is not started again after its launcher, or one of its Jobs, has failed",
)
def failure_is_final(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    if job.kind is Kind.TRAINING_JOB and text(job.spec, "restartPolicy") != "OnFailure":
        written = text(job.spec, "restartPolicy") or "Never, the default"
        yield Problem(
            "spec.restartPolicy",
            f"A loss without a notice that fails the launcher fails the job for good (restartPolicy is {written}).",
            "Set spec.restartPolicy to OnFailure.",
        )
    if job.kind in JOB_SETS and not job.lacks_pods and not mapping(job.spec, "failurePolicy"):
        yield Problem(
            f"{job.spec_path}.failurePolicy",
            "A pod that is lost without a notice fails its Job, and the first failed Job fails the "
            f"{job.kind} for good.",
            "Set failurePolicy.maxRestarts to 3 or more.",
        )


@rule("no-retries", Severity.WARNING, "a number of retries that is 0")
def no_retries(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    if job.kind in SHAPES:
        budget = SHAPES[job.kind].budget
        if number(job.spec, *budget) == 0:
            yield Problem(
                ".".join((job.spec_path, *budget)),
                f"{budget[-1]} is 0, so the first failure that a reclaim causes fails the job for good.",
                f"Set {budget[-1]} to 3 or more.",
            )
    for _, launch in job.launches(KUBEAI_RUN):
        if launch.option("--back-off-limit") == "0":
            yield Problem(
                "kubeai-run --back-off-limit",
                "kubeai-run starts the command no second time, so the first loss without a notice ends the job.",
                "Use --back-off-limit 3 or more.",
            )


@rule("no-torchrun-restarts", Severity.WARNING, "torchrun without restarts, which the loss of any node takes one of")
def no_torchrun_restarts(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for agent in agents(job):
        if agent.max_restarts == 0 and agent.fixed_nodes != 1 and agent.backend != KUBEAI and not agent.standalone:
            yield Problem(
                f"{agent.place} --max-restarts",
                "torchrun has no restarts (max_restarts is 0, its default), and each node that is lost without a "
                "notice takes one from every other node: the first such loss ends the run.",
                f"Use the rendezvous backend {KUBEAI}, with which an announced leave takes none; or allow restarts, "
                "as with --max-restarts=10.",
            )


def _is_dynamic(job: CheckedJob) -> bool:
    return at(job.spec, "enableDynamicWorker") is True
