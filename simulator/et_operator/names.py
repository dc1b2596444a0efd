"""The words of et-operator's resources."""

from enum import StrEnum

GROUP = "kai.alibabacloud.com"
VERSION = "v1alpha1"

GROUP_LABEL = "group-name"
JOB_LABEL = "training-job-name"
ROLE_LABEL = "training-job-role"
INDEX_LABEL = "replica-index"
SCALE_OUT_LABEL = "scaleout-name"

SUSPEND_ANNOTATION = "job-supervisor.kube-ai.io/job-suspended"
EDL = "/etc/edl"
"""Where the launcher finds the host list and the script that prints it."""
CONTAINER = "et"


class Role(StrEnum):
    """What a pod is for."""

    LAUNCHER = "launcher"
    WORKER = "worker"


class Phase(StrEnum):
    """Where a TrainingJob stands, by its status."""

    NEW = ""
    CREATED = "Created"
    RUNNING = "Running"
    SCALING = "Scaling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


class ScalePhase(StrEnum):
    """Where a ScaleIn or ScaleOut stands."""

    NEW = ""
    SCALING = "Scaling"
    SUCCEEDED = "ScaleSucceeded"
    FAILED = "ScaleFailed"


class Step(StrEnum):
    """What the operator has done of a start, as conditions of the job: what is there is not done again."""

    WORKERS_CREATED = "WorkersCreated"
    WORKERS_READY = "WorkersReady"
    LAUNCHER_CREATED = "LauncherCreated"


def worker_name(job: str, index: int) -> str:
    """The pod of a worker."""
    return f"{job}-worker-{index}"


def index_of(worker: str) -> int:
    """The number at the end of a worker's name; -1 where there is none."""
    number = worker.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
