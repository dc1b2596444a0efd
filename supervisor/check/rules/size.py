"""Whether the job can go on with fewer workers, unless it wants to hold its number of them."""

from collections.abc import Iterator

from supervisor.check.command import HOROVODRUN, KUBEAI_RUN, MPIRUN, Launch, resolved
from supervisor.check.finding import Facts, Problem, Severity, rule
from supervisor.check.job import JOB_SETS, CheckedJob, Kind, Role
from supervisor.check.torchrun import agents
from supervisor.check.values import count, number, text
from supervisor.cluster.annotations import MIN_WORKERS
from supervisor.jobs.trainingjob.objects import SIZE

_PROCESSES = ("-np", "--num-proc", "-n", "-c")
_FIX = {
    Kind.TRAINING_JOB: "Compute it from the number of workers: -np $((${workers}*${gpus})), with a variable workers.",
    Kind.MPI_JOB: "Compute it in the shell: -np $(wc -l </etc/mpi/hostfile).",
    Kind.COMMAND: "Write -np {workers} in a command of kubeai-run, which puts in the number of granted hosts.",
}


@rule("fixed-processes", Severity.WARNING, "a fixed number of processes in the launcher's command")
def fixed_processes(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for role, launch in () if _has_one_size(job) else job.launches(HOROVODRUN, MPIRUN):
        written = launch.option(*_PROCESSES) or ""
        if count(resolved(written, _fixed_variables(job, role, launch))) is not None:
            yield Problem(
                _place(role, launch),
                f"{launch.program} starts exactly {written} processes, so after a reclaim the job resumes only when "
                "all workers can run again.",
                _FIX.get(job.kind, "Compute it from the number of workers."),
            )


@rule("fixed-nodes", Severity.WARNING, "a fixed number of nodes for torchrun")
def fixed_nodes(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for agent in () if _has_one_size(job) else agents(job):
        nodes = agent.fixed_nodes
        if nodes is not None and nodes > 1 and not agent.standalone:
            yield Problem(
                f"{agent.place} --nnodes",
                f"torchrun runs on exactly {nodes} nodes, so the loss of any of them stops the whole job.",
                "Use an elasticPolicy with minReplicas and maxReplicas."
                if job.kind is Kind.PYTORCH_JOB
                else "Use --nnodes=MIN:MAX.",
            )


@rule("static-hosts", Severity.WARNING, "a launcher that reads its list of hosts once")
def static_hosts(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for role, launch in job.launches(HOROVODRUN, MPIRUN):
        if launch.program == MPIRUN or not launch.has("--host-discovery-script"):
            yield Problem(
                _place(role, launch),
                f"{launch.program} reads its hosts once, so the reclaim of any worker stops the whole job.",
                f"Use horovodrun with --min-np and --host-discovery-script {_script(job)}.",
            )


@rule("no-room-to-shrink", Severity.HINT, "a smallest number of workers that is the largest, or is not given")
def no_room_to_shrink(job: CheckedJob, _facts: Facts) -> Iterator[Problem]:
    for where, least, most, fix in () if _has_one_size(job) else _bounds(job):
        if least is None or (most is not None and least >= most):
            said = "The job names no smallest number" if least is None else f"The job needs {least} of {most}"
            yield Problem(where, f"{said} of workers, so the reclaim of any worker stops the whole job.", fix)


def _bounds(job: CheckedJob) -> Iterator[tuple[str, int | None, int | None, str]]:
    """The fewest and the most workers of the job, where they are written, and how to write them."""
    workers = [role for role in job.roles if role.name.lower() == "worker"]
    match job.kind:
        case Kind.TRAINING_JOB:
            for role in workers:
                yield _training_job_bounds(job, role)
        case Kind.MPI_JOB:
            annotations = [job.annotations, *(role.annotations for role in job.roles)]
            least = next((count(found[MIN_WORKERS]) for found in annotations if MIN_WORKERS in found), None)
            fix = f"Add the annotation {MIN_WORKERS} to the job."
            for role in workers:
                yield "metadata.annotations", least, role.replicas, fix
        case Kind.PYTORCH_JOB if "elasticPolicy" in job.spec:
            lower, upper = (number(job.spec, "elasticPolicy", name) for name in ("minReplicas", "maxReplicas"))
            most = None if upper is None else int(upper)
            yield "spec.elasticPolicy.minReplicas", int(lower or 1), most, "Set minReplicas lower than maxReplicas."
        case Kind.COMMAND:
            for _, launch in job.launches(KUBEAI_RUN):
                least = count(launch.option("--min-workers") or "1")
                yield "kubeai-run --min-workers", least, count(launch.option("--max-workers") or ""), "Lower it."
        case _:
            return


def _has_one_size(job: CheckedJob) -> bool:
    """Whether the job wants no other number of workers, or its controller accepts none."""
    return job.holds or job.kind in JOB_SETS


def _training_job_bounds(job: CheckedJob, role: Role) -> tuple[str, int | None, int | None, str]:
    lower, upper = (number(job.spec, "etReplicaSpecs", role.name, name) for name in ("minReplicas", "maxReplicas"))
    variables = {name: value for each in job.roles for name, value in each.environment.items()}
    least = count(text(variables, "minWorkers")) if lower is None else int(lower)
    most = count(text(variables, "maxWorkers")) if upper is None else int(upper)
    return f"{role.path}.minReplicas", least, most or role.replicas, "Set minReplicas lower than maxReplicas."


def _fixed_variables(job: CheckedJob, role: Role, launch: Launch) -> dict[str, str]:
    """The variables with a fixed value; the supervisor changes that of a TrainingJob when it resumes it smaller."""
    variables = {**role.environment, **launch.environment}
    if job.kind is Kind.TRAINING_JOB:
        variables.pop(SIZE, None)
    return variables


def _place(role: Role, launch: Launch) -> str:
    return f"{role.path}: {launch.program}" if role.path else launch.program


def _script(job: CheckedJob) -> str:
    scripts = {Kind.TRAINING_JOB: "/etc/edl/discover_hosts.sh", Kind.MPI_JOB: "/etc/mpi/discover_hosts.sh"}
    return scripts.get(job.kind, "kubeai-discover-hosts")
