"""Nodes, and jobs that want to resume on them."""

from collections.abc import Mapping
from dataclasses import replace

from supervisor.decide.capacity import PendingJob, Reservation
from supervisor.decide.packing import accepts, how_many
from supervisor.domain.capacity import Demand, Effect, NodeCapacity, Pods, ResourceRequest, Taint, Toleration
from supervisor.domain.ids import Host, cluster_job
from supervisor.domain.job import Phase, SupervisedJob
from tests.supervisor.decide.decide_builders import T0, spec, suspended_job

GPU = "nvidia.com/gpu"
EVERYTHING = (Toleration(exists=True),)
SPOT = Taint(key="spot", value="true", effect=Effect.NO_SCHEDULE)
CORDON = Taint(key="node.kubernetes.io/unschedulable", effect=Effect.NO_SCHEDULE)


def fits(pod: Demand, node: NodeCapacity) -> bool:
    """Whether the scheduler could bind one such pod to the node now."""
    return how_many(pod, node.free) > 0 and accepts(pod, node)


def room(
    name: str, gpus: int = 0, *, cpu: int = 96, pods: int = 250, scarce: str = GPU, **other: object
) -> NodeCapacity:
    """A node with that much left; `other` are its labels or taints."""
    free = {"cpu": cpu * 1000, "pods": pods * 1000, scarce: gpus * 1000}
    return replace(NodeCapacity(name=name, free=free), **other)  # type: ignore[arg-type]  # Names are its fields.


def demand(gpus: int = 0, *, cpu: int = 0, scarce: str = GPU, **other: object) -> Demand:
    """The demand of a pod with these requests; `other` are further fields."""
    requests = {name: amount * 1000 for name, amount in ((scarce, gpus), ("cpu", cpu)) if amount}
    return replace(Demand(requests=requests), **other)  # type: ignore[arg-type]  # Names are its fields.


def worker_names(count: int) -> frozenset[Host]:
    return frozenset(Host(f"job-worker-{number}") for number in range(count))


def waiting(
    name: str, least: int = 1, most: int = 4, *, since: float = 0.0, listed: int | None = None
) -> SupervisedJob:
    """A job of the cluster that was suspended `since` seconds after T0, to resume with `least` to `most` workers."""
    hosts = worker_names(most if listed is None else listed)
    job = suspended_job(spec(least, most), hosts, since=T0 + since)
    return replace(job, name=cluster_job("ns", "trainingjob", name))


def applicant(  # noqa: PLR0913 - a job has no fewer sides
    name: str,
    least: int = 1,
    most: int = 4,
    *,
    since: float = 0.0,
    worker: Demand | None = None,
    launcher: Demand | None = None,
    others: tuple[Pods, ...] = (),
) -> PendingJob:
    """A job that wants to resume on workers of one GPU each unless something else is said."""
    request = ResourceRequest(worker=worker or demand(1), launcher=launcher, others=others)
    return PendingJob(waiting(name, least, most, since=since), request)


def reservation(
    each: PendingJob, workers: int, *, launcher: bool = False, probing: bool = False, others: int = 0
) -> Reservation:
    since = T0 if probing else None
    decision = replace(each.job.decision, phase=Phase.RESUMING, waiting_since=since)
    return Reservation(replace(each.job, decision=decision), each.request, workers, launcher, others)


def labelled(**labels: str) -> Mapping[str, str]:
    return labels
