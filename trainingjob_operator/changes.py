"""What the operator can do to a cluster: the values that `reconcile.py` returns and `controller.py` carries out."""

from dataclasses import dataclass

from trainingjob_operator.api import JobStatus, Pod, Scale, ScaleStatus


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status of the job, unless somebody else has changed the job since it was read."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class WriteScale:
    """Write the status of a ScaleIn or ScaleOut, and make the job its owner."""

    scale: Scale
    status: ScaleStatus


@dataclass(frozen=True, slots=True)
class CreateKeys:
    """Create the Secret with the ssh keys of the job."""


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create the headless Service that gives a pod its name in DNS."""

    pod: str


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """Create the ConfigMap with the list of hosts with which the launcher starts, or update it."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteGroup:
    """Create the PodGroup of the job, or write how many workers have to be scheduled together."""

    members: int


@dataclass(frozen=True, slots=True)
class CreateWorker:
    """Create the pod of a worker, in a ScaleOut of that name if it is not empty."""

    name: str
    run: int
    scale_out: str = ""


@dataclass(frozen=True, slots=True)
class CreateLauncher:
    """Create the pod of the launcher, which starts with these hosts."""

    run: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod with the grace of its spec."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class DeleteService:
    """Delete the Service of a worker that is gone for good: its number is not used again."""

    name: str


@dataclass(frozen=True, slots=True)
class WriteHosts:
    """Replace the list of hosts of a running launcher.

    Attributes:
        by_command: The launcher was made by et-operator: no volume shows it the list, so a command writes the file.
    """

    launcher: Pod
    text: str
    by_command: bool


@dataclass(frozen=True, slots=True)
class RunScript:
    """Run the script of a ScaleIn or ScaleOut in the launcher for these workers. If it fails, so does the scaling."""

    launcher: Pod
    scale: Scale
    workers: tuple[str, ...]


Change = (
    WriteStatus
    | WriteScale
    | CreateKeys
    | CreateService
    | WriteConfig
    | WriteGroup
    | CreateWorker
    | CreateLauncher
    | DeletePod
    | DeleteService
    | WriteHosts
    | RunScript
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The changes, in the order in which they have to be made, and when time alone may lead to another one.

    Each prefix of the changes is a state from which the next reconciliation reaches the same end.

    Attributes:
        again_at: Unix seconds; None where only another event can change anything.
    """

    changes: tuple[Change, ...] = ()
    again_at: float | None = None
