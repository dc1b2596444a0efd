"""Rules about whether the job can continue with fewer hosts or with other hosts, and about where its launcher runs."""

from collections.abc import Iterator

from servicekit.bounds import whole
from supervisor.check.command import HOROVODRUN, KUBEAI_RUN, MPIRUN, Launch, resolved
from supervisor.check.job import (
    HUGE,
    JOB_SETS,
    CheckedFacts,
    CheckedJob,
    CheckedKind,
    CheckedRole,
    FindingSeverity,
    JobProblem,
    rule,
)
from supervisor.check.manifests import items, mapping, number, text
from supervisor.cluster.annotations import MIN_WORKERS
from supervisor.cluster.gangs import GangDemand, gang_of
from supervisor.jobs.trainingjob.objects import SIZE

_RENDEZVOUS_FIX = (
    "Use the backend of the supervisor: --rdzv-backend=kubeai, or rdzvBackend: kubeai in an elasticPolicy."
)


@rule("rendezvous-standalone", FindingSeverity.ERROR, "torchrun --standalone, which replaces the rendezvous backend")
def rendezvous_standalone(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    # A job of a single node may well run alone.
    has_many_pods = sum(role.replicas for role in job.roles) > 1 or any(job.launches(KUBEAI_RUN))
    for agent in job.elastic_agents():
        if agent.standalone and (has_many_pods or agent.backend != "static" or agent.fixed_nodes != 1):
            yield JobProblem(
                f"{agent.place} --standalone",
                "With --standalone or PET_STANDALONE torchrun ignores the rendezvous backend without a word, and each "
                "node trains alone.",
                f"Remove it. {_RENDEZVOUS_FIX}",
            )


@rule("rendezvous-store-on-worker", FindingSeverity.WARNING, "a rendezvous store on a worker, which may be lost itself")
def rendezvous_store_on_worker(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for agent in job.elastic_agents():
        if agent.backend == "c10d" and not agent.standalone:
            host = agent.endpoint.rpartition(":")[0] or agent.endpoint or "one of the nodes"
            yield JobProblem(
                f"{agent.place} --rdzv-backend",
                f"The store of the rendezvous (c10d) is a process on {host}: if that node is lost without a notice, "
                "the run ends. An announced reclaim of any node stops the whole run after a checkpoint.",
                _RENDEZVOUS_FIX,
            )


@rule(
    "rendezvous-notices-late", FindingSeverity.WARNING, "a rendezvous that notices a leave only by a broken collective"
)
def rendezvous_notices_late(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for agent in job.elastic_agents():
        if agent.backend.startswith(("c10d", "etcd")) and not agent.standalone:
            yield JobProblem(
                f"{agent.place} --rdzv-backend",
                f"With the backend {agent.backend} the other nodes notice a leave by a broken collective: all steps "
                "since the last checkpoint are repeated, and each node uses one of its restarts.",
                _RENDEZVOUS_FIX,
            )


_SCRIPTS = {
    CheckedKind.TRAINING_JOB: "/etc/edl/discover_hosts.sh",
    CheckedKind.MPI_JOB: "/etc/mpi/discover_hosts.sh",
}
_PROCESSES = ("-np", "--num-proc", "-n", "-c")
_FIX = {
    CheckedKind.TRAINING_JOB: "Compute it from the number of workers: -np $((${workers}*${gpus})), with a variable "
    "workers.",
    CheckedKind.MPI_JOB: "Compute it in the shell: -np $(wc -l </etc/mpi/hostfile).",
    CheckedKind.COMMAND: "Write -np {workers} in a command of kubeai-run, which puts in the number of granted hosts.",
}


@rule("fixed-processes", FindingSeverity.WARNING, "a fixed number of processes in the launcher's command")
def fixed_processes(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for role, launch in () if _has_one_size(job) else job.launches(HOROVODRUN, MPIRUN):
        written = launch.option(*_PROCESSES) or ""
        fixed = {**role.environment, **launch.environment}
        if job.kind is CheckedKind.TRAINING_JOB:
            fixed.pop(SIZE, None)  # The supervisor changes it when it resumes the job smaller.
        if whole(resolved(written, fixed), HUGE) is not None:
            yield JobProblem(
                _place(role, launch),
                f"{launch.program} starts exactly {written} processes, so after a reclaim the job resumes only when "
                "all workers can run again.",
                _FIX.get(job.kind, "Compute it from the number of workers."),
            )


@rule("fixed-nodes", FindingSeverity.WARNING, "a fixed number of nodes for torchrun")
def fixed_nodes(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for agent in () if _has_one_size(job) else job.elastic_agents():
        nodes = agent.fixed_nodes
        if nodes is not None and nodes > 1 and not agent.standalone:
            yield JobProblem(
                f"{agent.place} --nnodes",
                f"torchrun runs on exactly {nodes} nodes, so the loss of any of them stops the whole job.",
                "Use an elasticPolicy with minReplicas and maxReplicas."
                if job.kind is CheckedKind.PYTORCH_JOB
                else "Use --nnodes=MIN:MAX.",
            )


@rule("static-hosts", FindingSeverity.WARNING, "a launcher that reads its list of hosts once")
def static_hosts(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    script = _SCRIPTS.get(job.kind, "kubeai-discover-hosts")
    for role, launch in job.launches(HOROVODRUN, MPIRUN):
        if launch.program == MPIRUN or not launch.has("--host-discovery-script"):
            yield JobProblem(
                _place(role, launch),
                f"{launch.program} reads its hosts once, so the reclaim of any worker stops the whole job.",
                f"Use horovodrun with --min-np and --host-discovery-script {script}.",
            )


@rule("slots-unknown", FindingSeverity.ERROR, "horovodrun that learns nowhere how many processes a host takes")
def slots_unknown(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    script = _SCRIPTS[CheckedKind.MPI_JOB]
    for role, launch in job.launches(HOROVODRUN) if job.kind is CheckedKind.MPI_JOB else ():
        if launch.option("--host-discovery-script") == script and not launch.has("--slots-per-host", "--slots"):
            yield JobProblem(
                _place(role, launch),
                f"{script} of mpi-operator lists hosts without slots, and horovodrun fails with a TypeError when it "
                "reads the list.",
                "Add --slots-per-host with the number of processes of a worker.",
            )


@rule("no-room-to-shrink", FindingSeverity.HINT, "a smallest number of workers that is the largest, or is not given")
def no_room_to_shrink(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for where, least, most, fix in () if _has_one_size(job) else _bounds(job):
        if least is None or (most is not None and least >= most):
            said = "The job names no smallest number" if least is None else f"The job needs {least} of {most}"
            yield JobProblem(where, f"{said} of workers, so the reclaim of any worker stops the whole job.", fix)


def _bounds(job: CheckedJob) -> Iterator[tuple[str, int | None, int | None, str]]:
    """The minimum and maximum number of workers of the job if it has them, and how to write them."""
    workers = [role for role in job.roles if role.name.lower() == "worker"]
    match job.kind:
        case CheckedKind.TRAINING_JOB:
            variables = {name: value for each in job.roles for name, value in each.environment.items()}
            for role in workers:
                lower, upper = (
                    number(job.spec, "etReplicaSpecs", role.name, name) for name in ("minReplicas", "maxReplicas")
                )
                least = whole(text(variables, "minWorkers"), HUGE) if lower is None else int(lower)
                most = whole(text(variables, "maxWorkers"), HUGE) if upper is None else int(upper)
                fix = "Set minReplicas lower than maxReplicas."
                yield f"{role.path}.minReplicas", least, most or role.replicas, fix
        case CheckedKind.MPI_JOB:
            annotations = [job.annotations, *(role.annotations for role in job.roles)]
            least = next((whole(found[MIN_WORKERS], HUGE) for found in annotations if MIN_WORKERS in found), None)
            fix = f"Add the annotation {MIN_WORKERS} to the job."
            for role in workers:
                yield "metadata.annotations", least, role.replicas, fix
        case CheckedKind.PYTORCH_JOB if "elasticPolicy" in job.spec:
            lower, upper = (number(job.spec, "elasticPolicy", name) for name in ("minReplicas", "maxReplicas"))
            most = None if upper is None else int(upper)
            yield "spec.elasticPolicy.minReplicas", int(lower or 1), most, "Set minReplicas lower than maxReplicas."
        case CheckedKind.COMMAND:
            for _, launch in job.launches(KUBEAI_RUN):
                least = whole(launch.option("--min-workers") or "1", HUGE)
                yield "kubeai-run --min-workers", least, whole(launch.option("--max-workers") or "", HUGE), "Lower it."
        case _:
            return


@rule("gang-above-minimum", FindingSeverity.HINT, "a gang scheduler that demands more workers than the job")
def gang_above_minimum(job: CheckedJob, facts: CheckedFacts) -> Iterator[JobProblem]:
    fix = "Lower it to the job's own minimum."
    if facts.gang:
        yield JobProblem("the job's gang", facts.gang, fix)
        return
    own = _own_minimum(job)
    for demand, launchers in () if _has_one_size(job) else _demands(job):
        needed = demand.pods - launchers
        if own is not None and needed > own:
            what = f"{demand.source} demands {demand.pods} pods at a time, so the job needs at least {needed} hosts"
            yield JobProblem(demand.source, f"{what}, and its own minimum of {own} has no effect.", fix)


def _own_minimum(job: CheckedJob) -> int | None:
    """The fewest hosts with which the job itself says that it goes on; None if it says none."""
    bounds = [least for _, least, _, _ in _bounds(job) if least is not None]
    annotations = [job.annotations, *(role.annotations for role in job.roles)]
    written = next((whole(found[MIN_WORKERS], HUGE) for found in annotations if MIN_WORKERS in found), None)
    if bounds or written is None or job.kind is CheckedKind.PYTORCH_JOB:
        return min(bounds, default=None)
    largest = max((role.replicas for role in job.roles), default=0)
    return written + sum(role.replicas for role in job.roles) - largest


def _demands(job: CheckedJob) -> Iterator[tuple[GangDemand, int]]:
    """Yields what the job itself demands of a gang scheduler, with the number of launchers among the demanded pods."""
    launchers = [role for role in job.roles if role.name.lower() == "launcher"]
    total = sum(role.replicas for role in job.roles)
    field = number(job.spec, "runPolicy", "schedulingPolicy", "minAvailable")
    if field is not None:
        yield GangDemand(int(field), "spec.runPolicy.schedulingPolicy.minAvailable"), len(launchers)
    # Volcano itself sets it to all pods where the user has given none.
    least = number(job.spec, "minAvailable") if job.kind is CheckedKind.VOLCANO_JOB else None
    if least is not None and least < total:
        yield GangDemand(int(least), "spec.minAvailable"), 0
    members = [(role, gang_of(role.labels, role.annotations)) for role in job.roles]
    for demand in dict.fromkeys(member.demand for _, member in members if member is not None):
        if demand is not None:
            yield demand, sum(member is not None and role in launchers for role, member in members)


def _has_one_size(job: CheckedJob) -> bool:
    """Whether the job keeps its number of workers, or its controller accepts no other number."""
    return job.holds or job.kind in JOB_SETS


def _place(role: CheckedRole, launch: Launch) -> str:
    return f"{role.path}: {launch.program}" if role.path else launch.program


_SPOT_LABELS = {
    "alibabacloud.com/compute-qos": "best-effort",
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacitytype": "spot",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "cloud.google.com/gke-provisioning": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node.kubernetes.io/lifecycle": "spot",
}
"""Labels of nodes that may be reclaimed, in lower case; the first one is a label of pods."""


@rule("launcher-on-spot", FindingSeverity.WARNING, "a launcher, master or chief on nodes that may be reclaimed")
def launcher_on_spot(job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
    for role in job.roles:
        chosen = next(
            (f"{name}: {value}" for name, value in _chosen(role) if _SPOT_LABELS.get(name.lower()) == value.lower()),
            None,
        )
        if role.leads and chosen is not None:
            yield JobProblem(
                f"{role.path}.template",
                f"The {role.name} runs on capacity that may be reclaimed ({chosen}), and its loss stops the whole job.",
                f"Place the {role.name} on ordinary nodes; it needs no accelerator in a job with workers.",
            )


def _chosen(role: CheckedRole) -> Iterator[tuple[str, str]]:
    """The labels that the pod requires of nodes, and the labels of the pod itself."""
    for name, value in {**role.labels, **mapping(role.pod, "nodeSelector")}.items():
        yield name, str(value)
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    for term in items(role.pod, "affinity", "nodeAffinity", required, "nodeSelectorTerms"):
        for expression in items(term, "matchExpressions"):
            values = items(expression, "values")
            # Only if every value is one of spot, the pod cannot run elsewhere.
            if text(expression, "operator") == "In" and len(values) == 1:
                yield text(expression, "key"), str(values[0])
