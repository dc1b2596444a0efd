"""Defines jobs in the form that the rules check, from manifests and command lines alike, and the rules and problems."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from servicekit.bounds import whole
from supervisor.check.command import KUBEAI_RUN, TORCHRUN, Launch
from supervisor.cluster.annotations import ON_LOSS, opts_in, opts_out
from supervisor.domain.job import OnLoss

ASSUMED_CHECKPOINT_SECONDS = 30.0
"""How long a checkpoint takes if nobody says it: as long as the grace that Kubernetes gives by default."""

KUBEAI = "kubeai"
"""The rendezvous backend of the supervisor. Its agents wait when their host leaves, and do not exit."""

HUGE = 10**9
"""Numbers of a manifest at or above this are not read."""

_FALSE = ("", "0", "false", "False")


class CheckedKind(StrEnum):
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


JOB_SETS = frozenset({CheckedKind.JOB_SET, CheckedKind.TRAIN_JOB})
"""Kinds of which a JobSet is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMount:
    """A volume that a container sees: its path, and the type of the volume as Kubernetes names it."""

    path: str
    volume: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRole:
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
    pod: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    launches: tuple[Launch, ...] = ()
    mounts: tuple[VolumeMount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticAgent:
    """An agent of torchrun, set up by its options or by the environment variables in their place.

    Attributes:
        launch: Has no words if the image's own command is used.
        place: Where it is started, in words.
        backend: The rendezvous backend; torchrun's own default is a static one, which knows no members.
        nodes: The number of nodes as written: `N` or `MIN:MAX`.
        fixed_nodes: The number of nodes if it cannot change; None if it can, or if nobody can know.
        max_restarts: How many restarts each agent has; None if nobody can know.
    """

    role: CheckedRole
    launch: Launch
    place: str
    backend: str
    endpoint: str
    standalone: bool
    nodes: str
    fixed_nodes: int | None
    max_restarts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedJob:
    """A job.

    Attributes:
        spec: That of the manifest, for what only one kind has; that of the JobSet which becomes of a TrainJob.
        spec_path: Where that spec is.
        suspended: Whether the spec says that the job is suspended.
    """

    kind: CheckedKind
    name: str
    namespace: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    spec_path: str = "spec"
    suspended: bool = False
    roles: tuple[CheckedRole, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @property
    def opts_in(self) -> bool:
        """Whether the job or any of its templates opts in, and the job itself does not opt out."""
        if opts_out(self.annotations):
            return False
        return opts_in(self.annotations) or any(opts_in(role.annotations) for role in self.roles)

    @property
    def lacks_pods(self) -> bool:
        """Whether another object, which was not read, describes its pods."""
        return self.kind is CheckedKind.TRAIN_JOB and not self.spec

    @property
    def holds(self) -> bool:
        """Whether the job keeps its number of workers: after a loss it waits for a replacement."""
        objects = (self.annotations, *(role.annotations for role in self.roles))
        annotation = next((found[ON_LOSS] for found in objects if ON_LOSS in found), None)
        options = (launch.option("--on-loss") for _, launch in self.launches(KUBEAI_RUN))
        return OnLoss.HOLD in (annotation, *options)

    def launches(self, *programs: str) -> Iterator[tuple[CheckedRole, Launch]]:
        """The places where one of these programs is started."""
        for role in self.roles:
            for launch in role.launches:
                if launch.program in programs:
                    yield role, launch

    def elastic_agents(self) -> Iterator[ElasticAgent]:
        """The agents of torchrun.

        A PyTorchJob with an elasticPolicy starts torchrun, also if the command is that of its image.
        """
        for role in self.roles:
            found = [launch for launch in role.launches if launch.program == TORCHRUN]
            if not found and self.kind is CheckedKind.PYTORCH_JOB and "elasticPolicy" in self.spec:
                found = [Launch(TORCHRUN)]
            for launch in found:
                yield _elastic_agent(role, launch)


def _elastic_agent(role: CheckedRole, launch: Launch) -> ElasticAgent:
    variables = {**role.environment, **launch.environment}

    def setting(option: str, default: str) -> str:
        given = launch.option(f"--{option}")
        return (variables.get(f"PET_{option.upper().replace('-', '_')}", "") if given is None else given) or default

    nodes = setting("nnodes", "1:1")
    least, _, most = nodes.partition(":")
    return ElasticAgent(
        role=role,
        launch=launch,
        place=f"{role.path}: torchrun" if role.path else TORCHRUN,
        backend=setting("rdzv-backend", "static"),
        endpoint=setting("rdzv-endpoint", ""),
        standalone=launch.has("--standalone") or variables.get("PET_STANDALONE", "") not in _FALSE,
        nodes=nodes,
        fixed_nodes=whole(least, HUGE) if not most or least == most else None,
        max_restarts=whole(setting("max-restarts", "0"), HUGE),
    )


class FindingSeverity(StrEnum):
    """How bad a finding is, the worst first."""

    ERROR = "error"
    """A reclaim ends the job, or loses what it has computed."""
    WARNING = "warning"
    """A reclaim costs more than it has to, such as a retry, or a loss without a notice ends the job."""
    HINT = "hint"
    """The user may have meant it so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFacts:
    """Facts about the job beside its manifest.

    Attributes:
        checkpoint_seconds: How long a checkpoint takes; None if nobody has stated or measured it.
        measured: Whether the supervisor has measured it; otherwise a person has stated it.
        unread_seconds: For how long a process of the running job has not asked whether to stop.
        ranks: What is wrong with the ranks of the running job's processes, as a sentence; empty if nothing is.
        gang: Which gang has set the smallest size of the job, as a sentence; empty if none has.
    """

    checkpoint_seconds: float | None = None
    measured: bool = False
    unread_seconds: float | None = None
    ranks: str = ""
    gang: str = ""


NO_FACTS = CheckedFacts()


@dataclass(frozen=True, slots=True)
class JobProblem:
    """A problem that a rule has found.

    Attributes:
        where: The field of the manifest, or the option of a command.
        what: What would go wrong, as a sentence.
        fix: What to write instead, as a sentence.
    """

    where: str
    what: str
    fix: str


Look = Callable[[CheckedJob, CheckedFacts], Iterator[JobProblem]]


@dataclass(frozen=True, slots=True)
class CheckRule:
    """One rule; `title` names in a few words what it looks for."""

    id: str
    severity: FindingSeverity
    title: str
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinding:
    """A problem of one job, and the rule that has found it."""

    rule: str
    severity: FindingSeverity
    job: str
    where: str
    problem: str
    fix: str


def rule(identity: str, severity: FindingSeverity, title: str) -> Callable[[Look], CheckRule]:
    """Makes a rule of the function that looks for it."""
    return lambda look: CheckRule(identity, severity, title, look)
