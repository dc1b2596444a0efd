"""JobSets as jobs of replicas, and how they are read: whatever the API server takes must not stop the rest."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec

from servicekit.bounds import counted
from servicekit.kubernetes.objects import Owner
from supervisor.cluster.annotations import ours
from supervisor.cluster.podspec import Body
from supervisor.jobs import manifest
from supervisor.jobs.manifest import PodTemplate, decoded
from supervisor.jobs.observation import refusal
from supervisor.jobs.replicated.objects import Condition, ReplicatedJob, ReplicatedSpec

_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"
_INDEXED = "Indexed"
_ENDED = "Complete"
_CONDITIONS = {"Completed": Condition.SUCCEEDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSet(ReplicatedJob):
    """One JobSet, whose roles are its replicated jobs, and the parts of a role its Jobs.

    Attributes:
        restarts: How often its controller has made all of its Jobs anew.
        owner: The job that it is a part of, which suspends it; None if it is nobody's part.
    """

    restarts: int = 0
    owner: Owner | None = None

    @property
    def run_id(self) -> str:
        """The id of its run, which also ends when its controller makes all of its Jobs anew."""
        return f"{self.noted_start}.{self.restarts}" if self.noted_start else ""


class _Job(Body, frozen=True):
    template: PodTemplate
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = _INDEXED

    @property
    def is_one_run(self) -> bool:
        """Whether all of its pods train together, each with an index."""
        is_indexed = self.completion_mode == _INDEXED and self.parallelism == self.completions
        return is_indexed and (self.parallelism or 0) >= 0


class _JobTemplate(Body, frozen=True):
    spec: _Job


class _Dependency(Body, frozen=True):
    name: str
    status: str


class _ReplicatedJob(Body, frozen=True):
    name: str
    template: _JobTemplate
    replicas: int = 1
    depends_on: tuple[_Dependency, ...] | None = ()

    @property
    def pods(self) -> int:
        return self.replicas * (self.template.spec.parallelism or 0)


class _Spec(Body, frozen=True):
    replicated_jobs: tuple[_ReplicatedJob, ...]
    suspend: bool | None = None
    managed_by: str | None = None

    def training(self) -> Iterator[_ReplicatedJob]:
        """Those that are no preparation, which has ended when the training begins."""
        dependencies = (each for job in self.replicated_jobs for each in job.depends_on or ())
        ended = {each.name for each in dependencies if each.status == _ENDED}
        return (job for job in self.replicated_jobs if job.name not in ended)


class _Status(Body, frozen=True):
    conditions: tuple[manifest.Condition, ...] | None = None
    restarts: int = 0

    @property
    def resumed_at(self) -> datetime | None:
        """When it was last resumed; None if it never was."""
        suspensions = (each for each in self.conditions or () if each.type == Condition.SUSPENDED)
        return next((each.last_transition_time for each in suspensions if not each.holds), None)


def read_jobset(data: bytes | msgspec.Raw) -> JobSet:
    """Returns a JobSet from the API server's JSON.

    It has no spec if its pods are no run that could be stopped and started as one.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=manifest.JobBody)
    metadata, spec, status = read.metadata, decoded(read.spec, _Spec), decoded(read.status, _Status) or _Status()
    return JobSet(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        elsewhere=spec is not None and spec.managed_by not in (None, _CONTROLLER),
        conditions=frozenset(_CONDITIONS.get(each.type, each.type) for each in status.conditions or () if each.holds),
        started_at=status.resumed_at or metadata.creation_timestamp,
        spec=None if spec is None else _spec(spec),
        restarts=counted(status.restarts),
        owner=metadata.owner,
    )


def _spec(spec: _Spec) -> ReplicatedSpec | None:
    jobs = list(spec.training())
    are_runs = all(job.template.spec.is_one_run and job.replicas >= 0 for job in jobs)
    if not are_runs or not any(job.pods for job in jobs):
        return None
    largest = max(jobs, key=lambda job: job.pods)
    # A role for each replicated job and not for each of its Jobs: a JobSet may have a million of these.
    sizes = {job.name: job.pods for job in jobs}
    why = refusal([job.pods for job in jobs])
    try:
        demands = {} if why else {job.name: job.template.spec.template.demand() for job in jobs}
    except (msgspec.MsgspecError, ValueError):
        return None
    return ReplicatedSpec(
        sizes=sizes,
        scaled=largest.name,
        suspended=bool(spec.suspend),
        demands=demands,
        annotations=tuple(job.template.spec.template.annotations for job in jobs),
        has_fixed_size=True,
        parts={job.name: job.template.spec.parallelism or 0 for job in jobs},
        refusal=why,
    )
