"""What the exit code 0 of one process means for the job."""

import re
from collections.abc import Collection, Iterator

from supervisor.check.command import HOROVODRUN, TORCHRUN
from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import CheckedJob, Kind
from supervisor.check.torchrun import KUBEAI, agents
from supervisor.check.values import text

_HIDDEN = re.compile(r"(?:\|\||;|&&)\s*(?:true|:|exit\s+0)(?=$|[\s;'\"])|trap\s+(['\"])[^'\"]*\bexit(?:\s+0)?\s*\1")


@rule("exit-code-hidden", Severity.ERROR, "a command that turns every exit code into 0")
def exit_code_hidden(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for role in job.roles:
        for written in role.texts:
            hidden = _HIDDEN.search(written)
            if hidden is not None:
                yield Problem(
                    role.path or "command",
                    f"`{hidden[0].strip()}` makes the exit code 0, so a process that leaves before a reclaim looks as "
                    f"if it had finished: {_consequence(job)}.",
                    "Let the command end with the exit code of the training script, which is not 0 when it leaves.",
                )


@rule("one-success-ends-job", Severity.WARNING, "a job that succeeds as soon as one of its workers exits with 0")
def one_success_ends_job(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    roles = {role.name.lower() for role in job.roles}
    waits = any(agent.backend == KUBEAI for agent in agents(job))
    if job.kind is Kind.PYTORCH_JOB and "elasticPolicy" in job.spec and "master" not in roles and not waits:
        who = "any worker"
    elif job.kind is Kind.TF_JOB and _ends_with_worker_0(job, roles):
        who = "worker 0"
    else:
        return
    all_of_them = " Or set successPolicy to AllWorkers." if job.kind is Kind.TF_JOB else ""
    yield Problem(
        "spec",
        f"The job counts as succeeded as soon as {who} exits with 0, also if it only leaves before a reclaim.",
        f"Exit with a code other than 0 when leaving; kubeai's exit_for_resume() does so.{all_of_them}",
    )


def _ends_with_worker_0(job: CheckedJob, roles: Collection[str]) -> bool:
    waits_for_all = text(job.spec, "successPolicy") == "AllWorkers"
    return "worker" in roles and not waits_for_all and not {"chief", "master"}.intersection(roles)


def _consequence(job: CheckedJob) -> str:
    if any(job.launches(HOROVODRUN)):
        return "Horovod then stops all other processes"
    if any(job.launches(TORCHRUN)):
        return "torchrun then closes the rendezvous for good"
    return "the job counts as finished before it is"
