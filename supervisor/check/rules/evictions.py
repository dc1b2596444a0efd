"""Policies that react to the eviction of a pod."""

import re
from collections.abc import Iterator

from supervisor.check.command import TORCHRUN
from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import CheckedJob, Kind, Role
from supervisor.check.torchrun import agents
from supervisor.check.values import Value, items, mapping, text

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


@rule("eviction-counts", Severity.WARNING, "a batch Job that counts evicted pods as failures")
def eviction_counts(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    if job.kind is Kind.JOB and not any(action == "Ignore" for _, action in _disruption_rules(job)):
        yield Problem(
            "spec.podFailurePolicy",
            "Each evicted pod counts as a failure and uses one of backoffLimit.",
            f"Add a podFailurePolicy that has the action Ignore for the pod condition {_DISRUPTION}.",
        )


@rule("eviction-fails-job", Severity.ERROR, "a pod failure policy that fails the job when a pod is evicted")
def eviction_fails_job(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for place, action in _disruption_rules(job):
        if action in ("FailJob", "FailIndex"):
            yield Problem(
                place,
                f"The first pod that is evicted fails the job: the action for {_DISRUPTION} is {action}.",
                "Make the action Ignore.",
            )


@rule("eviction-restarts-job", Severity.ERROR, "a Volcano policy that ends or restarts the job when a pod is lost")
def eviction_restarts_job(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for place, policy in _volcano_policies(job):
        events = {text(policy, "event"), *(str(each) for each in items(policy, "events"))} & _LOSSES
        action = text(policy, "action")
        if events and action in _ENDING:
            yield Problem(
                place,
                f"The loss of one pod {_ENDING[action]}: the action for {', '.join(sorted(events))} is {action}.",
                "Remove the policy: without one, Volcano replaces the pod.",
            )


@rule(
    "preemption-ends-processes",
    Severity.WARNING,
    "a launcher under Kueue that ends the processes at SIGTERM, before they are told to save",
)
def preemption_ends_processes(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for role in job.roles if job.labels.get(_KUEUE_QUEUE) else ():
        launcher = _passes_sigterm_on(job, role)
        if launcher and not any(mapping(each, "lifecycle", "preStop") for each in items(role.pod, "containers")):
            yield Problem(
                role.path,
                f"A preemption by Kueue deletes the pods at once, and {launcher} passes their SIGTERM on: rank 0 has "
                "ended before it is told to save, and the steps since the last checkpoint are lost.",
                "Give the container a lifecycle.preStop that sleeps for as long as a checkpoint takes, and a longer "
                "terminationGracePeriodSeconds, or call kubeai.init(sigterm=True) in the training script.",
            )


def _passes_sigterm_on(job: CheckedJob, role: Role) -> str:
    """The name of what passes SIGTERM on to the training processes of a role; empty if nothing is known to."""
    if any(agent.role is role for agent in agents(job)):
        return TORCHRUN
    if any(_TRAP.search(text) for text in role.texts):
        return "the trap of the shell"
    return next((launch.program for launch in role.launches if launch.program in _INITS), "")


def _disruption_rules(job: CheckedJob) -> Iterator[tuple[str, str]]:
    """The rules of a batch Job for evicted pods: their places and actions."""
    for number, each in enumerate(items(job.spec, "podFailurePolicy", "rules") if job.kind is Kind.JOB else ()):
        conditions = items(each, "onPodConditions")
        if any(text(condition, "type") == _DISRUPTION for condition in conditions):
            yield f"spec.podFailurePolicy.rules[{number}]", text(each, "action")


def _volcano_policies(job: CheckedJob) -> Iterator[tuple[str, Value]]:
    if job.kind is not Kind.VOLCANO_JOB:
        return
    for number, policy in enumerate(items(job.spec, "policies")):
        yield f"spec.policies[{number}]", policy
    for at, task in enumerate(items(job.spec, "tasks")):
        for number, policy in enumerate(items(task, "policies")):
            yield f"spec.tasks[{at}].policies[{number}]", policy
