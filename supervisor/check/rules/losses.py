"""Rules about what the controller does when a pod ends, fails or is evicted."""

import re
from collections.abc import Iterator

from supervisor.check.command import HOROVODRUN, KUBEAI_RUN, TORCHRUN
from supervisor.check.job import (
    JOB_SETS,
    KUBEAI,
    CheckedFacts,
    CheckedJob,
    CheckedKind,
    CheckedRole,
    FindingSeverity,
    JobProblem,
    rule,
)
from supervisor.check.manifests import SHAPES, at, items, mapping, number, text

_HIDDEN = re.compile(r"(?:\|\||;|&&)\s*(?:true|:|exit\s+0)(?=$|[\s;'\"])|trap\s+(['\"])[^'\"]*\bexit(?:\s+0)?\s*\1")


@rule("exit-code-hidden", FindingSeverity.ERROR, "a command that turns every exit code into 0")
def exit_code_hidden(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    if any(job.launches(HOROVODRUN)):
        consequence = "Horovod then stops all other processes"
    elif any(job.launches(TORCHRUN)):
        consequence = "torchrun then closes the rendezvous for good"
    else:
        consequence = "the job counts as finished before it is"
    for role in job.roles:
        for written in role.texts:
            hidden = _HIDDEN.search(written)
            if hidden is not None:
                yield JobProblem(
                    role.path or "command",
                    f"`{hidden[0].strip()}` makes the exit code 0, so a process that leaves before a reclaim looks as "
                    f"if it had finished: {consequence}.",
                    "Let the command end with the exit code of the training script, which is not 0 when it leaves.",
                )


@rule("one-success-ends-job", FindingSeverity.WARNING, "a job that succeeds as soon as one of its workers exits with 0")
def one_success_ends_job(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    roles = {role.name.lower() for role in job.roles}
    waits = any(agent.backend == KUBEAI for agent in job.elastic_agents())
    if job.kind is CheckedKind.PYTORCH_JOB and "elasticPolicy" in job.spec and "master" not in roles and not waits:
        who = "any worker"
    elif (
        job.kind is CheckedKind.TF_JOB
        and "worker" in roles
        and not {"chief", "master"}.intersection(roles)
        and text(job.spec, "successPolicy") != "AllWorkers"
    ):
        who = "worker 0"
    else:
        return
    all_of_them = " Or set successPolicy to AllWorkers." if job.kind is CheckedKind.TF_JOB else ""
    yield JobProblem(
        "spec",
        f"The job counts as succeeded as soon as {who} exits with 0, also if it only leaves before a reclaim.",
        f"Exit with a code other than 0 when leaving; kubeai's exit_for_resume() does so.{all_of_them}",
    )


@rule("worker-not-replaced", FindingSeverity.WARNING, "a restart policy that replaces no worker")
def worker_not_replaced(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for role in job.roles if job.kind is CheckedKind.TRAINING_JOB else ():
        if not role.leads and role.restart_policy != "Always":
            written = role.restart_policy or "Never, the default"
            yield JobProblem(
                f"{role.path}.restartPolicy",
                f"A worker that is lost is not replaced (restartPolicy is {written}), so the job stays smaller.",
                "Set restartPolicy of the workers to Always.",
            )


@rule("loss-fails-job", FindingSeverity.WARNING, "a controller that fails the job when one of its pods is lost")
def loss_fails_job(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    is_dynamic = at(job.spec, "enableDynamicWorker") is True
    has_servers = any(role.name.lower() == "ps" for role in job.roles)
    for role in job.roles:
        if job.kind is CheckedKind.PYTORCH_JOB and role.restart_policy == "Never":
            yield JobProblem(
                f"{role.path}.restartPolicy",
                f"A pod of {role.name} that is lost without a notice fails the job for good, because restartPolicy is "
                "Never.",
                "Set restartPolicy to OnFailure.",
            )
        elif job.kind is CheckedKind.TF_JOB and not (is_dynamic and role.name.lower() == "worker"):
            yield JobProblem(
                role.path,
                f"A pod of {role.name} that is lost without a notice fails the job for good, whatever its "
                "restartPolicy is.",
                _tf_fix(role.name, has_servers=has_servers),
            )


def _tf_fix(role: str, *, has_servers: bool) -> str:
    if role.lower() != "worker":
        return f"Keep the pods of {role} on nodes that are not reclaimed."
    if has_servers:
        return "Set spec.enableDynamicWorker to true."
    return (
        "Submit it again after such a loss: it goes on from its checkpoint. spec.enableDynamicWorker is no way out "
        "without parameter servers: it takes the other workers out of TF_CONFIG, and MultiWorkerMirroredStrategy does "
        "not start."
    )


@rule(
    "failure-is-final",
    FindingSeverity.WARNING,
    "a job that is not started again after its launcher, or one of its Jobs, has failed",
)
def failure_is_final(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    if job.kind is CheckedKind.TRAINING_JOB and text(job.spec, "restartPolicy") != "OnFailure":
        written = text(job.spec, "restartPolicy") or "Never, the default"
        yield JobProblem(
            "spec.restartPolicy",
            f"A loss without a notice that fails the launcher fails the job for good (restartPolicy is {written}).",
            "Set spec.restartPolicy to OnFailure.",
        )
    if job.kind in JOB_SETS and not job.lacks_pods and not mapping(job.spec, "failurePolicy"):
        yield JobProblem(
            f"{job.spec_path}.failurePolicy",
            "A pod that is lost without a notice fails its Job, and the first failed Job fails the "
            f"{job.kind} for good.",
            "Set failurePolicy.maxRestarts to 3 or more.",
        )


@rule("no-retries", FindingSeverity.WARNING, "a number of retries that is 0")
def no_retries(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    if job.kind in SHAPES:
        budget = SHAPES[job.kind].budget
        if number(job.spec, *budget) == 0:
            yield JobProblem(
                ".".join((job.spec_path, *budget)),
                f"{budget[-1]} is 0, so the first failure that a reclaim causes fails the job for good.",
                f"Set {budget[-1]} to 3 or more.",
            )
    for _, launch in job.launches(KUBEAI_RUN):
        if launch.option("--back-off-limit") == "0":
            yield JobProblem(
                "kubeai-run --back-off-limit",
                "kubeai-run starts the command no second time, so the first loss without a notice ends the job.",
                "Use --back-off-limit 3 or more.",
            )


@rule(
    "no-torchrun-restarts",
    FindingSeverity.WARNING,
    "torchrun without restarts, which the loss of any node takes one of",
)
def no_torchrun_restarts(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for agent in job.elastic_agents():
        if agent.max_restarts == 0 and agent.fixed_nodes != 1 and agent.backend != KUBEAI and not agent.standalone:
            yield JobProblem(
                f"{agent.place} --max-restarts",
                "torchrun has no restarts (max_restarts is 0, its default), and each node that is lost without a "
                "notice takes one from every other node: the first such loss ends the run.",
                f"Use the rendezvous backend {KUBEAI}, with which an announced leave takes none; or allow restarts, "
                "as with --max-restarts=10.",
            )


_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_INITS = frozenset({"tini", "dumb-init"})
_TRAP = re.compile(r"\btrap\s[^\n]*\b(?:SIG)?TERM\b")
_DISRUPTION = "DisruptionTarget"
_LOSSES = frozenset({"*", "PodEvicted", "PodFailed"})
_ENDING = {
    "RestartJob": "restarts the whole job and uses one of maxRetry",
    "AbortJob": "aborts the whole job",
    "TerminateJob": "ends the whole job for good",
    "CompleteJob": "ends the whole job as completed",
}


@rule("eviction-counts", FindingSeverity.WARNING, "a batch Job that counts evicted pods as failures")
def eviction_counts(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    if job.kind is CheckedKind.JOB and not any(action == "Ignore" for _, action in _disruption_rules(job)):
        yield JobProblem(
            "spec.podFailurePolicy",
            "Each evicted pod counts as a failure and uses one of backoffLimit.",
            f"Add a podFailurePolicy that has the action Ignore for the pod condition {_DISRUPTION}.",
        )


@rule("eviction-fails-job", FindingSeverity.ERROR, "a pod failure policy that fails the job when a pod is evicted")
def eviction_fails_job(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for place, action in _disruption_rules(job):
        if action in ("FailJob", "FailIndex"):
            yield JobProblem(
                place,
                f"The first pod that is evicted fails the job: the action for {_DISRUPTION} is {action}.",
                "Make the action Ignore.",
            )


@rule(
    "eviction-restarts-job", FindingSeverity.ERROR, "a Volcano policy that ends or restarts the job when a pod is lost"
)
def eviction_restarts_job(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for place, policy in _volcano_policies(job):
        events = {text(policy, "event"), *(str(each) for each in items(policy, "events"))} & _LOSSES
        action = text(policy, "action")
        if events and action in _ENDING:
            yield JobProblem(
                place,
                f"The loss of one pod {_ENDING[action]}: the action for {', '.join(sorted(events))} is {action}.",
                "Remove the policy: without one, Volcano replaces the pod.",
            )


@rule(
    "preemption-ends-processes",
    FindingSeverity.WARNING,
    "a launcher under Kueue that ends the processes at SIGTERM, before they are told to save",
)
def preemption_ends_processes(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for role in job.roles if job.labels.get(_KUEUE_QUEUE) else ():
        launcher = _passes_sigterm_on(job, role)
        if launcher and not any(mapping(each, "lifecycle", "preStop") for each in items(role.pod, "containers")):
            yield JobProblem(
                role.path,
                f"A preemption by Kueue deletes the pods at once, and {launcher} passes their SIGTERM on: rank 0 has "
                "ended before it is told to save, and the steps since the last checkpoint are lost.",
                "Give the container a lifecycle.preStop that sleeps for as long as a checkpoint takes, and a longer "
                "terminationGracePeriodSeconds, or call kubeai.init(sigterm=True) in the training script.",
            )


def _passes_sigterm_on(job: CheckedJob, role: CheckedRole) -> str:
    """The name of a program that passes SIGTERM on to the training processes of a role; empty if there is none."""
    if any(agent.role is role for agent in job.elastic_agents()):
        return TORCHRUN
    if any(_TRAP.search(text) for text in role.texts):
        return "the trap of the shell"
    return next((launch.program for launch in role.launches if launch.program in _INITS), "")


def _disruption_rules(job: CheckedJob) -> Iterator[tuple[str, str]]:
    """The rules of a batch Job for evicted pods: their places and actions."""
    for index, each in enumerate(items(job.spec, "podFailurePolicy", "rules") if job.kind is CheckedKind.JOB else ()):
        conditions = items(each, "onPodConditions")
        if any(text(condition, "type") == _DISRUPTION for condition in conditions):
            yield f"spec.podFailurePolicy.rules[{index}]", text(each, "action")


def _volcano_policies(job: CheckedJob) -> Iterator[tuple[str, object]]:
    if job.kind is not CheckedKind.VOLCANO_JOB:
        return
    for index, policy in enumerate(items(job.spec, "policies")):
        yield f"spec.policies[{index}]", policy
    for place, task in enumerate(items(job.spec, "tasks")):
        for index, policy in enumerate(items(task, "policies")):
            yield f"spec.tasks[{place}].policies[{index}]", policy
