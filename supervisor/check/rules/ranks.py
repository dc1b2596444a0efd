"""Whether a process of the job is rank 0, which answers for it."""

from collections.abc import Iterator

from supervisor.check.command import Launch
from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import JOB_SETS, CheckedJob, Kind, Role
from supervisor.check.values import text

_FIX = "Pass rank= to kubeai's init(), or set RANK in each process."
_VARIABLES = frozenset({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "JAX_PROCESS_ID", "TF_CONFIG"})
_EACH_HOST = "kubeai-each-host"


@rule("no-rank-zero", Severity.ERROR, "a running job of which no process, or more than one, is rank 0")
def no_rank_zero(_job: CheckedJob, facts: Facts) -> Iterator[Problem]:
    if facts.ranks:
        yield Problem("the running processes", facts.ranks, _FIX)


@rule("rank-unknown", Severity.HINT, "a script in several processes, to which nothing gives a rank")
def rank_unknown(job: CheckedJob, facts: Facts) -> Iterator[Problem]:
    for role in () if facts.ranks else job.roles:
        if any(_is_plain(role, launch) for launch in role.launches) and not _gives_ranks(job, role):
            yield Problem(
                role.path or _EACH_HOST,
                "Several processes run the script, and no launcher or controller gives them a rank. Unless the script "
                "does, no process is rank 0, which answers a stop.",
                _FIX,
            )


def _is_plain(role: Role, launch: Launch) -> bool:
    """Whether a script is started as it is. A module behind `-m` may be a launcher."""
    is_script = launch.program == "python" and launch.words[:1] != ("-m",)
    return is_script and not _VARIABLES & {*role.environment, *launch.environment}


def _gives_ranks(job: CheckedJob, role: Role) -> bool:
    """Whether one process is all, or the controller gives each a place."""
    if job.kind is Kind.COMMAND:
        return not any(launch.program == _EACH_HOST for launch in role.launches)
    if job.kind is Kind.JOB:
        return role.replicas <= 1 or text(job.spec, "completionMode") == "Indexed"
    return job.kind not in JOB_SETS or len(job.roles) == 1
