"""Lists the kinds of jobs that are supervised on a cluster: one line each."""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from servicekit.kubernetes.client import Resource
from supervisor.cluster.objects import Pod
from supervisor.failpoints import At
from supervisor.identity.tokens import ProcessPrincipal
from supervisor.jobs.batchjob.kind import BATCHJOB
from supervisor.jobs.jobset.kind import JOBSET
from supervisor.jobs.kind import AnyKind, JobReference
from supervisor.jobs.mpijob.kind import MPIJOB
from supervisor.jobs.pytorchjob.kind import PYTORCHJOB
from supervisor.jobs.tfjob.kind import TFJOB
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from supervisor.jobs.trainjob.kind import TRAINJOB
from supervisor.jobs.vcjob.kind import VCJOB

KINDS: tuple[AnyKind, ...] = (
    TRAININGJOB,
    MPIJOB,
    PYTORCHJOB,
    TFJOB,
    VCJOB,
    TRAINJOB,
    JOBSET,
    # The last one, as these are also parts of jobs of other kinds, which claim their pods.
    BATCHJOB,
)

POD_LABELS = frozenset(label for kind in KINDS for label in kind.pod_labels)
"""The labels of pods that the kinds need."""

ANNOTATIONS = frozenset(name for kind in KINDS for name in kind.annotations)
"""The annotations with our prefix that only jobs of some kinds have."""

RESOURCES: Mapping[str, Resource] = {kind.name: kind.resource for kind in KINDS}
"""The API resource of each kind, by the kind's name."""

FAILPOINTS: tuple[StrEnum, ...] = (*At, *(point for kind in KINDS for point in kind.failpoints))
"""Every failpoint of the supervisor."""

OwnerOf = Callable[[JobReference], JobReference]


def chosen(names: Collection[str]) -> tuple[AnyKind, ...]:
    """Returns the kinds with these names, in the order of `KINDS`, and those of which their controllers make jobs.

    Without names, these are all kinds.

    Raises:
        ValueError: A name is no kind's.
    """
    if unknown := sorted(set(names) - RESOURCES.keys()):
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(RESOURCES)}")
    wanted = {*names, *(made.name for kind in KINDS if kind.name in names for made in made_by(kind))}
    return tuple(kind for kind in KINDS if not names or kind.name in wanted)


def made_by(kind: AnyKind) -> tuple[AnyKind, ...]:
    """The kinds of which a kind's controller makes a job for each of its own."""
    return tuple(made for made in KINDS if kind.dependent is not None and kind.dependent.kind == made.name)


def job_of(pod: Pod, owner_of: OwnerOf = lambda job: job) -> JobReference | None:
    """The job that a pod belongs to, if the pod has the job's uid; None for other pods.

    Args:
        pod: The pod.
        owner_of: Returns the job of which a controller has made a job, or that job itself.
    """
    references = filter(None, (kind.reference(pod) for kind in KINDS))
    return next((owner_of(each) for each in references if each.uid), None)


def process_of(pod: Pod | None, owner_of: OwnerOf = lambda job: job) -> ProcessPrincipal | None:
    """The training process of a pod that a job owns; None for other pods.

    Its run is None, because only the job has it.
    """
    job = None if pod is None else job_of(pod, owner_of)
    return None if pod is None or job is None else ProcessPrincipal(job.name, job.uid, run=None, host=pod.host)
