"""A job as the rules see it: the same for every kind of manifest, and for a command line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from supervisor.check.command import KUBEAI_RUN, Launch
from supervisor.check.values import Value
from supervisor.cluster.annotations import ON_LOSS, opts_in, opts_out
from supervisor.domain.job import OnLoss


class Kind(StrEnum):
    """The kinds that can be checked."""

    TRAINING_JOB = "TrainingJob"
    MPI_JOB = "MPIJob"
    PYTORCH_JOB = "PyTorchJob"
    TF_JOB = "TFJob"
    VOLCANO_JOB = "Volcano Job"
    JOB = "Job"
    JOB_SET = "JobSet"
    TRAIN_JOB = "TrainJob"
    COMMAND = "command"


JOB_SETS = frozenset({Kind.JOB_SET, Kind.TRAIN_JOB})
"""Kinds of which a JobSet is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A volume that a container sees: its path, and the type of the volume as Kubernetes names it."""

    path: str
    volume: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The pods of one role.

    Attributes:
        name: The role, or the name of a Volcano task or a replicated job.
        path: Where the manifest has it.
        leads: Whether the job cannot go on without this pod: a launcher, a master or a chief.
        replicas: How many pods there are.
        restart_policy: That of the role, not of its pod template; empty if it is not written.
        annotations: Those of the pod template.
        labels: Those of the pod template.
        pod: The spec of the pod template.
        environment: The variables with a literal value, also those that the controller adds.
        texts: The command line of each container as one text.
        launches: The programs that the containers start, as far as they can be recognized.
        mounts: The mounted volumes.
    """

    name: str
    path: str
    leads: bool = False
    replicas: int = 1
    restart_policy: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    pod: Mapping[str, Value] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    launches: tuple[Launch, ...] = ()
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedJob:
    """A job.

    Attributes:
        spec: That of the manifest, for what only one kind has; that of the JobSet which becomes of a TrainJob.
        spec_path: Where that spec is.
    """

    kind: Kind
    name: str
    namespace: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Value] = field(default_factory=dict)
    spec_path: str = "spec"
    roles: tuple[Role, ...] = ()

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {place}{self.name}"

    @property
    def opts_in(self) -> bool:
        """Whether the job or any of its templates opts in, and the job itself does not opt out."""
        if opts_out(self.annotations):
            return False
        return opts_in(self.annotations) or any(opts_in(role.annotations) for role in self.roles)

    @property
    def lacks_pods(self) -> bool:
        """Whether its pods are described by another object, which was not read."""
        return self.kind is Kind.TRAIN_JOB and not self.spec

    @property
    def holds(self) -> bool:
        """Whether the job wants no other number of workers: after a loss it waits for a replacement."""
        objects = (self.annotations, *(role.annotations for role in self.roles))
        annotation = next((found[ON_LOSS] for found in objects if ON_LOSS in found), None)
        options = (launch.option("--on-loss") for _, launch in self.launches(KUBEAI_RUN))
        return OnLoss.HOLD in (annotation, *options)

    def launches(self, *programs: str) -> Iterator[tuple[Role, Launch]]:
        """The places where one of these programs is started."""
        for role in self.roles:
            for launch in role.launches:
                if launch.program in programs:
                    yield role, launch
